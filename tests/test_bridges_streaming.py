"""Sources read as they come: what they give, and that they go on exactly where they were."""

import json
from itertools import islice

import numpy as np
import pytest
from helpers import TINY_VOCABULARY, write_lines, write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

import bridges
from bridges.data.records import read_records
from bridges.data.row_parts import IterablePart, source_parts
from bridges.data.streaming import stream_rows
from bridges.text.processors import read_processor
from dew.checkpoints.position import position_arrays, position_of, position_row
from dew.data import DataPartition
from dew.data.blocks import Block, BlockStream, block_batches
from dew.data.rows import TokenRows
from dew.errors import InputRefused, UnknownName

WORDS = ("fair", "is", "foul", "and", "hover", "through", "the", "fog", "filthy", "air")
TEXTS = [
    " ".join(WORDS[(n * 7 + k) % len(WORDS)] for k in range(3 + n * 5 % 11)) + f" {n}"
    for n in range(60)
]


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return read_processor(folder)


class Numbered:
    """Blocks of rows whose first token is a number of their own, of the given sizes."""

    fingerprint = "numbered"

    def __init__(self, sizes):
        self.sizes = sizes
        self.read_from = []

    def read(self, epoch, start=None):
        self.read_from.append(start)
        for number in range(start or 0, len(self.sizes)):
            first = sum(self.sizes[:number])
            tokens = np.arange(first, first + self.sizes[number], dtype=np.int32)
            rows = TokenRows(np.stack([tokens, tokens], 1)) if len(tokens) else None
            yield Block(number, rows, len(tokens))


def numbers(batches) -> list[int]:
    return [n for batch in batches for n in batch["text"][:, 0].tolist()]


def batches_of(stream, count):
    return [{key: field.copy() for key, field in batch.items()} for batch in islice(stream, count)]


