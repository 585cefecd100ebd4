"""Does an export hold the source's bytes, and does transformers read it as it read the source?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity import reference
from parity.check import Finding
from parity.packing import Tokens
from parity.subject import Subject

SHOWN = 4
# What a reader adds by itself: where it read from, its own version, how it was asked to run, that
# a GGUF file was quantised, and the tokenizer's unknown token, which no model reads.
UNCOMPARED = {
    "_name_or_path",
    "_model_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "architectures",
    "quantization_config",
    "unk_token_id",
}
# Written for transformers 4 beside what 5 reads; that both mean the same shows in the logits.
SPELLED_TWICE = {"original_max_position_embeddings", "partial_rotary_factor", "rope_scaling"}
ROPE = "rope_parameters"


@dataclass(frozen=True)
class Reading:
    """One folder, as transformers reads it.

    Args:
        config: its configuration.
        logits: of one batch, at the real positions.
        complaints: keys that transformers misses, does not expect or finds misshapen.
        tensors: what the files hold, by name; for a GGUF source what transformers made of it.
    """

    config: Mapping[str, Any]
    logits: np.ndarray
    complaints: tuple[str, ...]
    tensors: Mapping[str, np.ndarray]


class RoundTrip:
    """load, export, and read both folders with transformers."""

    name = "round trip"
    tolerance = "tensors, config and torch's logits equal; no key missing or unexpected"

    def inputs(self, subject: Subject, seed: int) -> Tokens:
        """Return the batch whose logits are compared."""
        return subject.batch(subject.context, seed)

    def ours(self, subject: Subject, inputs: Tokens) -> Reading:
        """Export the checkpoint anew, and return what transformers reads of that."""
        import bridges

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "exported"
            bridges.export(subject.bundle, path)
            return _reading(reference.Checkpoint(path, subject.checkpoint.own_class), inputs)

    def reference(self, subject: Subject, inputs: Tokens) -> Reading:
        """Return what transformers reads of the source."""
        return _reading(subject.checkpoint, inputs)

    def compare(self, ours: Reading, reference: Reading) -> Finding:
        """Name every difference."""
        problems = [*ours.complaints, *_tensor_problems(ours.tensors, reference.tensors)]
        keys = (set(ours.config) | set(reference.config)) - UNCOMPARED - {ROPE}
        keys -= {key for key in SPELLED_TWICE if reference.config.get(key) is None}
        problems += _rope_problems(ours.config, reference.config)
        problems += [
            f"config {key}: exported {ours.config.get(key)!r:.40}, "
            f"source {reference.config.get(key)!r:.40}"
            for key in sorted(keys)
            if not _same_value(ours.config.get(key), reference.config.get(key))
        ]
        if not np.array_equal(ours.logits, reference.logits, equal_nan=True):
            problems.append("transformers' logits of the export differ from the source's")
        figures = {"tensors": len(reference.tensors), "config_keys": len(keys)}
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        return Finding(not problems, figures, "; ".join(problems[:SHOWN]) + more)


def _rope_problems(ours: Mapping[str, Any], source: Mapping[str, Any]) -> list[str]:
    """Name what the rotary parameters lack: each stands among them or beside them."""
    theirs, inside = source.get(ROPE) or {}, ours.get(ROPE) or {}
    return [
        f"config {ROPE}: exported {inside!r:.60}, source {theirs!r:.60}"
        for key, value in theirs.items()
        if not _same_value(inside.get(key, ours.get(key)), value)
    ]


def _same_value(one: Any, other: Any) -> bool:
    """Return whether two values of a config agree; GGUF files hold numbers as float32."""
    if isinstance(one, float) and isinstance(other, float):
        return np.float32(one) == np.float32(other)
    return one == other


def _tensor_problems(
    exported: Mapping[str, np.ndarray], source: Mapping[str, np.ndarray]
) -> list[str]:
    absent = [f"{name} is not in the export" for name in source if name not in exported]
    new = [f"{name} is only in the export" for name in exported if name not in source]
    unlike = [
        f"{name}: exported {exported[name].dtype} {exported[name].shape} has other bytes"
        for name in source
        if name in exported and not _same_bytes(exported[name], source[name])
    ]
    return [*absent, *new, *unlike]


def _same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and one.tobytes() == other.tobytes()


def _reading(checkpoint: reference.Checkpoint, batch: Tokens) -> Reading:
    model = checkpoint.model(reference.SINGLE)
    logits = reference.logits(model, batch.input_ids, batch.attention_mask)
    alone = logits.shape[:2] != batch.attention_mask.shape
    complaints = [
        f"transformers reports {kind} {', '.join(keys[:SHOWN])}"
        for kind, keys in checkpoint.loading_info().items()
        if keys
    ]
    stored = _stored(checkpoint.source) or reference.tensors(model)
    return Reading(
        reference.config(model),
        logits if alone else logits[batch.attention_mask != 0],
        tuple(complaints),
        stored,
    )


def _stored(source: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a folder's safetensors files, as they lie there; none for GGUF."""
    from safetensors.numpy import load_file

    if source.is_file():
        return {}
    found: dict[str, np.ndarray] = {}
    for path in sorted(source.glob("*.safetensors")):
        found.update(load_file(path))
    return found
