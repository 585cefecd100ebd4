"""A checkpoint's tokenizer and chat templates behind one face, within bounds on any text."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from bridges.text.chat_template import ChatTemplates
from bridges.text.tokenizer_files import TokenizerFiles, exported_settings, json_bytes
from dew.errors import InputRefused, shown
from dew.typing import Cutting

TEXT_LIMIT = 1 << 26
ENCODE_SECONDS = 5.0
ENCODE_CHARACTERS_PER_SECOND = 100_000  # a tenth of what a slow tokenizer does
NO_LIMIT = 1 << 40
ANY_MODEL = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
KINDS = "token_type_ids"


class TextProcessor:
    """A tokenizer with its special tokens and chat templates, as one checkpoint has them.

    Built by `bridges.text.processors.read_processor` and `gguf_processor`.

    Attributes:
        bos_token_id: id of the token that starts a text, or None.
        eos_token_ids: every id that ends one; generation_config.json's (or else config.json's)
            first, then the tokenizer's own.
        pad_token_id: the checkpoint's padding id, or else the first end id, or None.
        unk_token_id: id of the token for unknown text, or None.
        vocab_size: one past the biggest id.
        max_token_id: the biggest id; the embedding must have a row for it.
        model_max_length: most tokens the checkpoint states for one text, or None.
        padding_side: `"right"` or `"left"`.
        special_tokens: the named special tokens (`bos_token`, ...) as texts.
        templates: the chat templates.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        source: TokenizerFiles,
        templates: ChatTemplates,
        *,
        generation_config: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ):
        """Take over a built tokenizer.

        Args:
            tokenizer: every token added, the post-processor set.
            source: what the checkpoint's files say.
            templates: its chat templates.
            generation_config: generation_config.json, for the end ids.
            config: config.json, for ids that the tokenizer's files do not state.
        """
        self._tokenizer, self._source, self.templates = tokenizer, source, templates
        self._where = source.where
        self.max_token_id = max(tokenizer.get_vocab().values(), default=-1)
        self.vocab_size = self.max_token_id + 1
        self.special_tokens = {name: spec.content for name, spec in source.special.items()}
        ids = {name: tokenizer.token_to_id(text) for name, text in self.special_tokens.items()}
        config, generation_config = config or {}, generation_config or {}
        self._model_type = config.get("model_type")
        self.bos_token_id = _first(ids.get("bos_token"), _ids_of(config, "bos_token_id"))
        eos = _ids_of(generation_config, "eos_token_id") or _ids_of(config, "eos_token_id")
        own_eos = ids.get("eos_token")
        if own_eos is not None and own_eos not in eos:
            eos = (*eos, own_eos)
        self.eos_token_ids: tuple[int, ...] = tuple(sorted(set(eos), key=eos.index))
        self.pad_token_id = _first(
            ids.get("pad_token"),
            _ids_of(generation_config, "pad_token_id"),
            _ids_of(config, "pad_token_id"),
            self.eos_token_ids,
        )
        self.unk_token_id = ids.get("unk_token")
        length = source.settings.get("model_max_length")
        stated = isinstance(length, int | float) and 0 < length < NO_LIMIT
        self.model_max_length = int(length) if stated and length else None
        side = source.settings.get("padding_side", "right")
        self.padding_side: str = side if side in ("left", "right") else "right"
        self._patterns = _has_own_pattern(source.definition)
        self._cut: dict[Cutting, tokenizers.Tokenizer] = {}
        # A text may bring its own start token, as chat templates do: it must not come twice.
        added = self._run([""], True)[0].ids
        self._adds_bos = self.bos_token_id is not None and added[:1] == [self.bos_token_id]

    @cached_property
    def files(self) -> dict[str, bytes]:
        """File name to bytes: what an export writes so that transformers 4 and 5 both load it.

        A name may have a folder part (`additional_chat_templates/tool_use.jinja`).
        """
        return _files(self, self._source)

    def tells_kinds(self, *, unstated: bool = False) -> bool:
        """Tell whether transformers' tokenizer says which of two texts each token is of.

        Args:
            unstated: what counts for a class that any model may have, which does not say so
                itself: transformers 5 leaves it out there, transformers 4 did not.
        """
        stated = self._source.settings.get("model_input_names")
        if isinstance(stated, list):
            return KINDS in stated
        named = str(self._source.settings.get("tokenizer_class") or self._model_type)
        if named in ANY_MODEL or named.lower().startswith("albert"):
            return unstated
        return True

    @property
    def chat_template(self) -> str | None:
        """The text of the default chat template, or None."""
        return self.templates.default

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer of the tokenizers library beneath; change nothing in it."""
        return self._tokenizer

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens, named or not."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def ending_in(self, ids: Sequence[int]) -> TextProcessor:
        """Return this tokenizer with other `eos_token_ids`."""
        other = copy.copy(self)
        other.eos_token_ids = tuple(ids)
        return other

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`.

        Args:
            text: any text; the names of special tokens in it become those tokens.
            add_special_tokens: add what the checkpoint adds by itself, such as its start token;
                a start token that the text already opens with is not added again.

        Raises:
            InputRefused: no text, longer than 2^26 characters, or one that the tokenizer's
                patterns cannot split within 5 seconds and one more for every 100,000 characters.
        """
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the token ids of each text, as `encode` does, no padding."""
        encoded = self._run(texts, add_special_tokens)
        rows = [encoding.ids for encoding in encoded]
        return [self._one_bos(ids) for ids in rows] if add_special_tokens else rows

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of `text` and, for each, the characters `[start, end)` that it covers.

        Tokens that make up one character together all cover it. Added tokens cover `(0, 0)`.
        """
        encoding = self._run([text], add_special_tokens)[0]
        ids, offsets = encoding.ids, list(encoding.offsets)
        if add_special_tokens:
            kept = self._one_bos(ids)
            ids, offsets = kept, offsets[len(ids) - len(kept) :]
        return ids, offsets

    def encodings(
        self,
        inputs: Sequence[str | tuple[str, str]] | Sequence[Sequence[str]],
        cutting: Cutting | None = None,
        *,
        words: bool = False,
    ) -> list[tokenizers.Encoding]:
        """Return the library's encodings of texts or pairs of texts, special tokens included.

        Args:
            inputs: texts, or first and second texts, which the tokenizer joins in its own way.
            cutting: how long ones are cut; None leaves them whole. Where its windows overlap, the
                windows after the first are an encoding's `overflowing`.
            words: whether each input is a list of words, each to be split further for itself.

        Raises:
            InputRefused: as `encode`; or a limit too short for the special tokens.
        """
        if cutting is None:
            return self._run(inputs, True, words=words)
        if cutting not in self._cut:
            copy = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
            copy.no_padding()
            try:
                copy.enable_truncation(
                    cutting.max_tokens, stride=cutting.stride, strategy=cutting.strategy
                )
            except BaseException as error:
                raise InputRefused(
                    f"tokenizer: {cutting.max_tokens} tokens with a stride of {cutting.stride} "
                    f"leave no room for a text: {shown(str(error))}"
                ) from None
            self._cut[cutting] = copy
        return self._run(inputs, True, self._cut[cutting], words=words)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids without a token (padded vocabulary rows) give no text.

        Raises:
            InputRefused: an id that is no non-negative integer.
        """
        numbers = [int(number) for number in ids]
        if any(not 0 <= number < 1 << 32 for number in numbers):
            wrong = next(number for number in numbers if not 0 <= number < 1 << 32)
            raise InputRefused(
                f"token id {wrong}: expected 0 to {self.max_token_id}. Padding of -100 marks "
                "labels, not tokens; leave it out before decoding."
            )
        return self._tokenizer.decode(numbers, skip_special_tokens=skip_special_tokens)

    def token(self, number: int) -> str:
        """Return one token for display: its text, or its own spelling where it is part of one."""
        spelling = self._tokenizer.id_to_token(int(number))
        if spelling is None:
            return f"<{int(number)}>"
        text = self.decode([number], skip_special_tokens=False)
        return text if text and "\ufffd" not in text else spelling

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its spelling in the vocabulary, or None."""
        return self._tokenizer.token_to_id(token)

    def stream_decoder(self, *, skip_special_tokens: bool = True) -> StreamDecoder:
        """Return a decoder that is fed ids one at a time."""
        return StreamDecoder(self, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """Return the prompt text of a conversation.

        The template writes the start token itself where it has one: encode its text with
        `add_special_tokens=False`, or leave it on; the start token does not come twice.

        Args:
            messages: each a mapping with `role` and `content`.
            add_generation_prompt: end with the opening of the assistant's turn.
            variables: more for the template, such as `tools`.

        Raises:
            InputRefused: no chat template, or one that fails, does what a template may not do, or
                does not end.
        """
        return self._render(messages, add_generation_prompt, variables).text

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> tuple[list[int], list[bool]]:
        """Return the ids of a conversation and which of them the assistant wrote.

        The conversation is rendered once and tokenized once. A token counts as the assistant's if
        it starts inside a `{% generation %}` block; without such blocks none does.

        Args:
            messages: as for `apply_chat_template`.
            add_generation_prompt: as for `apply_chat_template`.
            variables: as for `apply_chat_template`.
        """
        rendered = self._render(messages, add_generation_prompt, variables)
        ids, offsets = self.encode_with_offsets(rendered.text)
        spans = rendered.assistant
        mask = [any(start <= first < end for start, end in spans) for first, _ in offsets]
        return ids, mask

    def _render(
        self, messages: Sequence[Mapping[str, Any]], prompt: bool, variables: Mapping[str, Any]
    ) -> Any:
        """Render the conversation with the special tokens at the template's hand."""
        given = {**self.special_tokens, **variables, "add_generation_prompt": prompt}
        return self.templates.render(messages, **given)

    def _one_bos(self, ids: list[int]) -> list[int]:
        """Return `ids` with one start token where the text brought its own as well."""
        return ids[1:] if self._adds_bos and ids[1:2] == ids[:1] else ids

    def _run(
        self,
        inputs: Sequence[Any],
        add_special_tokens: bool,
        tokenizer: tokenizers.Tokenizer | None = None,
        *,
        words: bool = False,
    ) -> list[tokenizers.Encoding]:
        """Encode within the bounds, whatever the library raises."""
        given = list(inputs)
        parts = [one if words or isinstance(one, tuple) else (one,) for one in given]
        texts = [text for part in parts for text in part]
        chosen = self._tokenizer if tokenizer is None else tokenizer
        for text in texts:
            if not isinstance(text, str) or len(text) > TEXT_LIMIT:
                size = f"a text of {len(text)} characters" if isinstance(text, str) else shown(text)
                raise InputRefused(
                    f"tokenizer: found {size}. Expected a text of at most {TEXT_LIMIT} "
                    "characters; cut it into documents."
                )

        def work() -> list[tokenizers.Encoding]:
            return chosen.encode_batch(
                given, is_pretokenized=words, add_special_tokens=add_special_tokens
            )

        seconds = ENCODE_SECONDS + sum(map(len, texts)) / ENCODE_CHARACTERS_PER_SECOND
        try:
            return _within(seconds, work) if self._patterns else work()
        except (KeyboardInterrupt, SystemExit):
            raise
        except TimeoutError:
            raise InputRefused(
                f"{self._where}: the tokenizer's pattern {shown(self._patterns)} took more than "
                f"{seconds:.0f} s on one batch. Cut the texts, or rewrite the pattern."
            ) from None
        # The library panics with a BaseException of its own, on patterns for example.
        except BaseException as error:
            _refuse_surrogates(texts)
            pattern = f" (pattern {shown(self._patterns)})" if self._patterns else ""
            raise InputRefused(
                f"{self._where}: the tokenizer failed on a text{pattern}: {shown(str(error))}. "
                "Check the text, or save the tokenizer again."
            ) from None


class StreamDecoder:
    """Decodes ids one at a time; text comes out once its characters are complete."""

    def __init__(self, processor: TextProcessor, *, skip_special_tokens: bool = True):
        """Start with no ids.

        Args:
            processor: whose tokens they are.
            skip_special_tokens: leave special tokens out of the text.
        """
        self._processor, self._skip = processor, skip_special_tokens
        # Ids since the start of the last piece: decoders look at what stands before a token.
        self._ids: list[int] = []
        self._given = 0  # how many of them the text already given out covers

    def feed(self, number: int) -> str:
        """Return the text that the next id completes; empty inside of a character."""
        self._ids.append(int(number))
        before, now = self._texts()
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return ""
        self._ids, self._given = self._ids[self._given :], len(self._ids) - self._given
        return now[len(before) :]

    def flush(self) -> str:
        """Return what is left, unfinished characters as U+FFFD, and start anew."""
        before, now = self._texts()
        self._ids, self._given = [], 0
        return now[len(before) :]

    def _texts(self) -> tuple[str, str]:
        """Return the text of the ids given out and that of all ids held."""
        decode = self._processor.decode
        before = decode(self._ids[: self._given], skip_special_tokens=self._skip)
        return before, decode(self._ids, skip_special_tokens=self._skip)


def _files(processor: TextProcessor, source: TokenizerFiles) -> dict[str, bytes]:
    """Return what an export writes: the source's own bytes wherever both versions read them."""
    files = {name: data for name, data in source.raw.items() if name != "tokenizer_config.json"}
    if "tokenizer.json" not in files:
        definition = processor.tokenizer.to_str(pretty=True)
        files["tokenizer.json"] = definition.encode("utf-8")
    settings = exported_settings(source.settings)
    legacy = processor.templates.legacy()
    if legacy is not None:
        settings["chat_template"] = legacy
    raw = source.raw.get("tokenizer_config.json")
    files["tokenizer_config.json"] = (
        raw if raw is not None and settings == source.settings else json_bytes(settings)
    )
    if "special_tokens_map.json" not in files:
        named: dict[str, Any] = dict(processor.special_tokens)
        if source.extra:
            named["additional_special_tokens"] = [spec.content for spec in source.extra]
        files["special_tokens_map.json"] = json_bytes(named)
    return files | processor.templates.files()


def _refuse_surrogates(texts: Sequence[str]) -> None:
    """Refuse texts that are no Unicode; the library has no words for them."""
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputRefused(
                f"tokenizer: half of a surrogate pair at character {error.start} of a text. "
                "Expected Unicode text; decode the input with errors='replace'."
            ) from None


def _ids_of(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Return one id or a list of ids of a config; negative ones mean none there."""
    value = config.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    for number in values:
        if type(number) is not int:
            raise InputRefused(
                f"config: {key} is {shown(value)}. Expected a token id or a list of token ids."
            )
    return tuple(number for number in values if number >= 0)


def _first(*candidates: int | Sequence[int] | None) -> int | None:
    """Return the first id among ids and lists of ids."""
    for candidate in candidates:
        if isinstance(candidate, int):
            return candidate
        if candidate:
            return candidate[0]
    return None


def _has_own_pattern(definition: Mapping[str, Any] | None) -> str:
    """Return the first pattern of the file that only a time limit bounds, or an empty text."""
    waiting = [(definition or {}).get(key) for key in ("normalizer", "pre_tokenizer")]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            if isinstance(pattern := node.get("Regex"), str):
                return pattern
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return ""


def _within(seconds: float, work: Any) -> Any:
    """Return what `work` returns, or give up on it after `seconds`.

    Compiled code cannot be interrupted: the thread is left behind, and ends with the process.
    """
    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not result:
        raise TimeoutError
    return result[0]
