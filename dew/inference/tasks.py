"""`pipeline`: from a source to the task that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.registry import Registry

SOURCES = "dew.sources"
DEFAULT_TASK = "text-generation"
LOADING = ("revision", "dtype", "param_dtype", "strict", "traced", "mesh", "layout")

tasks = Registry("task", {"text-generation": "dew.inference.text_generation:TextGeneration"})


def pipeline(
    source: Bundle | str | os.PathLike[str] | None = None,
    task: Bundle | str | os.PathLike[str] | None = None,
    *,
    model: Bundle | str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    model_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Load the inference task for a source.

    Both orders work: `pipeline(source)`, `pipeline(source, "text-generation")` and, as in
    transformers, `pipeline("text-generation", model=source)` or `pipeline("text-generation",
    source)`.

    Args:
        source: a bundle, or what an installed `dew.sources` entry point loads: a folder, a file, a
            hub id. Where `model` is given, the task's name.
        task: the task's name; text generation if absent.
        model: the source.
        tokenizer: a text processor to use instead of the checkpoint's.
        model_kwargs: more options for loading.
        **options: `revision`, `dtype`, `param_dtype`, `strict`, `traced`, `mesh` and `layout` for
            loading (`dtype="auto"` is the loader's own choice); the rest are the task's defaults,
            as `batch_size`.

    Returns:
        The task: call it with its inputs.

    Raises:
        UnknownName: no such task; the message offers the nearest.
        InputRefused: no model was named, it cannot be loaded, or it is not fit for the task.
    """
    source, task = _in_order(source, task, model)
    kind = tasks[str(task)]
    if not isinstance(source, Bundle):
        loading = {name: options.pop(name) for name in LOADING if name in options}
        loading |= model_kwargs or {}
        if loading.get("dtype") == "auto":
            del loading["dtype"]
        source = _loader()(source, **loading)
    _check_fit(source, str(task))
    if tokenizer is not None:
        source = source.replace(processor=tokenizer)
    return kind(source, **options)


def _in_order(source: Any, task: Any, model: Any) -> tuple[Any, Any]:
    """Return the source and the task's name, whichever way they were given."""
    if model is None and isinstance(source, str) and source in tasks:
        # transformers' order: the task, then the model.
        source, model = (source, task) if task is not None else (source, None)
        if model is None:
            raise InputRefused(
                f"pipeline: the task {shown(source)} needs a model; pass model= a folder, a file, "
                "a hub id or a bundle"
            )
        return model, source
    if model is not None:
        if source is not None and task is not None:
            raise InputRefused("pipeline: a source, a task and a model were given; leave out one")
        named = task if source is None else source
        return model, DEFAULT_TASK if named is None else named
    if source is None:
        raise InputRefused("pipeline: no model was named; pass a folder, a file or a hub id")
    return source, DEFAULT_TASK if task is None else task


def _check_fit(bundle: Bundle, task: str) -> None:
    if task in bundle.tasks:
        return
    what = ", ".join(map(shown, bundle.config.get("architectures") or ())) or "the model"
    fit = ", ".join(bundle.tasks) or f"none of the tasks that there are ({', '.join(tasks)})"
    raise InputRefused(
        f"pipeline: {what} ({bundle.family}) does not do {task}; it is fit for {fit}. Call the "
        "bundle itself for the model's outputs"
    )


def _loader() -> Callable[..., Bundle]:
    found = sorted(entry_points(group=SOURCES), key=lambda entry: entry.name)
    if not found:
        raise InputRefused(
            f"pipeline: nothing installed offers to load a source (entry point group {SOURCES}); "
            "pass a bundle, or install the distribution with its bridges package"
        )
    return found[0].load()
