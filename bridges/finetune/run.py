"""`dew finetune` from its settings to its exit status: folder, lock, resume, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridges.finetune.run_folder import (
    CONFIG,
    HIDDEN,
    check_folder,
    check_same_run,
    finished_updates,
    locked,
)
from bridges.finetune.settings import FREE, settings_yaml
from dew.cli.command import Settings, check_name
from dew.config.durable import write_atomic
from dew.errors import InputRefused


def finetune(settings: Settings) -> int:
    """Run `dew finetune` and return its exit status.

    Raises:
        InputRefused: settings, model, data or folder that cannot be used.
    """
    if settings["dry_run"]:
        from bridges.finetune.dry_run import dry_run

        _tell(settings)
        return dry_run(settings)
    from dew.training.runtime import join_pool

    if not join_pool():
        return _in_folder(settings)
    from dew.artifacts.coordination import rank

    # Every process trains, and the first one tells.
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere if rank() else sys.stdout),
    ):
        return _in_folder(settings)


def _tell(settings: Settings) -> None:
    print("\n".join(["settings", *settings.lines()]), flush=True)


def _in_folder(settings: Settings) -> int:
    from dew.artifacts import agreed
    from dew.artifacts.coordination import rank

    _tell(settings)
    folder = _folder(settings)
    name = check_name(settings["run_name"] or folder.resolve().name, "run_name")
    with contextlib.ExitStack() as held:

        def take() -> None:
            check_folder(folder, settings["model_name_or_path"])
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(folder, name))

        # The first process holds the folder for all.
        agreed("taking the folder", take if rank() == 0 else lambda: None)
        held.enter_context(_terminated())
        try:
            return _run(settings, folder, name)
        except (KeyboardInterrupt, SystemExit) as stop:
            return _stopped(settings, folder, stop)


def _folder(settings: Settings) -> Path:
    if not settings["output_dir"]:
        raise InputRefused("output_dir is missing: give --output or --output_dir")
    return Path(settings["output_dir"]).expanduser()


def _run(settings: Settings, folder: Path, name: str) -> int:
    from dew.artifacts import agreed
    from dew.artifacts.coordination import rank

    done = agreed("reading the folder", lambda: _finished(settings, folder))
    if done is not None:
        print(
            f"{folder}: this run is finished ({done} updates); nothing to do. Give more "
            "--max_steps or --num_train_epochs to train further, or another folder to start anew."
        )
        return 0
    from bridges.finetune.backend import choose_backend

    choose_backend(settings["use_cpu"], folder / HIDDEN / "jax")
    _check_resume(settings, folder)
    from bridges.finetune.parts import read_parts
    from bridges.finetune.train import train

    parts = read_parts(settings, folder, name)

    def begin() -> None:
        (folder / "train_results.json").unlink(missing_ok=True)
        write_atomic(folder / CONFIG, settings_yaml(settings))

    agreed("beginning", begin if rank() == 0 else lambda: None)
    return train(parts)


def _finished(settings: Settings, folder: Path) -> int | None:
    """Return the updates of a finished run of these settings; refuse other settings."""
    if not (folder / CONFIG).exists():
        return None
    from dew.cli.config_file import read_config

    before, now = read_config(folder / CONFIG), dict(settings.values)
    check_same_run(before, now, FREE)
    same = all(before.get(key) == now[key] for key in ("max_steps", "num_train_epochs"))
    return finished_updates(folder) if same else None


def _check_resume(settings: Settings, folder: Path) -> None:
    """Refuse a `resume_from_checkpoint` that is not what happens anyway."""
    asked = settings["resume_from_checkpoint"]
    if asked is None:
        return
    from dew.checkpoints import Checkpoints

    latest = Checkpoints(str(folder)).latest
    there = "none" if latest is None else f"checkpoint-{latest}"
    wanted = asked.lower()
    if wanted in ("true", "yes", "1"):
        if latest is None:
            raise InputRefused(f"resume_from_checkpoint: {folder} holds no checkpoint yet")
    elif wanted in ("false", "no", "0"):
        if latest is not None:
            raise InputRefused(
                f"resume_from_checkpoint is false, but {folder} holds {there}; choose another "
                "output_dir to start anew"
            )
    elif latest is None or Path(asked).resolve() != (folder / there).resolve():
        raise InputRefused(
            f"resume_from_checkpoint is {asked}; a run goes on from the newest checkpoint in its "
            f"own folder, which is {there}. Delete newer ones to go on from an older one."
        )


def _stopped(settings: Settings, folder: Path, stop: BaseException) -> int:
    """Say on the last line of stderr what was saved and how to go on; return the status."""
    from bridges.finetune.train import resume_command
    from dew.checkpoints.steps import steps_of

    # From the disk, for on a pool this process may be the only one that stopped.
    latest = max(steps_of(folder).whole, default=None)
    saved = (
        "no checkpoint was saved" if latest is None else f"{folder}/checkpoint-{latest} is saved"
    )
    code = stop.code if isinstance(stop, SystemExit) else 130
    name = {130: "SIGINT", 143: "SIGTERM"}.get(code if isinstance(code, int) else 1, "stopped")
    print(
        f"dew: {name}; {saved}; go on with: "
        f"{resume_command(settings.argv) if settings.argv else 'the same call'}",
        file=sys.stderr,
        flush=True,
    )
    return code if isinstance(code, int) else 1


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """Turn SIGTERM into an orderly end with status 143 where the trainer does not watch."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: no handler can be set, and none is needed
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
