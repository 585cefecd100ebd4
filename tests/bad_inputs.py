"""The oracle for bad inputs: one case, one process, and what must hold of it.

Run as a script this is a server: it imports what the actions need and, for each case, forks a
child, so that a case costs no interpreter start. The child acts on the case's folder, then on a
healthy one. `Oracle` is the test's end of the pipe.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
END_SECONDS = 10.0
HEALTHY_SECONDS = 60.0
MESSAGE_LINES, MESSAGE_BYTES = 20, 4096
TEXT = "abab"
# Events that no input may cause; `open` and `import` are judged by their paths.
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
FORBIDDEN += ("pickle.find_class",)


def act_load(folder: Path, payload: Any) -> Any:
    """Load a checkpoint and run it once."""
    import numpy as np

    import bridges

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bundle = bridges.load(folder)
    logits = np.asarray(bundle(input_ids=np.arange(6)[None])["logits"])
    return {
        "logits": hashlib.sha256(logits.tobytes()).hexdigest(),
        "finite": bool(np.isfinite(logits).all()),
        "warnings": [str(warning.message) for warning in caught],
    }


def act_tokenize(folder: Path, payload: Any) -> Any:
    """Read a tokenizer and encode the payload."""
    from bridges.text.processors import read_processor

    processor = read_processor(folder, _config(folder))
    assert processor is not None
    return processor.encode(TEXT if payload is None else payload)


def act_template(folder: Path, payload: Any) -> Any:
    """Read a tokenizer, render a conversation with its chat template, and give the messages too."""
    from bridges.text.processors import read_processor

    processor = read_processor(folder, _config(folder))
    assert processor is not None
    messages = [{"role": "user", "content": "hello"}]
    return [processor.apply_chat_template(messages), messages]


def act_run(path: Path, payload: Any) -> Any:
    """Read the settings of a run from a file, or from the `run.yaml` of a folder."""
    from bridges.commands.finetune import COMMAND
    from dew.cli.options import parse

    file = path / "run.yaml" if path.is_dir() else path
    settings = parse(COMMAND, ["--model", "m", "--data", "d", "--config", str(file)])
    return {name: str(value) for name, value in settings.values.items()}


def act_image(folder: Path, payload: Any) -> Any:
    """Read the image of a folder."""
    from dew.data.images import read_image

    return hashlib.sha256(read_image(folder / "x.png").tobytes()).hexdigest()


def act_train(path: Path, payload: Any) -> Any:
    """Read the configuration of `dew train` from a file, or from the `train.yaml` of a folder."""
    from dew.cli.options import parse
    from dew.cli.run_config import configured
    from dew.cli.train import COMMAND

    file = path / "train.yaml" if path.is_dir() else path
    return configured(parse(COMMAND, [str(file)])).to_dict()


def act_sweep(path: Path, payload: Any) -> Any:
    """Read the space of `dew sweep` from a file, or from the `sweep.json` of a folder."""
    from dew.cli.sweep import space_of, trials_of

    file = path / "sweep.json" if path.is_dir() else path
    return trials_of(*space_of([str(file)], None), None)


def act_misbehave(folder: Path, fault: Any) -> Any:
    """Do what no action may do, and refuse: for the tests of the oracle itself."""
    import socket

    from dew.errors import InputRefused

    if fault in (None, "silence"):
        return sys.modules.get("bad_inputs.state", 0)
    if fault == "memory":
        b"x" * (400 << 20)
    acts = {
        "traceback": lambda: {}["absent"],
        "abort": os.abort,
        "system": lambda: os.system("touch CANARY"),
        "socket": lambda: socket.socket().connect_ex(("127.0.0.1", 9)),
        "open": lambda: Path("/etc/passwd").read_bytes(),
        "hang": lambda: time.sleep(60),
        "state": lambda: sys.modules.__setitem__("bad_inputs.state", 1),
    }
    acts.get(fault, lambda: None)()
    messages = {"long message": "refused\n" * 21, "escape": "refused \x1b[2J"}
    raise InputRefused(messages.get(fault, "refused"))


def _config(folder: Path) -> dict[str, Any]:
    """Return a folder's config, or nothing where there is none."""
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.exists() else {}


