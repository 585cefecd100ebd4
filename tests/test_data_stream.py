"""Streams: order, resuming and shares, held to the definition of an epoch."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dew.data import (
    DataPartition,
    Dataset,
    RowStream,
    TokenRows,
    TokenWindows,
    WindowRows,
    finite_batches,
)
from dew.data.stream import epoch_order
from dew.errors import InputRefused


def numbered(rows: int, width: int = 3) -> TokenRows:
    """Rows whose first token is their number."""
    return TokenRows(np.arange(rows)[:, None].astype(np.int32) + np.zeros((1, width), np.int32))


def numbers(batch) -> list[int]:
    return batch["text"][:, 0].tolist()


ROWS, BATCH = st.integers(1, 40), st.integers(1, 9)


@given(ROWS, BATCH, st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_each_epoch_holds_each_row_exactly_once(rows, batch, seed):
    stream = RowStream(numbered(rows), batch=batch, seed=seed)
    seen = [row for _ in range(-(-3 * rows // batch)) for row in numbers(next(stream))]
    for epoch in range(3):
        assert sorted(seen[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_each_epoch_and_each_seed_has_an_order_of_its_own():
    orders = [epoch_order(50, seed=s, epoch=e).tolist() for s in (0, 1) for e in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_the_order_of_an_epoch_is_the_one_of_earlier_versions():
    # Stored: numpy 2.4's Philox with key (7, 2); NumPy promises the raw stream, so does a resume.
    assert epoch_order(8, seed=7, epoch=2).tolist() == [6, 7, 4, 0, 1, 5, 3, 2]


@given(ROWS, BATCH, st.integers(0, 12), st.integers(0, 5))
@settings(deadline=None)
def test_a_run_resumed_after_any_prefix_sees_what_the_uninterrupted_run_sees(
    rows, batch, prefix, seed
):
    whole = RowStream(numbered(rows), batch=batch, seed=seed)
    expected = [numbers(next(whole)) for _ in range(prefix + 4)][prefix:]
    first = RowStream(numbered(rows), batch=batch, seed=seed)
    for _ in range(prefix):
        next(first)
    second = RowStream(numbered(rows), batch=batch, seed=seed)
    second.set_state(first.get_state())
    assert [numbers(next(second)) for _ in range(4)] == expected


@given(ROWS, st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 3), st.integers(0, 6))
@settings(deadline=None)
def test_the_shares_of_a_batch_are_the_batch_of_one_process(rows, count, per_share, start):
    batch = 12 * per_share
    alone = RowStream(numbered(rows), batch=batch)
    for _ in range(start):
        next(alone)
    shares = [
        RowStream(numbered(rows), DataPartition(index, count), batch=batch)
        for index in range(count)
    ]
    for share in shares:
        share.set_state(alone.get_state())
    for _ in range(3):
        merged = np.zeros(batch, int)
        for index, share in enumerate(shares):
            merged[index::count] = numbers(next(share))
        assert merged.tolist() == numbers(next(alone))
    assert {share.get_state() for share in shares} == {alone.get_state()}


def test_a_position_holds_for_another_batch_too():
    small, large = (RowStream(numbered(30), batch=batch) for batch in (3, 6))
    next(large)
    small.set_state(large.get_state())
    assert numbers(next(small)) + numbers(next(small)) == numbers(next(large))


def test_a_reader_number_does_not_change_the_rows():
    shares = [DataPartition(1, 2, readers=2, reader=reader) for reader in (0, 1)]
    first, second = (RowStream(numbered(9), share, batch=4) for share in shares)
    assert numbers(next(first)) == numbers(next(second))


def test_a_position_in_other_data_or_of_another_seed_is_refused_naming_both():
    saved = RowStream(numbered(9), batch=3, seed=1).get_state()
    with pytest.raises(InputRefused, match=r"seed: the position has 1, this data 2") as refusal:
        RowStream(numbered(10), batch=3, seed=2).set_state(saved)
    for rows in (9, 10):
        assert numbered(rows).fingerprint in str(refusal.value)


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b'{"consumed": -3, "seed": 0, "fingerprint": "FINGERPRINT"}',
        b'{"consumed": true, "seed": 0, "fingerprint": "FINGERPRINT"}',
        b'{"seed": 0, "fingerprint": "FINGERPRINT"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_position_is_refused_and_the_stream_stays_where_it_was(state):
    rows = numbered(9)
    stream = RowStream(rows, batch=3)
    next(stream)
    before = stream.get_state()
    with pytest.raises(InputRefused, match="data position"):
        stream.set_state(state.replace(b"FINGERPRINT", rows.fingerprint.encode()))
    assert stream.get_state() == before


def test_a_position_far_along_is_reached_at_once():
    stream = RowStream(numbered(7), batch=2)
    position = json.loads(stream.get_state()) | {"consumed": 7 * 10**12 + 3}
    stream.set_state(json.dumps(position).encode())
    order = epoch_order(7, seed=0, epoch=10**12)
    assert numbers(next(stream)) == order[3:5].tolist()


@given(ROWS, st.sampled_from([1, 2, 4]), st.integers(1, 3))
@settings(deadline=None)
def test_a_finite_pass_counts_each_row_once_at_any_batch_and_share(rows, count, per_share):
    batch = count * per_share
    seen, shapes = [], set()
    for index in range(count):
        for fields in finite_batches(numbered(rows), DataPartition(index, count), batch=batch):
            shapes.add(tuple((key, field.shape) for key, field in fields.items()))
            real = fields["segments"][:, 0] > 0 if "segments" in fields else slice(None)
            seen += fields["text"][real, 0].tolist()
    assert sorted(seen) == list(range(rows))
    assert len(shapes) == 1


def test_filler_rows_weigh_nothing_and_never_wrap_to_the_last_row():
    # P056: five rows in batches of four.
    rows = TokenRows(
        np.full((5, 3), 7, np.int32), np.ones((5, 3), np.int32), np.ones((5, 3), np.float32)
    )
    last = list(finite_batches(rows, batch=4))[-1]
    assert last["text"].tolist() == [[7, 7, 7]] + 3 * [[0, 0, 0]]
    assert last["segments"].sum() == last["weights"].sum() == 3


def test_a_pass_that_comes_out_even_needs_no_segments():
    assert all(set(batch) == {"text"} for batch in finite_batches(numbered(8), batch=4))


def test_batches_are_copies_that_a_caller_may_write_into():
    rows = numbered(4)
    next(finite_batches(rows, batch=4))["text"][:] = 9
    next(RowStream(rows, batch=4))["text"][:] = 9
    assert numbers(rows.take(np.arange(4))) == [0, 1, 2, 3]


def test_token_windows_build_a_dataset_from_a_stream():
    stream = np.arange(1, 18)
    data = TokenWindows(seq_len=8).dataset(stream, batch=2, val=stream[:12])
    assert isinstance(data, Dataset)
    assert (data.records, data.batch) == (2, 2)
    batch = next(data.train(DataPartition()))
    assert sorted(batch["text"].tolist()) == [list(range(1, 10)), list(range(9, 18))]
    assert data.val is not None
    assert [b["segments"].sum() for b in data.val(DataPartition())] == [9 + 4]


def test_windows_stream_from_a_memory_map(tmp_path):
    np.arange(101, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", np.uint16, mode="r")
    batches = islice(RowStream(WindowRows(mapped, 10), batch=5), 2)
    assert sorted(row for batch in batches for row in numbers(batch)) == list(range(0, 100, 10))


@pytest.mark.parametrize(
    "fields", [{"index": 2, "count": 2}, {"index": -1}, {"count": 0}, {"reader": 1}]
)
def test_a_share_outside_its_count_is_refused(fields):
    with pytest.raises(InputRefused, match="DataPartition"):
        DataPartition(**fields)


def test_a_batch_that_the_shares_do_not_divide_is_refused_at_once():
    with pytest.raises(InputRefused, match="5 rows do not divide into 2"):
        RowStream(numbered(9), DataPartition(0, 2), batch=5)
    with pytest.raises(InputRefused, match="5 rows do not divide into 2"):
        finite_batches(numbered(9), DataPartition(0, 2), batch=5)


def test_training_data_without_a_row_is_refused():
    with pytest.raises(InputRefused, match="no row"):
        RowStream(numbered(0), batch=1)
