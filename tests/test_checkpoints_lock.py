"""The lock of a run's folder: one run at a time saves into it, and a dead one's is taken over."""

from __future__ import annotations

import json
import os
import socket
import subprocess

import numpy as np
import pytest
from test_checkpoints import names_in, saved

from dew.checkpoints import Checkpoints
from dew.checkpoints.lock import NAME as LOCK
from dew.errors import InputRefused


def test_a_lock_that_a_dead_process_left_is_taken_over_with_one_warning(tmp_path):
    """Fault 7: stale is what a process of this host left that is gone, or whose number is used."""
    saved(tmp_path, (1,)).claim()
    lock = tmp_path / LOCK
    ours = Checkpoints(str(tmp_path))
    ours.claim()
    mine = json.loads(lock.read_text())
    assert (mine["pid"], mine["host"]) == (os.getpid(), socket.gethostname())
    stale = [
        {**mine, "pid": 2**22 + 1, "run": "dead"},
        {**mine, "born": "another boot", "run": "reused"},
    ]
    ours.release()
    for holder in stale:
        lock.write_text(json.dumps(holder))
        with pytest.warns(UserWarning, match=f"from run '{holder['run']}'") as caught:
            ours.claim()
        assert len(caught) == 1
        assert json.loads(lock.read_text()) == mine
        ours.release()
        assert not lock.exists()


@pytest.mark.parametrize("host", ["elsewhere", None])
def test_a_lock_that_may_be_alive_is_refused_and_stays(tmp_path, host):
    """Another host's processes cannot be seen from here; the command in the message goes on."""
    directory = tmp_path / "a run"
    directory.mkdir()
    lock = directory / LOCK
    held = {"run": "r1", "pid": os.getppid(), "host": host or socket.gethostname()}
    lock.write_text(json.dumps(held))
    checkpoints = Checkpoints(str(directory))
    with pytest.raises(InputRefused, match=rf"run 'r1', process {os.getppid()} on ") as caught:
        checkpoints.save(1, {"w": np.zeros(3)}, None)
    message = str(caught.value)
    assert f"If no run on '{held['host']}' saves there any more, remove its lock" in message
    assert ("from this machine nobody can see" in message) == (host is not None)
    assert json.loads(lock.read_text()) == held
    assert names_in(directory) == []
    command = message[message.index("rm ") :]
    subprocess.run(command, shell=True, check=True)
    checkpoints.save(1, {"w": np.zeros(3)}, None)
    checkpoints.wait()
    assert checkpoints.latest == 1


def test_reading_takes_no_lock_and_a_lock_goes_with_its_object(tmp_path):
    checkpoints = saved(tmp_path, (1,))
    assert (tmp_path / LOCK).exists()
    del checkpoints
    assert not (tmp_path / LOCK).exists()
    Checkpoints(str(tmp_path)).restore()
    assert not (tmp_path / LOCK).exists()
