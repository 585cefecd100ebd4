"""Statistics of a population's features in an `.npz` file, as pytorch-fid writes and reads them."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from bridges.files.regular_file import open_regular, shown_path
from dew.config.durable import write_atomic
from dew.errors import InputRefused, shown
from dew.evaluation.moments import Gaussian, Moments

SUFFIX = ".npz"
MOST_BYTES = 2 << 30
ASYMMETRY = 1e-6
NEEDED = ("mu", "sigma")
MODE, COUNT = "mode", "count"
"""What dew adds to the file, and pytorch-fid reads over."""


def write_statistics(path: str | os.PathLike[str], moments: Moments, *, mode: str) -> None:
    """Write mean and covariance of features, so that pytorch-fid and dew read them.

    Args:
        path: a file that ends in `.npz` and is not there yet.
        moments: of at least two rows.
        mode: whose way of resizing the features are of.

    Raises:
        InputRefused: the file is there, or its name ends otherwise.
        ValueError: fewer than two rows.
    """
    path = new_statistics(path)
    file = io.BytesIO()
    np.savez_compressed(
        file,
        mu=moments.mean,
        sigma=moments.covariance(),
        mode=np.array(mode),
        count=np.array(moments.count),
    )
    write_atomic(path, file.getvalue())


def new_statistics(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file of statistics that may be written.

    Raises:
        InputRefused: the file is there, its folder is not, or its name ends otherwise.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise InputRefused(f"{shown_path(path)}: expected a name that ends in {SUFFIX}")
    if os.path.lexists(path):
        raise InputRefused(f"{shown_path(path)}: there already; move it, or give another name")
    if not path.absolute().parent.is_dir():
        raise InputRefused(f"{shown_path(path.parent)}: no such folder; make it first")
    return path


def read_statistics(path: str | os.PathLike[str], *, mode: str) -> Gaussian:
    """Return the normal distribution that a file holds.

    Args:
        path: of pytorch-fid, of dew, or of clean-fid: `mu` [D] and `sigma` [D, D].
        mode: whose way of resizing is wanted. Only dew's own files tell theirs.

    Raises:
        InputRefused: no such file, another layout, values that are no mean and covariance, or
            features of another mode.
    """
    path = Path(path)
    found = _arrays(path)
    where = shown_path(path)
    absent = [name for name in NEEDED if name not in found]
    if absent:
        raise InputRefused(
            f"{where}: no {' and no '.join(absent)}; it holds "
            f"{', '.join(map(shown, sorted(found))) or 'nothing'}. Expected what pytorch-fid's "
            "--save-stats writes: mu [D] and sigma [D, D]."
        )
    mean, covariance = (np.asarray(found[name]) for name in NEEDED)
    _check(where, mean, covariance)
    if MODE in found and str(found[MODE]) != mode:
        raise InputRefused(
            f"{where}: features of mode {shown(str(found[MODE]))}, where {mode} is asked for. "
            "Distances between modes mean nothing: give --mode, or make the statistics again."
        )
    count = int(found[COUNT]) if COUNT in found and found[COUNT].shape == () else len(mean) + 1
    rank = min(max(count - 1, 1), len(mean))
    return Gaussian(mean.astype(np.float64), covariance.astype(np.float64), rank)


def _check(where: str, mean: np.ndarray, covariance: np.ndarray) -> None:
    numbers = all(np.issubdtype(part.dtype, np.floating) for part in (mean, covariance))
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)) or not numbers:
        raise InputRefused(
            f"{where}: mu is {mean.dtype} {mean.shape} and sigma {covariance.dtype} "
            f"{covariance.shape}; expected floats [D] and [D, D]"
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise InputRefused(f"{where}: values that are not finite; make the statistics again")
    size = float(np.abs(covariance).max(initial=0))
    if size and float(np.abs(covariance - covariance.T).max()) > ASYMMETRY * size:
        raise InputRefused(f"{where}: sigma is not symmetric, and so no covariance")


def _arrays(path: Path) -> dict[str, Any]:
    where = shown_path(path)
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                size = sum(part.file_size for part in archive.infolist())
            if size > MOST_BYTES:
                raise InputRefused(f"{where}: {size} bytes unpacked; expected at most {MOST_BYTES}")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except InputRefused:
            raise
        except Exception as error:  # zipfile, zlib and numpy each have errors of their own
            raise InputRefused(
                f"{where}: not an .npz archive of plain arrays ({shown(str(error))[1:-1]}). "
                "Expected what pytorch-fid's --save-stats writes."
            ) from None
