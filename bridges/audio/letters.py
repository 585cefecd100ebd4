"""The letters that wav2vec 2.0 names for each place of a sound, and the text they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from bridges.config import Keys
from bridges.files.json_file import parse_json
from bridges.files.regular_file import open_regular, optional, shown_path
from bridges.text.tokenizer_files import token_spec
from dew.errors import InputRefused, shown

CLASSES = ("Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer")
FAMILIES = ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "sew", "sew-d")
FAMILIES += ("data2vec-audio", "wav2vec2-conformer", "wav2vec2-bert")
OTHERS = ("tokenizer.json", "merges.txt")
NAMES = ("vocab.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SIZE_LIMIT = 16 << 20


@dataclass(frozen=True)
class Letters:
    """A checkpoint's letters, one of which is the blank.

    Attributes:
        tokens: each id's letter.
        blank: what stands between two equal letters, and where nothing is said.
        unknown: what an id without a letter is read as.
        delimiter: what stands between words, `gap` what is written for it.
        special: the letters that are no part of a text, the blank among them.
        lowered: whether texts are written in lower case.
        files: the files that an export writes, by name.
    """

    tokens: Mapping[int, str]
    blank: str = "<pad>"
    unknown: str = "<unk>"
    delimiter: str = "|"
    gap: str = " "
    special: frozenset[str] = frozenset()
    lowered: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def pad_token_id(self) -> int | None:
        """The blank's id."""
        return next((at for at, token in self.tokens.items() if token == self.blank), None)

    def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool = False, group_tokens: bool = True
    ) -> str:
        """Return the text of ids, one for each place of a sound.

        Args:
            ids: any number.
            skip_special_tokens: leave out special letters before equal ones are joined: then the
                blank parts none.
            group_tokens: join equal letters that stand together; off for ids of which that was
                done.

        Source: transformers 5.24's Wav2Vec2CTCTokenizer.decode.
        """
        letters = [self.tokens.get(int(one), self.unknown) for one in ids]
        if skip_special_tokens:
            letters = [one for one in letters if one not in self.special or one == self.delimiter]
        if group_tokens:
            letters = [letter for letter, _ in groupby(letters)]
        said = [one for one in letters if one != self.blank]
        text = "".join(self.gap if one == self.delimiter else one for one in said).strip()
        return text.lower() if self.lowered else text

    def places(self, ids: Sequence[int]) -> list[tuple[str, int, int]]:
        """Return each letter that is said, and the places `[start, end)` of a sound it stands at.

        Args:
            ids: one for each place of the sound.

        Source: transformers 5.24's Wav2Vec2CTCTokenizer, whose `char_offsets` these are.
        """
        letters = [self.tokens.get(int(one), self.unknown) for one in ids]
        found, start = [], 0
        for letter, run in groupby(letters):
            end = start + sum(1 for _ in run)
            if letter != self.blank:
                found.append((self.gap if letter == self.delimiter else letter, start, end))
            start = end
        return found


def read_letters(folder: Path, model_type: str) -> Letters | None:
    """Return the letters of a checkpoint folder, or None where it has a tokenizer of another form.

    Args:
        folder: the folder; nothing outside of it is read.
        model_type: of config.json, for folders that do not name their tokenizer's class.

    Raises:
        InputRefused: a file that is there but broken.
    """
    present = {name: path for name in (*NAMES, *OTHERS) if (path := optional(folder, name))}
    if "vocab.json" not in present or any(name in present for name in OTHERS):
        return None
    raw = {name: _bytes(path) for name, path in present.items()}
    found = {name: _object(folder, name, raw) for name in NAMES}
    keys = Keys(found["tokenizer_config.json"], shown_path(folder / "tokenizer_config.json"))
    named = keys.text("tokenizer_class", None)
    if named not in CLASSES and (named is not None or model_type not in FAMILIES):
        return None
    special = _special(keys, found["special_tokens_map.json"], folder)
    delimiter = keys.values.get("word_delimiter_token", "|")
    delimiter = token_spec(delimiter, f"{keys.where}: word_delimiter_token").content
    ids = _ids(folder, found["vocab.json"], keys.text("target_lang", None))
    added = {**_added(keys, found["added_tokens.json"], folder), **ids}
    for token in (*special.values(), delimiter):
        added.setdefault(token, max(added.values(), default=-1) + 1)
    tokens = {number: token for token, number in added.items()}
    return Letters(
        tokens={**tokens, **{number: token for token, number in ids.items()}},
        blank=special["pad_token"],
        unknown=special["unk_token"],
        delimiter=delimiter,
        gap=keys.text("replace_word_delimiter_char", " "),
        special=frozenset(special.values()),
        lowered=keys.flag("do_lower_case", False),
        files=raw,
    )


def _special(keys: Keys, mapped: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the special letters by their names; the older map only fills gaps."""
    found = {}
    for name, default in SPECIAL.items():
        value = keys.values.get(name)
        value = mapped.get(name) if value is None else value
        where = shown_path(folder)
        found[name] = token_spec(default if value is None else value, f"{where}: {name}").content
    return found


def _ids(folder: Path, vocabulary: Mapping[str, Any], language: str | None) -> dict[str, int]:
    """Return each letter's id, of the language where the vocabulary holds several."""
    where = shown_path(folder / "vocab.json")
    nested = all(isinstance(value, dict) for value in vocabulary.values()) and vocabulary
    if nested:
        if language is None or language not in vocabulary:
            known = ", ".join(map(shown, list(vocabulary)[:8]))
            raise InputRefused(
                f"{where}: letters of {len(vocabulary)} languages ({known} ...), and target_lang "
                f"is {shown(language)}. Set target_lang in tokenizer_config.json to one of them"
            )
        vocabulary = vocabulary[language]
    for letter, number in vocabulary.items():
        if type(number) is not int or number < 0:
            raise InputRefused(
                f"{where}: {shown(letter)} has the id {shown(number)}. Expected an integer from 0."
            )
    return dict(vocabulary)


def _added(keys: Keys, older: Mapping[str, Any], folder: Path) -> dict[str, int]:
    """Return the ids of letters beside the vocabulary's."""
    decoder = keys.section("added_tokens_decoder").values
    found = {token: number for token, number in older.items() if type(number) is int}
    for key, value in decoder.items():
        if not (key.isascii() and key.isdigit()):
            raise InputRefused(
                f"{keys.where}: added_tokens_decoder: found the key {shown(key)}. Expected an id."
            )
        found[token_spec(value, f"{shown_path(folder)}: {key}").content] = int(key)
    return found


def _bytes(path: Path) -> bytes:
    with open_regular(path) as file:
        data = file.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise InputRefused(f"{shown_path(path)}: larger than {SIZE_LIMIT} bytes. Get it again.")
    return data


def _object(folder: Path, name: str, raw: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the JSON object of a file, empty where it is absent."""
    if name not in raw:
        return {}
    value = parse_json(raw[name], shown_path(folder / name))
    if not isinstance(value, dict):
        raise InputRefused(
            f"{shown_path(folder / name)}: found a {type(value).__name__}. Expected a JSON object."
        )
    return value
