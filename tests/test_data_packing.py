"""Packing and windows, held to what a list of documents says in closed form."""

import gc
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dew.data import Documents, TokenRows, WindowRows, packed_rows, separate_rows
from dew.errors import InputRefused

LENGTHS = st.lists(st.integers(0, 40), max_size=30)
SEQ_LEN = st.integers(1, 12)


def numbered(lengths: list[int]) -> Documents:
    """Documents whose tokens are all different, so that a token names its place."""
    ends = np.cumsum([0, *lengths])
    return Documents.joined([np.arange(a, b) + 1 for a, b in pairwise(ends)])


def predictions(rows: TokenRows) -> list[tuple[int, int]]:
    """Every (input, target) pair that a loss over the rows would count, sorted."""
    row, column = np.nonzero(rows.targets)
    pairs = zip(rows.tokens[row, column - 1], rows.tokens[row, column], strict=True)
    return sorted((int(a), int(b)) for a, b in pairs)


@given(LENGTHS, SEQ_LEN)
@settings(deadline=None)
def test_packing_predicts_every_token_but_a_documents_first_exactly_once(lengths, seq_len):
    documents = numbered(lengths)
    # Closed form: neighbours within a document, and no pair across two.
    expected = sorted(
        (int(a), int(b))
        for document in range(len(documents))
        for a, b in pairwise(documents[document])
    )
    rows = packed_rows(documents, seq_len=seq_len)
    assert rows.tokens.shape[1] == seq_len + 1
    assert predictions(rows) == expected


@given(LENGTHS, SEQ_LEN)
@settings(deadline=None)
def test_segments_count_from_one_without_a_gap_and_padding_comes_last(lengths, seq_len):
    rows = packed_rows(numbered(lengths), seq_len=seq_len)
    assert rows.segments is not None
    for tokens, segments in zip(rows.tokens, rows.segments, strict=True):
        real = segments[segments > 0]
        assert (segments[: len(real)] == real).all()
        assert real[0] == 1
        assert set(np.diff(real)) <= {0, 1}
        assert (tokens[len(real) :] == 0).all()


@given(LENGTHS, SEQ_LEN)
@settings(deadline=None)
def test_packing_needs_at_most_the_rows_that_best_fit_decreasing_promises(lengths, seq_len):
    documents = numbered(lengths)
    rows = packed_rows(documents, seq_len=seq_len)
    # Two rows at most half full would have been one; so all but one row are over half full,
    # save for the single free tokens, which could hold no target.
    used = (rows.segments > 0).sum(1) if rows.segments is not None else np.zeros(0)
    assert (used <= (seq_len + 1) / 2).sum() <= 1


def test_one_document_packs_into_the_windows_of_its_stream():
    stream = np.arange(1, 14)
    packed = packed_rows(Documents.joined([stream]), seq_len=4)
    windows = WindowRows(stream, 4).take(np.arange(3))
    np.testing.assert_array_equal(packed.tokens, windows["text"])
    np.testing.assert_array_equal(packed.segments, np.ones((3, 5)))


def test_packing_places_the_longest_first_where_it_fits_tightest():
    # By hand, rows of 8: 6 opens row 0, 5 opens row 1, 3 fits row 1 exactly, 2 fits row 0.
    rows = packed_rows(numbered([3, 6, 2, 5]), seq_len=7)
    np.testing.assert_array_equal(
        rows.tokens, [[4, 5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 1, 2, 3]]
    )
    np.testing.assert_array_equal(
        rows.segments, [[1, 1, 1, 1, 1, 1, 2, 2], [1, 1, 1, 1, 1, 2, 2, 2]]
    )


def test_packing_carries_the_weights_of_targets():
    documents = numbered([4, 3])
    weighted = Documents(documents.tokens, documents.offsets, np.float32([0, 0, 1, 1, 0, 0.5, 1]))
    rows = packed_rows(weighted, seq_len=7)
    np.testing.assert_array_equal(rows.weights, np.float32([[0, 0, 1, 1, 0, 0.5, 1, 0]]))
    np.testing.assert_array_equal(np.flatnonzero(rows.targets[0]), [2, 3, 5, 6])


def test_separate_rows_keep_the_start_of_each_document():
    rows = separate_rows(numbered([3, 1, 6]), seq_len=3)
    np.testing.assert_array_equal(rows.tokens, [[1, 2, 3, 0], [5, 6, 7, 8]])
    np.testing.assert_array_equal(rows.segments, [[1, 1, 1, 0], [1, 1, 1, 1]])


def test_a_hundred_thousand_documents_pack_without_quadratic_time():
    # Three times the documents take about three times as long; a search through all rows, nine.
    generator = np.random.default_rng(0)

    def seconds(count: int) -> float:
        documents = numbered(generator.integers(2, 60, count).tolist())
        gc.collect()
        gc.disable()  # what other tests left would be searched within either time
        try:
            start = time.process_time()
            packed_rows(documents, seq_len=63)
            return time.process_time() - start
        finally:
            gc.enable()

    seconds(1000)
    assert seconds(99_000) < 7 * seconds(33_000)


@given(st.integers(2, 60), st.integers(1, 20))
@settings(deadline=None)
def test_windows_predict_every_token_but_the_first_exactly_once(length, seq_len):
    stream = np.arange(1, length + 1).astype(np.uint16)
    windows = WindowRows(stream, seq_len)
    batch = windows.take(np.arange(len(windows)))
    rows = TokenRows(batch["text"], batch.get("segments"))
    assert predictions(rows) == [(place, place + 1) for place in range(1, length)]


def test_ids_of_a_row_stay_exact_beyond_sixteen_bits():
    windows = WindowRows(np.array([65536, 131072, 7], np.uint32), 2)
    np.testing.assert_array_equal(windows.take(np.array([0]))["text"], [[65536, 131072, 7]])


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: WindowRows(np.zeros(1, np.int32), 4), "at least two"),
        (lambda: WindowRows(np.zeros(9, np.float32), 4), "float32"),
        (lambda: WindowRows(np.zeros(9, np.int32), 0), "seq_len"),
        (lambda: packed_rows(numbered([3]), seq_len=0), "seq_len"),
        (lambda: TokenRows(np.zeros((2, 3), np.int64)), "int64"),
        (lambda: TokenRows(np.zeros((2, 3), np.int32), np.zeros((2, 4), np.int32)), "segments"),
        (lambda: TokenRows(np.zeros((2, 3), np.int32)).take(np.array([-1])), "-1"),
        (lambda: WindowRows(np.arange(9), 4).take(np.array([2])), "2"),
    ],
)
def test_what_cannot_be_rows_is_refused_by_name(build, named):
    with pytest.raises(InputRefused, match=named):
        build()
