"""Does an export hold the source's bytes, and does transformers read it as it read the source?"""

from __future__ import annotations

import shutil
import tempfile
import weakref
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

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Reading:
    """One folder, as transformers reads it.

    Args:
        config: its configuration.
        outputs: of one batch, at the real positions.
        complaints: keys that transformers misses, does not expect or finds misshapen.
        tensors: what transformers made of a GGUF file, by name; nothing of a folder.
    """

    config: Mapping[str, Any]
    outputs: Mapping[str, np.ndarray]
    complaints: tuple[str, ...]
    tensors: Tensors


@dataclass(frozen=True)
class Exported:
    """An export, and the batch whose outputs are compared."""

    folder: Path
    batch: Inputs


@dataclass(frozen=True)
class Readings:
    """The export and its source, as transformers reads them."""

    export: Reading
    source: Reading


class RoundTrip:
    """load, export, and read both folders with transformers."""

    name = "round trip"
    tolerance = "tensors, config and torch's outputs equal; no key missing or unexpected"

    def inputs(self, subject: Subject, seed: int) -> Exported:
        """Export the checkpoint anew, and return that with a batch."""
        import bridges

        folder = tempfile.mkdtemp(prefix="dew-parity-")
        # It is there until the check is gone: transformers reads it in another process.
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / "exported"
        bridges.export(subject.bundle, path, verify=False)
        return Exported(path, model_inputs.batch(subject, subject.context, seed))

    def ours(self, subject: Subject, inputs: Exported) -> tuple[Tensors, Tensors]:
        """Return what the files of the export and those of the source hold, by name."""
        return stored_tensors(inputs.folder), stored_tensors(subject.source)

    def reference(self, subject: Subject, inputs: Exported) -> Readings:
        """Return what transformers reads of both."""
        export = reference.Checkpoint(inputs.folder, subject.checkpoint.own_class)
        return Readings(_reading(export, inputs.batch), _reading(subject.checkpoint, inputs.batch))

    def compare(self, ours: tuple[Tensors, Tensors], reference: Readings) -> Finding:
        """Name every difference."""
        exported, stored = ours
        export, source = reference.export, reference.source
        wanted = stored or source.tensors
        keys = (set(export.config) | set(source.config)) - UNCOMPARED - {ROPE}
        keys -= {key for key in SPELLED_TWICE if source.config.get(key) is None}
        problems = [*export.complaints, *tensor_problems(exported, wanted)]
        problems += _rope_problems(export.config, source.config)
        problems += [
            f"config {key}: exported {export.config.get(key)!r:.40}, "
            f"source {source.config.get(key)!r:.40}"
            for key in sorted(keys)
            if not _same_value(export.config.get(key), source.config.get(key))
        ]
        problems += [
            f"transformers' {name} of the export differs from the source's"
            for name, value in source.outputs.items()
            if not np.array_equal(export.outputs[name], value, equal_nan=True)
        ]
        figures = {"tensors": len(wanted), "config_keys": len(keys)}
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
        reference.tensors(model) if checkpoint.source.is_file() else {},
    )
