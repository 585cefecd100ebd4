"""The tokenizer of a GGUF file: its metadata keys turned into a text processor."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bridges.text.chat_template import ChatTemplates, named_templates
from bridges.text.sentencepiece_bpe import sentencepiece_bpe
from bridges.text.text_processor import TextProcessor
from bridges.text.tokenizer_build import byte_level_bpe, finish_processor
from bridges.text.tokenizer_files import TokenizerFiles, TokenSpec
from dew.errors import InputRefused, nearest, shown

# Token types of the format (llama.cpp's llama_token_type).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
KEY = "tokenizer.ggml."
NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # spelled so in the format
    "mask_token": "mask_token_id",
}
MORE_ENDS = ("eot_token_id", "eom_token_id")
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
THREE_DIGITS = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{REST}"
ONE_DIGIT = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{REST}"
# What the file's `pre` names: how a text is split before the merges.
GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jina-en", "roberta-bpe", "gigachat")
GPT2_DIGITS = ("smollm", "starcoder", "refact", "command-r")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe", "dbrx", "lfm2")
QWEN2 = ("qwen2", "deepseek-r1-qwen", "megrez")
STABLELM2 = ("stablelm2",)
KNOWN = (*GPT2, *GPT2_DIGITS, *LLAMA3, *QWEN2, *STABLELM2)
# Without the key, files of these families still start every text with the start token.
STARTS = ("llama-bpe", "llama3", "llama-v3")


def gguf_processor(
    metadata: Mapping[str, Any],
    *,
    where: str = "GGUF metadata",
    config: Mapping[str, Any] | None = None,
) -> TextProcessor | None:
    """Build the text processor that a GGUF file's metadata describe.

    Args:
        metadata: key to plain Python value, arrays as lists.
        where: the file's name for messages.
        config: config.json as made from the metadata, for ids that they leave open.

    Returns:
        The processor, or None where the file has no tokenizer.

    Raises:
        InputRefused: a tokenizer or pre-tokenizer kind that dew does not know, or keys that do
            not fit each other.
    """
    kind = metadata.get(f"{KEY}model")
    if kind is None or kind == "none" or f"{KEY}tokens" not in metadata:
        return None
    tokens = _list(metadata, "tokens", str, where)
    types = _list(metadata, "token_type", int, where) or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise InputRefused(
            f"{where}: {len(tokens)} tokens but {len(types)} token types. Expected as many; get "
            "the file again."
        )
    vocabulary = _vocabulary(tokens, where)
    special = _special(metadata, tokens, where)
    tokenizer, starts = _tokenizer(metadata, vocabulary, special, where)
    files = TokenizerFiles(
        where=where,
        settings=_settings(metadata, special, starts),
        special=special,
        added=_added(tokens, types, special),
    )
    templates = ChatTemplates(named_templates(_templates(metadata), where), where)
    ends = [vocabulary[special["eos_token"].content]] if "eos_token" in special else []
    ends += [_id(metadata, key, tokens, where) for key in MORE_ENDS if f"{KEY}{key}" in metadata]
    generation = {"eos_token_id": list(dict.fromkeys(ends))} if ends else {}
    return finish_processor(
        tokenizer, files, templates, generation_config=generation, config=config
    )


def _tokenizer(
    metadata: Mapping[str, Any],
    vocabulary: dict[str, int],
    special: Mapping[str, TokenSpec],
    where: str,
) -> tuple[tokenizers.Tokenizer, bool]:
    """Return the tokenizer of the file's kind, and whether its family starts texts with a token."""
    kind = metadata[f"{KEY}model"]
    if kind == "gpt2":
        return _byte_level(metadata, vocabulary, where)
    if kind == "llama":
        scores = _list(metadata, "scores", float, where)
        prefix = metadata.get(f"{KEY}add_space_prefix", True) is not False
        unknown = special["unk_token"].content if "unk_token" in special else None
        return sentencepiece_bpe(vocabulary, scores, where, unknown=unknown, prefix=prefix), True
    raise InputRefused(
        f"{where}: {KEY}model is {shown(kind)}. dew reads 'gpt2' (byte-level pairs) and 'llama' "
        "(SentencePiece pairs); take the safetensors form of this model."
    )


