"""An export that is killed or runs out of disk: the old folder or the new, never a mixture.

`fault.c` breaks the n-th call that changes a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridges.files.tensors import open_tensors
from dew.errors import InputRefused

WRITER = """
import sys
from pathlib import Path
import numpy as np
from bridges.files.swap import staged
from bridges.files.writer import Planned, json_bytes, write_file, write_weights
value = float(sys.argv[2])
planned = [Planned(f"t{i}", (8, 8), np.dtype(np.float32)) for i in range(int(sys.argv[3]))]
with staged(Path(sys.argv[1])) as folder:
    write_weights(folder, planned, ((p.name, np.full((8, 8), value, np.float32)) for p in planned),
                  shard_bytes=300)
    write_file(folder / "config.json", json_bytes({"value": value}))
"""


def run_writer(target: Path, value: int, shards: int, **env) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", WRITER, str(target), str(value), str(shards)]
    root = str(Path(__file__).resolve().parents[1])
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": root} | env
    )


def prepared(base: Path) -> Path:
    """Return a run's folder with the export of value 1 in two shards."""
    target = base / "under" / "out"
    (target / "checkpoint-1").mkdir(parents=True)
    (target / "checkpoint-1/state").write_text("state")
    assert run_writer(target, 1, 2).returncode == 0
    return target


def value_of(target: Path) -> int:
    """Return which export the folder holds; a mixture fails."""
    value = json.loads((target / "config.json").read_text())["value"]
    tensors = open_tensors(target)
    assert len(tensors.names()) == (2 if value == 1 else 3)
    assert all((tensors.read(name) == value).all() for name in tensors.names())
    assert (target / "checkpoint-1/state").read_text() == "state"
    return value


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "enospc", "eio"])
def test_a_fault_at_any_call_leaves_the_old_folder_or_the_new(action, fault_library, tmp_path):
    # FAULTS 25 and 26; the oracle is the folder itself: every byte old, or every byte new.
    counted = run_writer(
        prepared(tmp_path / "count"), 2, 3,
        BREAK="count:0", BREAK_UNDER=str(tmp_path / "count/under"), LD_PRELOAD=str(fault_library),
    )  # fmt: skip
    calls = int(counted.stderr.partition("calls=")[2])
    assert calls > 20
    seen = set()
    for number in range(1, calls + 1):
        base = tmp_path / str(number)
        target = prepared(base)
        result = run_writer(
            target, 2, 3,
            BREAK=f"{action}:{number}", BREAK_UNDER=str(base / "under"),
            LD_PRELOAD=str(fault_library),
        )  # fmt: skip
        seen.add(value_of(target))
        assert result.returncode == 0 or action != "kill" or result.returncode == -9
        # The next export clears away what the broken one left, and succeeds.
        assert run_writer(target, 2, 3).returncode == 0
        assert value_of(target) == 2
        assert os.listdir(target.parent) == ["out"]
    assert seen == {1, 2}


@pytest.mark.parametrize("call", [1, 6, 12, 18, 24, 27, 29, 31])
def test_a_kill_leaves_the_old_folder_or_the_new(call, fault_library, tmp_path):
    # The short form of the test above.
    target = prepared(tmp_path)
    run_writer(
        target, 2, 3,
        BREAK=f"kill:{call}", BREAK_UNDER=str(tmp_path / "under"), LD_PRELOAD=str(fault_library),
    )  # fmt: skip
    assert value_of(target) in (1, 2)
    assert run_writer(target, 2, 3).returncode == 0
    assert value_of(target) == 2


@pytest.mark.parametrize("call", [3, 20, 26, 28, 30, 32, 34])
def test_without_exchange_a_kill_never_leaves_a_mixture(call, fault_library, tmp_path):
    # File systems that cannot exchange folders: old, new, or a folder that no reader takes, with
    # the old files kept beside.
    target = prepared(tmp_path)
    run_writer(
        target, 2, 3, NO_EXCHANGE="1",
        BREAK=f"kill:{call}", BREAK_UNDER=str(tmp_path / "under"), LD_PRELOAD=str(fault_library),
    )  # fmt: skip
    if (target / ".export-old").exists():
        with pytest.raises(InputRefused):
            open_tensors(target)
    else:
        assert value_of(target) in (1, 2)
    assert (target / "checkpoint-1/state").read_text() == "state"


def test_without_exchange_an_export_succeeds(fault_library, tmp_path):
    target = prepared(tmp_path)
    result = run_writer(target, 2, 3, NO_EXCHANGE="1", LD_PRELOAD=str(fault_library))
    assert result.returncode == 0, result.stderr
    assert value_of(target) == 2
    assert sorted(os.listdir(target)) == [
        "checkpoint-1",
        "config.json",
        *(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)),
        "model.safetensors.index.json",
    ]
