"""What a tokenizer.json must satisfy before the tokenizers library may run it.

The library is compiled: it renumbers tokens in silence, and some inputs end the process or print
a trace of its own instead of raising. Whatever would do so is found here, in its JSON.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bridges.text.regex_guard import backtracks
from dew.errors import InputRefused, listed, shown

GROWTH_LIMIT = 64
IDS_LIMIT = 1 << 31


def check_definition(definition: Mapping[str, Any], where: str) -> None:
    """Refuse a tokenizer whose ids, merges, patterns or replacements cannot be used.

    Args:
        definition: the parsed tokenizer.json.
        where: the file's name for messages.

    Raises:
        InputRefused: two tokens with one id, merges of unknown tokens, a pattern that backtracks
            without bound, or a replacement that makes text grow without bound.
    """
    model = definition.get("model")
    if not isinstance(model, Mapping):
        raise InputRefused(
            f"{where}: no `model` section in it. Expected a file that the tokenizers library "
            "saved; save it again with `tokenizer.save`."
        )
    check_ids(_ids(definition, model, where), where)
    if isinstance(vocabulary := model.get("vocab"), Mapping) and "merges" in model:
        check_merges(_pairs(model["merges"], where), vocabulary, where)
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        _check_patterns(definition.get(section), section, where)
        _check_growth(definition.get(section), section, where)


def check_ids(ids: Sequence[tuple[str, int]], where: str) -> None:
    """Refuse ids that are no ids, and one id for two tokens.

    Args:
        ids: token and id, in the order of the file.
        where: the file's name for messages.

    Raises:
        InputRefused: an id that is no non-negative integer, or that two tokens share.
    """
    problems = [
        f"token {shown(token)} has the id {shown(number)}; expected an integer from 0"
        for token, number in ids
        if type(number) is not int or not 0 <= number < IDS_LIMIT
    ]
    if problems:
        raise InputRefused(listed(f"{where}: token ids that cannot be used:", problems))
    if len({number for _, number in ids}) == len(ids):
        return
    owner: dict[int, str] = {}
    for token, number in ids:
        other = owner.setdefault(number, token)
        if other != token:
            problems.append(f"{number} stands for {shown(other)} and for {shown(token)}")
    if problems:
        heading = f"{where}: two tokens with one id, so that no text can be read back:"
        raise InputRefused(listed(heading, [*problems[:15], "Give each token its own id."]))


def check_merges(
    merges: Sequence[tuple[str, str]],
    vocabulary: Mapping[str, int],
    where: str,
    prefix: str = "",
) -> None:
    """Refuse merges whose parts or whose result the vocabulary lacks.

    Args:
        merges: left and right part of each merge, in order of rank.
        vocabulary: token to id.
        where: the file's name for messages.
        prefix: what continuing parts start with, dropped where two parts join.

    Raises:
        InputRefused: naming each such merge.
    """
    problems = []
    for rank, (left, right) in enumerate(merges):
        for token in (left, right, left + right.removeprefix(prefix)):
            if token not in vocabulary:
                problems.append(
                    f"merge {rank}, {shown(left)} with {shown(right)}: "
                    f"{shown(token)} is not in the vocabulary"
                )
                break
    if problems:
        heading = f"{where}: merges of tokens that the vocabulary lacks:"
        raise InputRefused(listed(heading, [*problems[:15], "Get the whole vocabulary again."]))


def check_numbering(
    declared: Sequence[tuple[str, int]], given: Callable[[str], int | None], where: str
) -> None:
    """Refuse added tokens to which the library gave another id than the file states.

    Args:
        declared: token and id as the file states them.
        given: a token's id as the library numbers it.
        where: the file's name for messages.

    Raises:
        InputRefused: naming each such token, its stated id and the library's.
    """
    problems = [
        f"{shown(token)}: the file says id {number}, the library would use {given(token)}"
        for token, number in declared
        if given(token) != number
    ]
    if problems:
        heading = f"{where}: added tokens whose ids do not follow the vocabulary:"
        problems = [*problems[:15], "Expected the next free ids in order; renumber the tokens."]
        raise InputRefused(listed(heading, problems))


def added_ids(definition: Mapping[str, Any], where: str) -> list[tuple[str, int]]:
    """Return content and id of each added token of a tokenizer.json."""
    tokens = definition.get("added_tokens") or []
    if not isinstance(tokens, list) or not all(
        isinstance(token, Mapping) and isinstance(token.get("content"), str) for token in tokens
    ):
        raise InputRefused(
            f"{where}: `added_tokens` is {shown(tokens)}. Expected a list of objects with `id` "
            "and `content`."
        )
    return [(token["content"], token.get("id", -1)) for token in tokens]


def _ids(
    definition: Mapping[str, Any], model: Mapping[str, Any], where: str
) -> list[tuple[str, int]]:
    """Return every token of the file with its id; an added token may repeat its own entry."""
    vocabulary = model.get("vocab")
    ids = list(vocabulary.items()) if isinstance(vocabulary, Mapping) else []
    known = vocabulary if isinstance(vocabulary, Mapping) else {}
    # Unigram lists pieces with scores: the id is the place, and pieces may be added tokens too.
    if isinstance(vocabulary, list):
        known = {entry[0]: place for place, entry in enumerate(vocabulary) if _is_piece(entry)}
        ids = list(known.items())
    added = added_ids(definition, where)
    return ids + [(token, number) for token, number in added if known.get(token) != number]


def _is_piece(entry: Any) -> bool:
    """Say whether an entry of a Unigram vocabulary is a piece with its score."""
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)


def _pairs(merges: Any, where: str) -> list[tuple[str, str]]:
    """Return merges of either spelling, `"a b"` or `["a", "b"]`, as pairs."""
    pairs = []
    for merge in merges if isinstance(merges, list) else [merges]:
        parts = merge.split(" ") if type(merge) is str else merge
        if type(parts) is not list or len(parts) != 2 or {*map(type, parts)} != {str}:
            raise InputRefused(
                f"{where}: the merge {shown(merge)} is no pair. Expected two tokens, "
                '`["a", "b"]` or `"a b"`.'
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def _objects(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object below `node`, itself included."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _check_patterns(node: Any, section: str, where: str) -> None:
    """Refuse regular expressions that can take exponential time."""
    for entry in _objects(node):
        pattern = entry.get("Regex")
        if isinstance(pattern, str) and backtracks(pattern):
            raise InputRefused(
                f"{where}: the pattern {shown(pattern)} of its {section} repeats a repetition, "
                "so some texts would never end. Expected no unbounded repetition inside another; "
                "rewrite the pattern."
            )


def _check_growth(node: Any, section: str, where: str) -> None:
    """Refuse replacements that together may multiply the length of a text past the limit."""
    growth = 1.0
    for entry in _objects(node):
        growth *= _growth(entry)
        if growth > GROWTH_LIMIT:
            raise InputRefused(
                f"{where}: its {section} can make a text more than {GROWTH_LIMIT} times as long "
                f"({shown(entry.get('type'))} with the replacement "
                f"{shown(entry.get('content', ''), 60)}). Expected short replacements; "
                "remove that entry."
            )


def _growth(entry: Mapping[str, Any]) -> float:
    """Return by how much one entry of a normalizer or decoder may multiply a text's length."""
    content, pattern = entry.get("content"), entry.get("pattern")
    if entry.get("type") == "Replace" and isinstance(content, str):
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        if isinstance(literal, str) and literal:
            return max(1.0, len(content) / len(literal))
        return 1.0 + len(content)  # an expression may match nothing, and so between any two
    if entry.get("type") == "Prepend" and isinstance(entry.get("prepend"), str):
        return max(1.0, len(entry["prepend"]) / 8)
    if entry.get("type") == "Precompiled" and isinstance(entry.get("precompiled_charsmap"), str):
        return max(1.0, _longest_mapping(entry["precompiled_charsmap"]) / 8)
    return 1.0


def _longest_mapping(charsmap: str) -> int:
    """Return the bytes of the longest text that a SentencePiece character map can write."""
    try:
        data = base64.b64decode(charsmap)
    except (binascii.Error, ValueError):
        return 0  # the library refuses it in its own words
    trie = int.from_bytes(data[:4], "little")
    return max(map(len, data[4 + trie :].split(b"\0")), default=0)
