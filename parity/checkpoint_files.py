"""The files that a checkpoint is made of, and what their bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bridges.assets import sha256_of

WEIGHTS = ("*.safetensors", "*.gguf", "pytorch_model*.bin", "adapter_model.bin")
CONFIGS = (
    *("config.json", "generation_config.json", "adapter_config.json", "*.index.json"),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
    *("vocab*.json", "vocab*.txt", "merges.txt", "*.model", "preprocessor_config.json"),
    *("processor_config.json", "video_preprocessor_config.json", "*.py"),
)
"""What changes a model or its texts; not what tells about it, such as README.md."""


def file_digests(source: Path) -> dict[str, str]:
    """Return the sha256 of each file of a checkpoint by its name, weights first.

    Args:
        source: a folder, or one GGUF file.
    """
    if source.is_file():
        return {source.name: sha256_of(source)}
    names: dict[str, None] = {}
    for pattern in (*WEIGHTS, *CONFIGS):
        names |= dict.fromkeys(path.name for path in sorted(source.glob(pattern)) if path.is_file())
    return {name: sha256_of(source / name) for name in names}


def file_changes(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a line for each file that is another, is gone or is new."""
    gone = [f"{name} is gone" for name in was if name not in now]
    new = [f"{name} is new" for name in now if name not in was]
    other = [
        f"{name} has other bytes: sha256 {now[name][:12]}…, certified {was[name][:12]}…"
        for name in was
        if name in now and now[name] != was[name]
    ]
    return [*other, *gone, *new]
