"""A power loss at any moment of a save leaves the step before or the new one, whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from power_loss import NOTHING, Disk, after_losses
from saving_child import save

from dew.checkpoints import Checkpoints
from dew.data import DataPartition

HERE = Path(__file__).resolve().parent

# Another process's lock is there after a loss, and who goes on says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*taking over from run:UserWarning")


@pytest.fixture(scope="module")
def record_library(tmp_path_factory) -> Path:
    """record.c, compiled: preloaded, it writes down every call that changes a file."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("record") / "record.so"
    code = HERE / "record.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, code, "-ldl"], check=True)
    return library


def recorded_save(base: Path, directory: Path, step: int, library: Path) -> tuple[Disk, list[str]]:
    """Save a step in a process of its own; return the disk before, and the calls that it made."""
    disk, log = Disk(base), base.parent / f"calls-{step}"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
        "JAX_PLATFORMS": "cpu",
        "RECORD": str(log),
        "RECORD_UNDER": str(base),
        "LD_PRELOAD": str(library),
    }
    command = [sys.executable, str(HERE / "saving_child.py"), str(directory), str(step)]
    subprocess.run(command, env=os.environ | environment, check=True)
    return disk, log.read_text().splitlines()


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def standing(directory: Path) -> int | None:
    """Return the step that a resume reads, whose values must be that step's."""
    checkpoints = Checkpoints(str(directory), keep=1)
    latest = checkpoints.latest
    if latest is None:
        return None
    state, position = checkpoints.restore(share=DataPartition())
    np.testing.assert_array_equal(state["w"], np.full(2000, latest, np.float32))
    assert position == b"%d" % latest
    return latest


@pytest.mark.parametrize("before", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_a_power_loss_leaves_is_the_old_step_or_the_new_one(tmp_path, record_library, before):
    """Fault 4: after every call, dropping what was not synced; saving goes on from there.

    The first save makes the run's folders too; the second also takes the step before away.
    """
    base, losses = tmp_path / "base", tmp_path / "losses"
    base.mkdir()
    losses.mkdir()
    directory = base / "runs" / "one"
    if before:
        save(str(directory), before)
    disk, record = recorded_save(base, directory, before + 1, record_library)
    assert len(record) > 50
    stood = []
    for made, left in after_losses(disk, record, losses):
        found = standing(left / "runs" / "one")
        stood.append((made, found))
        assert found in (before or None, before + 1), f"after {record[:made][-1:]}"
        if made % 15 == 0:
            save(str(left / "runs" / "one"), 3)
            assert standing(left / "runs" / "one") == 3
        shutil.rmtree(left)
    disk.write_out(losses / "whole", NOTHING)
    assert contents(losses / "whole") == contents(base), "the record misses a call"
    seen = [found for _, found in stood]
    assert seen[0] == (before or None)
    # The save has been reported durable before the lock goes, which is the last call.
    assert {found for made, found in stood if made >= len(record) - 1} == {before + 1}
