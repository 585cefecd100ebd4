"""The tokenizer files of a checkpoint folder: what they say, and what an export writes of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridges.files.json_file import parse_json, read_json
from bridges.files.regular_file import open_regular, optional, shown_path
from dew.errors import InputRefused, shown

SIZE_LIMIT = 256 << 20
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
SPECIAL_NAMES += ("mask_token",)
GPT2_CLASSES = ("GPT2Tokenizer", "CodeGenTokenizer")
GPT2_MODELS = ("gpt2", "gpt_neo", "gptj", "codegen", "gpt_bigcode")
# Classes that only transformers 5 knows, and the name both versions read.
GENERIC_CLASS = "PreTrainedTokenizerFast"
NEW_CLASSES = ("TokenizersBackend", "PythonBackend", "SentencePieceBackend")


@dataclass(frozen=True)
class TokenSpec:
    """A token as tokenizer_config.json describes it."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = True


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer files of one folder, read and checked, not yet interpreted.

    Attributes:
        where: the folder or file, for messages.
        definition: tokenizer.json, or None.
        settings: tokenizer_config.json, or an empty dict.
        special: the special tokens by their names (`bos_token`, ...).
        extra: further special tokens, in order.
        added: tokens of `added_tokens_decoder` and added_tokens.json by id.
        vocabulary: vocab.json, where merges.txt is beside it.
        merges: merges.txt as pairs.
        raw: the bytes of every file read, by name.
    """

    where: str
    definition: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    special: dict[str, TokenSpec] = field(default_factory=dict)
    extra: tuple[TokenSpec, ...] = ()
    added: dict[int, TokenSpec] = field(default_factory=dict)
    vocabulary: dict[str, int] | None = None
    merges: tuple[tuple[str, str], ...] = ()
    raw: dict[str, bytes] = field(default_factory=dict)


def read_tokenizer_files(folder: Path, model_type: str = "") -> TokenizerFiles | None:
    """Read the tokenizer files of a checkpoint folder.

    Args:
        folder: the folder; nothing outside of it is read.
        model_type: of config.json, for folders that do not name their tokenizer's class.

    Returns:
        The files, or None where the folder has no tokenizer that dew reads; one that it cannot
        read is named in a warning.

    Raises:
        InputRefused: a file that is there but broken.
    """
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    names += ("added_tokens.json", "vocab.json", "merges.txt")
    present = {name: path for name in names if (path := optional(folder, name))}
    if "tokenizer.json" not in present and not {"vocab.json", "merges.txt"} <= present.keys():
        _warn_unread(folder)
        return None
    raw = {name: _read(path) for name, path in present.items()}
    settings = _object(raw, "tokenizer_config.json", folder)
    definition = vocabulary = None
    merges: tuple[tuple[str, str], ...] = ()
    if "tokenizer.json" in raw:
        definition = _object(raw, "tokenizer.json", folder)
    elif not _is_gpt2(settings, model_type):
        warnings.warn(
            f"{shown_path(folder)}: vocab.json and merges.txt of a "
            f"{shown(settings.get('tokenizer_class', model_type))} without tokenizer.json: dew "
            "builds only GPT-2's byte-level form from them, so this model has no tokenizer. "
            "Save a tokenizer.json into the folder.",
            stacklevel=2,
        )
        return None
    else:
        vocabulary = _object(raw, "vocab.json", folder)
        merges = parse_merges(raw["merges.txt"], shown_path(folder / "merges.txt"))
    special, extra = _special(settings, _object(raw, "special_tokens_map.json", folder), folder)
    return TokenizerFiles(
        where=shown_path(folder),
        definition=definition,
        settings=settings,
        special=special,
        extra=extra,
        added=_added(settings, _object(raw, "added_tokens.json", folder), folder, special, extra),
        vocabulary=vocabulary,
        merges=merges,
        raw=raw,
    )


def parse_merges(data: bytes, where: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a merges.txt.

    Args:
        data: its bytes: an optional `#version` line, then two tokens a line.
        where: its name for messages.

    Raises:
        InputRefused: not UTF-8, or a line that is no pair; names the line.
    """
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputRefused(f"{where}:{line}: not UTF-8. Get the file again.") from None
    pairs = []
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise InputRefused(
                f"{where}:{number}: found {shown(line)}. Expected two tokens and one space "
                "between them; get the file again."
            )
        pairs.append((parts[0], parts[1]))
    return tuple(pairs)


def exported_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokenizer_config.json so that transformers 4 and 5 both read it alike.

    transformers 5 writes class names and a list of extra tokens that 4 does not know.

    Args:
        settings: as the source has it.
    """
    exported = dict(settings)
    if exported.get("tokenizer_class", GENERIC_CLASS) in NEW_CLASSES:
        exported["tokenizer_class"] = GENERIC_CLASS
    exported.setdefault("tokenizer_class", GENERIC_CLASS)
    for key in ("is_local", "local_files_only", "backend", "name_or_path"):
        exported.pop(key, None)  # where the source once lay is no part of the tokenizer
    if isinstance(exported.get("extra_special_tokens"), list):
        extra = exported.pop("extra_special_tokens")
        exported["additional_special_tokens"] = [
            *(exported.get("additional_special_tokens") or []),
            *(t for t in extra if t not in (exported.get("additional_special_tokens") or [])),
        ]
    return exported


def json_bytes(value: Any) -> bytes:
    """Return `value` as the JSON text that checkpoints carry: indented, UTF-8, one last newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def token_spec(value: Any, where: str, *, special: bool = True) -> TokenSpec:
    """Return a token given as a string or in AddedToken's dict form.

    Args:
        value: the string, or a dict with `content` and flags.
        where: file and key, for messages.
        special: what a string, or a dict that does not say, counts as.

    Raises:
        InputRefused: neither of the two.
    """
    if isinstance(value, str):
        return TokenSpec(value, special=special)
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        flags = {
            name: bool(value.get(name, default))
            for name, default in (
                ("lstrip", False),
                ("rstrip", False),
                ("single_word", False),
                ("normalized", not special),
                ("special", special),
            )
        }
        return TokenSpec(value["content"], **flags)
    raise InputRefused(
        f"{where}: found {shown(value)}. Expected a token: a string, or an object with `content`."
    )


