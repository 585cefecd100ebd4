"""References asked in a process of their own, their answers kept by what they follow from."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parity.answer_cache import AnswerCache, answer_key
from parity.check import Check, needs_of
from parity.checkpoint_files import file_digests
from parity.far_subject import Facts, facts_of
from parity.message import message_digest, read_message, write_message
from parity.subject import Subject
from parity.torch_process import Call, TorchProcess, discard

FUNCTION = "parity.worker:reference_of"
SMALL = 50_000_000
"""Up to how many parameters both sides run at once; larger ones take turns, for their memory."""


class FarReference:
    """Begins references in another process; what `parity.check.judge` takes as `begin`.

    Args:
        process: where they run.
        cache: of their answers, or None.
    """

    def __init__(self, process: TorchProcess, cache: AnswerCache | None) -> None:
        self._process = process
        self._cache = cache
        self._files: tuple[Path, Mapping[str, str]] | None = None

    def __call__(self, check: Check, subject: Subject | None, inputs: Any) -> Callable[[], Any]:
        """Begin a check's reference, and return what waits for its answer.

        Raises:
            TypeError: inputs that no message carries.
            parity.torch_process.ReferenceFailed: there was no process to begin it.
        """
        if not getattr(check, "apart", True):
            return lambda: check.reference(subject, inputs)
        where = f"{type(check).__module__}:{type(check).__qualname__}"
        facts = None if subject is None else facts_of(subject)
        key = None if self._cache is None else self._key(where, check, facts, inputs)
        kept = None if self._cache is None or key is None else self._cache.find(key)
        if kept is not None:
            return lambda: read_message(kept)[0]
        call = self._process.begin(FUNCTION, where, facts, inputs)
        answered = partial(self._answer, call, key)
        if subject is None or _parameters(subject) <= SMALL:
            return answered
        found = answered()
        return lambda: found

    def digests(self, source: Path) -> Mapping[str, str]:
        """Return the sha256 of each of a checkpoint's files; read once for each checkpoint."""
        if self._files is None or self._files[0] != source:
            self._files = source, file_digests(source)
        return self._files[1]

    def _key(self, where: str, check: Check, facts: Facts | None, inputs: Any) -> str:
        # The folder's place does not matter, nor what it is called.
        told = "" if facts is None else repr(replace(facts, name="", source=Path()))
        files = {} if facts is None else self.digests(facts.source)
        names = [re.split(r"[^A-Za-z0-9._-]", need)[0] for need in needs_of(check)]
        with tempfile.TemporaryDirectory() as folder:
            write_message(Path(folder), inputs)
            digest = message_digest(Path(folder))
        return answer_key(where, files, digest, facts=told, packages=names)

    def _answer(self, call: Call, key: str | None) -> Any:
        folder = self._process.finish(call)
        found, loaded = read_message(folder)
        # Where dew's side had a part in the answer, it follows from more than the key tells.
        if self._cache is not None and key is not None and not loaded:
            self._cache.keep(key, folder)
        discard(folder)
        return found


def _parameters(subject: Subject) -> int:
    import jax

    leaves = jax.tree.leaves(subject.bundle.variables)
    return sum(int(leaf.size) for leaf in leaves)
