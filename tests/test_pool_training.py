"""A run is the same run on any mesh and any number of processes.

The right values are those of one process with one device, in the same test.
"""

from __future__ import annotations

import functools

import pytest
from pools import run

CHILD = "pool_training_child.py"
STEPS = 20
TOLERANCE = 1e-5

LAYOUTS = [
    (ranks, devices, mesh)
    for ranks, devices in ((1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (2, 2))
    for mesh in (
        {},
        {"fsdp": 2},
        {"tensor": 2},
        *([{"fsdp": 2, "tensor": 2}] if ranks * devices >= 4 else []),
        *([{"sequence": 2, "fsdp": 2}] if ranks * devices >= 4 else []),
    )
]


@functools.cache
def alone(steps: int) -> dict:
    return run(CHILD, 1, devices=1, mesh={}, steps=steps)[0].said


def assert_same_run(ranks: int, devices: int, mesh: dict, steps: int) -> list[dict]:
    right = alone(steps)
    said = [rank.said for rank in run(CHILD, ranks, devices=devices, mesh=mesh, steps=steps)]
    for one in said:
        assert one["step"] == steps
        for step, loss in right["losses"].items():
            assert one["losses"][step] == pytest.approx(loss, rel=TOLERANCE), step
        assert one["scores"] == pytest.approx(right["scores"], rel=TOLERANCE)
    return said


@pytest.mark.slow
def test_fsdp_and_tensor_on_eight_devices_train_as_one_device_does():
    said = assert_same_run(1, 8, {"fsdp": 2, "tensor": 2}, 6)
    assert said[0]["spec"] == "P(None, 'fsdp', 'tensor')"


def test_two_processes_with_two_devices_train_as_one_device_does():
    assert_same_run(2, 2, {"fsdp": 2, "tensor": 2}, 6)


@pytest.mark.slow
def test_processes_that_share_rows_read_the_same_ones():
    assert_same_run(2, 1, {"tensor": 2}, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "devices", "mesh"), LAYOUTS, ids=str)
def test_twenty_steps_are_the_same_on_every_layout(ranks, devices, mesh):
    assert_same_run(ranks, devices, mesh, STEPS)


@pytest.mark.slow
def test_only_the_first_rank_shows_the_run():
    first, second = run(CHILD, 2, devices=1, mesh={}, steps=2)
    assert "step 2/2" in first.err + first.out
    assert "step 2/2" not in second.err + second.out


@pytest.mark.slow
def test_a_stuck_rank_ends_all_and_every_stack_is_written():
    """FAULTS 15: rank 1 sleeps in its data; both end, and both say where they were."""
    waiting, stuck = run(CHILD, 2, devices=1, mesh={}, steps=8, stuck_at=4, hang=10, grace=3)
    assert waiting.status != 0
    assert stuck.status != 0
    assert "waited 10 s for" in waiting.err + stuck.err
    for rank in (waiting, stuck):
        assert "Thread 0x" in rank.err
    assert "__next__" in stuck.err
