"""From texts to rows: tokens, packing, the split, the report, files of token ids."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from helpers import write_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import bridges
from bridges.data import tokenizing
from bridges.data.tokenizing import tokenized
from bridges.held_out import held_out
from dew.data import DataPartition, TokenRows
from dew.errors import InputRefused

TEXTS = ["the cat sat", "on the mat", "a cat and a mat", "sat the cat on a mat and sat"]


@dataclass(frozen=True)
class SmallProcessor:
    """A tokenizer trained here, with the names that `dew.typing.TextProcessor` asks for."""

    tokenizer: Tokenizer
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = (0,)
    pad_token_id: int | None = 0

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text, *, add_special_tokens=True):
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_batch(self, texts, *, add_special_tokens=True):
        found = self.tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in found]

    def decode(self, ids, *, skip_special_tokens=True):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages, *, add_generation_prompt=False):
        raise NotImplementedError


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>", "<start>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def processor() -> SmallProcessor:
    return SmallProcessor(byte_level_tokenizer())


@pytest.fixture(scope="module")
def starting_processor() -> SmallProcessor:
    """One whose tokenizer itself puts <start> before a text."""
    tokenizer = byte_level_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A", special_tokens=[("<start>", 1)]
    )
    return SmallProcessor(tokenizer, bos_token_id=1)


def documents_of(rows: TokenRows) -> list[list[int]]:
    """The token ids of every segment of every row, sorted."""
    found = []
    for tokens, segments in zip(rows.tokens, rows.segments, strict=True):
        for segment in range(1, segments.max() + 1):
            found.append(tokens[segments == segment].tolist())
    return sorted(found)


# What is tokenized


def test_each_document_ends_with_an_end_token_that_is_a_target(tmp_path, processor):
    # P055: pad = end, and yet the first end token is trained on, the padding is not.
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    data = bridges.dataset(source, processor, seq_len=64, batch=2, pack=False)
    for tokens, mask, text in zip(data.rows.tokens, data.rows.targets, TEXTS, strict=True):
        ids = processor.encode(text)
        assert tokens[: len(ids) + 1].tolist() == [*ids, 0]
        assert mask.tolist() == [False] + [True] * len(ids) + [False] * (64 - len(ids))
    assert data.report.end_share == 1.0


def test_a_tokenizers_own_start_token_comes_once_and_an_end_token_is_not_doubled(
    starting_processor,
):
    documents = tokenized(["cat", "cat<end>"], starting_processor)
    cat = starting_processor.encode("cat", add_special_tokens=False)
    assert [d.tolist() for d in (documents[0], documents[1])] == 2 * [[1, *cat, 0]]


@pytest.mark.parametrize("kind", ["plain", "starting"])
def test_a_long_text_in_pieces_has_the_ids_of_the_whole(
    monkeypatch, processor, starting_processor, kind
):
    monkeypatch.setattr(tokenizing, "PIECE_CHARACTERS", 300)
    chosen = processor if kind == "plain" else starting_processor
    text = "\n\n".join(f"{TEXTS[n % 4]}, {n}\n {n}" for n in range(400))
    assert len(tokenizing._pieces(text, chosen)) > 10
    # Oracle: the tokenizer on the whole text.
    assert tokenized(["a", text], chosen)[1].tolist() == [*chosen.encode(text), 0]


def test_a_tokenizer_that_looks_across_line_ends_gets_long_texts_whole(monkeypatch):
    monkeypatch.setattr(tokenizing, "PIECE_CHARACTERS", 300)
    tokenizer = Tokenizer(models.BPE())  # no pre-tokenizer: one word of "t\nt" crosses the line
    trainer = trainers.BpeTrainer(special_tokens=["<end>"], vocab_size=60, show_progress=False)
    text = "cat\nmat\n" * 200
    tokenizer.train_from_iterator([text], trainer)
    crossing = SmallProcessor(tokenizer)
    assert tokenizing._pieces(text, crossing) == [text]
    assert tokenized([text], crossing)[0].tolist() == [*crossing.encode(text), 0]


def test_an_id_past_the_vocabulary_is_refused_with_its_place(processor):
    ids = processor.encode("cat")
    wrong = max(ids)
    with pytest.raises(InputRefused) as refusal:
        tokenized(["", "cat"], processor, vocab_size=wrong)
    assert f"id {wrong} at position {ids.index(wrong)} of document 2" in str(refusal.value)


def test_a_tokenizer_without_an_end_token_is_refused_unless_none_is_wanted(processor):
    endless = SmallProcessor(processor.tokenizer, eos_token_ids=())
    with pytest.raises(InputRefused, match="add_eos=False"):
        tokenized(["cat"], endless)
    assert tokenized(["cat"], endless, add_eos=False)[0].tolist() == processor.encode("cat")


# What is laid out


@pytest.mark.parametrize("seq_len", [5, 16, 64])
def test_packed_rows_hold_every_target_once(tmp_path, processor, seq_len):
    source = write_lines(tmp_path / "a.jsonl", TEXTS * 3 + [""])
    data = bridges.dataset(source, processor, seq_len=seq_len, batch=2)
    # Closed form: each document's tokens and its end token, less the first.
    expected = 3 * sum(len(processor.encode(text)) for text in TEXTS)
    assert data.report.targets == data.rows.targets.sum() == expected
    assert data.report.documents == 13
    assert data.report.dropped == 1
    assert data.report.tokens == expected + 13
    batch = next(data.train(DataPartition()))
    assert {key: (field.dtype, field.shape) for key, field in batch.items()} == {
        "text": (np.int32, (2, seq_len + 1)),
        "segments": (np.int32, (2, seq_len + 1)),
    }


def test_rows_that_are_not_packed_count_what_was_cut(tmp_path, processor):
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    data = bridges.dataset(source, processor, seq_len=4, batch=1, pack=False)
    lengths = [len(processor.encode(text)) + 1 for text in TEXTS]
    assert data.report.cut == sum(length > 5 for length in lengths) > 0
    assert data.report.lost_tokens == sum(max(0, length - 5) for length in lengths)
    assert data.report.targets == sum(min(length, 5) - 1 for length in lengths)


@given(st.integers(2, 30), st.floats(0.01, 0.99), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_a_split_by_documents_shares_none_and_loses_none(count, share, seed):
    items = [np.array([n % 7, n % 3]) for n in range(count)]  # some are equal
    held = held_out(items, share=share, seed=seed)
    sides = [{tuple(items[n]) for n in np.flatnonzero(held == side)} for side in (True, False)]
    assert not sides[0] & sides[1]
    assert sides[0]
    assert sides[1]
    order = np.random.default_rng(seed).permutation(count)
    shuffled = held_out([items[n] for n in order], share=share, seed=seed)
    np.testing.assert_array_equal(shuffled, held[order])


def test_a_split_of_many_documents_is_close_to_its_share():
    held = held_out([np.array([n]) for n in range(1000)], share=0.1, seed=3)
    assert held.sum() == 100
    assert (held != held_out([np.array([n]) for n in range(1000)], share=0.1, seed=4)).any()


def test_documents_are_held_out_whole(tmp_path, processor):
    texts = [f"{text} {number}" for number in range(10) for text in TEXTS]
    source = write_lines(tmp_path / "a.jsonl", texts)
    data = bridges.dataset(source, processor, seq_len=40, batch=4, split=0.25, seed=5)
    train, held = documents_of(data.rows), documents_of(data.eval_rows)
    assert len(held) == 10
    assert sorted(train + held) == sorted([*processor.encode(text), 0] for text in texts)
    again = bridges.dataset(source, processor, seq_len=40, batch=4, split=0.25, seed=5)
    assert again.report == data.report
    other = bridges.dataset(source, processor, seq_len=40, batch=4, split=0.25, seed=6)
    assert documents_of(other.eval_rows) != held


def test_one_document_is_split_by_rows(tmp_path, processor):
    (tmp_path / "a.txt").write_text(" ".join(str(n) for n in range(500)))
    data = bridges.dataset(tmp_path / "a.txt", processor, seq_len=20, batch=4, split=0.2)
    whole = bridges.dataset(tmp_path / "a.txt", processor, seq_len=20, batch=4)
    rows = sorted([*data.rows.tokens.tolist(), *data.eval_rows.tokens.tolist()])
    assert rows == sorted(whole.rows.tokens.tolist())
    assert len(data.eval_rows) == round(0.2 * len(whole.rows))


def test_validation_may_come_from_another_source(tmp_path, processor):
    train = write_lines(tmp_path / "a.jsonl", TEXTS)
    other = write_lines(tmp_path / "b.jsonl", ["a mat"] * 5)
    data = bridges.dataset(train, processor, seq_len=6, batch=4, eval_source=other)
    batches = list(data.val(DataPartition()))
    assert [batch["text"].shape for batch in batches] == [(4, 7)] * len(batches)
    targets = 5 * len(processor.encode("a mat"))
    assert data.report.validation_targets == targets
    # P056: the filler rows count for nothing.
    assert sum(TokenRows(b["text"], b["segments"]).targets.sum() for b in batches) == targets


@pytest.mark.parametrize(
    ("texts", "named"),
    [([], "empty dataset"), ([""], "no trainable token"), (["", ""], "no trainable token")],
)
@pytest.mark.parametrize("split", [None, 0.5])
def test_data_without_anything_to_train_on_is_refused(tmp_path, processor, texts, named, split):
    source = write_lines(tmp_path / "a.jsonl", texts)
    with pytest.raises(InputRefused, match=named):
        bridges.dataset(source, processor, seq_len=4, batch=1, split=split)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seq_len": 0}, "seq_len is 0"),
        ({"batch": True}, "batch is True"),
        ({"seq_len": 65, "max_positions": 64}, "the model has 64 positions"),
        ({"split": 0.1, "eval_source": "b.jsonl"}, "both split and eval_source"),
        ({"split": 1.0}, "split is 1.0"),
        ({"split": float("nan")}, "split is nan"),
        ({"encoding": "utf8-typo"}, "encoding"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, processor, options, named):
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(InputRefused, match=named):
        bridges.dataset(source, processor, **{"seq_len": 8, "batch": 2} | options)


def test_equal_documents_cannot_be_split(tmp_path, processor):
    source = write_lines(tmp_path / "a.jsonl", ["cat"] * 4)
    with pytest.raises(InputRefused, match="no two of them different"):
        bridges.dataset(source, processor, seq_len=3, batch=1, split=0.5)


def test_text_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputRefused, match=r"tokenizer\.json"):
        bridges.dataset(write_lines(tmp_path / "a.jsonl", TEXTS), None, seq_len=8, batch=2)


# What is reported


def test_the_report_says_what_became_of_the_data(tmp_path, processor):
    folder = tmp_path / "data"
    folder.mkdir()
    write_lines(folder / "a.jsonl", ["cat\x1b[31m", "", "mat " * 50])
    (folder / "notes.md").write_text("x")
    data = bridges.dataset(folder, processor, seq_len=200, batch=1)
    text = str(data.report)
    assert "\x1b" not in text
    assert "[[m]]" in text or "[[ma]]" in text or "[[mat]]" in text  # the untrained first token
    for fact in ("documents     3 in 1 file", "dropped       1", "not read      notes.md"):
        assert fact in text
    stored = json.loads(json.dumps(data.report.to_dict()))
    assert stored["fingerprint"] == data.rows.fingerprint
    assert len(stored["example"]) == len(stored["example_mask"])
    assert stored["example_mask"][0] is False


def test_a_resumed_run_needs_the_same_data(tmp_path, processor):
    first = bridges.dataset(write_lines(tmp_path / "a.jsonl", TEXTS), processor, seq_len=8, batch=2)
    second = bridges.dataset(
        write_lines(tmp_path / "b.jsonl", TEXTS[:3]), processor, seq_len=8, batch=2
    )
    stream = first.train(DataPartition())
    next(stream)
    with pytest.raises(InputRefused, match="fingerprint"):
        second.train(DataPartition()).set_state(stream.get_state())


# Files of token ids


@pytest.mark.parametrize("name", ["train.bin", "train.npy"])
def test_token_files_are_read_as_windows(tmp_path, name):
    ids = np.arange(1, 102).astype(np.uint16)
    path = tmp_path / name
    ids.tofile(path) if name.endswith(".bin") else np.save(path, ids)
    data = bridges.dataset(path, None, seq_len=10, batch=2, split=0.3, vocab_size=200)
    assert (data.records, len(data.eval_rows)) == (7, 3)
    rows = np.concatenate([b["text"] for b in data.val(DataPartition())])
    np.testing.assert_array_equal(rows[:3], 71 + 10 * np.arange(3)[:, None] + np.arange(11))
    assert data.report.targets + data.report.validation_targets == 100


def test_token_files_with_wrong_ids_length_or_content_are_refused(tmp_path):
    def refused(name: str, named: str) -> None:
        with pytest.raises(InputRefused, match=named):
            bridges.dataset(tmp_path / name, None, seq_len=4, batch=1, vocab_size=32)

    np.array([1, 2, 31, 32, 65535] * 8, "<u2").tofile(tmp_path / "ids.bin")  # BP076
    refused("ids.bin", "id 32 at position 3, but vocab_size is 32")
    (tmp_path / "odd.bin").write_bytes(b"\1\0" * 100 + b"\1")  # BP077
    refused("odd.bin", "201 bytes is not a multiple of 2")
    (tmp_path / "empty.bin").write_bytes(b"")
    refused("empty.bin", "empty file")
    np.save(tmp_path / "objects.npy", np.array([print], dtype=object), allow_pickle=True)  # BP073
    refused("objects.npy", "Python objects")
    np.save(tmp_path / "square.npy", np.zeros((4, 4), np.int32))
    refused("square.npy", "on one axis")
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\1\0\xff")
    refused("cut.npy", "cut.npy")
    refused("absent.bin", "no such file")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> dict[str, bytes]:
    """One good file of each kind, by its suffix."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("healthy")
    parquet.write_table(arrow.table({"text": TEXTS * 20}), folder / "a.parquet")
    np.save(folder / "a.npy", np.arange(50, dtype=np.int32))
    files = {path.suffix: path.read_bytes() for path in folder.iterdir()}
    rows = [{"text": text, "other": [1, None]} for text in TEXTS]
    files[".jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    files[".json"] = json.dumps(rows).encode()
    return files


@pytest.mark.parametrize("suffix", [".parquet", ".npy", ".jsonl", ".json"])
@pytest.mark.filterwarnings("ignore:Reading `.npy`")
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path_factory, healthy, processor, suffix
):
    folder = tmp_path_factory.mktemp("damaged")

    @given(st.data())
    @settings(deadline=None, max_examples=150)
    def check(data):
        content = bytearray(healthy[suffix])
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
            content[place] = data.draw(st.integers(0, 255))
        keep = data.draw(st.integers(0, len(content)) | st.just(len(content)))
        (folder / f"a{suffix}").write_bytes(content[:keep])
        message = refusal_of(folder / f"a{suffix}", processor)
        assert len(message.splitlines()) <= 20
        assert len(message) <= 4096
        assert all(line.isprintable() for line in message.splitlines())

    check()


def refusal_of(path: Path, processor: SmallProcessor) -> str:
    """The message that a dataset of the file is refused with; nothing if it is read."""
    try:
        bridges.dataset(path, processor, seq_len=8, batch=2, token_dtype="int32")
    except InputRefused as refusal:
        return str(refusal)
    return ""
