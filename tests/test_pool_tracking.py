"""On a pool: all ranks do the arithmetic of an evaluation, the first alone writes."""

from __future__ import annotations

import pytest
from pools import run

from dew.tracking import LocalTracker

CHILD = "tracking_child.py"


@pytest.mark.slow
def test_the_first_rank_alone_writes_scalars_records_and_previews(tmp_path):
    """A sharded model writes its samples on both ranks; the pass ends with the shorter shard."""
    first, second = (rank.said for rank in run(CHILD, 2, folder=str(tmp_path), told=[0, 1]))
    assert first == second
    assert first["previews"] == 1
    assert first["scores"]["evaluation/coordinated_batches"] == 2
    assert first["scores"]["evaluation/records"] == 16
    assert first["scores"]["evaluation/uneven_shards"] == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    tracker = LocalTracker(tmp_path / "0")
    assert tracker.scalars()[-1]["val/perplexity"] == first["scores"]["val/perplexity"]
    records = [(record["type"], record["step"]) for record in tracker.records()]
    assert records == [("FitStarted", 0), ("FitEnded", 2)]
    assert tracker.records()[0]["processes"] == 2
    names = sorted(path.name for path in (tmp_path / "0" / "previews").iterdir())
    assert names == ["text-2-1.txt", "text-2.txt"]


@pytest.mark.slow
def test_a_tracker_on_another_rank_than_the_first_turns_no_preview_on(tmp_path):
    first, second = (rank.said for rank in run(CHILD, 2, folder=str(tmp_path), told=[1]))
    assert first["previews"] == second["previews"] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_preview_that_fails_on_one_rank_ends_both(tmp_path):
    """The other may be inside a collective by then: it hears of the failure all the same."""
    ranks = run(CHILD, 2, folder=str(tmp_path), told=[0], failing=1)
    assert all(rank.status != 0 for rank in ranks)
    assert all("no preview today" in rank.err for rank in ranks)
