"""Which task a run teaches: the one that was named, else what the checkpoint or the data is for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridges.finetune.examples import check_source
from bridges.finetune.task import Task, task_named
from dew.cli.command import Settings

DEFAULT = "causal-lm"
ENDINGS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
    "ForCTC": "speech-recognition",
    "WhisperForConditionalGeneration": "speech-recognition",
    "ForSpeechSeq2Seq": "speech-recognition",
}
"""The ending of an architecture's name to the task that it does."""
WRITERS = "ForConditionalGeneration"
"""What the classes of encoders with decoders end in; those with pictures do other things too."""
COLUMNS = (
    ({"question", "context", "answers"}, "question-answering"),
    ({"tokens", "ner_tags"}, "token-classification"),
    ({"tokens", "pos_tags"}, "token-classification"),
    ({"anchor", "positive"}, "sentence-embedding"),
    ({"image", "label"}, "image-classification"),
    ({"image", "labels"}, "image-classification"),
)
"""Columns that only one task has, for a checkpoint that says nothing of its own."""


PLAIN = (".txt", ".bin", ".npy")
"""Files without columns."""
WRITING = (
    ({"messages"}, "chat"),
    ({"conversations"}, "chat"),
    ({"chosen", "rejected"}, "dpo"),
    ({"prompt", "completion"}, "chat"),
    ({"instruction", "output"}, "chat"),
)
"""Columns that say what a decoder is to learn, where plain text is not what is there."""


def task_of(settings: Settings) -> Task:
    """Return the task of the settings, and say in one line where it was guessed.

    Raises:
        UnknownName: there is none of that name.
        InputRefused: two sources of data; a model that cannot be found, or whose config is no
            JSON.
    """
    check_source(settings)
    if settings["task"]:
        return task_named(settings["task"])
    if settings["reward"]:
        print("task: grpo, since there is a reward", file=sys.stderr)
        return task_named("grpo")
    from bridges.finetune.source_config import source_config

    config = source_config(settings)
    named = config.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    task = _by_architecture(names, config)
    if task is not None:
        print(f"task: {task}, since the checkpoint is a {names[0]}", file=sys.stderr)
        return task_named(task)
    writes = any(name.endswith(("ForCausalLM", "LMHeadModel", WRITERS)) for name in names)
    if not writes or not settings.given("dataset_text_field"):
        task = _by_columns(settings, WRITING if writes else COLUMNS)
    if task is not None:
        print(f"task: {task}, by the columns of the data", file=sys.stderr)
        return task_named(task)
    return task_named(DEFAULT)


def _by_architecture(names: list[str], config: Mapping[str, Any]) -> str | None:
    for ending, task in ENDINGS.items():
        if any(name.endswith(ending) for name in names):
            return task
    encodes = config.get("is_encoder_decoder") or config.get("model_type") in ("t5", "mt5")
    if encodes and "vision_config" not in config and "audio_config" not in config:
        return "seq2seq" if any(name.endswith((WRITERS, "MTModel")) for name in names) else None
    return None


def _by_columns(settings: Settings, known: Any) -> str | None:
    """Return the task whose columns a table has; None for plain text, which is read elsewhere."""
    from bridges.finetune.examples import training_records
    from dew.errors import InputRefused

    if Path(settings["dataset_name"]).suffix.lower() in PLAIN:
        return None
    try:
        records = training_records(settings)
    except InputRefused:
        return None  # what it is, its task says
    columns = {name.lower() for name in records.columns}
    if known is WRITING and "text" in columns:
        return None
    return next((task for needed, task in known if needed <= columns), None)