def _read(path: Path) -> bytes:
    """Return the bytes of a regular file of bearable size."""
    with open_regular(path) as file:
        data = file.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise InputRefused(
            f"{shown_path(path)}: larger than {SIZE_LIMIT} bytes. Expected a tokenizer's file; "
            "check that this is the right one."
        )
    return data


class _Strict(ValueError):
    """Something that Python's JSON reader takes and `parse_json` will name."""


def _object(raw: Mapping[str, bytes], name: str, folder: Path) -> dict[str, Any]:
    """Return the JSON object of one file, or an empty one where the folder lacks it.

    The plain reader is several times as fast on a vocabulary; `parse_json` finds the place of
    whatever it, or the hook, refuses.
    """
    if name not in raw:
        return {}

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise _Strict
        return value

    def refuse(_: str) -> None:
        raise _Strict

    where = shown_path(folder / name)
    try:
        value = json.loads(raw[name], object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError):
        value = parse_json(raw[name], where)
    if not isinstance(value, dict):
        raise InputRefused(f"{where}:1:1: no JSON object at the top. Expected `{{...}}`.")
    return value


def _is_gpt2(settings: Mapping[str, Any], model_type: str) -> bool:
    """Say whether vocab.json and merges.txt are of GPT-2's byte-level form."""
    named = settings.get("tokenizer_class")
    if isinstance(named, str):
        return named.removesuffix("Fast") in GPT2_CLASSES
    return model_type in GPT2_MODELS


def _special(
    settings: Mapping[str, Any], mapped: Mapping[str, Any], folder: Path
) -> tuple[dict[str, TokenSpec], tuple[TokenSpec, ...]]:
    """Return the named special tokens and the extra ones.

    As in transformers, the older map has the last word where the settings hold no
    `added_tokens_decoder`; otherwise it only fills gaps.
    """
    special: dict[str, TokenSpec] = {}
    extra: dict[str, TokenSpec] = {}
    sources = [("tokenizer_config.json", settings), ("special_tokens_map.json", mapped)]
    if "added_tokens_decoder" not in settings:
        sources.reverse()
    for name, source in sources:
        where = shown_path(folder / name)
        for key in SPECIAL_NAMES:
            if source.get(key) is not None and key not in special:
                special[key] = token_spec(source[key], f"{where}: {key}")
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = source.get(key) or []
            if not isinstance(tokens, list | Mapping):
                raise InputRefused(f"{where}: {key}: found {shown(tokens)}. Expected a list.")
            for token in tokens.values() if isinstance(tokens, Mapping) else tokens:
                spec = token_spec(token, f"{where}: {key}")
                extra.setdefault(spec.content, spec)
    return special, tuple(extra.values())


def _added(
    settings: Mapping[str, Any],
    legacy: Mapping[str, Any],
    folder: Path,
    special: Mapping[str, TokenSpec],
    extra: tuple[TokenSpec, ...],
) -> dict[int, TokenSpec]:
    """Return the added tokens by id, of the settings or else of the older added_tokens.json."""
    where = f"{shown_path(folder / 'tokenizer_config.json')}: added_tokens_decoder"
    decoder = settings.get("added_tokens_decoder")
    if decoder is not None and not isinstance(decoder, Mapping):
        raise InputRefused(f"{where}: found {shown(decoder)}. Expected an object of tokens by id.")
    if decoder:
        for key in decoder:
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                raise InputRefused(f"{where}: found the key {shown(key)}. Expected a token id.")
        return {
            int(key): token_spec(value, f"{where}: {key}", special=False)
            for key, value in decoder.items()
        }
    named = {spec.content for spec in (*special.values(), *extra)}
    for token, number in legacy.items():
        if type(number) is not int or number < 0:
            raise InputRefused(
                f"{shown_path(folder / 'added_tokens.json')}: {shown(token)} has the id "
                f"{shown(number)}. Expected an integer from 0."
            )
    return {
        number: TokenSpec(token, normalized=token not in named, special=token in named)
        for token, number in legacy.items()
    }


def _warn_unread(folder: Path) -> None:
    """Name a tokenizer of another form, which would otherwise seem to be missing."""
    for name in ("tokenizer.model", "spiece.model", "vocab.txt", "tekken.json", "vocab.json"):
        if (folder / name).exists():
            warnings.warn(
                f"{shown_path(folder / name)}: a tokenizer of a form that dew does not read, so "
                "this model has no tokenizer. Save a tokenizer.json into the folder (transformers' "
                "AutoTokenizer does with save_pretrained).",
                stacklevel=3,
            )
            return


def read_optional(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON object of `folder / name`, or an empty one where there is no such file."""
    path = optional(folder, name)
    return {} if path is None else read_json(path)
