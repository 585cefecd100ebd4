"""Is `dew fid` as fast as pytorch-fid? A folder of pictures to mean and covariance, both tools."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from timing import Pace, run_benchmark

TORCH = "pytorch-fid"
FLOPS = 11.4e9
BATCH = 50
SEED = 0


@dataclass(frozen=True)
class Folder:
    """Pictures of one size, as PNG files."""

    count: int
    side: int

    def write(self) -> Path:
        """Write the files into a folder that goes with the process, and return it."""
        from PIL import Image

        folder = tempfile.TemporaryDirectory()
        KEPT.append(folder)
        generator = np.random.default_rng(SEED)
        for index in range(self.count):
            small = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            image = Image.fromarray(small).resize((self.side, self.side), Image.Resampling.BICUBIC)
            image.save(Path(folder.name) / f"{index:04}.png")
        return Path(folder.name)


KEPT: list[tempfile.TemporaryDirectory] = []
SHAPES = {"75 of 299 x 299": Folder(75, 299), "75 of 64 x 64": Folder(75, 64)}


def dew(shape: Folder) -> Callable[[], Any]:
    """Return a run of what `dew fid` does with a folder, with its defaults."""
    import jax

    from dew.evaluation.image_folders import folder_moments
    from dew.nn.inception import InceptionEncoder

    folder, encoder = shape.write(), InceptionEncoder.random(jax.random.key(SEED))

    def run() -> Any:
        found = folder_moments(folder, encoder, batch=BATCH)
        return found.mean, found.covariance()

    return run


def pytorch_fid(shape: Folder) -> Callable[[], Any]:
    """Return a run of what `pytorch-fid` does with a folder, with its defaults."""
    import pytorch_fid.inception as theirs
    import torchvision
    from pytorch_fid.fid_score import compute_statistics_of_path

    bare = torchvision.models.inception_v3(
        num_classes=1008, aux_logits=False, weights=None, init_weights=False
    )
    theirs.load_state_dict_from_url = lambda *args, **options: bare.state_dict()
    folder, network = str(shape.write()), theirs.InceptionV3()
    workers = min(len(os.sched_getaffinity(0)), 8)
    return lambda: compute_statistics_of_path(folder, network, BATCH, 2048, "cpu", workers)


def main() -> None:
    """Measure both sides on every folder, and print the table."""
    run_benchmark(
        __file__,
        SHAPES,
        {"dew": dew, TORCH: pytorch_fid},
        against=TORCH,
        work=lambda name: SHAPES[name].count * FLOPS,
        description=__doc__ or "",
        pace=dict.fromkeys(SHAPES, Pace(0, 1, 5)),
    )


if __name__ == "__main__":
    main()
