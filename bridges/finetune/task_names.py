"""The names of the tasks that `dew finetune` teaches."""

from __future__ import annotations

TASKS = {
    "chat": "bridges.finetune.tasks.chat:Chat",
    "dpo": "bridges.finetune.tasks.dpo:DPO",
    "grpo": "bridges.finetune.tasks.grpo:GRPO",
    "causal-lm": "bridges.finetune.tasks.causal_lm:CausalLM",
    "text-classification": "bridges.finetune.tasks.text_classification:TextClassification",
    "token-classification": "bridges.finetune.tasks.token_classification:TokenClassification",
    "question-answering": "bridges.finetune.tasks.question_answering:QuestionAnswering",
    "image-classification": "bridges.finetune.tasks.image_classification:ImageClassification",
    "seq2seq": "bridges.finetune.tasks.seq2seq:Seq2Seq",
    "speech-recognition": "bridges.finetune.tasks.speech_recognition:SpeechRecognition",
    "sentence-embedding": "bridges.finetune.tasks.sentence_embedding:SentenceEmbedding",
}
"""Name of a task to where its class lives; a run imports the one it needs."""
