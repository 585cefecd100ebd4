"""Texts that must fit: which ids may come next, asked of a function or of a grammar."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.generation import GenerationOptions

BITS = 32
_TOKENIZERS: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


class Fitting(Protocol):
    """Says which ids may come, a token at a time."""

    def allowed(self, newest: np.ndarray | None = None) -> np.ndarray:
        """Return int32 [N, V / 32], a bit an id, after each row's newest id [N]."""
        ...


def fitting_of(
    bundle: Bundle,
    settings: GenerationOptions,
    prompts: np.ndarray,
    real: np.ndarray,
    first_row: int = 0,
) -> Fitting | None:
    """Return what the rows of a call must fit, or None.

    Args:
        bundle: whose tokenizer a grammar reads.
        settings: the call's options.
        prompts: int32 [N, P].
        real: [N, P], 1 where an id is real.
        first_row: index of the first row among all rows of a call.

    Raises:
        InputRefused: a grammar that is not one, or without a tokenizer; both kinds at once.
    """
    grammar = _grammar(settings)
    asked = settings.prefix_allowed_tokens_fn
    if asked is not None and grammar is not None:
        raise InputRefused(
            "prefix_allowed_tokens_fn and a schema or pattern were given; leave out one"
        )
    if grammar is not None:
        return _ByGrammar(bundle, settings, grammar, len(prompts))
    if asked is None:
        return None
    rows = [row[kept != 0] for row, kept in zip(prompts, real, strict=True)]
    prompt = (first_row + np.arange(len(rows))) // settings.num_return_sequences
    return _ByFunction(asked, rows, prompt.tolist(), bundle.model.vocab_size)


def _grammar(settings: GenerationOptions) -> tuple[str, Any] | None:
    """Return whether the grammar is a "schema" or a "pattern", and it; None where there is none."""
    if settings.regex is not None:
        return "pattern", settings.regex
    if settings.json_schema is not None:
        return "schema", settings.json_schema
    form = settings.response_format
    if form is None or form["type"] == "text":
        return None
    if form["type"] == "json_object":
        return "schema", {"type": "object"}
    schema = (form.get("json_schema") or {}).get("schema", form.get("schema"))
    if form["type"] != "json_schema" or schema is None:
        raise InputRefused(
            f"response_format is {shown(form)}, expected the type text, json_object, or "
            "json_schema with a schema"
        )
    return "schema", schema


class _ByFunction:
    """The ids that a function names."""

    def __init__(
        self,
        function: Callable[[int, Any], Sequence[int]],
        rows: list[np.ndarray],
        prompt: list[int],
        size: int,
    ):
        self._function, self._rows, self._prompt, self._size = function, rows, prompt, size

    def allowed(self, newest: np.ndarray | None = None) -> np.ndarray:
        """Return the bits of the ids that it names for each row so far."""
        if newest is not None:
            pairs = zip(self._rows, newest, strict=True)
            self._rows = [np.append(row, new).astype(np.int32) for row, new in pairs]
        bits = np.zeros((len(self._rows), -(-self._size // BITS) * BITS), bool)
        for index, row in enumerate(self._rows):
            ids = list(self._function(self._prompt[index], row))
            if not ids or not all(0 <= one < self._size for one in ids):
                raise InputRefused(
                    f"prefix_allowed_tokens_fn gave {shown(ids)} for a row of {len(row)} ids, "
                    f"expected at least one id in [0, {self._size})"
                )
            bits[index, ids] = True
        return np.packbits(bits, axis=1, bitorder="little").view("<i4").astype(np.int32)


class _ByGrammar:
    """The ids that go on with a text of a grammar; its ends come where the text is whole."""

    def __init__(
        self, bundle: Bundle, settings: GenerationOptions, grammar: tuple[str, Any], rows: int
    ):
        from llguidance import LLMatcher

        if not settings.eos_token_id:
            raise InputRefused(
                f"a {grammar[0]} needs an end id, by which a row says that its text is whole; "
                "pass eos_token_id"
            )
        self._size, self._ends = bundle.model.vocab_size, settings.eos_token_id
        tokenizer = _tokenizer(bundle, settings.eos_token_id)
        kind, text = grammar
        try:
            made = (
                LLMatcher.grammar_from_regex(text)
                if kind == "pattern"
                else LLMatcher.grammar_from_json_schema(
                    text if isinstance(text, str) else json.dumps(text)
                )
            )
        except ValueError as error:
            raise InputRefused(f"the {kind} {shown(text)} is none: {error}") from error
        self._rows = [LLMatcher(tokenizer, made, log_level=0) for _ in range(rows)]
        self._over = [False] * rows
        if self._rows[0].is_error():
            raise InputRefused(f"the {kind} {shown(text)} is none: {self._rows[0].get_error()}")

    def allowed(self, newest: np.ndarray | None = None) -> np.ndarray:
        """Return the bits of the ids that may follow each row's newest one."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        bits = allocate_token_bitmask(len(self._rows), self._size)
        for index, row in enumerate(self._rows):
            if newest is not None:
                self._over[index] |= int(newest[index]) in self._ends
            if self._over[index]:
                continue
            if newest is not None:
                row.consume_token(int(newest[index]))
            fill_next_token_bitmask(row, bits, index)
        return bits


def _tokenizer(bundle: Bundle, ends: tuple[int, ...]) -> Any:
    """Return llguidance's view of the checkpoint's tokenizer, made once."""
    from llguidance import LLTokenizer

    definition = getattr(bundle.tokenizer, "tokenizer", None)
    if definition is None:
        raise InputRefused(
            "a schema or pattern needs the checkpoint's tokenizer.json, and there is none"
        )
    views = _TOKENIZERS.setdefault(bundle, {})
    if ends not in views:
        views[ends] = LLTokenizer(definition.to_str(), bundle.model.vocab_size, list(ends))
    return views[ends]
