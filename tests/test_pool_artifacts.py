"""Agreement and gathering on real pools of processes."""

from __future__ import annotations

import time

import pytest
from pools import run

from dew.artifacts.failure import UNHEARD_STATUS

CHILD = "pool_artifacts_child.py"


def test_two_processes_agree_and_go_on_after_a_failure():
    first, second = (rank.said for rank in run(CHILD, 2, work="agreement"))
    assert (first["value"], second["value"]) == (0, 10)
    assert first["count"] == second["count"] == 1
    assert first["told"] == second["told"] == {"from": 0}
    assert second["failed"] == "OSError: no such disk"
    assert first["failed"].startswith("PeerFailure: ")
    assert "failed in opening: OSError: no such disk" in first["failed"]
    assert "failed in reading" in first["again"]
    assert second["again"] == "OSError: no such disk"
    for said in (first, second):
        assert "do not agree on their phase" in said["unequal"]
        assert said["published"] is None
    assert (first["after"], second["after"]) == (0, 1)


def test_a_process_that_comes_late_to_an_agreement_ends_with_the_peer_that_waited():
    """The peer's grace is over, and it is gone: nobody is left to agree with."""
    began = time.monotonic()
    first, second = run(CHILD, 2, work="late")
    for rank in (first, second):
        assert rank.status == UNHEARD_STATUS
        assert "failed in opening: OSError: no such disk" in rank.err
    assert time.monotonic() - began < 60


def test_global_leaves_come_home_whole():
    first, second = (rank.said for rank in run(CHILD, 2, work="gathering", devices=2))
    rows = [[float(3 * row + column) for column in range(3)] for row in range(8)]
    assert first["every"] == second["every"] == first["first"] == rows
    assert second["first"] is None
    assert first["copies"] == second["copies"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert first["marks"] == [True, False, True, False]
    assert (first["local"], second["local"]) == ([0, 0], [1, 1])
    assert first["text"] == "kept"
    assert first["host"] == second["host"] == "ndarray"
    assert "do not agree on their plan" in first["unequal"]


def test_a_thousand_leaves_take_as_many_computations_as_their_bytes_need():
    said = [rank.said for rank in run(CHILD, 2, work="many", leaves=1000, bytes=100 * 512)]
    for one in said:
        assert one["leaf_bytes"] == 512
        assert one["computations"] == [100] * 10
        assert one["last"] == 1000.0


@pytest.mark.slow
def test_gathering_in_groups_is_twenty_times_faster_than_leaf_by_leaf():
    settings = {"leaves": 1000, "bytes": 2**28, "one_by_one": True}
    said = [rank.said for rank in run(CHILD, 2, work="many", **settings)]
    for one in said:
        assert one["computations"] == [1000]
        assert one["single"] > 20 * one["grouped"], one


@pytest.mark.slow
def test_an_agreement_of_four_takes_under_five_milliseconds():
    for rank in run(CHILD, 4, work="latency"):
        assert rank.said["median"] < 5e-3
