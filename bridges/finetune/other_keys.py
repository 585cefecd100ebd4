"""Keys of axolotl's and TRL's configuration files: what each means here, and what is not honoured.

TRL's own names are ours; axolotl's are those that its example files use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridges.finetune.settings import SOURCE_KEYS
from dew.errors import InputRefused, shown

SAME = {
    "base_model": "model_name_or_path",
    "revision_of_model": "model_revision",
    "sequence_len": "max_length",
    "sample_packing": "packing",
    "micro_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "num_epochs": "num_train_epochs",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
    "val_set_size": "eval_split",
    "lora_target_linear": "lora_target_modules",
    "peft_use_rslora": "use_rslora",
    "peft_use_dora": "use_dora",
    "adam_eps": "adam_epsilon",
    "gradient_checkpointing": "activation_checkpointing",
}
"""axolotl's key to ours, where the value means the same."""
DATASET = {
    "path": "dataset_name",
    "data_files": "dataset_name",
    "split": "dataset_train_split",
    "field": "dataset_text_field",
    "text_column": "dataset_text_field",
}
KINDS = {"completion": "causal-lm", "chat_template": "chat", "alpaca": "chat", "sharegpt": "chat"}
"""axolotl's `type` of a dataset to the task."""
HALVES = {"bf16": "bfloat16", "fp16": "float16"}
_UNHONOURED = """
flash_attention xformers_attention sdp_attention flex_attention eager_attention
attn_implementation load_in_pretrained tokenizer_type model_type tf32 deepspeed fsdp
fsdp_config wandb_project wandb_entity wandb_watch wandb_name wandb_log_model
dataset_prepared_path dataset_processes dataset_num_proc pad_to_sequence_len group_by_length
strict special_tokens tokens debug plugins hub_model_id push_to_hub auto_resume_from_checkpoints
xformers local_rank chat_template eval_sample_packing train_on_inputs use_liger_kernel
liger_kernel is_llama_derived_model trust_remote_code gradient_checkpointing_kwargs
dataset_kwargs bf16_full_eval ddp_find_unused_parameters dataloader_num_workers
dataloader_pin_memory torch_compile use_tensorboard
"""
UNHONOURED = frozenset(_UNHONOURED.split())
"""Keys that are read and change nothing here."""
MARKS = frozenset({"base_model", "micro_batch_size", "sequence_len", "val_set_size"})
"""Keys by which another tool's file is told from our own."""
WHERE = ("dataset_name", "dataset_train_split")
"""What a dataset's own keys say of where it lies."""
_OWN_KEYS = """
type ds_type field text_column shards preprocess_shards revision trust_remote_code chat_template
field_messages message_property_mappings roles roles_to_train train_on_eos split_thinking
"""
OWN_KEYS = frozenset(_OWN_KEYS.split())
"""Keys of a dataset that axolotl alone has."""
FORMATS = ("json", "csv", "parquet", "arrow", "text")
"""What axolotl writes as the path where `data_files` are what is read."""


def translated(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a file's settings by our names, and what is not honoured, in one line.

    A file without any of the other tools' keys comes back as it is.

    Args:
        values: what the file holds.

    Raises:
        InputRefused: datasets of several kinds, or an adapter of another kind.
    """
    found = {name.replace("-", "_"): value for name, value in values.items()}
    if not MARKS & found.keys() and not _axolotls(found.get("datasets")):
        return dict(values), []
    out: dict[str, Any] = {}
    idle: list[str] = []
    for name, value in found.items():
        if name == "datasets":
            out |= _dataset(value, idle)
        elif name == "adapter":
            out |= _adapter(value)
        elif name in HALVES:
            out |= {"dtype": HALVES[name]} if value in (True, "auto", "true") else {}
        elif name == "lora_target_linear":
            out |= {"lora_target_modules": ["all-linear"]} if value else {}
        elif name in ("saves_per_epoch", "evals_per_epoch", "eval_table_size"):
            _per_epoch(name, value, out, idle)
        elif name == "early_stopping_patience" or name not in (SAME.keys() | UNHONOURED):
            out[name] = value
        elif name in UNHONOURED:
            idle += [] if value in (None, False, "", [], {}) else [name]
        elif value not in (None, ""):
            out[SAME[name]] = value
    if out.get("lr_scheduler_type") in ("one_cycle", "rex"):
        raise InputRefused(
            f"lr_scheduler {out['lr_scheduler_type']} is axolotl's own; take cosine or linear"
        )
    if out.get("eval_split") in (0, 0.0):
        del out["eval_split"]
    if isinstance(out.get("eval_split"), int | float) and out["eval_split"] >= 1:
        raise InputRefused("val_set_size counts rows; give the share that is held out, below 1")
    notes = [f"read and not honoured: {', '.join(sorted(idle))}"] if idle else []
    return out, notes


def _axolotls(value: Any) -> bool:
    """Whether a list of datasets has axolotl's keys, which ours has not."""
    parts = value if isinstance(value, list) else []
    return any(isinstance(part, Mapping) and OWN_KEYS & part.keys() for part in parts)


def _dataset(value: Any, idle: list[str]) -> dict[str, Any]:
    """Return the settings of axolotl's datasets: several become our `datasets`."""
    parts = value if isinstance(value, list) else []
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        raise InputRefused(
            f"datasets: found {shown(value, 80)}; expected a list of datasets, each a mapping with "
            "its path"
        )
    if len(parts) == 1 and not {"name", "columns", "fraction"} & parts[0].keys():
        return _one_dataset(parts[0], idle)
    sources, shared = [], [_one_dataset(part, idle) for part in parts]
    for part in parts:
        source = {name: part[name] for name in SOURCE_KEYS if part.get(name) is not None}
        if source.get("path") in FORMATS and "data_files" in source:
            source["path"] = source.pop("data_files")
        sources.append(source)
    kinds = [{n: v for n, v in one.items() if n not in WHERE} for one in shared]
    if any(kind != kinds[0] for kind in kinds):
        raise InputRefused(
            f"datasets: {shown(kinds, 200)}; expected the same type and field in each, since a run "
            "teaches one task"
        )
    return {**kinds[0], "datasets": sources}


def _one_dataset(part: Mapping[str, Any], idle: list[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in part.items():
        if name == "type" and isinstance(value, str):
            kind = value.partition(".")[0]
            if kind not in KINDS:
                raise InputRefused(
                    f"datasets: type {shown(value)} is not known; expected {', '.join(KINDS)}"
                )
            out["task"] = KINDS[kind]
        elif name in DATASET:
            out[DATASET[name]] = value[0] if isinstance(value, list) and len(value) == 1 else value
        elif name not in ("ds_type", "name", "columns", "fraction"):
            idle.append(f"datasets.{name}")
    return out


def _adapter(value: Any) -> dict[str, Any]:
    if value in (None, ""):
        return {}
    if value not in ("lora", "qlora"):
        raise InputRefused(f"adapter is {shown(value)}; expected lora or qlora")
    return {"use_peft": True} | ({"load_in_4bit": True} if value == "qlora" else {})


def _per_epoch(name: str, value: Any, out: dict[str, Any], idle: list[str]) -> None:
    what = {"saves_per_epoch": "save_strategy", "evals_per_epoch": "eval_strategy"}.get(name)
    if what is None or value in (None, 0):
        return
    out[what] = "epoch"
    if value != 1:
        idle.append(f"{name} {value} (once an epoch)")