ACTIONS: dict[str, Callable[[Path, Any], Any]] = {
    "load": act_load,
    "tokenize": act_tokenize,
    "template": act_template,
    "run": act_run,
    "train": act_train,
    "sweep": act_sweep,
    "image": act_image,
    "misbehave": act_misbehave,
}
"""Name to what a case does with its folder and payload; later rows add their own here."""


@dataclass(frozen=True)
class Case:
    """One bad input and its verdict.

    Attributes:
        id: of the list the case comes from.
        build: writes the input into an empty folder.
        words: regular expressions, each found in the refusal; None where the input is accepted.
        accepted: what holds of an accepted input's result.
        action: one of `ACTIONS`.
        target: what the action is given, relative to the folder.
        payload: passed to the action.
        seconds: of processor time at most; within ten by the clock the action must end anyway.
        memory: MiB of peak memory beyond that of the healthy folder.
    """

    id: str
    build: Callable[[Path], Any]
    words: tuple[str, ...] | None = None
    accepted: Callable[[Any], bool] | None = None
    action: str = "load"
    target: str = "."
    payload: Any = None
    seconds: float = END_SECONDS
    memory: float = 256.0


@dataclass(frozen=True)
class Report:
    """What a child did.

    Attributes:
        status: its exit status; negative the signal that ended it; None where it hung.
        stderr: what it wrote there.
        result: what the action returned.
        healthy: what the action returned afterwards for the healthy folder.
        events: forbidden things that the audit hook saw.
        peak: MiB of resident memory at most.
        seconds: of processor time that the action took.
    """

    status: int | None
    stderr: str
    result: Any
    healthy: Any
    events: list[str]
    peak: float
    seconds: float


