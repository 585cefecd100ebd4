"""Does transformers 4 read an export, and compute what transformers 5 makes of the source?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity import inputs as model_inputs
from parity import reference
from parity.check import Finding
from parity.four import Reading, TransformersFour
from parity.inputs import Inputs
from parity.stored import complaints, told
from parity.subject import Subject

LENGTH = 40
# The two versions add and turn in another order here and there: rounding, no more.
LARGEST = 1e-5
NO_CLASS, NOR_SOURCE = "no class", "nor the source"


@dataclass(frozen=True)
class Read:
    """What transformers 4 made of an export, and of its source where the export did not fit."""

    inputs: Inputs
    export: Reading
    source: Reading | None = None


class ReadByFour:
    """Loading info and outputs of an export, by transformers 4 in a process of its own.

    Args:
        four: the running process.
    """

    name = "transformers 4"
    tolerance = f"no key missing or unexpected; outputs within {LARGEST:g} of the largest value"

    def __init__(self, four: TransformersFour) -> None:
        self._four = four

    def inputs(self, subject: Subject, seed: int) -> Inputs:
        """Return a batch for both."""
        length = min(LENGTH, subject.longest)
        return model_inputs.batch(subject, length, seed, left=False)

    def ours(self, subject: Subject, inputs: Inputs) -> Read:
        """Export the checkpoint, and return what transformers 4 makes of it.

        Where it complains it is shown the source: an export bears its source's names, and some
        that transformers 5 writes are unknown to 4.
        """
        import bridges

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "exported"
            bridges.export(subject.bundle, path, verify=False)
            found = self._four.read(path, inputs)
            if not complaints(found.info or {}):
                return Read(inputs, found)
            return Read(inputs, found, self._four.read(subject.source, inputs))

    def reference(self, subject: Subject, inputs: Inputs) -> dict[str, np.ndarray]:
        """Return the outputs of transformers 5 in float32, of the source."""
        return reference.outputs(subject.checkpoint.model(reference.SINGLE), inputs)

    def compare(self, ours: Read, reference: Mapping[str, np.ndarray]) -> Finding:
        """Name what transformers 4 says, and the outputs that differ.

        The figure `absent` says why transformers 4 was not asked.
        """
        inputs, reading = ours.inputs, ours.export
        if reading.absent:
            return Finding(True, {"absent": NO_CLASS, "class": reading.absent})
        if ours.source is not None and ours.source.info == reading.info:
            return Finding(True, {"absent": NOR_SOURCE})
        found = model_inputs.real(reading.outputs or {}, inputs)
        wanted = model_inputs.real(reference, inputs)
        # Some names mean other things: a tower's pooler_output is projected in 5.
        errors = {
            name: float(np.abs(found[name] - value).max() / np.abs(value).max())
            for name, value in wanted.items()
            if name in found and found[name].shape == value.shape
        }
        problems = complaints(reading.info or {})
        if not errors:
            problems.append(f"transformers 4 gives none of {', '.join(wanted)}")
        problems += [
            f"{name} differs by {error:.2e} of its largest value"
            for name, error in errors.items()
            if not error <= LARGEST
        ]
        figures = {"outputs": len(errors), "largest": max(errors.values(), default=0.0)}
        return Finding(not problems, figures, told(problems))
