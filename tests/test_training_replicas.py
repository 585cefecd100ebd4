"""Copies that differ are found and named. By hand: one device of four gets another value."""

from __future__ import annotations

from pools import run

CHILD = "replicas_child.py"


def test_a_flipped_bit_on_one_device_is_named():
    said = run(CHILD, 1, devices=4)[0].said
    assert said["sound"] is None
    assert said["flipped"].startswith("ReplicasDiffer: w (")
    assert "cpu:2 holds other bits than the 3 other devices" in said["flipped"]
    assert said["swapped"].startswith("ReplicasDiffer: w (")


def test_a_flipped_bit_on_one_rank_is_heard_by_all():
    first, second = (rank.said for rank in run(CHILD, 2, devices=1))
    for said in (first, second):
        assert said["sound"] is None
        assert "holds other bits" in said["flipped"]
