"""Text generation: prompts or conversations in, the dicts of transformers' pipeline out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.cache import bucket
from dew.inference.decode import Streamer, compiled, continued, streamed
from dew.inference.generation import GenerationOptions, generation_options
from dew.inference.model_inputs import checked_inputs
from dew.inference.streaming import TextStream
from dew.typing import TextProcessor

DEFAULTS: dict[str, Any] = {"do_sample": True, "temperature": 0.7}
DEFAULT_NEW_TOKENS = 256
"""What transformers' pipeline takes where neither the call nor the checkpoint says otherwise."""

CALL_DEFAULTS: dict[str, Any] = {
    "return_full_text": True,
    "return_tensors": False,
    "continue_final_message": None,
    "add_special_tokens": True,
}
"""What a call or a task may set besides generation's options."""

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]


class TextGeneration:
    """Continues texts, or answers conversations through the checkpoint's chat template.

    Args:
        bundle: a causal language model with a tokenizer.
        batch_size: prompts a batch; None takes all of a call together.
        **options: defaults of its calls, see `__call__`.

    Raises:
        InputRefused: the bundle has no tokenizer, or an option is not usable.
    """

    def __init__(self, bundle: Bundle, *, batch_size: int | None = None, **options: Any):
        if bundle.tokenizer is None:
            where = f" {shown(bundle.source)}" if bundle.source else ""
            raise InputRefused(
                f"text generation needs a tokenizer and the checkpoint{where} has none; put "
                "tokenizer.json beside the weights, or call bundle.generate with ids"
            )
        self.bundle = bundle
        self._processor: TextProcessor = bundle.tokenizer
        self._batch_size = batch_size
        self._call = {name: options.pop(name, value) for name, value in CALL_DEFAULTS.items()}
        self._options = options
        self._settings({})

    def __call__(
        self,
        text_inputs: str | Sequence[Any],
        *,
        batch_size: int | None = None,
        on_text: Callable[[str], object] | None = None,
        streamer: Streamer | None = None,
        **options: Any,
    ) -> list[Any]:
        """Continue one prompt or several.

        Args:
            text_inputs: a text, a conversation (a list of messages with `role` and `content`), or
                a list of either.
            batch_size: prompts a batch; which rows share one changes no row.
            on_text: called with each piece of new text once it is complete; one prompt only.
            streamer: told of ids as transformers' streamers are; one prompt only.
            **options: the fields of `GenerationOptions`, and those below.
            return_full_text: give the prompt too (for a conversation, all its messages).
            return_tensors: give the ids, prompt included, instead of text.
            continue_final_message: go on with a conversation's last message instead of answering
                it; by default where that message is the assistant's.
            add_special_tokens: tokenize texts with the tokenizer's own special tokens.
            stop_sequence: another name of `stop_strings`.

        Returns:
            For one prompt `[{"generated_text": ...}]`, an entry a returned sequence; for a list
            of prompts a list of those. A conversation's text is its messages with the answer as
            the last one. With `return_tensors` the key is `generated_token_ids`.

        Raises:
            InputRefused: an input that is neither, an empty prompt, an option out of range.
        """
        prompts, single = _prompts(text_inputs)
        if not prompts:
            return []
        call = {name: options.pop(name, value) for name, value in self._call.items()}
        settings = self._settings(options)
        streamer = self._streamer(on_text, streamer, len(prompts) * settings.num_return_sequences)
        asked = [_continues(prompt, call["continue_final_message"]) for prompt in prompts]
        ids = self._encode(prompts, asked, call["add_special_tokens"])
        size = batch_size or self._batch_size or len(prompts)
        results = []
        for rows in self._rows(ids, settings, size, streamer):
            prompt, goes_on = prompts[len(results)], asked[len(results)]
            results.append(
                [
                    {"generated_token_ids": [*ids[len(results)], *new]}
                    if call["return_tensors"]
                    else {
                        "generated_text": self._text(prompt, new, goes_on, call["return_full_text"])
                    }
                    for new in rows
                ]
            )
        return results[0] if single else results

    def stream(self, text_inputs: Prompt, **options: Any) -> Iterator[str]:
        """Continue one prompt, and give each piece of new text once it is complete.

        Args:
            text_inputs: a text or a conversation.
            **options: as for a call, those that bear on what is returned aside.

        Returns:
            An iterator: what it has not given yet is not computed. Its texts joined are the
            `generated_text` of a call with `return_full_text=False`.

        Raises:
            InputRefused: as a call, before the first piece; several prompts or sequences.
        """
        prompts, single = _prompts(text_inputs)
        call = {name: options.pop(name, value) for name, value in self._call.items()}
        settings = self._settings(options)
        if not single or settings.num_return_sequences > 1:
            raise InputRefused("stream takes one prompt, with num_return_sequences=1")
        goes_on = _continues(prompts[0], call["continue_final_message"])
        ids = self._encode(prompts, [goes_on], call["add_special_tokens"])
        prompt = np.asarray(ids, np.int32)
        checked_inputs(self.bundle.model, {"input_ids": prompt})
        return self._pieces(prompt, streamed(self.bundle, settings, prompt))

    def _pieces(self, prompt: np.ndarray, made: Iterator[np.ndarray]) -> Iterator[str]:
        pieces: list[str] = []
        stream = TextStream(self._processor, pieces.append)
        stream.put(prompt)
        for ids in made:
            for step in ids.T:
                stream.put(step)
            yield from pieces
            pieces.clear()
        stream.end()
        yield from pieces

    def warm_up(self, longest: int = 512, *, batch_size: int = 1, **options: Any) -> None:
        """Compile ahead what calls with these options need, so that none of them waits for it.

        Args:
            longest: ids of the longest prompt.
            batch_size: prompts a batch.
            **options: as for a call; those that choose rules choose programs.
        """
        settings = self._settings(options)
        limit = self.bundle.model.position_limit
        wanted = settings.max_new_tokens or settings.assumed_new_tokens
        if limit is not None:
            longest = max(min(longest, limit - wanted), 1)
        rows = batch_size * settings.copies
        for length in sorted({min(bucket(at), longest) for at in range(1, longest + 1)}):
            compiled(self.bundle, settings, rows, length)

    def _settings(self, given: Mapping[str, Any]) -> GenerationOptions:
        given = {**self._options, **given}
        if "stop_sequence" in given:
            given["stop_strings"] = given.pop("stop_sequence")
        defaults = {k: v for k, v in DEFAULTS.items() if k not in self.bundle.generation_config}
        if given.get("pad_token_id") is None and self._processor.pad_token_id is not None:
            defaults["pad_token_id"] = self._processor.pad_token_id
        settings = generation_options(self.bundle, {**defaults, **given})
        return dataclasses.replace(settings, assumed_new_tokens=DEFAULT_NEW_TOKENS)

    def _streamer(
        self, on_text: Callable[[str], object] | None, streamer: Streamer | None, rows: int
    ) -> Streamer | None:
        if on_text is None and streamer is None:
            return None
        if rows > 1:
            raise InputRefused(
                f"{rows} sequences at once cannot be streamed; stream one prompt at a time, with "
                "num_return_sequences=1"
            )
        if on_text is not None and streamer is not None:
            raise InputRefused("on_text and streamer were both given; leave out one")
        return streamer if on_text is None else TextStream(self._processor, on_text)

    def _encode(
        self, prompts: Sequence[Prompt], asked: Sequence[bool], add_special_tokens: bool
    ) -> list[list[int]]:
        processor = self._processor
        ids = []
        for index, (prompt, goes_on) in enumerate(zip(prompts, asked, strict=True)):
            if isinstance(prompt, str):
                row = processor.encode(prompt, add_special_tokens=add_special_tokens)
            else:
                # The template writes the start token itself.
                row = processor.encode(self._rendered(prompt, goes_on), add_special_tokens=False)
            if not row and processor.bos_token_id is not None:
                row = [processor.bos_token_id]
            if not row:
                raise InputRefused(
                    f"prompt {index} is empty and the tokenizer has no start token; write a prompt"
                )
            ids.append(list(row))
        return ids

    def _rendered(self, messages: Sequence[Message], goes_on: bool) -> str:
        text = self._processor.apply_chat_template(messages, add_generation_prompt=not goes_on)
        if not goes_on:
            return text
        last = str(messages[-1]["content"]).strip()
        at = text.rfind(last)
        if at < 0:
            raise InputRefused(
                "the chat template does not print the last message as it is, so it cannot be "
                "continued; pass continue_final_message=False"
            )
        return text[: at + len(last)]

    def _rows(
        self,
        ids: Sequence[list[int]],
        settings: GenerationOptions,
        size: int,
        streamer: Streamer | None,
    ) -> Iterator[list[list[int]]]:
        """Yield each prompt's continuations, without prompt and padding."""
        count = settings.num_return_sequences
        for start in range(0, len(ids), size):
            batch = ids[start : start + size]
            width = max(map(len, batch))
            tokens = np.full((len(batch), width), settings.pad_token_id, np.int32)
            mask = np.zeros_like(tokens)
            for row, prompt in enumerate(batch):
                tokens[row, width - len(prompt) :] = prompt
                mask[row, width - len(prompt) :] = 1
            checked_inputs(self.bundle.model, {"input_ids": tokens, "attention_mask": mask})
            own = settings
            if settings.seeds is not None:
                own = dataclasses.replace(settings, seeds=settings.seeds[start : start + size])
            made, lengths = continued(
                self.bundle,
                own,
                np.repeat(tokens, settings.copies, axis=0),
                np.repeat(mask, settings.copies, axis=0),
                streamer=streamer,
                first_row=start * count,
            )
            new = [
                row[width : width + length].tolist()
                for row, length in zip(made, lengths, strict=True)
            ]
            yield from (new[at : at + count] for at in range(0, len(new), count))

    def _text(self, prompt: Prompt, new: list[int], goes_on: bool, full: bool) -> Any:
        text = self._processor.decode(new)
        if not full:
            return text
        if isinstance(prompt, str):
            return prompt + text
        if goes_on:
            last = dict(prompt[-1])
            return [*prompt[:-1], {**last, "content": last["content"] + text}]
        return [*prompt, {"role": "assistant", "content": text}]


def _prompts(inputs: Any) -> tuple[list[Prompt], bool]:
    """Return the prompts, and whether there was one that stood alone."""
    if isinstance(inputs, str) or _is_chat(inputs):
        return [inputs], True
    if not isinstance(inputs, Sequence) or isinstance(inputs, bytes):
        raise InputRefused(
            f"text_inputs is {shown(inputs)}; expected a text, a list of messages, or a list of "
            "either"
        )
    for index, prompt in enumerate(inputs):
        if not isinstance(prompt, str) and not _is_chat(prompt):
            raise InputRefused(
                f"text_inputs[{index}] is {shown(prompt)}; expected a text, or a list of messages "
                "with role and content"
            )
    return list(inputs), False


def _is_chat(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return False
    return all(
        isinstance(message, Mapping) and "role" in message and "content" in message
        for message in value
    )


def _continues(prompt: Prompt, asked: bool | None) -> bool:
    if isinstance(prompt, str):
        return False
    return prompt[-1]["role"] == "assistant" if asked is None else asked
