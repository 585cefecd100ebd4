"""A sweep that is killed at any moment trains no finished trial twice, and loses none."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRIALS, SECONDS_A_BATCH, KILLS = 5, 0.02, 20

# Trials by a formula, each sweep in a fork of one process: every call is met in little time.
QUICK = """
import itertools, json, os, sys, traceback, warnings
from pathlib import Path
from run_configs import run_config
from dew.config.sweep import grid_search, sweep
warnings.filterwarnings("ignore", message=".*fork.*")

def swept(folder):
    def train(run):
        with (folder / "trained.log").open("a") as log:
            log.write(run.trainer.name + "\\n")
        return run.optim.learning_rate
    sweep(run_config(folder / "under", name="rates"), {"optim.learning_rate": [0.1, 0.2]},
          train=train, trials=2, ledger=folder / "under/ledger.json", search=grid_search)

def forked(folder, plan):
    child = os.fork()
    if child == 0:
        os.environ.update(plan)
        try:
            swept(folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def state(folder):
    ledger, log = folder / "under/ledger.json", folder / "trained.log"
    rows = json.loads(ledger.read_text())["trials"] if ledger.exists() else []
    return [rows, log.read_text().split() if log.exists() else []]

def attempt(action, number):
    folder = Path(sys.argv[1]) / f"{action}{number}"
    folder.mkdir()
    plan = {"BREAK": f"{action}:{number}", "BREAK_UNDER": str(folder / "under")}
    status, before = forked(folder, plan), state(folder)
    print(json.dumps([action, number, status, before, forked(folder, {}), state(folder)]))
    return status

calls = next(number for number in itertools.count(1) if attempt("kill", number) == 0)
for action in ("enospc", "eio"):
    for number in range(1, calls):
        attempt(action, number)
"""


def environment(**more: str) -> dict[str, str]:
    root = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    return os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"} | more


def started(folder: Path) -> subprocess.Popen:
    """Start the sweep in `folder`, and return once its imports are done."""
    folder.mkdir(exist_ok=True)
    child = Path(__file__).with_name("sweep_child.py")
    words = [sys.executable, str(child), str(folder), str(TRIALS), str(SECONDS_A_BATCH)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finished(ledger: Path) -> dict[int, str]:
    """Return number to value, as it is written, of the finished trials."""
    if not ledger.exists():
        return {}
    rows = json.loads(ledger.read_text())["trials"]
    return {row["number"]: repr(row["value"]) for row in rows if row["status"] == "finished"}


def trained(folder: Path) -> list[int]:
    log = folder / "trained.log"
    names = log.read_text().split() if log.exists() else []
    return [int(name.rpartition("-")[2]) for name in names]


def check_round(folder: Path, before: dict[int, str], names: int) -> dict[int, str]:
    """Check what one call of the sweep did, and return the trials that are finished now."""
    now = finished(folder / "ledger.json")
    assert before.items() <= now.items(), "a finished trial was lost or changed"
    assert not set(trained(folder)[names:]) & set(before), "a finished trial was trained again"
    return now


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_at_random_moments_lose_no_trial_and_repeat_none(tmp_path):
    # The oracle is the sweep that nobody kills: the same scores, to the last bit.
    process, began = started(tmp_path / "whole"), time.monotonic()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    seconds = time.monotonic() - began
    right = finished(tmp_path / "whole/ledger.json")
    assert len(right) == TRIALS
    draw, kills, place = random.Random(29), 0, 0
    folder, before = tmp_path / "0", {}
    while kills < KILLS:
        names = len(trained(folder)) if folder.exists() else 0
        process = started(folder)
        try:
            process.wait(timeout=draw.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = process.communicate(timeout=60)
        before = check_round(folder, before, names)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors
            assert before == right
            place += 1
            folder, before = tmp_path / str(place), {}
    names = len(trained(folder)) if folder.exists() else 0
    _, errors = (process := started(folder)).communicate(timeout=300)
    assert process.returncode == 0, errors
    assert check_round(folder, before, names) == right


@pytest.mark.slow
def test_a_fault_at_any_file_call_of_the_ledger_loses_no_trial_and_repeats_none(
    fault_library, tmp_path
):
    # FAULTS 29: a kill, a full disk and an I/O error at every call that changes a file.
    words = [sys.executable, "-c", QUICK, str(tmp_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment(LD_PRELOAD=str(fault_library))
    )
    assert done.returncode == 0, done.stderr
    attempts = [json.loads(line) for line in done.stdout.splitlines()]
    kills = [status for action, _, status, *_ in attempts if action == "kill"]
    assert len(kills) > 20
    assert set(kills[:-1]) == {-signal.SIGKILL}
    seen = set()
    for action, number, _, (rows, names), again, (rows_now, names_now) in attempts:
        assert again == 0, f"{action} at call {number}: {done.stderr}"
        kept = [row for row in rows if row["status"] == "finished"]
        assert rows_now[: len(kept)] == kept
        assert [(row["status"], row["value"]) for row in rows_now] == [
            ("finished", 0.1),
            ("finished", 0.2),
        ]
        begun = {f"rates/trial-{row['number']}" for row in kept}
        assert not begun & set(names_now[len(names) :]), f"{action} at call {number}"
        seen.add(len(kept))
    assert seen == {0, 1, 2}
