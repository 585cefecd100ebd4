"""Summarization: texts in, shorter texts of what they say out."""

from __future__ import annotations

import warnings

from dew.inference.generation import GenerationOptions
from dew.inference.pipelines.text2text_generation import GLOBAL_LENGTH, Text2TextGeneration


class Summarization(Text2TextGeneration):
    """Summarises texts; see `Text2TextGeneration`. A result's key is `summary_text`."""

    name = "summarization"
    key = "summary"

    def warn(self, length: int, settings: GenerationOptions) -> None:
        """Warn of a summary that may be longer than its text, or of a minimum above the maximum."""
        longest = settings.max_length or GLOBAL_LENGTH
        if longest < settings.min_length:
            warnings.warn(
                f"min_length={settings.min_length} is above max_length={longest}: the summary ends "
                "where neither is met; lower min_length",
                stacklevel=5,
            )
        if length < longest:
            warnings.warn(
                f"max_length is {longest} and the text has {length} tokens only: a summary is "
                f"shorter than its text; pass max_length={length // 2}",
                stacklevel=5,
            )
