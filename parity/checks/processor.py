"""Do images and sounds become the arrays that transformers' processors make of them?"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.check import Finding
from parity.stored import told
from parity.subject import Subject

SIZES = ((40, 56), (64, 64), (91, 33), (300, 221))
SOUNDS = (400, 1601, 16000)
RATE = 16000
LARGEST = 1e-5

Asked = dict[str, list[np.ndarray]]


class Processor:
    """The arrays of random images of several sizes, grey ones too, and of sounds, one at a time."""

    name = "processor"
    tolerance = f"pixels equal; features of sound within {LARGEST:g}"

    def inputs(self, subject: Subject, seed: int) -> Asked:
        """Return images [H, W, 3] and [H, W], and sounds, where the processor takes them."""
        generator = np.random.default_rng(seed)
        images, sounds = parts_of(subject.bundle.processor)
        found: Asked = {"images": [], "sounds": []}
        if images is not None:
            shapes = [*((*size, 3) for size in SIZES), SIZES[0]]
            found["images"] = [_picture(generator, shape) for shape in shapes]
        if sounds is not None:
            found["sounds"] = [
                generator.uniform(-0.5, 0.5, length).astype(np.float32) for length in SOUNDS
            ]
        return found

    def ours(self, subject: Subject, inputs: Asked) -> Asked:
        """Return what the bundle's processor makes of them."""
        from PIL import Image

        images, sounds = parts_of(subject.bundle.processor)
        return {
            "images": [
                images(Image.fromarray(image))["pixel_values"] for image in inputs["images"]
            ],
            "sounds": [_first(sounds(sound, sampling_rate=RATE)) for sound in inputs["sounds"]],
        }

    def reference(self, subject: Subject, inputs: Asked) -> Asked:
        """Return what transformers' Pillow processor and feature extractor make of them."""
        from PIL import Image
        from transformers import AutoFeatureExtractor, AutoImageProcessor

        found: Asked = {"images": [], "sounds": []}
        folder: Any = str(subject.source)
        if inputs["images"]:
            images: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")
            found["images"] = [
                images(Image.fromarray(image).convert("RGB"), return_tensors="np")["pixel_values"]
                for image in inputs["images"]
            ]
        if inputs["sounds"]:
            sounds: Any = AutoFeatureExtractor.from_pretrained(folder)
            found["sounds"] = [
                _first(sounds(sound, sampling_rate=RATE, return_tensors="np"))
                for sound in inputs["sounds"]
            ]
        return found

    def compare(self, ours: Asked, reference: Asked) -> Finding:
        """Name what differs."""
        problems = []
        for kind, allowed in (("images", 0.0), ("sounds", LARGEST)):
            for place, (found, wanted) in enumerate(zip(ours[kind], reference[kind], strict=True)):
                if found.shape != wanted.shape:
                    problems.append(
                        f"{kind} {place}: shape {found.shape}, transformers {wanted.shape}"
                    )
                    continue
                error = float(np.abs(found - wanted).max())
                if not error <= allowed:
                    problems.append(f"{kind} {place}: off by {error:.2e} (allowed {allowed:g})")
        figures = {kind: len(parts) for kind, parts in reference.items()}
        return Finding(not problems, figures, told(problems))


def parts_of(processor: Any) -> tuple[Any, Any]:
    """Return the image processor and the feature extractor of a bundle's processor, or None."""
    from bridges.audio.log_mel import LogMel
    from bridges.audio.waveform import Waveform
    from bridges.processing import JointProcessor
    from bridges.vision.image_processor import ImageProcessor

    if isinstance(processor, JointProcessor):
        return processor.images, processor.sounds
    return (
        processor if isinstance(processor, ImageProcessor) else None,
        processor if isinstance(processor, LogMel | Waveform) else None,
    )


def _picture(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return random levels, uint8, with edges: blocks of a few pixels each."""
    small = generator.integers(0, 256, (shape[0] // 8 + 1, shape[1] // 8 + 1, *shape[2:]), np.uint8)
    return np.ascontiguousarray(small.repeat(8, 0).repeat(8, 1)[: shape[0], : shape[1]])


def _first(found: Any) -> np.ndarray:
    """Return the features of sound, by whichever of the two names they have."""
    name = next(name for name in ("input_features", "input_values") if name in found)
    return np.asarray(found[name])
