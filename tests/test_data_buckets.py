"""Length buckets: every row once, in few shapes, the same batches on any number of processes."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dew.data import DataPartition, Documents, TokenRows
from dew.data.buckets import BucketStream, RaggedRows, bucket_batches, bucket_widths, bucketed
from dew.errors import InputRefused

LENGTHS = st.lists(st.integers(0, 70), min_size=1, max_size=40).filter(any)


def rows_of(lengths) -> RaggedRows:
    """Row n holds n + 1, `length` times; its labels one position fewer; its class n."""
    tokens = [np.full(length, n + 1, np.int32) for n, length in enumerate(lengths)]
    return RaggedRows.joined(
        {
            "tokens": tokens,
            "labels": [part[1:] for part in tokens],
            "number": np.arange(len(lengths), dtype=np.int32) + 1,
        },
        filling={"labels": -100},
    )


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@given(LENGTHS, st.integers(1, 6), st.integers(0, 2**63))
@settings(deadline=None, max_examples=60)
def test_each_row_comes_once_an_epoch_padded_and_nothing_lost(lengths, batch, seed):
    rows = rows_of(lengths)
    stream = BucketStream(rows, batch=batch, seed=seed)
    for _ in range(2):
        found = []
        for fields in islice(stream, stream.batches_an_epoch):
            assert fields["tokens"].shape == fields["labels"].shape == fields["mask"].shape
            for n in range(batch):
                number = int(fields["number"][n])
                length = lengths[number - 1] if number else 0
                # Closed form: what the row was made of.
                expected = [number] * length + [0] * (fields["tokens"].shape[1] - length)
                assert fields["tokens"][n].tolist() == expected
                assert fields["mask"][n].sum() == length
                assert (fields["labels"][n] != -100).sum() == max(0, length - 1)
                found.append(number)
        blank = found.count(0)
        assert sorted(found)[blank:] == list(range(1, len(lengths) + 1))
        assert blank == -len(lengths) % batch
    assert stream.epoch == 2


@given(LENGTHS, st.integers(0, 9), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=60)
def test_a_stream_goes_on_exactly_on_another_number_of_processes(lengths, taken, before, after):
    rows = rows_of(lengths)
    whole = list(islice(BucketStream(rows, batch=4, seed=9), taken + 3))
    states = set()
    for index in range(before):
        stream = BucketStream(rows, DataPartition(index, before), batch=4, seed=9)
        for fields, expected in zip(islice(stream, taken), whole, strict=False):
            assert_equal(fields, {key: value[index::before] for key, value in expected.items()})
        states.add(stream.get_state())
    assert len(states) == 1
    for index in range(after):
        stream = BucketStream(rows_of(lengths), DataPartition(index, after), batch=4, seed=9)
        stream.set_state(next(iter(states)))
        for expected in whole[taken:]:
            assert_equal(
                next(stream), {key: value[index::after] for key, value in expected.items()}
            )


def test_few_widths_hold_all_batches_and_little_padding():
    lengths = np.random.default_rng(0).integers(1, 500, 2000)
    rows = rows_of(lengths.tolist())
    stream = BucketStream(rows, batch=16)
    batches = list(islice(stream, stream.batches_an_epoch))
    widths = [fields["tokens"].shape[1] for fields in batches]
    assert set(widths) <= {16, 32, 64, 128, 256, int(lengths.max())}
    filled = sum(int(fields["mask"].sum()) for fields in batches) / (16 * sum(widths))
    # Lengths are even within a bucket that is half filled at its least: 3/4 on the whole.
    assert filled > 0.7
    assert filled > 1.35 * lengths.mean() / lengths.max()  # against one width for all
    assert widths != sorted(widths)  # the batches are shuffled
    given = BucketStream(rows, batch=16, widths=[500, 100])
    assert {next(given)["tokens"].shape[1] for _ in range(50)} == {100, 500}


def test_an_epoch_is_shuffled_anew_and_by_the_seed():
    rows = rows_of([5] * 50)
    stream, other = BucketStream(rows, batch=50, seed=1), BucketStream(rows, batch=50, seed=2)
    orders = [fields["number"].tolist() for fields in (next(stream), next(stream), next(other))]
    assert len({tuple(order) for order in orders}) == 3


def test_a_finite_pass_holds_every_row_once():
    rows = rows_of([3, 40, 1, 17, 33])
    for count in (1, 2):
        found: list[int] = []
        for index in range(count):
            for fields in bucket_batches(rows, DataPartition(index, count), batch=2):
                found += fields["number"].tolist()
        assert sorted(found) == [0, 1, 2, 3, 4, 5]
    data = bucketed(rows, batch=2, eval_rows=rows)
    assert data.records == 5
    assert len(list(data.val(DataPartition()))) == 3
    assert next(data.train(DataPartition()))["tokens"].shape[0] == 2


def test_fields_may_have_more_axes():
    rows = RaggedRows.joined({"frames": [np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)]})
    fields = next(bucket_batches(rows, batch=2, widths=[4], mask=None))
    assert fields.keys() == {"frames"}
    assert fields["frames"].shape == (2, 4, 3)
    assert fields["frames"].sum() == 18


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: bucket_widths(40, [32, 8]), "longest row has 40 positions"),
        (lambda: bucket_widths(4, [0, 8]), "at least 1"),
        (lambda: RaggedRows.joined({"a": np.zeros((2, 3))}), "at least one field that is a list"),
        (lambda: RaggedRows.joined({"a": [[1]], "b": np.zeros(2)}), "one number of rows"),
        (lambda: RaggedRows.joined({"a": [[1]]}, filling={"b": 1}), r"filled \['b'\]"),
        (lambda: RaggedRows.joined({"a": [1, 2]}), "one value a row"),
        (lambda: RaggedRows.joined({"a": [[1, 2**40]]}), "a goes from 1 to 1099511627776"),  # P065
        (lambda: BucketStream(rows_of([3] * 4), DataPartition(0, 2), batch=3), "multiple of 2"),
        (lambda: BucketStream(RaggedRows.joined({"a": []}), batch=1), "no row"),
        (lambda: next(BucketStream(rows_of([3]), batch=1, mask="tokens")), "name another"),
    ],
)
def test_rows_and_options_that_do_not_fit_are_refused(call, named):
    with pytest.raises(InputRefused, match=named):
        call()


def test_a_position_of_other_rows_batch_widths_or_seed_is_refused():
    rows = rows_of([3, 20, 40])
    stream = BucketStream(rows, batch=2, seed=1)
    for other, named in (
        (BucketStream(rows, batch=2, seed=2), "seed"),
        (BucketStream(rows, batch=1, seed=1), "batch"),
        (BucketStream(rows, batch=2, seed=1, widths=[40]), "widths"),
        (BucketStream(rows_of([3, 20, 41]), batch=2, seed=1), "fingerprint"),
    ):
        with pytest.raises(InputRefused, match=named):
            other.set_state(stream.get_state())
    for state in (b"", b"[]", b'{"batches": -1}', b'{"batches": true}'):
        with pytest.raises(InputRefused, match="data position"):
            stream.set_state(state)


def test_documents_are_rows_of_a_language_model():
    documents = Documents.joined([[1, 2, 3], [4, 5]])
    rows = RaggedRows({"text": documents.tokens}, {"text": documents.lengths})
    fields = next(bucket_batches(rows, batch=2, widths=[4], mask="segments"))
    assert fields["text"].tolist() == [[1, 2, 3, 0], [4, 5, 0, 0]]
    assert fields["segments"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    # The loss counts a token after another of its document.
    assert TokenRows(fields["text"], fields["segments"]).targets.sum() == 3
