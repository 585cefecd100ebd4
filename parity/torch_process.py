"""The process that the reference runs in: started when it is first asked, replaced when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from parity.message import read_message, write_message
from parity.worker import ANSWER, CALL

TAIL = 300
FREEING = {"MALLOC_MMAP_THRESHOLD_": str(1 << 21)}
"""Tensors of this size and more go back to the system as they are freed, where glibc allocates."""
PROGRAM = ("-c", "import sys; from parity.worker import main; sys.exit(main())")


class ReferenceFailed(Exception):
    """The reference gave no answer; the message says whether it raised or ended, and how."""


@dataclass(frozen=True)
class Call:
    """A call under way: where its message lies."""

    folder: Path


class TorchProcess:
    """Another Python, which loads torch and its models; one call at a time.

    A call that ends the process, for want of memory or by a fault of a library, is an error of
    that call alone: the next one starts a new process.
    """

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="dew-parity-")
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._calls = 0
        self._under_way: Call | None = None

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what a function gives there.

        Args:
            function: its name, "module:function".
            *arguments: what it takes, of what a message carries.

        Raises:
            ReferenceFailed: it raised, or the process ended.
        """
        folder = self.finish(self.begin(function, *arguments))
        found = read_message(folder)
        discard(folder)
        return found

    def begin(self, function: str, *arguments: Any) -> Call:
        """Start a call, and return while it runs.

        Raises:
            ReferenceFailed: the process ended before it heard of the call.
            TypeError: an argument that no message carries.
        """
        if self._under_way is not None:
            # Its asker failed before it took the answer.
            with contextlib.suppress(ReferenceFailed):
                self.finish(self._under_way)
        self._calls += 1
        call = Call(Path(self._scratch.name) / str(self._calls))
        write_message(call.folder / CALL, (function, list(arguments)))
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._under_way = call
        with contextlib.suppress(BrokenPipeError):  # `finish` says how it ended
            print(json.dumps(str(call.folder)), file=self._process.stdin, flush=True)
        return call

    def finish(self, call: Call) -> Path:
        """Wait for a call, and return the folder of the message that answers it.

        Raises:
            ReferenceFailed: it raised, or the process ended.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        self._under_way = None
        said: dict[str, Any] = {"ready": True}
        while "ready" in said:
            line = self._process.stdout.readline()
            if not line:
                raise ReferenceFailed(self._end())
            said = json.loads(line)
        if "raised" in said:
            raise ReferenceFailed(f"the reference raised {said['raised']}: {said['text']}")
        return call.folder / ANSWER

    def close(self) -> None:
        """End the process and clear away what it wrote."""
        if self._process is not None:
            self._process.kill()  # it holds nothing, and a library's own end takes time
            self._end()
        self._scratch.cleanup()

    def __enter__(self) -> TorchProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
                # The accelerator is dew's.
                "JAX_PLATFORMS": "cpu",
                "HF_HUB_OFFLINE": "1",
                **FREEING,
            },
        )

    def _end(self) -> str:
        """Let the process end, and return how it did."""
        process, errors = self._process, self._errors
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        assert errors is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        status = process.wait()
        process.stdout.close()
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:]
        errors.close()
        self._process = self._errors = None
        return _ended(status, last[0][:TAIL] if last else "")


def discard(answer: Path) -> None:
    """Remove what a call left, its answer read or not; arrays that are mapped stay readable."""
    shutil.rmtree(answer.parent, ignore_errors=True)


def _ended(status: int, last: str) -> str:
    said = f"; its last words: {last}" if last else ""
    if status >= 0:
        return f"the reference ended with status {status}{said}"
    number = -status
    name = signal.Signals(number).name if number in set(signal.Signals) else ""
    why = ", which is how Linux ends a process for want of memory" if name == "SIGKILL" else ""
    return f"the reference ended with signal {number} ({name}{why}){said}"
