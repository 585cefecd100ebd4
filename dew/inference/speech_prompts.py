"""What Whisper's decoder is given to begin with: ids of the language, the task and the form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dew.errors import InputRefused, nearest, shown
from dew.inference.languages import LANGUAGE_CODES

TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class SpeechPrompt:
    """The ids that may stand in a prompt, and what was asked for.

    Attributes:
        start: the id that every text begins with.
        language: the name, code or token of a language, one for each sound, or None for what is
            heard.
        task: "transcribe", "translate" into English, or None.
        languages: each language's token, as in `<|en|>`, to its id; None where the checkpoint
            names none.
        tasks: each task's name to its id; None where the checkpoint names none.
        forced: the ids behind the start that an old checkpoint asks for where neither language nor
            task is given; the first may be None, for the language that is heard.
        no_timestamps: the id that asks for a text without times, or None.
        before: ids of a text that came before, or None.
        timed: whether the text is to hold times; `no_timestamps` then stands in no prompt.
    """

    start: int
    language: str | Sequence[str] | None = None
    task: str | None = None
    languages: Mapping[str, int] | None = None
    tasks: Mapping[str, int] | None = None
    forced: tuple[int | None, ...] = ()
    no_timestamps: int | None = None
    before: tuple[int, ...] = field(default=())
    timed: bool = False

    def ids(self, rows: int, heard: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the prompts, int32 [N, W], without the text that came before.

        Args:
            rows: N, how many sounds there are.
            heard: gives the id of each sound's language, int [N]; called where it is wanted.

        Raises:
            InputRefused: a language or a task that the checkpoint has no id for, another number of
                languages than of sounds.

        Source: transformers 5.24's WhisperForConditionalGeneration, whose order and whose defaults
            these are.
        """
        asked = self.language is not None or self.task is not None
        ids = [] if asked else list(self.forced)
        named = self._named(rows)
        if named is None and self.languages is not None and (not ids or ids[0] is None):
            named = [int(one) for one in heard()]
        prompts = [[*ids] for _ in range(rows)]
        for row, language in zip(prompts, named or (), strict=False):
            row[:1] = [language]
        for row in prompts:
            if self.task is not None:
                row.append(self._task(self.task))
            elif self.language is not None and self.tasks and "transcribe" in self.tasks:
                row.append(self.tasks["transcribe"])
            stands = self.no_timestamps is not None and row[-1:] == [self.no_timestamps]
            if stands and self.timed:
                row.pop()
            if not stands and not self.timed:
                row.append(self.no_timestamps)
        kept = [[part for part in row if part is not None] for row in prompts]
        return np.array([[self.start, *row] for row in kept], np.int32)

    def _named(self, rows: int) -> list[int] | None:
        """Return the id of each sound's language where one is asked for."""
        if self.language is None:
            return None
        one = isinstance(self.language, str)
        named = [self.language] * rows if one else list(self.language)
        if len(named) != rows:
            raise InputRefused(
                f"language names {len(named)} languages for {rows} sounds; give one, or one each"
            )
        return [self._language(name) for name in named]

    def _language(self, name: Any) -> int:
        if self.languages is None:
            raise InputRefused(
                "the checkpoint's generation_config.json has no lang_to_id, so language cannot be "
                "asked for; take the file of a newer revision"
            )
        if not isinstance(name, str):
            raise InputRefused(f"language is {shown(name)}; expected a name, as in 'en'")
        wanted = name.lower()
        token = wanted if wanted in self.languages else f"<|{LANGUAGE_CODES.get(wanted, wanted)}|>"
        if token not in self.languages:
            known = [n for n, code in LANGUAGE_CODES.items() if f"<|{code}|>" in self.languages]
            raise InputRefused(
                f"language is {shown(name)}, which this checkpoint has no id for"
                f"{nearest(wanted, known)}"
            )
        return self.languages[token]

    def _task(self, name: Any) -> int:
        if name not in TASKS:
            raise InputRefused(f"task is {shown(name)}; expected {' or '.join(TASKS)}")
        if self.tasks is None or name not in self.tasks:
            raise InputRefused(
                f"the checkpoint's generation_config.json has no id for the task {name}, so it "
                "cannot be asked for; take the file of a newer revision"
            )
        return self.tasks[name]


def read_prompt(
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    start: int,
    vocab_size: int,
    *,
    timed: bool = False,
) -> SpeechPrompt:
    """Return what a call asks for.

    Args:
        config: the checkpoint's generation config.
        options: of the call: `language`, `task`, `is_multilingual`, `prompt_ids`.
        start: the id that every text begins with.
        vocab_size: how many ids there are.
        timed: whether the text is to hold times.

    Raises:
        InputRefused: a language or a task asked of a model of English alone, ids outside the
            vocabulary, forced ids with a gap.
    """
    both = {name: _given(options, name) for name in ("language", "task")}
    multilingual = _given(options, "is_multilingual", config.get("is_multilingual"))
    if multilingual is False and any(value is not None for value in both.values()):
        raise InputRefused(
            "the model hears English alone: leave out language and task, or pass "
            "is_multilingual=True"
        )
    asked = {name: _given(both, name, config.get(name)) for name in both}
    before = np.asarray(_given(options, "prompt_ids", ()))
    prompt = SpeechPrompt(
        start=start,
        languages=config.get("lang_to_id"),
        tasks=config.get("task_to_id"),
        forced=_forced(config.get("forced_decoder_ids")),
        no_timestamps=config.get("no_timestamps_token_id"),
        before=tuple(before.tolist()),
        timed=timed,
        **asked,
    )
    named = [*prompt.before, *prompt.forced, prompt.no_timestamps]
    named += [*(prompt.languages or {}).values(), *(prompt.tasks or {}).values()]
    for value in named:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and 0 <= value < vocab_size):
            raise InputRefused(
                f"an id of the prompt is {shown(value)}, outside the vocabulary [0, {vocab_size})"
            )
    return prompt


def _given(values: Mapping[str, Any], name: str, default: Any = None) -> Any:
    value = values.get(name)
    return default if value is None else value


def _forced(pairs: Any) -> tuple[int | None, ...]:
    """Return the ids of `forced_decoder_ids`, pairs of place and id that begin at place 1."""
    if not pairs or pairs[0][0] != 1:
        return ()
    if [place for place, _ in pairs] != list(range(1, len(pairs) + 1)):
        raise InputRefused(
            f"forced_decoder_ids is {shown(pairs)}; expected the places 1, 2 and so on without gaps"
        )
    return tuple(token for _, token in pairs)
