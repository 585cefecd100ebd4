"""Tokenizers that are broken, hostile or asked for what they lack are refused by name."""

from __future__ import annotations

import json
import time

import pytest
from bad_files import tokenizer, write

from bridges.text.processors import read_processor
from bridges.text.regex_guard import backtracks
from dew.errors import InputRefused

REFUSED = {
    "cut off": (json.dumps(tokenizer())[:-40].encode(), r"tokenizer\.json:1:\d+"),
    "a key twice": (b'{"model": {"vocab": {"a": 0, "a": 1}}}', r"tokenizer\.json:1:\d+.*'a'"),
    "no model": ({"version": "1.0"}, "model"),
    "unknown model": (tokenizer({"type": "Magic", "vocab": {}}), "library"),
    "one id for two": (
        tokenizer({"type": "WordLevel", "vocab": {"x": 1, "y": 1, "[U]": 0}, "unk_token": "[U]"}),
        "1 stands for 'x' and for 'y'",
    ),
    "negative id": (
        tokenizer({"type": "BPE", "vocab": {"a": -1}, "merges": []}),
        "'a' has the id -1",
    ),
    "unknown part": (
        tokenizer({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "zz"]]}),
        "'a' with 'zz': 'zz' is not in the vocabulary",
    ),
    "unknown result": (
        tokenizer({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}),
        "'ab' is not in the vocabulary",
    ),
    "no pair": (tokenizer({"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}), "no pair"),
    "added past the end": (
        tokenizer(added_tokens=[{"id": 99, "content": "<x>", "special": True, "single_word": False,
                             "lstrip": False, "rstrip": False, "normalized": False}]),
        "the file says id 99, the library would use 3",
    ),
    "backtracking": (
        tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "^(a+)+$"},
                             "behavior": "Isolated", "invert": False}),
        r"\^\(a\+\)\+\$",
    ),
    "growth": (
        tokenizer(normalizer={"type": "Replace", "pattern": {"String": "a"},
                              "content": "b" * 10**6}),
        "normalizer",
    ),
    "growth in steps": (
        tokenizer(normalizer={"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 30}),
        "normalizer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_tokenizer_is_refused_by_name(tmp_path, name):
    content, words = REFUSED[name]
    write(tmp_path, "tokenizer.json", content)
    with pytest.raises(InputRefused, match=words):
        read_processor(tmp_path)


@pytest.mark.parametrize(
    "merges", ["#version: 0.2\na\n", "a b c\n", "#version: 0.2\na zz\n", "a b\n"]
)
def test_broken_merges_are_refused_by_line_or_name(tmp_path, merges):
    write(tmp_path, "vocab.json", {"a": 0, "b": 1})
    write(tmp_path, "merges.txt", merges.encode())
    with pytest.raises(InputRefused, match=r"merges.txt:\d|not in the vocabulary"):
        read_processor(tmp_path, {"model_type": "gpt2"})


def test_a_pattern_that_never_ends_stops_at_the_time_limit(tmp_path, monkeypatch):
    # Cubic, not exponential: it passes the check at load, so only the clock bounds it.
    pattern = {"type": "Split", "pattern": {"Regex": "a*a*a*c"}, "behavior": "Isolated"}
    content = tokenizer(pre_tokenizer={**pattern, "invert": False})
    write(tmp_path, "tokenizer.json", content)
    processor = read_processor(tmp_path)
    monkeypatch.setattr("bridges.text.text_processor.ENCODE_SECONDS", 0.2)
    started = time.monotonic()
    with pytest.raises(InputRefused, match=r"a\*a\*a\*c"):
        processor.encode("a" * 250 + "bc")
    assert time.monotonic() - started < 3


def test_texts_that_are_none_and_ids_that_are_none_are_refused(tokenizer_folder):
    processor = read_processor(tokenizer_folder)
    for text in ("\ud800", None, b"bytes"):
        with pytest.raises(InputRefused, match="Expected"):
            processor.encode(text)
    for number in (-100, 2**40):
        with pytest.raises(InputRefused, match=str(number)):
            processor.decode([number])
    # A row of the embedding that no token has gives no text.
    assert processor.decode([*processor.encode("fair"), 5000]) == "fair"


@pytest.mark.parametrize(
    ("pattern", "slow"),
    [
        ("^(a+)+$", True),
        (r"(\w+\s?)*", True),
        ("(?:a|b+)+", True),
        ("((a|b+)c?){2,}", True),
        ("(a+b)*", False),
        ("(?>a+)+", False),
        ("(a++)+", False),
        (r"\d{1,3}(?=(?:\d{3})*\b)", False),
        (r"[^(\s|[.,])]+", False),
        (r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", False),
    ],
)
def test_only_repeated_repetitions_count_as_backtracking(pattern, slow):
    # By the definition: a round of the outer repetition may split in several ways, or not.
    assert backtracks(pattern) is slow