def _byte_level(
    metadata: Mapping[str, Any], vocabulary: dict[str, int], where: str
) -> tuple[tokenizers.Tokenizer, bool]:
    """Return the byte-level tokenizer, and whether its family starts texts with a token."""
    pre = metadata.get(f"{KEY}pre")
    merges = []
    for line in _list(metadata, "merges", str, where):
        left, _, right = line.partition(" ")
        merges.append((left, right))
    tokenizer = byte_level_bpe(vocabulary, merges, where)
    if pre is None or pre == "default":
        warnings.warn(
            f"{where}: {KEY}pre is {shown(pre)}, so how texts are split is not stated; dew splits "
            "them as GPT-2 does. Compare its ids with the original tokenizer's.",
            stacklevel=3,
        )
    elif pre in GPT2_DIGITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), _bytes(split=True)]
        )
    elif pre in (*LLAMA3, *QWEN2, *STABLELM2):
        pattern = tokenizers.Regex(THREE_DIGITS if pre in LLAMA3 else ONE_DIGIT)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(pattern, "isolated"), _bytes(split=False)]
        )
        if pre in QWEN2:
            tokenizer.normalizer = normalizers.NFC()
        if pre in STARTS:
            # Llama 3 takes whole words that are tokens before it looks at merges.
            assert isinstance(tokenizer.model, models.BPE)
            tokenizer.model.ignore_merges = True
    elif pre not in GPT2:
        raise InputRefused(
            f"{where}: {KEY}pre is {shown(pre)}{nearest(str(pre), KNOWN)}. How it splits texts is "
            f"not known to dew, which knows {', '.join(KNOWN)}; take the safetensors form."
        )
    return tokenizer, pre in STARTS


def _bytes(*, split: bool) -> pre_tokenizers.ByteLevel:
    """Return GPT-2's spelling of bytes, with or without its own split before it."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)


def _list(metadata: Mapping[str, Any], key: str, kind: type, where: str) -> list[Any]:
    """Return one array of the metadata, every entry of one type."""
    value = metadata.get(f"{KEY}{key}")
    if value is None:
        return []
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, list | tuple) or not all(type(entry) in kinds for entry in value):
        raise InputRefused(
            f"{where}: {KEY}{key} is {shown(value)}. Expected an array of "
            f"{'texts' if kind is str else 'numbers'}; get the file again."
        )
    return list(value)


def _vocabulary(tokens: Sequence[str], where: str) -> dict[str, int]:
    """Return token to id; a token that stands twice is refused."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        first: dict[str, int] = {}
        for number, token in enumerate(tokens):
            if first.setdefault(token, number) != number:
                raise InputRefused(
                    f"{where}: the token {shown(token)} has the ids {first[token]} and {number}. "
                    "Expected each token once; get the file again."
                )
    return vocabulary


def _id(metadata: Mapping[str, Any], key: str, tokens: Sequence[str], where: str) -> int:
    """Return a token id of the metadata, once there is such a token."""
    number = metadata[f"{KEY}{key}"]
    if type(number) is not int or not 0 <= number < len(tokens):
        raise InputRefused(
            f"{where}: {KEY}{key} is {shown(number)}. Expected the id of one of its "
            f"{len(tokens)} tokens."
        )
    return number


def _special(
    metadata: Mapping[str, Any], tokens: Sequence[str], where: str
) -> dict[str, TokenSpec]:
    """Return the named special tokens."""
    special = {}
    for name, key in NAMES.items():
        if f"{KEY}{key}" in metadata:
            special[name] = TokenSpec(tokens[_id(metadata, key, tokens, where)])
    return special


def _added(
    tokens: Sequence[str], types: Sequence[int], special: Mapping[str, TokenSpec]
) -> dict[int, TokenSpec]:
    """Return the tokens that are matched whole in a text: control ones, users' own, named ones."""
    named = {spec.content for spec in special.values()}
    return {
        number: TokenSpec(token, special=kind in (CONTROL, UNKNOWN) or token in named)
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED) or token in named
    }


def _settings(
    metadata: Mapping[str, Any], special: Mapping[str, TokenSpec], starts: bool
) -> dict[str, Any]:
    """Return the tokenizer_config.json that the metadata amount to."""
    settings: dict[str, Any] = {name: spec.content for name, spec in special.items()}
    for key, usual in (("add_bos_token", starts), ("add_eos_token", False)):
        settings[key] = metadata.get(f"{KEY}{key}", usual) is True
    settings["clean_up_tokenization_spaces"] = False
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if type(length) is int and length > 0:
        settings["model_max_length"] = length
    return settings


def _templates(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat templates by name: the usual one and any named ones."""
    prefix = "tokenizer.chat_template"
    found = {"default": metadata[prefix]} if prefix in metadata else {}
    for key, value in metadata.items():
        if key.startswith(f"{prefix}."):
            found[key.removeprefix(f"{prefix}.")] = value
    return found
