"""Checkpoints of real processes: written on one layout, read on any other, broken in the middle.

The ranks are started here and not by a launcher, so that a failure is the checkpoints' own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.checkpoints import Checkpoints
from dew.checkpoints.commit import is_aside
from dew.checkpoints.lock import NAME as LOCK

HERE = Path(__file__).resolve().parent
CHILD = str(HERE / "saving_child.py")
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
    "JAX_PLATFORMS": "cpu",
    "PYTHONUNBUFFERED": "1",
}
LAYOUTS = {"1x1": (1, 1), "1x4": (1, 4), "1x8": (1, 8), "2x2": (2, 2), "4x1": (4, 1)}
PAIR = {"2x1": (2, 1)}
"""Processes and devices a process."""

PATIENCE = 300


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Pool:
    """Ranks under way; `environment` is that of rank `broken` only, or of all."""

    def __init__(
        self,
        layout: str,
        do: list[Any],
        *,
        environment: dict[str, str] | None = None,
        broken: int | None = None,
        **plan: Any,
    ):
        ranks, devices = (LAYOUTS | PAIR)[layout]
        plan |= {"ranks": ranks, "devices": devices, "port": free_port(), "do": do}
        self.processes = []
        for rank in range(ranks):
            extra = environment if environment and broken in (None, rank) else {}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, CHILD, json.dumps({**plan, "rank": rank})],
                    env=os.environ | ENVIRONMENT | extra,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def ends(self, seconds: float = PATIENCE) -> list[tuple[int, str, str]]:
        """Wait for all, and return status, output and errors of each rank."""
        deadline = time.monotonic() + seconds
        found = []
        try:
            for process in self.processes:
                out, error = process.communicate(timeout=max(1, deadline - time.monotonic()))
                found.append((process.returncode, out, error))
        finally:
            for process in self.processes:
                process.kill()
        return found


def answers(layout: str, *do: Any, **plan: Any) -> list[list[Any]]:
    """Run actions on every rank of a layout, and return what each rank answered to each."""
    found = []
    for code, out, error in Pool(layout, list(do), **plan).ends():
        assert code == 0, error
        found.append([json.loads(line)["answer"] for line in out.splitlines()])
    return found


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != LOCK)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Step n of the n-th layout, each saved on its own layout."""
    base = tmp_path_factory.mktemp("written")
    for step, layout in enumerate(LAYOUTS):
        done = answers(layout, ["open", str(base / layout)], ["save", step], ["wait"])
        assert all(rank[2] is None for rank in done)
    return base


@pytest.mark.parametrize("reader", LAYOUTS)
def test_what_one_layout_wrote_every_other_reads_bit_for_bit(written, reader):
    """P061, fault 10: shardings of this mesh, the axes swapped, and the host."""
    do: list[Any] = []
    for writer in LAYOUTS:
        do += [["open", str(written / writer)], ["restore"], ["restore", {"flipped": True}]]
        do += [["host"]]
    for rank in answers(reader, *do):
        for step, (_, straight, flipped, host) in enumerate(zip(*[iter(rank)] * 4, strict=True)):
            right = {"step": step, "wrong": [], "position": f"position {step}", "warnings": []}
            assert straight == right
            assert flipped == right
            assert host == {"same": True, "kinds": ["ndarray"]}


def failures(rank: list[Any]) -> list[str]:
    return [answer for answer in rank if isinstance(answer, str)]


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("part", ["write_pieces", "_describe"])
def test_a_rank_that_fails_to_write_fails_the_save_on_all(tmp_path, broken, part):
    """Fault 2: every rank names the failing one, the step before is whole, saving again works."""
    broken = 0 if part == "_describe" else broken
    ranks = answers(
        "2x1",
        *[["open", str(tmp_path)], ["save", 1], ["wait"]],
        *[["fail_in", broken, part], ["save", 2], ["wait"], ["steps"]],
        *[["mend", broken, part], ["save", 3], ["wait"], ["restore"]],
    )
    said = [failures(rank) for rank in ranks]
    assert said[0] == said[1]
    (message,) = said[0]
    assert re.match(rf"CheckpointFailed: checkpoint-2 did not land in {tmp_path}", message)
    assert re.search(rf"{socket.gethostname()}:\d+: OSError: .*No space left", message)
    for rank in ranks:
        assert rank[6] == {"latest": 1, "best": None}
        assert (rank[10]["step"], rank[10]["wrong"]) == (3, [])
    assert names_in(tmp_path) == ["checkpoint-1", "checkpoint-3"]


