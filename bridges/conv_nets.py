"""What families of convolutional networks share: the rows of a convolution and its batch norm."""

from __future__ import annotations

from bridges.image_encoders import CONVOLUTION, POINTS
from bridges.moves import Move
from bridges.table import Row

DEPTHWISE = Move(
    into=lambda w: w.reshape(w.shape[0], *w.shape[2:]).transpose(1, 2, 0),
    out=lambda k: k.transpose(2, 0, 1)[:, None],
)
"""A torch convolution of each channel [C, 1, rows, columns] to dew [rows, columns, C]."""
KERNELS = {"wide": CONVOLUTION, "point": POINTS, "depth": DEPTHWISE}
STATISTICS = {
    "weight": "scale",
    "bias": "bias",
    "running_mean": "running_mean",
    "running_var": "running_variance",
}
"""A batch norm's tensors to dew's leaves."""
IGNORED = (r".*\.num_batches_tracked",)
"""Counters of training steps, which evaluation does not read."""


def unit_rows(theirs: str, ours: str, kernel: str) -> list[Row]:
    """Return the rows of a convolution without bias and of its batch norm.

    Args:
        theirs: what the tensors' names start with.
        ours: the leaves' folder.
        kernel: "wide", "point" (single pixels) or "depth" (each channel for itself).
    """
    rows = [Row(f"{theirs}.convolution.weight", f"{ours}/convolution/kernel", KERNELS[kernel])]
    for name, leaf in STATISTICS.items():
        rows.append(Row(f"{theirs}.normalization.{name}", f"{ours}/norm/{leaf}"))
    return rows
