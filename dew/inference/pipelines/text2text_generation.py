"""Text to text by an encoder and a decoder: answers, summaries and translations of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dew.artifacts import TextSamples
from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.generation import GenerationOptions, generation_options
from dew.inference.pipelines.task import BATCH, Options
from dew.inference.pipelines.text_task import UNCUT, TextTask
from dew.inference.row_outputs import length_batches
from dew.typing import Cutting

BEAMS, NEW_TOKENS = 4, 256
"""What version 4's pipelines took whatever the checkpoint's generation config said."""
GLOBAL_LENGTH = 20
"""The `max_length` that a generation config has where nobody gave it one."""
CLEANED = {
    **{f" {mark}": mark for mark in (".", "?", "!", ",")},
    " ' ": "'",
    **{f" {part}": part for part in ("n't", "'m", "'s", "'ve", "'re")},
}
"""What `clean_up_tokenization_spaces` writes for what, in this order."""


class Text2TextGeneration(TextTask):
    """Answers texts with texts.

    Options of a call:

    - `truncation`: whether to cut a text to what the tokenizer and the model take.
    - `return_tensors`: give the ids, `generated_token_ids`, instead of the text.
    - `return_text`: for old calls; the text comes unless `return_tensors` is set.
    - `clean_up_tokenization_spaces`: write `it 's .` as `it's.`
    - `stop_sequence`: a text whose first token ends an answer.
    - `prefix`: what is written before every text; by default the checkpoint's.
    - all options of `bundle.generate`. As in version 4 an answer comes of 4 beams and has at most
      256 tokens, unless the checkpoint states a `max_length` or `task_specific_params`.

    For one text the result is `[{"generated_text": ...}]`, an entry a returned sequence; for a
    list of texts it is a list of such dicts, or of such lists where a text has several answers.

    Source: transformers 4.57.6's Text2TextGenerationPipeline.
    """

    name = "text2text-generation"
    fits = ("text2text-generation",)
    remedy = "shorten the text, or pass truncation=True"
    key: ClassVar[str] = "generated"
    defaults: ClassVar[Mapping[str, Any]] = {
        "truncation": None,
        "return_tensors": False,
        "return_text": True,
        "clean_up_tokenization_spaces": False,
        "stop_sequence": None,
        "prefix": None,
        "generate_kwargs": None,
    }

    def __init__(self, bundle: Bundle, *, batch_size: int | None = None, **options: Any):
        self._task = str(options.pop("task", None) or self.name)
        super().__init__(bundle, batch_size=batch_size, **options)

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **options: Any) -> Any:
        """Run the task; see `Task.__call__` and the class."""
        found = super().__call__(inputs, batch_size=batch_size, **options)
        if isinstance(inputs, list) and all(len(records) == 1 for records in found):
            return [records[0] for records in found]
        return found

    def merged(self, given: Mapping[str, Any]) -> Options:
        """Return all options: those given, over the task's own; see `Task.merged`."""
        own = {name: value for name, value in given.items() if name in self.defaults}
        more = {**(own.pop("generate_kwargs", None) or {}), **given}
        more = {name: value for name, value in more.items() if name not in self.defaults}
        return {**super().merged(own), "generate": {**self._options.get("generate", {}), **more}}

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        given = dict(options["generate"])
        if options["stop_sequence"] is not None:
            ids = self.processor.encode(options["stop_sequence"], add_special_tokens=False)
            if not ids:
                raise InputRefused("stop_sequence has no token; expected a text that ends answers")
            given["eos_token_id"] = ids[0]
        options["asked"] = {**self._stated(), **given}
        options["settings"] = self._settings(options["asked"])
        return options

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return the records of each text's answers."""
        rows = self._answers(items, options, batch_size)
        return [[self._record(answer, options) for answer in answers] for answers in rows]

    def typed(self, inputs: Any, **options: Any) -> TextSamples:
        """Return the answers' ids and texts, text after text."""
        settled = self.checked(self.merged(options))
        rows = self._answers(self.all_items(inputs), settled, self._batch_size or BATCH)
        answers = [answer for row in rows for answer in row]
        width = max(map(len, answers), default=0)
        tokens = np.full((len(answers), width), settled["settings"].pad_token_id, np.int32)
        for place, answer in zip(tokens, answers, strict=True):
            place[: len(answer)] = answer
        texts = tuple(self.processor.decode(answer.tolist()) for answer in answers)
        return TextSamples(tokens=tokens, texts=texts)

    def prepared(self, texts: Sequence[str], options: Options) -> list[list[int]]:
        """Return the ids that the encoder reads of each text.

        Raises:
            InputRefused: a text without a token, or one longer than the model takes.
        """
        prefix = options["prefix"]
        prefix = self._params().get("prefix") if prefix is None else prefix
        prefix = self.bundle.config.get("prefix") if prefix is None else prefix
        cutting = None
        if options["truncation"] not in UNCUT and self.longest is not None:
            cutting = Cutting(self.longest)
        written = [f"{prefix or ''}{text}" for text in texts]
        encodings = self.encoded(written, cutting)
        pairs = zip(encodings, texts, strict=True)
        return [list(self.row(encoding, text=text).ids) for encoding, text in pairs]

    def warn(self, length: int, settings: GenerationOptions) -> None:
        """Warn of a length that hardly fits a text of `length` tokens."""

    def more(self, options: Options) -> dict[str, Any]:
        """Return options of `generate` that the task's own options ask for."""
        del options
        return {}

    def _params(self) -> dict[str, Any]:
        """Return what the checkpoint's config states for this task."""
        stated = (self.bundle.config.get("task_specific_params") or {}).get(self._task)
        return dict(stated) if isinstance(stated, Mapping) else {}

    def _stated(self) -> dict[str, Any]:
        """Return the options of `generate` that version 4's pipelines stated before a call's."""
        stored = self.bundle.generation_config
        found: dict[str, Any] = {"num_beams": BEAMS, "max_new_tokens": NEW_TOKENS}
        if stored.get("max_length") not in (None, GLOBAL_LENGTH):
            # The checkpoint's own length counts before the pipeline's.
            found["max_new_tokens"] = stored.get("max_new_tokens")
        params = self._params()
        params.pop("prefix", None)
        found = {**found, **params}
        return {name: value for name, value in found.items() if value is not None}

    def _settings(self, asked: Mapping[str, Any]) -> GenerationOptions:
        """Return the checked options of `generate`, for the warnings and the padding."""
        from dew.inference.answering import FORCED, START

        kept = {name: value for name, value in asked.items() if name not in (*FORCED, START)}
        stored = self.bundle.generation_config
        plain = {name: value for name, value in stored.items() if name not in FORCED}
        return generation_options(self.bundle.replace(generation_config=plain), kept)

    def _answers(self, items: Sequence[Any], options: Options, size: int) -> list[list[np.ndarray]]:
        """Return the ids of each text's answers, the start id first."""
        wrong = [(at, item) for at, item in enumerate(items) if not isinstance(item, str)]
        if wrong:
            at, item = wrong[0]
            raise InputRefused(
                f"{self.name}: input {at} is {shown(item)} ({type(item).__name__}); expected a text"
            )
        rows, settings = self.prepared(items, options), options["settings"]
        for row in rows:
            self.warn(len(row), settings)
        asked = {**options["asked"], **self.more(options)}
        results: list[list[np.ndarray]] = [[] for _ in rows]
        for batch in length_batches([len(row) for row in rows], size):
            count = size if len(rows) > size else len(batch)
            ids, mask = _padded([rows[at] for at in batch], count, settings.pad_token_id)
            made = np.asarray(self.bundle.generate(ids, mask, **asked))
            copies = len(made) // count
            for place, at in enumerate(batch):
                own = made[place * copies : (place + 1) * copies]
                results[at] = list(_trimmed(own, settings))
        return results

    def _record(self, answer: np.ndarray, options: Options) -> dict[str, Any]:
        if options["return_tensors"] or not options["return_text"]:
            return {f"{self.key}_token_ids": answer}
        text = self.processor.decode(answer.tolist())
        if options["clean_up_tokenization_spaces"]:
            for found, wanted in CLEANED.items():
                text = text.replace(found, wanted)
        return {f"{self.key}_text": text}


def _padded(rows: Sequence[list[int]], count: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and mask, int32 [count, L]; rows beyond those given repeat the last one."""
    width = max(map(len, rows))
    ids, mask = np.full((count, width), pad, np.int32), np.zeros((count, width), np.int32)
    for at in range(count):
        row = rows[min(at, len(rows) - 1)]
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return ids, mask


def _trimmed(rows: np.ndarray, settings: GenerationOptions) -> np.ndarray:
    """Return a text's answers [R, T], padded as far as the longest of them and no further."""
    width = 1
    for row in rows:
        over = np.flatnonzero(np.isin(row[1:], settings.eos_token_id))
        width = max(width, 2 + int(over[0]) if len(over) else len(row))
    return rows[:, :width]