def assert_equal(first, second):
    for ours, theirs in zip(first, second, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours:
            np.testing.assert_array_equal(ours[key], theirs[key])


# Blocks


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any),
    st.integers(1, 9),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_each_row_comes_once_an_epoch(sizes, batch, shuffle):
    # Closed form: the definition of an epoch.
    total = sum(sizes)
    stream = BlockStream(Numbered(sizes), batch=batch, seed=3, shuffle=shuffle)
    found = numbers(islice(stream, -(-3 * total // batch)))[: 3 * total]
    for epoch in range(3):
        assert sorted(found[epoch * total : (epoch + 1) * total]) == list(range(total))
    if not shuffle:
        assert found == list(range(total)) * 3


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any),
    st.integers(0, 12),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
)
@settings(deadline=None, max_examples=60)
def test_a_stream_goes_on_exactly_on_another_number_of_processes(sizes, consumed, before, after):
    # FAULTS 23: the global batches of one process are the oracle.
    whole = list(islice(BlockStream(Numbered(sizes), batch=4, seed=5), consumed + 3))
    states = set()
    for index in range(before):
        stream = BlockStream(Numbered(sizes), DataPartition(index, before), batch=4, seed=5)
        for batch, expected in zip(islice(stream, consumed), whole, strict=False):
            np.testing.assert_array_equal(batch["text"], expected["text"][index::before])
        states.add(stream.get_state())
    assert len(states) == 1
    for index in range(after):
        blocks = Numbered(sizes)
        stream = BlockStream(blocks, DataPartition(index, after), batch=4, seed=5)
        stream.set_state(next(iter(states)))
        for expected in whole[consumed:]:
            np.testing.assert_array_equal(next(stream)["text"], expected["text"][index::after])
        assert blocks.read_from[0] == json.loads(next(iter(states)))["start"]


def test_a_checkpoint_of_one_number_of_processes_gives_the_position_to_another():
    shares = [DataPartition(index, 2) for index in range(2)]
    streams = [BlockStream(Numbered([5, 6]), share, batch=4, seed=1) for share in shares]
    for stream in streams:
        batches_of(stream, 2)
    saved = position_arrays(
        [position_row(s.get_state(), share) for s, share in zip(streams, shares, strict=True)]
    )
    expected = next(BlockStream(Numbered([5, 6]), batch=12, seed=1))["text"][8:]
    for index in range(4):
        share = DataPartition(index, 4)
        resumed = BlockStream(Numbered([5, 6]), share, batch=4, seed=1)
        resumed.set_state(position_of(saved, share))
        np.testing.assert_array_equal(next(resumed)["text"], expected[index::4])


def test_a_resumed_stream_reads_its_block_again_and_none_before():
    stream = BlockStream(Numbered([4] * 10), batch=4, seed=0)
    batches_of(stream, 7)
    blocks = Numbered([4] * 10)
    resumed = BlockStream(blocks, batch=4, seed=0)
    resumed.set_state(stream.get_state())
    assert_equal(batches_of(resumed, 2), batches_of(stream, 2))
    assert blocks.read_from == [6]


def test_positions_of_another_source_or_seed_are_refused():
    stream = BlockStream(Numbered([4]), batch=2, seed=1)
    other = BlockStream(Numbered([4]), batch=2, seed=2)
    with pytest.raises(InputRefused, match="seed: the position has 1, this data 2"):
        other.set_state(stream.get_state())
    for state in (b"x", b"[]", b'{"consumed": 1, "seed": 0, "fingerprint": ""}'):
        with pytest.raises(InputRefused, match="data position"):
            stream.set_state(state)
    with pytest.raises(InputRefused, match="no row in a whole epoch"):
        next(BlockStream(Numbered([0, 0]), batch=2))
    with pytest.raises(InputRefused, match="choose a multiple of 2"):
        BlockStream(Numbered([4]), DataPartition(0, 2), batch=3)


def test_a_finite_pass_fills_its_last_batch_with_rows_that_count_for_nothing():
    class Marked(Numbered):
        def read(self, epoch, start=None):
            for block in super().read(epoch, start):
                rows = block.rows
                yield Block(block.start, TokenRows(rows.tokens, np.ones_like(rows.tokens)))

    for count in (1, 2):
        shares = [
            list(block_batches(Marked([3, 2]), DataPartition(index, count), batch=4))
            for index in range(count)
        ]
        joined = [
            np.stack([share[n]["segments"] for share in shares], 1).reshape(4, 2) for n in range(2)
        ]
        assert [int(segments[:, 0].sum()) for segments in joined] == [4, 1]
    assert numbers(block_batches(Marked([3, 2]), batch=4))[:5] == [0, 1, 2, 3, 4]
    with pytest.raises(InputRefused, match="divides the rows"):
        list(block_batches(Numbered([3]), batch=2))


# Texts


def documents_of(batches) -> list[tuple[int, ...]]:
    """The token ids of every segment, sorted."""
    found = []
    for batch in batches:
        for tokens, segments in zip(batch["text"], batch["segments"], strict=True):
            found += [tuple(tokens[segments == n].tolist()) for n in range(1, segments.max() + 1)]
    return sorted(found)


def write_kinds(folder, texts):
    """The texts in files of every kind that streams, two a kind."""
    import pyarrow as arrow
    from pyarrow import ipc, parquet

    half = len(texts) // 2
    for name, some in (("a", texts[:half]), ("b", texts[half:])):
        table = arrow.table({"text": some})
        for kind in ("jsonl", "json", "csv", "parquet", "arrow", "tar"):
            (folder / kind).mkdir(exist_ok=True)
        write_lines(folder / "jsonl" / f"{name}.jsonl", some)
        (folder / "json" / f"{name}.json").write_text(json.dumps([{"text": t} for t in some]))
        lines = "".join(f'"{text}"\n' for text in some)
        (folder / "csv" / f"{name}.csv").write_text("text\n" + lines)
        parquet.write_table(table, folder / "parquet" / f"{name}.parquet", row_group_size=7)
        with ipc.new_stream(folder / "arrow" / f"{name}.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=5)
        write_tar(folder / "tar" / f"{name}.tar", some)


def write_tar(path, texts):
    import io
    import tarfile

    with tarfile.open(path, "w") as archive:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number:04}.txt")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def test_every_kind_of_file_is_streamed_and_resumed_alike(tmp_path, processor):
    write_kinds(tmp_path, TEXTS)
    expected = sorted(
        tuple([*processor.encode(text), processor.eos_token_ids[0]]) for text in TEXTS
    )
    options = {"seq_len": 40, "batch": 4, "streaming": True, "shuffle_buffer": 8, "seed": 2}
    streams = {}
    for kind in ("jsonl", "json", "csv", "parquet", "arrow", "tar"):
        data = bridges.dataset(tmp_path / kind, processor, **options)
        assert data.report.files == 2
        stream = data.train(DataPartition())
        batches, states = [], []
        while stream.epoch < 1:
            states.append(stream.get_state())
            batches += batches_of(stream, 1)
        streams[kind] = batches
        assert set(expected) <= set(documents_of(batches))
        for place in (1, 4, len(batches) - 1):
            again = bridges.dataset(tmp_path / kind, processor, **options).train(DataPartition())
            again.set_state(states[place])
            assert_equal(batches_of(again, len(batches) - place), batches[place:])
    for batches in streams.values():
        assert_equal(batches, streams["jsonl"])


def test_rows_are_packed_under_document_masks_and_shuffled(tmp_path, processor):
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    options = {"seq_len": 60, "streaming": True, "shuffle_buffer": 20}
    data = bridges.dataset(source, processor, batch=2, **options)
    assert data.records == 0
    first = next(data.train(DataPartition()))
    assert first["text"].shape == first["segments"].shape == (2, 61)
    assert first["segments"].max() > 1
    assert data.report.documents == 20
    assert data.report.filled > 0.8
    assert "[[" in str(data.report)
    epochs = data.train(DataPartition())
    count = 0
    while epochs.epoch < 1:
        next(epochs)
        count += 1
    other = bridges.dataset(source, processor, batch=2, seed=1, **options).train(DataPartition())
    same = [np.array_equal(next(other)["text"], first["text"])]
    assert same == [False]
    in_order = bridges.dataset(
        source, processor, batch=2, seq_len=60, streaming=True, shuffle_buffer=0, pack=False
    ).train(DataPartition())
    row = next(in_order)["text"][0]
    ids = processor.encode(TEXTS[0])
    assert row[: len(ids)].tolist() == ids


def test_validation_is_a_share_a_split_or_another_source(tmp_path, processor):
    folder = tmp_path / "data"
    folder.mkdir()
    write_lines(folder / "train.jsonl", TEXTS)
    write_lines(folder / "validation.jsonl", ["foul fog"])
    options = {"seq_len": 40, "batch": 2, "streaming": True}
    share = bridges.dataset(folder, processor, split=0.2, **options)
    held = documents_of(share.val(DataPartition()))
    stream = share.train(DataPartition())
    trained: list = []
    while stream.epoch < 2:
        trained += documents_of([next(stream)])
    assert not set(held) & set(trained)
    assert len(set(held)) + len(set(trained)) == len(TEXTS)
    assert 4 <= len(held) <= 22  # 12 expected of 60; the bounds are 3 standard deviations
    end = processor.eos_token_ids[0]
    expected = [(*processor.encode("foul fog"), end)]
    for chosen in ({"split": "validation"}, {"eval_source": folder / "validation.jsonl"}):
        data = bridges.dataset(folder, processor, **options, **chosen)
        assert documents_of(data.val(DataPartition())) == expected
    looked_up = bridges.dataset(folder, processor, seq_len=40, batch=2, split="validation")
    assert documents_of(looked_up.val(DataPartition())) == expected
    with pytest.raises(UnknownName, match="has train, validation"):
        bridges.dataset(folder, processor, **options, split="test")


def test_map_style_reads_the_new_kinds_as_the_old(tmp_path, processor):
    import datasets

    write_kinds(tmp_path, TEXTS)
    options = {"seq_len": 40, "batch": 2, "split": 0.2}
    expected = bridges.dataset(tmp_path / "jsonl", processor, **options)
    made = datasets.Dataset.from_dict({"text": TEXTS})
    made.save_to_disk(tmp_path / "saved")
    rows = [{"text": text} for text in TEXTS]
    for source in (tmp_path / "csv", tmp_path / "arrow", tmp_path / "saved", made, rows):
        data = bridges.dataset(source, processor, **options)
        assert data.report.fingerprint == expected.report.fingerprint
        assert data.eval_rows.fingerprint == expected.eval_rows.fingerprint


def test_a_bad_row_is_named_before_it_is_trained_on(tmp_path, processor):
    lines = [json.dumps({"text": text}) for text in TEXTS]
    options = {"seq_len": 40, "batch": 1, "streaming": True, "shuffle_buffer": 4}
    for wrong, named in (
        ("{cut", "line 9: not JSON"),
        ('{"other": 1}', "line 9: no field 'text'"),
        ('{"text": null}', "line 9: field 'text' holds null"),
        ("[1]", "line 9: no JSON object"),
    ):
        (tmp_path / "a.jsonl").write_text("\n".join([*lines[:8], wrong, *lines[8:]]))
        stream = bridges.dataset(tmp_path / "a.jsonl", processor, **options).train(DataPartition())
        with pytest.raises(InputRefused, match=named):
            batches_of(stream, 60)
    (tmp_path / "b.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(InputRefused, match="no field 'text'"):
        bridges.dataset(tmp_path / "b.jsonl", processor, **options)
    (tmp_path / "c.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(InputRefused, match="no trainable token"):
        bridges.dataset(tmp_path / "c.jsonl", processor, **options)


def test_a_file_that_changes_under_a_stream_is_named(tmp_path, processor):
    # FAULTS 22.
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    options = {"seq_len": 40, "batch": 1, "streaming": True, "shuffle_buffer": 4}
    stream = bridges.dataset(source, processor, **options).train(DataPartition())
    next(stream)
    state = stream.get_state()
    whole = source.read_text()
    source.write_text("".join(whole.splitlines(True)[:30]))
    with pytest.raises(InputRefused, match=r"a\.jsonl: changed while it was read, at"):
        batches_of(stream, 60)
    with pytest.raises(InputRefused, match="fingerprint"):
        bridges.dataset(source, processor, **options).train(DataPartition()).set_state(state)
    stream = bridges.dataset(source, processor, **options).train(DataPartition())
    source.unlink()
    with pytest.raises(InputRefused, match=r"a\.jsonl: (gone|no such)"):
        batches_of(stream, 60)


# What can only be gone through


def test_the_same_call_takes_map_style_and_iterable_datasets(processor):
    # P066.
    import datasets

    made = datasets.Dataset.from_dict({"text": TEXTS})
    options = {"seq_len": 40, "batch": 4, "streaming": True, "shuffle_buffer": 8}
    found = [
        batches_of(bridges.dataset(source, processor, **options).train(DataPartition()), 5)
        for source in (made, made.to_iterable_dataset(), lambda: iter(TEXTS))
    ]
    assert_equal(found[1], found[0])
    assert_equal(found[2], found[0])
    with pytest.raises(InputRefused, match="gone through once"):
        bridges.dataset(iter(TEXTS), processor, **options)
    with pytest.raises(InputRefused, match="streaming=True"):
        read_records(made.to_iterable_dataset())


def test_a_stream_of_shards_resumes_at_the_next_row():
    # P067: 24 rows in 4 shards, stopped after 3; the library's own order is the oracle.
    import datasets

    made = datasets.Dataset.from_dict({"n": list(range(24))}).to_iterable_dataset(num_shards=4)
    order = [row["n"] for row in made]

    def collate(rows):
        return {"n": np.array([row["n"] for row in rows], np.int32)}

    for buffer in (0, 5):
        options = {"batch": 3, "shuffle_buffer": buffer}
        whole = stream_rows(made, collate, **options).train(DataPartition())
        first = next(whole)["n"].tolist()
        state = whole.get_state()
        rest = [n for batch in islice(whole, 7) for n in batch["n"].tolist()]
        resumed = stream_rows(made, collate, **options).train(DataPartition())
        resumed.set_state(state)
        assert [n for batch in islice(resumed, 7) for n in batch["n"].tolist()] == rest
        assert sorted(first + rest) == list(range(24))
        if not buffer:
            assert first + rest == order


def test_integers_past_32_bits_are_refused_and_never_cut():
    # P065.
    def collate(rows):
        return {"n": np.array([row["n"] for row in rows])}

    whole = stream_rows([{"n": 5}], collate, batch=1).train(DataPartition())
    assert next(whole)["n"].dtype == np.int32
    with pytest.raises(InputRefused, match="'n' goes from 1099511627776"):
        next(stream_rows([{"n": 2**40}], collate, batch=1).train(DataPartition()))


def test_rows_of_an_iterable_that_are_no_rows_are_refused():
    with pytest.raises(InputRefused, match="row 2 is a int"):
        list(IterablePart(lambda: iter(["a", 5])).rows(0))
    with pytest.raises(UnknownName, match="one split"):
        source_parts(lambda: iter(["a"]), split="test")


@pytest.mark.parametrize("buffer", [-1, 2.5, True])
def test_a_buffer_that_is_no_number_of_rows_is_refused(processor, buffer):
    options = {"seq_len": 8, "batch": 1, "streaming": True, "shuffle_buffer": buffer}
    with pytest.raises(InputRefused, match="shuffle_buffer is"):
        bridges.dataset([{"text": "fair"}], processor, **options)


def test_ids_stay_within_the_vocabulary(processor):
    with pytest.raises(InputRefused, match="vocab_size is 5"):
        bridges.dataset(
            [{"text": "fair"}], processor, seq_len=8, batch=1, streaming=True, vocab_size=5
        )
    assert processor.vocab_size <= TINY_VOCABULARY
