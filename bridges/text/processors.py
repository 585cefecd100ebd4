"""Text processors: a checkpoint's tokenizer and chat template, without transformers or torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridges.text.chat_template import read_templates
from bridges.text.gguf_tokenizer import gguf_processor
from bridges.text.text_processor import StreamDecoder, TextProcessor
from bridges.text.tokenizer_build import build_processor
from bridges.text.tokenizer_files import read_optional, read_tokenizer_files

__all__ = ["StreamDecoder", "TextProcessor", "gguf_processor", "read_processor"]


def read_processor(
    folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None
) -> TextProcessor | None:
    """Read the tokenizer and chat templates of a checkpoint folder.

    Args:
        folder: with tokenizer.json, or GPT-2's vocab.json and merges.txt.
        config: config.json as read, for ids that the tokenizer's files leave open.

    Returns:
        The processor, or None where the folder has no tokenizer that dew reads.

    Raises:
        InputRefused: a tokenizer or template file that is broken or cannot be used.
    """
    folder = Path(folder)
    config = dict(config or {})
    files = read_tokenizer_files(folder, str(config.get("model_type", "")))
    if files is None:
        return None
    templates = read_templates(folder, files.settings)
    generation = read_optional(folder, "generation_config.json")
    return build_processor(files, templates, generation_config=generation, config=config)