class Oracle:
    """The test's end: starts the server, runs cases, and judges them."""

    def __init__(self, healthy: Path) -> None:
        """Start the server; `healthy` is a folder that every action accepts."""
        self._healthy, self._baselines = healthy, {}
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "JAX_PLATFORMS": "cpu",
            "DEW_CACHE": str(healthy.parent / "cache"),
            "JAX_COMPILATION_CACHE_DIR": str(healthy.parent / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def close(self) -> None:
        """End the server."""
        self._server.communicate(timeout=30)

    def run(self, action: str, target: Path, folder: Path, payload: Any, seconds: float) -> Report:
        """Run one action in a fresh process whose working directory is `folder`."""
        question = {
            "action": action,
            "target": str(target),
            "folder": str(folder),
            "healthy": str(self._healthy),
            "payload": payload,
            "seconds": seconds,
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return Report(**json.loads(self._server.stdout.readline()))

    def baseline(self, action: str) -> Report:
        """Return what the action does with the healthy folder alone."""
        if action not in self._baselines:
            report = self.run(action, self._healthy, self._healthy, None, HEALTHY_SECONDS)
            assert report.status == 0, f"the healthy folder fails: {report.stderr}"
            assert report.healthy == report.result, "the healthy folder gives two results"
            assert not report.events, f"the hook sees a healthy load: {report.events}"
            self._baselines[action] = report
        return self._baselines[action]

    def judge(self, case: Case, scratch: Path) -> None:
        """Build a case below `scratch`, run it and check everything that must hold."""
        baseline = self.baseline(case.action)
        folder = scratch / "case" / "input"
        folder.mkdir(parents=True)
        with contextlib.chdir(folder):
            case.build(folder)
        before = tree_digest(scratch)
        report = self.run(case.action, folder / case.target, folder, case.payload, END_SECONDS)
        _check_ending(case, report)
        assert tree_digest(scratch) == before, "files beside or in the input changed"
        assert not report.events, f"forbidden: {report.events}"
        allowed = baseline.peak + case.memory
        assert report.peak <= allowed, f"peak of {report.peak:.0f} MiB, at most {allowed:.0f}"
        assert report.healthy == baseline.result, "the healthy folder gives another result now"


def _check_ending(case: Case, report: Report) -> None:
    """Check how the child ended, and its message or its result."""
    assert report.status is not None, f"no end within {END_SECONDS} s"
    assert report.seconds <= case.seconds, f"took {report.seconds:.1f} s of the processor"
    if case.words is None:
        assert report.status == 0, f"expected to be accepted: {report.stderr}"
        assert case.accepted is not None
        assert case.accepted(report.result), f"another result: {report.result}"
        return
    message = report.stderr
    assert report.status == 2, f"status {report.status}, {report.result}: {message[-2000:]}"
    assert "Traceback" not in message
    assert len(message.strip().splitlines()) <= MESSAGE_LINES, f"long: {message}"
    assert len(message.encode()) <= MESSAGE_BYTES, f"long: {message}"
    assert not re.search(r"[^\n\x20-\x7e]", message), f"unprintable: {message!r}"
    for word in case.words:
        assert re.search(word, message), f"no {word!r} in: {message}"


def tree_digest(folder: Path) -> dict[str, str]:
    """Return what each path below a folder is: a link's target, a file's hash, another's kind."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = f"link to {path.readlink()}"
        elif path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[str(path)] = f"mode {path.stat().st_mode}"
    return found


class Watch:
    """The audit hook of a child: what it saw that no input may cause."""

    def __init__(self, folders: list[str]) -> None:
        """Watch this process from now on; files below `folders` may be opened."""
        self.events: list[str] = []
        installed = (sys.prefix, sys.base_prefix, str(ROOT), "/proc", "/sys", "/dev", "/usr/lib")
        self._open = tuple(os.path.realpath(path) for path in (*folders, *installed))
        self._input = os.path.realpath(folders[0])
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple) -> None:
        if event in FORBIDDEN:
            self.events.append(f"{event} {arguments!r}"[:300])
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(self._open):
                self.events.append(f"open {path}")
        elif event == "import" and str(arguments[1]).startswith(self._input):
            self.events.append(f"import {arguments[1]}")


def serve() -> None:
    """Answer each question on stdin with a report on stdout, forking a child for each."""
    warnings.filterwarnings("ignore", message=".*fork.*")
    for module in ("jax", "gguf", "tokenizers", "jinja2", "yaml", "bridges.loading"):
        __import__(module)
    import bridges.text.processors  # noqa: F401
    import dew.inference.bundle  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(_forked(json.loads(line))), flush=True)


def _forked(question: dict[str, Any]) -> dict[str, Any]:
    """Run one question in a child and return its report."""
    with tempfile.TemporaryDirectory() as logs:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _child(question, Path(logs), writer)
        os.close(writer)
        first = _line(reader, question["seconds"])
        second = _line(reader, HEALTHY_SECONDS) if first else None
        if second is None:
            os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        os.close(reader)
        hung = second is None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        stderr = Path(logs, "stderr")
        return {
            "status": None if hung else os.waitstatus_to_exitcode(status),
            "stderr": stderr.read_text(errors="backslashreplace") if stderr.exists() else "",
            "peak": usage.ru_maxrss / 1024,
            **{"result": None, "healthy": None, "events": [], "seconds": 0.0},
            **(first or {}),
            **(second or {}),
        }


def _line(reader: int, seconds: float) -> dict[str, Any] | None:
    """Return the next line of a pipe as JSON, or None after so many seconds or at its end."""
    raw, end = b"", time.monotonic() + seconds
    while not raw.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        part = os.read(reader, 1) if ready else b""
        if not part:
            return None
        raw += part
    return json.loads(raw)


def _child(question: dict[str, Any], logs: Path, writer: int) -> None:
    """Act on the case's target, then on the healthy folder, and leave with the status."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        handle = os.open(logs / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, number)
    os.chdir(question["folder"])
    action, payload = ACTIONS[question["action"]], question["payload"]
    compiled = os.environ["JAX_COMPILATION_CACHE_DIR"]
    watch = Watch([question["folder"], question["healthy"], compiled, str(logs)])
    start, result = time.process_time(), None
    status = 0
    try:
        result = action(Path(question["target"]), payload)
    except BaseException as error:
        status = _refused(error)
    seconds = time.process_time() - start
    os.write(writer, json.dumps({"result": result, "seconds": seconds}).encode() + b"\n")
    sys.stderr.flush()
    events = list(watch.events)
    try:
        healthy = action(Path(question["healthy"]), None)
    except BaseException as error:
        healthy = repr(error)
    os.write(writer, json.dumps({"healthy": healthy, "events": events}).encode() + b"\n")
    os._exit(status)


def _refused(error: BaseException) -> int:
    """Print an error as the command line does, and return its exit status."""
    from dew.errors import InputRefused

    if isinstance(error, InputRefused):
        print(error, file=sys.stderr)
        return 2
    traceback.print_exception(error)
    return 1


if __name__ == "__main__":
    serve()