@pytest.mark.parametrize(
    ("broken", "part"),
    [pytest.param(1, "write_pieces", marks=pytest.mark.slow), (0, "merge")],
)
def test_a_rank_killed_in_a_save_leaves_the_step_before(tmp_path, broken, part):
    """Fault 6: all end, the step is not there, and the restart agrees on the one before."""
    first = [["open", str(tmp_path)], ["save", 1], ["wait"], ["die_in", broken, part]]
    pool = Pool("2x1", [*first, ["save", 2], ["wait"], ["sleep", 3600]], heartbeat=10)
    started = time.monotonic()
    ended = pool.ends()
    assert time.monotonic() - started < 120
    assert ended[broken][0] == -signal.SIGKILL
    assert ended[1 - broken][0] not in (0, None)
    assert [name for name in names_in(tmp_path) if not is_aside(name)] == ["checkpoint-1"]
    again = answers(
        "2x1", ["open", str(tmp_path)], ["steps"], ["restore"], ["save", 2], ["wait"], ["steps"]
    )
    for rank in again:
        assert rank[1]["latest"] == 1
        assert (rank[2]["step"], rank[2]["wrong"]) == (1, [])
        assert rank[5]["latest"] == 2
    assert names_in(tmp_path) == ["checkpoint-1", "checkpoint-2"]


def test_kept_are_the_latest_and_the_best_on_a_pool(tmp_path):
    do: list[Any] = [["open", str(tmp_path)]]
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.2)):
        do += [["save", step, {"loss": loss}], ["wait"]]
    for rank in answers("2x1", *do, ["steps"]):
        assert rank[-1] == {"latest": 5, "best": 2}
    assert names_in(tmp_path) == [f"checkpoint-{step}" for step in (2, 4, 5)]


def test_process_zero_adds_files_from_values_read_back(tmp_path):
    """Of the fields asked for alone: no process holds the whole state for it."""
    ranks = answers("2x2", ["open_extra", str(tmp_path)], ["save", 4], ["wait"], ["restore"])
    assert [rank[3]["wrong"] for rank in ranks] == [[], []]
    extra = json.loads((tmp_path / "checkpoint-4" / "extra.json").read_text())
    assert extra == [4, [], "ShapeDtypeStruct"]


