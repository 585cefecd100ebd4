"""A reference that is not there is named with its pin, and what can be compared still is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import write_llama

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import PackageNotFoundError
import importlib.metadata as metadata

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
version = metadata.version

def without(name):
    if name in ("torch", "transformers"):
        raise PackageNotFoundError(name)
    return version(name)

metadata.version = without
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--check", "weights", "--model", "MODEL"], "UNKNOWN model"),
        (["run", "--check", "weights", "--check", "psnr"], "UNKNOWN"),
        (["support"], "parity: not proven: torch is not installed"),
    ],
)
def test_without_torch_nothing_is_proven_and_the_pin_is_named(
    tmp_path: Path, words: list[str], said: str
) -> None:
    folder = write_llama(tmp_path / "model")
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    given = [str(folder) if word == "MODEL" else word for word in words]
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "parity", *given],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])},
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 1, told
    assert said in told
    assert "torch is not installed" in told
    assert "pip install 'torch>=2.6' 'transformers>=5.0'" in told
    assert "proven: every" not in told.replace("not proven", "")
    assert "passed" not in told
