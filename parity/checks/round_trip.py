"""Does an export hold the source's bytes, and does transformers read it as it read the source?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity import inputs as model_inputs
from parity import reference
from parity.check import Finding
from parity.inputs import Inputs
from parity.stored import complaints, stored_tensors, tensor_problems, told
from parity.subject import Subject

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
SPELLED_TWICE |= {"rope_theta"}
ROPE = "rope_parameters"


@dataclass(frozen=True)
class Reading:
    """One folder, as transformers reads it.

    Args:
        config: its configuration.
        outputs: of one batch, at the real positions.
        complaints: keys that transformers misses, does not expect or finds misshapen.
        tensors: what the files hold, by name; for a GGUF source what transformers made of it.
    """

    config: Mapping[str, Any]
    outputs: Mapping[str, np.ndarray]
    complaints: tuple[str, ...]
    tensors: Mapping[str, np.ndarray]


class RoundTrip:
    """load, export, and read both folders with transformers."""

    name = "round trip"
    tolerance = "tensors, config and torch's outputs equal; no key missing or unexpected"

    def inputs(self, subject: Subject, seed: int) -> Inputs:
        """Return the batch whose outputs are compared."""
        return model_inputs.batch(subject, subject.context, seed)

    def ours(self, subject: Subject, inputs: Inputs) -> Reading:
        """Export the checkpoint anew, and return what transformers reads of that."""
        import bridges

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "exported"
            bridges.export(subject.bundle, path, verify=False)
            return _reading(reference.Checkpoint(path, subject.checkpoint.own_class), inputs)

    def reference(self, subject: Subject, inputs: Inputs) -> Reading:
        """Return what transformers reads of the source."""
        return _reading(subject.checkpoint, inputs)

    def compare(self, ours: Reading, reference: Reading) -> Finding:
        """Name every difference."""
        problems = [*ours.complaints, *tensor_problems(ours.tensors, reference.tensors)]
        keys = (set(ours.config) | set(reference.config)) - UNCOMPARED - {ROPE}
        keys -= {key for key in SPELLED_TWICE if reference.config.get(key) is None}
        problems += _rope_problems(ours.config, reference.config)
        problems += [
            f"config {key}: exported {ours.config.get(key)!r:.40}, "
            f"source {reference.config.get(key)!r:.40}"
            for key in sorted(keys)
            if not _same_value(ours.config.get(key), reference.config.get(key))
        ]
        problems += [
            f"transformers' {name} of the export differs from the source's"
            for name, value in reference.outputs.items()
            if not np.array_equal(ours.outputs[name], value, equal_nan=True)
        ]
        figures = {"tensors": len(reference.tensors), "config_keys": len(keys)}
        return Finding(not problems, figures, told(problems))


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


def _reading(checkpoint: reference.Checkpoint, batch: Inputs) -> Reading:
    model = checkpoint.model(reference.SINGLE)
    return Reading(
        reference.config(model),
        model_inputs.real(reference.outputs(model, batch), batch),
        tuple(complaints(checkpoint.loading_info())),
        stored_tensors(checkpoint.source) or reference.tensors(model),
    )
