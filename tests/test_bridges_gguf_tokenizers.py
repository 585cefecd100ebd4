"""The tokenizer that a GGUF file holds: its ids, and what of its keys is refused."""

from __future__ import annotations

import pytest
from helpers import SENTENCES

from bridges.text.processors import gguf_processor, read_processor
from dew.errors import InputRefused


def test_a_gguf_file_gives_the_tokenizer_it_was_made_of(tokenizer_metadata, tokenizer_folder):
    # The tiny tokenizer is the source; it has no digits rule, so the texts hold no digits.
    processor, source = gguf_processor(tokenizer_metadata), read_processor(tokenizer_folder)
    texts = [*SENTENCES, "<|im_start|>é 😀<|im_end|>"]
    assert processor.encode_batch(texts) == source.encode_batch(texts)
    assert (processor.bos_token_id, processor.eos_token_ids, processor.pad_token_id) == (1, (2,), 2)
    assert processor.model_max_length == 64
    assert processor.chat_template == tokenizer_metadata["tokenizer.chat_template"]
    digits = processor.encode("12")
    assert [processor.token(number) for number in digits] == ["1", "2"]


def test_a_gguf_file_without_a_tokenizer_has_none():
    assert gguf_processor({"general.architecture": "llama"}) is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("pre", "smolm", "'smolm'.*did you mean 'smollm'"),
        ("model", "rwkv", "'rwkv'"),
        ("token_type", [1], "token types"),
        ("tokens", ["a", 1], "tokens"),
        ("tokens", ["a", "a"], "'a' has the ids 0 and 1"),
        ("merges", ["zz y"], "'zz'"),
        ("merges", ["zz"], "'zz'"),
        ("eos_token_id", 10**6, "eos_token_id"),
        ("eos_token_id", "2", "eos_token_id"),
    ],
)
def test_gguf_keys_that_do_not_fit_are_refused_by_name(tokenizer_metadata, key, value, words):
    changed = tokenizer_metadata | {f"tokenizer.ggml.{key}": value}
    if key == "tokens":
        changed["tokenizer.ggml.token_type"] = [1] * len(value)
    with pytest.raises(InputRefused, match=words):
        gguf_processor(changed)


def test_a_gguf_file_that_does_not_say_how_it_splits_is_named(tokenizer_metadata):
    with pytest.warns(UserWarning, match="GPT-2"):
        gguf_processor(tokenizer_metadata | {"tokenizer.ggml.pre": "default"})


def merged_by_score(text, scores):
    """SentencePiece's definition: join the neighbours whose union scores best, leftmost first."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        unions = [
            (-scores[parts[i] + parts[i + 1]], i)
            for i in range(len(parts) - 1)
            if parts[i] + parts[i + 1] in scores
        ]
        if not unions:
            return parts
        _, i = min(unions)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def test_sentencepiece_pieces_merge_by_score():
    letters = sorted(set("▁abcd"))
    pieces = ["▁a", "ab", "bc", "cd", "▁ab", "abc", "abcd", "dd", "▁d", "bcd", "cab"]
    scores = {piece: -float(place) for place, piece in enumerate(pieces)}
    scores |= dict.fromkeys(letters, -100.0)
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokens = [*special, *bytes_, *pieces, *letters]
    pieces_metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [scores.get(token, 0.0) for token in tokens],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(pieces) + len(letters)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    processor = gguf_processor(pieces_metadata)
    for text in ("abcd", "ab cd dd", "a  bcab", "dabcd d"):
        expected = [tokens.index(part) for part in merged_by_score(text, scores)]
        assert processor.encode(text) == [1, *expected]
        assert processor.decode(processor.encode(text)) == text
    # What no piece spells becomes its bytes.
    accent = processor.encode("é", add_special_tokens=False)
    assert accent[1:] == [tokens.index("<0xC3>"), tokens.index("<0xA9>")]
    stream = processor.stream_decoder()
    ids = processor.encode("ab é cd")
    assert "".join([stream.feed(number) for number in ids] + [stream.flush()]) == "ab é cd"


@pytest.mark.assets
def test_smollm2s_gguf_file_gives_its_ids(smollm2_gguf):
    # The ids that transformers 5.24 gives these texts from the same file (its digits rule: one
    # token a digit).
    from bridges.files.tensors import open_tensors

    processor = gguf_processor(open_tensors(smollm2_gguf).metadata)
    assert processor.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    digits = [216, 33, 34, 35, 36, 37]
    assert processor.encode("The capital of France is 12345")[5:] == digits
    assert processor.encode("éß😀 x's <|im_start|>user\nhi<|im_end|>\n") == [
        *(2756, 34878, 10813, 242, 218, 1792, 506, 216, 1, 4093, 198, 6004, 2, 198)
    ]
    assert (processor.bos_token_id, processor.eos_token_ids) == (1, (2,))
    assert (processor.vocab_size, processor.model_max_length) == (49152, 8192)