@pytest.mark.slow
def test_positions_of_their_own_hold_for_as_many_readers_only(tmp_path):
    """Fault 23: a position over all shares goes to any number, a share's own to its reader."""
    answers("2x1", ["open", str(tmp_path)], ["save", 1], ["wait"], own_positions=True)
    for number, rank in enumerate(answers("2x1", ["open", str(tmp_path)], ["restore"])):
        assert rank[1]["position"] == f"position 1 of {number}"
    for rank in answers("4x1", ["open", str(tmp_path)], ["restore"]):
        assert re.search(r"InputRefused: .*shares \[\(0, 2\), \(1, 2\)\], not of", rank[1])


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip_one(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


def flip_data(folder: Path) -> None:
    largest = max(files_of(folder / "dew" / "tree"), key=lambda path: path.stat().st_size)
    flip_one(largest, np.random.default_rng(0))


def flip_manifest(folder: Path) -> None:
    flip_one(folder / "dew" / "checkpoint.json", np.random.default_rng(0))


def lose_a_process(folder: Path) -> None:
    shutil.rmtree(next(iter(folder.rglob("ocdbt.process_1"))))


def cut(folder: Path) -> None:
    for path in (folder / "dew" / "tree" / "state" / "ocdbt.process_1" / "d").iterdir():
        os.truncate(path, path.stat().st_size // 2)


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("two") / "run"
    answers("2x1", ["open", str(directory)], *[["save", 1], ["save", 2]], ["wait"])
    return directory


@pytest.mark.parametrize(
    "damage",
    [
        flip_data,
        lose_a_process,
        pytest.param(flip_manifest, marks=pytest.mark.slow),
        pytest.param(cut, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_newest_gives_way_to_the_step_before_on_all_ranks(two_steps, tmp_path, damage):
    """Faults 8 and 9, BP091 to BP093: one warning on the pool, naming both steps."""
    directory = tmp_path / "run"
    shutil.copytree(two_steps, directory)
    damage(directory / "checkpoint-2")
    ranks = answers("2x1", ["open", str(directory)], ["restore"], ["steps"])
    for rank in ranks:
        assert (rank[1]["step"], rank[1]["wrong"]) == (1, [])
        assert rank[2]["latest"] == 1
    said = [warning for rank in ranks for warning in rank[1]["warnings"]]
    assert len(said) == 1
    assert re.search(r"(?s)checkpoint-2 is damaged, going on from checkpoint-1\..*dew/", said[0])


def check_flips(two_steps: Path, base: Path, count: int) -> None:
    """Flip one bit of the newest at a time: each is found, and the step before is read."""
    directory, rng = base / "run", np.random.default_rng(1)
    shutil.copytree(two_steps, directory)
    files = [path for path in files_of(directory / "checkpoint-2") if path.stat().st_size]
    for number in range(count):
        path = files[number % len(files)]
        content = path.read_bytes()
        flip_one(path, rng)
        with pytest.warns(UserWarning, match="checkpoint-2 is damaged.*checkpoint-1") as caught:
            state, _ = Checkpoints(str(directory)).restore()
        assert len(caught) == 1
        assert int(state["step"]) == 1
        path.write_bytes(content)
    state, _ = Checkpoints(str(directory)).restore()
    assert int(state["step"]) == 2


def test_flipped_bits_are_found(two_steps, tmp_path):
    """Fault 8: every file in turn, the manifest too."""
    check_flips(two_steps, tmp_path, 40)


@pytest.mark.slow
def test_a_thousand_flipped_bits_are_found(two_steps, tmp_path):
    check_flips(two_steps, tmp_path, 1000)


def local(base: Path, **options: Any) -> list[Any]:
    return ["open", str(base / "run"), {"local_directory": str(base / "local"), **options}]


@pytest.mark.slow
def test_a_local_step_restores_onto_its_own_placement_only(tmp_path):
    """Each process writes under its own directory; another placement is refused unread."""
    ranks = answers(
        "2x2",
        *[local(tmp_path), ["save", 1], ["save", 2, {"local": True}], ["save", 3, {"local": True}]],
        *[["wait"], ["steps"], ["source", 3], ["source", 1], ["restore"]],
        *[["restore", {"flipped": True}], ["restore", 1, {"flipped": True}]],
    )
    for number, rank in enumerate(ranks):
        folder = tmp_path / "local" / f"process-{number}"
        assert names_in(folder) == ["checkpoint-3"]
        assert rank[5]["latest"] == 3
        assert rank[6:8] == [str(folder / "checkpoint-3"), str(tmp_path / "run" / "checkpoint-1")]
        assert (rank[8]["step"], rank[8]["wrong"]) == (3, [])
        assert rank[8]["position"] == "position 3"
        assert rank[9].startswith("InputRefused")
        assert "lay on [device, box]" in rank[9]
        assert (rank[10]["step"], rank[10]["wrong"]) == (1, [])
    for rank in answers("2x2", local(tmp_path), ["steps"], ["restore"]):
        assert rank[1]["latest"] == 3
        assert (rank[2]["step"], rank[2]["wrong"]) == (3, [])
    for rank in answers("4x1", local(tmp_path), ["steps"], ["restore"]):
        assert rank[1]["latest"] == 1, "four processes cannot read what two wrote each for itself"
        assert (rank[2]["step"], rank[2]["wrong"]) == (1, [])


@pytest.mark.slow
def test_a_local_step_that_one_rank_lost_or_that_is_damaged_counts_on_none(tmp_path):
    answers("2x1", local(tmp_path), ["save", 1], ["save", 2, {"local": True}], ["wait"])
    own = tmp_path / "local" / "process-1" / "checkpoint-2"
    kept = tmp_path / "kept"
    shutil.copytree(own, kept)
    flip_data(own)
    ranks = answers("2x1", local(tmp_path), ["steps"], ["restore"], ["steps"])
    assert [rank[1]["latest"] for rank in ranks] == [2, 2]
    assert [(rank[2]["step"], rank[3]["latest"]) for rank in ranks] == [(1, 1), (1, 1)]
    shutil.rmtree(own)
    for rank in answers("2x1", local(tmp_path), ["steps"], ["source", 2]):
        assert rank[1]["latest"] == 1
        assert rank[2] == str(tmp_path / "run" / "checkpoint-2")
    shutil.copytree(kept, own)
    for rank in answers("2x1", local(tmp_path), ["restore"]):
        assert (rank[1]["step"], rank[1]["wrong"]) == (2, [])


def test_a_local_save_that_fails_on_one_rank_leaves_the_one_before_on_all(tmp_path):
    do = [local(tmp_path), ["save", 1, {"local": True}], ["wait"], ["fail_in", 1, "write_pieces"]]
    ranks = answers("2x1", *do, ["save", 2, {"local": True}], ["wait"], ["restore"])
    for number, rank in enumerate(ranks):
        assert "No space left" in rank[5]
        assert (rank[6]["step"], rank[6]["wrong"]) == (1, [])
        assert names_in(tmp_path / "local" / f"process-{number}") == ["checkpoint-1"]


def test_a_second_run_in_one_folder_is_refused_on_all_its_ranks(tmp_path):
    """Fault 7: the message names run, pid and host."""
    holder = Pool("1x1", [["open", str(tmp_path)], ["claim"], ["sleep", 3600]])
    try:
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / LOCK).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        said = json.loads((tmp_path / LOCK).read_text())
        for rank in answers("2x1", ["open", str(tmp_path)], ["claim"]):
            assert rank[1].startswith(f"InputRefused: {tmp_path} is in use by run '{said['run']}'")
            assert f"process {holder.processes[0].pid} on '{socket.gethostname()}'" in rank[1]
    finally:
        holder.processes[0].kill()
        holder.ends()
    checkpoints = Checkpoints(str(tmp_path))
    with pytest.warns(UserWarning, match=f"run '{said['run']}', process {said['pid']}") as caught:
        checkpoints.claim()
    assert len(caught) == 1
    checkpoints.release()
    assert not (tmp_path / LOCK).exists()


SAVING = [["save", 3], ["wait"]]


def broken_pool(plan: str, directory: Path, shim: Path, broken: int) -> Pool:
    environment = {"BREAK": plan, "BREAK_UNDER": str(directory), "LD_PRELOAD": str(shim)}
    return Pool(
        "2x1",
        [["open", str(directory)], *SAVING],
        environment=environment,
        broken=broken,
        heartbeat=10,
    )


def break_a_save(plan: str, broken: int, base: Path, two_steps: Path, shim: Path) -> int:
    """Break a save of step 3 on one rank; return the step that stands, once saving works again."""
    directory = base / f"{plan.replace(':', '-')}-{broken}"
    shutil.copytree(two_steps, directory)
    ended = broken_pool(plan, directory, shim, broken).ends()
    heard = []
    for code, out, error in ended:
        if code == 0:
            heard.append(json.loads(out.splitlines()[2])["answer"])
        else:
            assert plan.startswith("kill"), f"{plan}: {error}"
    assert len(set(heard)) <= 1, f"{plan}: the ranks heard {heard}"
    for message in filter(None, heard):
        assert re.match(rf"CheckpointFailed: checkpoint-3 .*{directory}", message)
    again = answers("2x1", ["open", str(directory)], ["steps"], ["restore"], *SAVING)
    stood = {(rank[1]["latest"], rank[2]["step"]) for rank in again}
    assert len(stood) == 1, f"{plan}: {stood}"
    step = stood.pop()[0]
    assert step in (2, 3)
    assert all(rank[2]["wrong"] == [] and rank[4] is None for rank in again)
    assert names_in(directory)[-1] == "checkpoint-3"
    assert not [name for name in names_in(directory) if is_aside(name)]
    shutil.rmtree(directory)
    return step


def calls_of_a_save(base: Path, two_steps: Path, shim: Path, broken: int) -> int:
    directory = base / f"count-{broken}"
    shutil.copytree(two_steps, directory)
    code, _, error = broken_pool("count:0", directory, shim, broken).ends()[broken]
    assert code == 0, error
    return int(error.rpartition("calls=")[2])


@pytest.mark.parametrize(
    ("broken", "plan"),
    [
        pytest.param(1, "kill", marks=pytest.mark.slow),
        (0, "enospc"),
        pytest.param(1, "enospc", marks=pytest.mark.slow),
    ],
)
def test_a_fault_on_one_rank_of_a_save_leaves_a_whole_step(
    two_steps, tmp_path, fault_library, broken, plan
):
    """Faults 1 to 3 and 6 in the middle of the save; at every call of it: slow."""
    calls = calls_of_a_save(tmp_path, two_steps, fault_library, broken)
    assert calls > 8
    assert break_a_save(f"{plan}:{calls // 2}", broken, tmp_path, two_steps, fault_library) == 2


STRIDES = {0: 7, 1: 1}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("broken", STRIDES)
@pytest.mark.parametrize("first", [("kill", 1), ("enospc", 3), ("eio", 5)], ids=lambda one: one[0])
def test_a_fault_at_the_calls_of_one_rank_leaves_a_whole_step(
    two_steps, tmp_path, fault_library, broken, first
):
    """Rank 1's calls all, 10 to 15 of them; of rank 0's, some 110, every seventh.

    Each action begins at another call, so three calls of seven are hit. A pool a point would
    take hours else; every call of a save is broken in `test_training_faults`, on one process.
    """
    plan, start = first
    calls = calls_of_a_save(tmp_path, two_steps, fault_library, broken)
    # Two saves differ by a few calls, as TensorStore joins its writes; one past the last is none.
    numbers = range(start if broken == 0 else 1, calls + 6, STRIDES[broken])
    with ThreadPoolExecutor(3) as beside:
        stood = list(
            beside.map(
                lambda number: break_a_save(
                    f"{plan}:{number}", broken, tmp_path, two_steps, fault_library
                ),
                numbers,
            )
        )
    print(f"{plan} on rank {broken}: {len(stood)} of {calls} calls, steps {set(stood)} stood")
    assert 2 in stood
