"""CLIP's byte-pair tokenizer, from tokenizer.json or from its older vocab.json and merges.txt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridges.files.json_file import read_json
from bridges.files.regular_file import contained, open_regular, shown_path
from bridges.text.chat_template import read_templates
from bridges.text.processors import TextProcessor, read_processor
from bridges.text.tokenizer_files import TokenizerFiles, TokenSpec
from dew.errors import InputRefused, shown

START, END = "<|startoftext|>", "<|endoftext|>"
# What CLIP cuts a caption into before the merges, as its first release defines it.
PIECES = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
MERGES_LIMIT = 16 << 20


def read_clip_tokenizer(folder: Path, config: Mapping[str, Any]) -> TextProcessor:
    """Return the tokenizer of a CLIP folder; it puts the start and end token around a caption.

    Args:
        folder: with tokenizer.json, or vocab.json and merges.txt.
        config: config.json as read.

    Raises:
        InputRefused: no tokenizer, a broken one, or one without an end token.
    """
    if os.path.lexists(folder / "tokenizer.json"):
        processor = read_processor(folder, config)
    else:
        processor = _from_merges(folder)
    if processor is None or not processor.eos_token_ids:
        raise InputRefused(
            f"{shown_path(folder)}: no tokenizer with an end token. Expected tokenizer.json, or "
            "vocab.json and merges.txt, as CLIPProcessor.save_pretrained writes them."
        )
    return processor


def _from_merges(folder: Path) -> TextProcessor:
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import BPE

    vocabulary = read_json(contained(folder, "vocab.json"))
    where = shown_path(folder / "vocab.json")
    if any(type(index) is not int for index in vocabulary.values()):
        raise InputRefused(
            f"{where}: an id that is no whole number. Expected tokens and their ids."
        )
    absent = [token for token in (START, END) if token not in vocabulary]
    if absent:
        raise InputRefused(f"{where}: no {' and no '.join(absent)}. Expected CLIP's vocabulary.")
    model = BPE(
        vocab=vocabulary,
        merges=_merges(folder, vocabulary),
        continuing_subword_prefix="",
        end_of_word_suffix="</w>",
        fuse_unk=False,
        unk_token=END,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.add_special_tokens([START, END])
    ends = (END, vocabulary[END]), (START, vocabulary[START])
    tokenizer.post_processor = processors.RobertaProcessing(
        *ends, trim_offsets=False, add_prefix_space=False
    )
    special = {"bos_token": START, "eos_token": END, "pad_token": END, "unk_token": END}
    files = TokenizerFiles(
        where=shown_path(folder), special={name: TokenSpec(text) for name, text in special.items()}
    )
    return TextProcessor(tokenizer, files, read_templates(folder, {}))


def _merges(folder: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of merges.txt, each of known tokens that give a known one."""
    path = contained(folder, "merges.txt")
    with open_regular(path) as file:
        data = file.read(MERGES_LIMIT + 1)
    if len(data) > MERGES_LIMIT:
        raise InputRefused(f"{shown_path(path)}: larger than {MERGES_LIMIT} bytes. Wrong file?")
    lines = data.decode("utf-8", "replace").splitlines()
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        first, _, second = line.rstrip().partition(" ")
        if not all(token in vocabulary for token in (first, second, first + second)):
            raise InputRefused(
                f"{shown_path(path)}:{number}: {shown(line)} joins what vocab.json does not hold. "
                "Expected two tokens of it; take both files from one checkpoint."
            )
        pairs.append((first, second))
    return pairs
