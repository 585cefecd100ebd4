"""What prepares a checkpoint's inputs: its tokenizer, image processor and feature extractor."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridges.audio.letters import read_letters
from bridges.config import Keys
from bridges.files.json_file import parse_json
from bridges.files.regular_file import open_regular, optional, shown_path
from bridges.text.processors import read_processor as read_tokenizer
from dew.errors import InputRefused, shown

ALONE, TOGETHER = "preprocessor_config.json", "processor_config.json"
SIZE_LIMIT = 16 << 20
SECTIONS = ("image_processor", "feature_extractor")


@dataclass(frozen=True)
class JointProcessor:
    """A tokenizer with an image processor or a feature extractor beside it.

    What these do not name is the tokenizer's: `encode`, `decode`, `eos_token_ids` and the rest.

    Attributes:
        tokenizer: the checkpoint's, or its `Letters`.
        images: its `ImageProcessor`, or None.
        sounds: its `LogMel` or `Waveform`, or None.
    """

    tokenizer: Any
    images: Any = None
    sounds: Any = None
    files: Mapping[str, bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Gather the files that an export writes."""
        parts = (self.tokenizer, self.images, self.sounds)
        found = {
            name: data for part in parts if part is not None for name, data in part.files.items()
        }
        object.__setattr__(self, "files", found)

    def __call__(self, inputs: Any, **options: Any) -> dict[str, Any]:
        """Return what the model's call takes of sounds or else of images."""
        return (self.images if self.sounds is None else self.sounds)(inputs, **options)

    def __getattr__(self, name: str) -> Any:
        """Return what the tokenizer has under a name that this class does not."""
        if name.startswith("_") or name == "tokenizer":
            raise AttributeError(name)
        return getattr(self.tokenizer, name)


def read_processor(folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None) -> Any:
    """Read what prepares a checkpoint's inputs.

    Args:
        folder: a Hugging Face folder.
        config: its config.json as read.

    Returns:
        The tokenizer, or the `Letters` of a model of sounds; an `ImageProcessor`, a `LogMel` or a
        `Waveform`; a `JointProcessor` of one of the first and one of the others; None where the
        folder has none of them. A processor of a class that is not read is left out with a
        warning.

    Raises:
        InputRefused: a file of them that is broken or cannot be used.
    """
    folder, config = Path(folder), dict(config or {})
    letters = read_letters(folder, str(config.get("model_type", "")))
    tokenizer = read_tokenizer(folder, config) if letters is None else letters
    images, sounds = _read_others(folder, config)
    if tokenizer is None:
        return images if images is not None else sounds
    if images is None and sounds is None:
        return tokenizer
    return JointProcessor(tokenizer, images, sounds)


def read_image_processor(folder: str | os.PathLike[str], config: Mapping[str, Any]) -> Any:
    """Return a checkpoint's `ImageProcessor`, or None where it has none that is read."""
    return _read_others(Path(folder), config)[0]


def _read_others(folder: Path, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the image processor and the feature extractor."""
    descriptions = _descriptions(folder)
    if not descriptions:
        return None, None
    from bridges.audio.feature_extractor import read_feature_extractor
    from bridges.vision.image_processor import ImageProcessor
    from bridges.vision.image_settings import kind_of, read_settings

    images = sounds = None
    model_type = str(config.get("model_type", ""))
    for keys, files in descriptions:
        kind = kind_of(keys, model_type)
        if kind is not None:
            images = images or ImageProcessor(read_settings(keys, kind), files)
            continue
        found = read_feature_extractor(keys, model_type, files)
        sounds = sounds or found
        if found is None:
            named = [keys.text(k, None) for k in ("image_processor_type", "feature_extractor_type")]
            name = next((name for name in named if name), None)
            warnings.warn(
                f"{keys.where}: a processor of class {shown(name)}, which dew does not read. "
                "Prepare its inputs yourself, and hand over pixel_values or input_features",
                stacklevel=5,
            )
    return images, sounds


def _descriptions(folder: Path) -> list[tuple[Keys, dict[str, bytes]]]:
    """Return the config of each processor but the tokenizer, and the files that it came in."""
    found = []
    together = _read(folder, TOGETHER)
    if together is not None:
        keys, data = together
        sections = [keys.section(name) for name in SECTIONS if name in keys]
        found += [(section, {TOGETHER: data}) for section in sections]
    alone = _read(folder, ALONE)
    if alone is not None and not found:
        keys, data = alone
        found.append((keys, {ALONE: data}))
    return found


def _read(folder: Path, name: str) -> tuple[Keys, bytes] | None:
    """Return the keys of a file of the folder and its bytes, or None where there is none."""
    path = optional(folder, name)
    if path is None:
        return None
    with open_regular(path) as file:
        data = file.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise InputRefused(
            f"{shown_path(path)}: larger than {SIZE_LIMIT} bytes. Expected a small JSON file; "
            "check that this is the right one."
        )
    values = parse_json(data, shown_path(path))
    if not isinstance(values, dict):
        raise InputRefused(
            f"{shown_path(path)}: found a {type(values).__name__}. Expected a JSON object."
        )
    return Keys(values, shown_path(path)), data
