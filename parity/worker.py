"""The reference's process: `python -m parity.worker` answers calls, a line of JSON each.

A line holds the path of a folder with a message: the name of a function, "module:function", and
what it is called with. The answer is written into the folder.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from parity.far_subject import Facts, FarSubject
from parity.message import message_size, read_message, write_message
from parity.pins import import_hint

CALL, ANSWER = "call", "answer"
LARGE = 1 << 26
"""Bytes of an answer that tell of large models."""
HELD: list[FarSubject] = []
"""The subject of the last check, with the models that it read, and no other."""


def main() -> int:
    """Answer until there is no more to read."""
    # What libraries print goes where errors go: the answers have the stream to themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path[:] = [entry for entry in sys.path if entry != ""]
    print(json.dumps({"ready": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        _serve(Path(json.loads(line)), answers)
    return 0


def reference_of(check: str, facts: Facts | None, inputs: Any) -> tuple[Any, bool]:
    """Return the answer of a check's reference, and whether dew's side had to be loaded for it.

    Args:
        check: where it lives, "module:Class".
        facts: of its subject; None for a check that has none.
        inputs: what both sides get.
    """
    module, name = check.split(":")
    kind = getattr(import_module(module), name)
    if facts is None:
        return kind().reference(None, inputs), False
    if not HELD or HELD[0].facts != facts:
        HELD.clear()
        give_back()
        HELD.append(FarSubject(facts))
    return kind().reference(HELD[0], inputs), HELD[0].loaded


def ready() -> None:
    """Import what nearly every reference needs."""
    import torch  # noqa: F401
    import transformers  # noqa: F401


def tiny_model(name: str, directory: Path, seed: int) -> Path:
    """Write a tiny random model into a folder of `directory`, and return that folder."""
    from parity import tiny

    return tiny.write(name, directory, seed=seed)


def give_back() -> None:
    """Return memory that is free to the system: the other process has need of it."""
    import ctypes
    import gc

    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _answer(folder: Path) -> None:
    name, arguments = read_message(folder / CALL)
    module, function = name.split(":")
    write_message(folder / ANSWER, getattr(import_module(module), function)(*arguments))


def _serve(folder: Path, answers: TextIO) -> None:
    """Answer one call."""
    try:
        _answer(folder)
        said: dict[str, Any] = {"answered": True}
        if message_size(folder / ANSWER) > LARGE:
            give_back()
    except Exception as error:
        text = (str(error).strip() or "no message") + import_hint(error)
        said = {"raised": type(error).__name__, "text": text}
    print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main())
