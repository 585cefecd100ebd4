"""What `dew train` and `dew sweep` share: reading a run's YAML, pools, signals, the last line."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dew.cli.command import Option, Settings
from dew.cli.config_file import read_config, read_value
from dew.errors import InputRefused, listed, shown

if TYPE_CHECKING:
    from dew.config import RunConfig

CACHE = ".jax"

OPTIONS = (
    Option(
        "config",
        "text",
        None,
        "the run's YAML, or the run.json of another run: model, objective, data, optim, trainer",
        positional=True,
        required=True,
    ),
    Option(
        "set",
        "pairs",
        (),
        "other values at dotted paths, such as optim.learning_rate=1e-3 trainer.steps=50",
    ),
    Option("use_cpu", "switch", False, "leave accelerators alone"),
    Option("quiet", "switch", False, "no lines while training"),
    Option("dry_run", "switch", False, "print the resolved configuration and stop"),
)


def configured(settings: Settings) -> RunConfig:
    """Return the configuration of the file, with what `--set` changes.

    Raises:
        InputRefused: everything that is wrong with either.
    """
    from dew.config import RunConfig

    path = settings["config"]
    try:
        config = RunConfig.from_dict(read_config(path))
    except InputRefused as error:
        text = str(error)
        raise InputRefused(text if str(path) in text else f"{path}: {text}") from None
    return config.override(pairs(settings["set"], "set"))


def pairs(words: Sequence[str], flag: str) -> dict[str, Any]:
    """Return what words such as `a.b=[1, 2]` say, each value read as YAML.

    Raises:
        InputRefused: a word without `=`, a path twice, or a value that is no YAML.
    """
    found: dict[str, Any] = {}
    problems = []
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path:
            problems.append(f"--{flag} {shown(word)}: expected a dotted path, = and a value")
        elif path in found:
            problems.append(f"--{flag} {shown(path)} stands twice")
        else:
            found[path] = read_value(text, f"--{flag} {path}")
    if problems:
        raise InputRefused(listed(f"--{flag}: {len(problems)} problem(s):", problems))
    return found


def yaml_of(config: RunConfig) -> str:
    """Return the whole configuration as YAML that `configured` reads."""
    import yaml

    return yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True).rstrip()


def prepare(settings: Settings, checkpoint_dir: str) -> None:
    """Join the pool where there is one, and choose the platform and the compilation cache."""
    import jax

    from dew.training.runtime import join_pool

    if settings["use_cpu"]:
        jax.config.update("jax_platforms", "cpu")
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache = Path(checkpoint_dir).expanduser().absolute() / CACHE
        jax.config.update("jax_compilation_cache_dir", str(cache))
    join_pool()


@contextlib.contextmanager
def first_process_tells() -> Iterator[None]:
    """Let only process 0 print to stdout."""
    from dew.artifacts.coordination import rank

    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere if rank() else sys.stdout),
    ):
        yield


@contextlib.contextmanager
def stopping(settings: Settings, folder: Path) -> Iterator[None]:
    """Where a signal ends the block, say last on stderr what is saved and how to go on.

    SIGTERM ends it in good order with status 143, also where the trainer does not watch.
    """

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        code = error.code if isinstance(error, SystemExit) else 130
        print(_last_line(settings, folder, code), file=sys.stderr, flush=True)
        raise SystemExit(code) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _last_line(settings: Settings, folder: Path, code: Any) -> str:
    from dew.checkpoints.steps import steps_of

    names: Mapping[Any, str] = {130: "SIGINT", 143: "SIGTERM"}
    latest = max(steps_of(folder).whole, default=None)
    saved = f"{folder}/checkpoint-{latest} is saved"
    if settings.command == "sweep":
        saved = f"the trials' checkpoints are in {folder}"
    elif latest is None:
        saved = "no checkpoint was saved"
    again = shlex.join(["dew", settings.command, *settings.argv])
    return f"dew: {names.get(code, 'stopped')}; {saved}; go on with: {again}"


def shown_as(settings: Settings) -> dict[str, Any]:
    """Return what `Trainer.fit` is told about showing progress."""
    from dew.training.progress import Silent

    return {"progress": Silent()} if settings["quiet"] else {}
