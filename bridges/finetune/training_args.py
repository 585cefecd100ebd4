"""`--training_args`: transformers' TrainingArguments, read as settings of `dew finetune`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridges.files.json_file import read_json
from bridges.finetune.optimizer_names import NARROW_OPTIMS
from bridges.finetune.settings import FORMERS, OPTIONS
from bridges.finetune.trainer_defaults import GROUPS
from dew.cli.command import Option, Settings
from dew.cli.values import file_value
from dew.errors import InputRefused, listed, shown

_BESIDE = {"optim": "optim_args", "lr_scheduler_type": "lr_scheduler_kwargs"}
# Named without their value: a secret has no place in a log.
_SECRET = ("hub_token", "push_to_hub_token")


@dataclass(frozen=True)
class TrainingArgs:
    """What a file of TrainingArguments comes to.

    Args:
        values: settings of `dew finetune` by canonical name.
        notes: a line for each group of fields that are set and not honoured.
    """

    values: Mapping[str, Any]
    notes: tuple[str, ...]


def read_training_args(path: str | os.PathLike[str], *, but: Collection[str] = ()) -> TrainingArgs:
    """Read the JSON that `TrainingArguments.to_json_string` writes.

    A field that a setting stands for is taken as it is, transformers' default included. Of the
    others, those that differ from transformers' default are named. TRL's configs are read too:
    their further fields are settings by the same name, or named.

    Args:
        path: of the file.
        but: canonical names of settings that are known already, and not read.

    Raises:
        InputRefused: no such file, not a JSON object, an optimizer or a schedule of another
            arithmetic than dew has, or a value that a setting does not take.
    """
    from dew.training.schedules import check_schedule

    content = read_json(path)
    values: dict[str, Any] = {}
    unhonoured: dict[str, list[str]] = {}
    problems: list[str] = []
    known = {name for fields in GROUPS.values() for name in fields}
    options = {spelling: option for option in OPTIONS for spelling in option.spellings}
    formers = {former.name: former for former in FORMERS}

    def lost(group: str, name: str, value: Any) -> None:
        said = name if name in _SECRET else f"{name} {shown(value, 40)}"
        unhonoured.setdefault(group, []).append(said)

    for name, value in content.items():
        if name in known or name == "training_args":
            continue
        former = formers.get(name)
        option = options.get(name if former is None else former.use or "")
        if name in ("bf16", "fp16"):
            option = options["dtype"]
            value = {"bf16": "bfloat16", "fp16": "float16"}[name] if value is True else None
        if option is None:
            if former is None and value is not None:
                lost("fields that TrainingArguments lack", name, value)
            continue
        if option.name in but or _unset(option, value, option.name in values):
            continue
        value, why = _nearest(option, value)
        if why is not None:
            lost(why, name, content[name])
        if value is not None:
            try:
                if option.name == "lr_scheduler_type":
                    check_schedule(str(value))
                values[option.name] = file_value(option, _plain(option, value))
            except InputRefused as error:
                problems.append(str(error))
    for group, fields in GROUPS.items():
        for name, default in fields.items():
            if name in content and not _same(content[name], default):
                lost(group, name, content[name])
    if problems:
        raise InputRefused(listed(f"{path}: {len(problems)} field(s) do not fit:", problems))
    notes = [f"{path}: not honoured, {group}: {', '.join(n)}" for group, n in unhonoured.items()]
    return TrainingArgs(values, tuple(notes))


def with_training_args(settings: Settings) -> Settings:
    """Return the settings with those of `training_args` where neither flag nor file gave one.

    What comes out names no file any more: written to `config.yaml`, it is whole by itself.

    Args:
        settings: as merged from flags, `--config` and defaults.

    Raises:
        InputRefused: what `read_training_args` refuses.
    """
    path = settings["training_args"]
    if path is None:
        return settings
    given = {name for name in settings.values if settings.given(name)}
    # Arguments belong to the name beside them: another name's are of no use.
    given |= {more for name, more in _BESIDE.items() if name in given}
    read = read_training_args(path, but=given)
    taken = dict(read.values)
    return dataclasses.replace(
        settings,
        values={**settings.values, **taken, "training_args": None},
        origins={**settings.origins, **dict.fromkeys(taken, str(path))},
        notes=(*settings.notes, *read.notes),
    )


def _nearest(option: Option, value: Any) -> tuple[Any, str | None]:
    """Return what comes nearest to a field, if anything does, and the group of what is lost."""
    if option.name == "optim" and isinstance(value, str) and value in NARROW_OPTIMS:
        return NARROW_OPTIMS[value], "moments in fewer bits (they are float32)"
    if option.name in ("eval_strategy", "save_strategy") and value not in option.choices:
        return None, f"{option.name} (it is {option.default})"
    if option.name == "report_to" and value != "none":
        return None, "logging"
    if option.name in ("logging_steps", "eval_steps", "save_steps") and _is_share(value):
        return None, "shares of a run in place of updates"
    return value, None


def _is_share(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 1


def _unset(option: Option, value: Any, known: bool) -> bool:
    """Whether a field chooses nothing: empty, or off where another spelling has spoken."""
    if value is None or (option.name == "report_to" and value in ([], ["none"])):
        return True
    return known and value in (False, 0, "no")


def _plain(option: Option, value: Any) -> Any:
    """Return a value as a configuration file of dew writes it."""
    if option.kind == "pairs" and isinstance(value, Mapping):
        return [f"{name}={_text(each)}" for name, each in value.items()]
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_text(each) for each in value)}]"
    return "null" if value is None else str(value)


def _same(value: Any, default: Any) -> bool:
    """Whether a field has its default, nothing being as good as an empty list or object."""
    if isinstance(default, dict) and isinstance(value, Mapping):
        return all(_same(each, default.get(name)) for name, each in value.items())
    empty: Iterable[Any] = (None, [], {}, "")
    return value == default or (default in empty and value in empty)
