"""Images of every kind that a pipeline takes, and tiny image models beside transformers' own."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 24
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": SIDE, "width": SIDE},
    "resample": 2,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.6, 0.4],
}


def drawn(height: int, width: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    """Return smooth random levels [H, W, C], so that a resize does not blur them to grey."""
    rough = np.random.default_rng(seed).uniform(0, 255, (4, 5, channels))
    rows = np.linspace(0, 3, height).round().astype(int)
    columns = np.linspace(0, 4, width).round().astype(int)
    return rough[rows][:, columns].astype(np.uint8)


def pictures(folder: Path) -> dict[str, Any]:
    """Return inputs that transformers' pipelines take too, by what they are."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    colour = Image.fromarray(drawn(30, 41))
    turned = colour.getexif()
    turned[0x0112] = 6  # the camera was held on its side
    modes = {"grey": "L", "palette": "P", "two levels": "1", "ink": "CMYK"}
    images: dict[str, Any] = {"colour": colour, "clear": Image.fromarray(drawn(20, 20, 1, 4))}
    images |= {name: colour.convert(mode) for name, mode in modes.items()}
    colour.save(folder / "one.png")
    colour.save(folder / "two.jpeg", quality=90)
    colour.save(folder / "turned.png", exif=turned)
    colour.save(folder / "three.webp", lossless=True)
    encoded = base64.b64encode((folder / "one.png").read_bytes()).decode()
    return {
        **images,
        "path": str(folder / "one.png"),
        "jpeg": str(folder / "two.jpeg"),
        "turned": str(folder / "turned.png"),
        "webp": str(folder / "three.webp"),
        "base64": encoded,
        "data address": f"data:image/png;base64,{encoded}",
        "one pixel": Image.fromarray(drawn(1, 1, 2)),
        "tall": Image.fromarray(drawn(150, 9, 3)),
    }


def png(levels: np.ndarray) -> bytes:
    """Return the bytes of a PNG file."""
    from PIL import Image

    found = io.BytesIO()
    Image.fromarray(levels).save(found, "PNG")
    return found.getvalue()


def save_model(name: str, folder: Path, **config: Any) -> Path:
    """Write a tiny random image model with its image processor, and return the folder.

    Args:
        name: in `parity.tiny.MODELS`.
        folder: to be made.
        **config: changes of its config.
    """
    import json

    import torch
    import transformers

    from parity import tiny

    settings = {**tiny.MODELS[name], **config}
    kind = getattr(transformers, settings["architectures"][0])
    torch.manual_seed(0)
    model = kind(kind.config_class(**settings))
    with torch.no_grad():  # fresh heads give all labels one score
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def theirs(task: str, folder: Path, **options: Any) -> Any:
    """Return transformers' pipeline, its images resized by Pillow as dew's are."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    made: Any = transformers.pipeline
    return made(task, model=str(folder), image_processor=processor, device="cpu", **options)


def assert_same(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Hold dicts, lists, texts, numbers and masks to the same, numbers within a tolerance."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            assert_same(found[name], value, tolerance)
    elif isinstance(wanted, list | tuple):
        assert isinstance(found, type(wanted))
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other, tolerance)
    elif isinstance(wanted, float):
        assert isinstance(found, float)
        assert abs(found - wanted) <= tolerance, (found, wanted)
    elif hasattr(wanted, "getbands"):
        assert (found.mode, found.size) == (wanted.mode, wanted.size)
        assert np.array_equal(np.asarray(found), np.asarray(wanted))
    else:
        assert found == wanted
