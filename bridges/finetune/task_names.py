"""The names of the tasks that `dew finetune` teaches."""

from __future__ import annotations

TASKS = {
    "causal-lm": "bridges.finetune.tasks.causal_lm:CausalLM",
    "text-classification": "bridges.finetune.tasks.text_classification:TextClassification",
}
"""Name of a task to where its class lives; a run imports the one it needs."""
