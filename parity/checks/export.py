"""Does an export hold the source's bytes, and is the export of the export the same files?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from parity.check import Finding
from parity.stored import file_problems, stored_tensors, tensor_problems, told
from parity.subject import Subject

Tensors = dict[str, np.ndarray]


class Export:
    """load, export, load, export: no tensor changes, and the second time no byte of any file."""

    name = "export"
    tolerance = "tensors and, of a second export, every file's bytes equal"

    def inputs(self, subject: Subject, seed: int) -> None:
        """Return nothing: the checkpoint is the input."""

    def ours(self, subject: Subject, inputs: None) -> tuple[Tensors, list[str]]:
        """Return the exported tensors, and how a second export differs from the first."""
        import bridges

        with tempfile.TemporaryDirectory() as folder:
            first, second = Path(folder) / "first", Path(folder) / "second"
            bridges.export(subject.bundle, first, verify=False)
            traced = "always" if subject.traced else "never"
            bridges.export(bridges.load(first, traced=traced), second, verify=False)
            return stored_tensors(first), file_problems(first, second)

    def reference(self, subject: Subject, inputs: None) -> Tensors:
        """Return the source's tensors; none where the source is no folder."""
        return stored_tensors(subject.source)

    def compare(self, ours: tuple[Tensors, list[str]], reference: Tensors) -> Finding:
        """Name every difference."""
        exported, problems = ours
        if reference:
            problems = [*problems, *tensor_problems(exported, reference)]
        return Finding(not problems, {"tensors": len(exported)}, told(problems))
