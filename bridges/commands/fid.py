"""`dew fid A B`: the Fréchet distance of two folders of images, as pytorch-fid takes its flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dew.cli.command import Command, Option, Settings

DIMS = ("64", "192", "768", "2048")
MODES = ("pytorch-fid", "clean-fid", "torch-fidelity", "torchmetrics")
WEIGHTS = (
    "pt_inception-2015-12-05-6726825d.pth",
    "weights-inception-2015-12-05-6726825d.pth",
)
"""What pytorch-fid and torch-fidelity keep in torch's cache: the same weights."""
SOURCE = f"https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/{WEIGHTS[0]}"

COMMAND = Command(
    "fid",
    "compare two folders of images, or their .npz statistics, by their Fréchet distance",
    (
        Option(
            "generated",
            "text",
            None,
            "a folder of images, or an .npz file of statistics",
            positional=True,
            required=True,
        ),
        Option(
            "real",
            "text",
            None,
            "the other one; with --save-stats, the .npz file to write",
            positional=True,
            required=True,
        ),
        Option("mode", "text", "pytorch-fid", "whose number is wanted", choices=MODES),
        Option("dims", "text", "2048", "which features; FID is of 2048", choices=DIMS),
        Option("save_stats", "switch", False, "write the first's statistics to the second"),
        Option("weights", "text", None, "Inception's, in pytorch-fid's layout; else torch's cache"),
        Option("batch_size", "integer", 50, "images read together", low=1),
        Option("num_workers", "integer", 2, "threads that read images ahead", low=0, high=64),
        Option("device", "text", None, "taken for pytorch-fid's sake; JAX chooses the device"),
        Option("use_cpu", "switch", False, "leave accelerators alone"),
    ),
    run="bridges.commands.fid:run",
)


def run(settings: Settings) -> int:
    """Print the distance, or write the statistics, and return 0."""
    from bridges.encoders.fid_statistics import SUFFIX, new_statistics, write_statistics
    from bridges.encoders.inception import load_inception
    from bridges.finetune.backend import choose_backend
    from dew.evaluation.frechet import gaussian_distance

    if settings["device"] is not None:
        print(f"--device {settings['device']} has no effect: JAX takes the accelerator it finds")
    paths = [settings["generated"], settings["real"]]
    saved = new_statistics(paths[1]) if settings["save_stats"] else None
    folders = [path for path in paths[: 1 if saved else 2] if not path.endswith(SUFFIX)]
    choose_backend(settings["use_cpu"])
    encoder: Any = None
    if folders:
        weights = settings["weights"] or cached_weights()
        encoder = load_inception(weights, features=int(settings["dims"]), mode=settings["mode"])
    if saved:
        write_statistics(saved, _moments(paths[0], encoder, settings), mode=settings["mode"])
        print(f"wrote {saved}")
        return 0
    generated, real = (_gaussian(path, encoder, settings) for path in paths)
    print("FID: ", gaussian_distance(real, generated))
    return 0


def cached_weights() -> Path:
    """Return the weights that pytorch-fid or torch-fidelity left in torch's cache.

    Raises:
        InputRefused: there are none.
    """
    import os

    from dew.errors import InputRefused

    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "torch"
    folder = Path(os.environ.get("TORCH_HOME", home)).expanduser() / "hub" / "checkpoints"
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise InputRefused(
        f"{folder}: neither {' nor '.join(WEIGHTS)}. Give Inception's weights: --weights PATH, "
        f"the file {SOURCE} or the same as safetensors."
    )


def _gaussian(path: str, encoder: Any, settings: Settings) -> Any:
    from bridges.encoders.fid_statistics import SUFFIX, read_statistics

    if path.endswith(SUFFIX):
        return read_statistics(path, mode=settings["mode"])
    return _moments(path, encoder, settings).gaussian()


def _moments(path: str, encoder: Any, settings: Settings) -> Any:
    """Return the moments of a folder's features, told on a bar."""
    from dew.errors import InputRefused
    from dew.evaluation.image_folders import folder_moments

    with _bar(path) as seen:
        found = folder_moments(
            path,
            encoder,
            batch=settings["batch_size"],
            workers=settings["num_workers"],
            seen=seen,
        )
    if found.count < 2:
        raise InputRefused(
            f"{path}: 1 image; a covariance needs at least two. Give a folder with more."
        )
    if found.count <= len(found.mean):
        print(
            f"{path}: {found.count} images for {len(found.mean)} features. The distance is far "
            "above that of many images; compare it at equal counts only."
        )
    return found


@contextmanager
def _bar(path: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what shows how many images are done, on a terminal; None elsewhere."""
    import sys

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(Path(path).name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
