"""The program that becomes a rank: joins the pool, runs what was asked, and leaves a failure loud.

`python -m dew.cli.runner [--join] -- SCRIPT.py | -m MODULE | -c CODE [ARGUMENTS]`, or
`--command -- WORDS` for what is not Python. A process that fails after it joined a pool cannot
leave the ordinary way: it would wait in jax's shutdown barrier for peers that wait for it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import types
from typing import NoReturn

from dew.cli.leaving import leave_pool, status_of

PARENT = "DEW_LAUNCHER"
"""The launcher's process id, set for the ranks that end with it."""

_SET_DEATH_SIGNAL = 1


def main(argv: list[str]) -> None:
    """Run the program that `argv` names; return only if it ended well."""
    flags, words = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    _end_with_launcher()
    if "--command" in flags:
        _replace(words)
    # What the program's own command line, and a traceback, begin with.
    arguments = words[2:] if words[0] in ("-m", "-c") else words[1:]
    sys.argv = [words[0], *arguments]
    try:
        if "--join" in flags:
            _join()
        _run(words)
    except SystemExit as error:
        _leave_by_exit(error)
    except BaseException as error:
        _leave_by_error(error)


def _join() -> None:
    from dew.errors import InputRefused
    from dew.training.runtime import join_pool

    try:
        join_pool()
    except InputRefused as error:
        print(f"dew: {error}", file=sys.stderr)
        sys.exit(2)


def _run(words: list[str]) -> None:
    if words[0] == "-m":
        _put_first_on_path(os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    program = types.ModuleType("__main__")
    # Stays in place after the program's last line, as it does under plain Python.
    sys.modules["__main__"] = program
    if words[0] == "-c":
        _put_first_on_path("")
        exec(compile(words[1], "<string>", "exec"), program.__dict__)
        return
    path = os.path.abspath(words[0])
    _put_first_on_path(os.path.dirname(path))
    program.__file__ = path
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec"), program.__dict__)


def _put_first_on_path(folder: str) -> None:
    # Python put the current folder first for the runner itself, unless it was told not to.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _leave_by_exit(error: SystemExit) -> None:
    """Leave by the program's own status, at once where its peers cannot know of it."""
    if error.code is None or error.code == 0:
        return
    if not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    status = error.code if isinstance(error.code, int) else 1
    leave_pool(error, f"sys.exit({status})", status)
    sys.exit(status)


def _leave_by_error(error: BaseException) -> NoReturn:
    status = status_of(error)
    if not isinstance(error, KeyboardInterrupt):
        # In a pool sys.excepthook leaves, with a status of its own; a program's does not.
        pools = sys.excepthook.__module__ == "dew.artifacts.failure"
        hook = sys.__excepthook__ if pools else sys.excepthook
        error.__traceback__ = _of_the_program(error.__traceback__)
        hook(type(error), error, error.__traceback__)
    leave_pool(error, "an uncaught exception", status)
    sys.exit(status)


def _of_the_program(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without the frames of this file and of runpy."""
    inner = trace
    while inner is not None and _ours(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return inner


def _ours(filename: str) -> bool:
    return filename in (__file__, "<frozen runpy>") or filename.endswith("/runpy.py")


def _end_with_launcher() -> None:
    """Have the kernel end this process when the launcher ends, however that comes about."""
    parent = os.environ.pop(PARENT, "")
    if not parent or sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os.kill(os.getpid(), signal.SIGKILL)


def _replace(words: list[str]) -> NoReturn:
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"dew launch: {words[0]} does not start: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main(sys.argv[1:])
