"""`--dry-run`: compile the step from shapes alone and say what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridges.finetune.fitting import Needs, needs
from dew.cli.command import Settings

GIB = 2**30


def dry_run(settings: Settings) -> int:
    """Print the shapes of parameters and batch, and the memory of a step; read no weight.

    The memory is XLA's own account: arguments + outputs + temporaries - what outputs reuse. A run
    holds the model as it was loaded beside it and, on CPU, the process itself; and where writing
    the result takes more than a step, it is that which must fit.

    Returns:
        0; or 1 where a run does not fit, with settings that make it fit, if any do.

    Raises:
        InputRefused: a model's config or settings that cannot be used.
    """
    import jax

    from bridges.finetune.backend import choose_backend
    from bridges.finetune.fitting import fitting, flags, room
    from bridges.finetune.mesh import mesh_of
    from bridges.finetune.task_choice import task_of

    choose_backend(settings["use_cpu"])
    mesh = mesh_of(settings["mesh"])
    task = task_of(settings)
    shell = model_without_weights(settings, mesh, task.loading(task.read(settings)))
    plan, batch, needed = _planned(settings, mesh, task, shell)
    print(f"\nparameters\n{_shapes(plan.state.params)}")
    print(f"\nbatch\n{_fields(batch)}")
    print(f"\nmemory of a step on {jax.devices()[0].device_kind}\n{_memory(plan.memory)}")
    print(f"\ncompiled in {plan.compile_seconds:.1f} s; no weight was read")
    space = room(settings["memory_limit"])
    print(f"\n{_whole(needed, space)}")
    if space.fits(needed.total):
        return 0

    def fits(changed: Settings) -> bool:
        return space.fits(_planned(changed, mesh, task, shell)[2].total)

    remats = hasattr(getattr(shell, "model", None), "remat")
    print("it does not fit; trying others ...", flush=True)
    found = fitting(settings, fits, remats=remats)
    if found is None:
        print("no batch fits; give shorter rows (--max_length), an adapter (--use_peft) or a mesh")
    else:
        print(f"this fits, with the same rows an update: {flags(found)}")
    return 1


def _planned(settings: Settings, mesh: Any, task: Any, shell: Any) -> tuple[Any, Any, Needs]:
    """Return the compiled plan, the batch, and what a run takes."""
    import jax

    from bridges.finetune.data import most_tokens
    from bridges.finetune.mesh import batch_parts
    from bridges.finetune.method import method_of
    from bridges.finetune.optimizer import optim_of
    from bridges.training_mode import as_trained
    from dew import Trainer

    method = method_of(settings)
    bundle = as_trained(method.prepared(shell), settings, drops=task.drops)
    learner = task.learner(bundle, remat=settings["activation_checkpointing"])
    trainer = Trainer(
        method.objective(learner, most_tokens(settings, learner) - 1),
        optim_of(settings, max(1, settings["max_steps"])).transform(
            lambda params: method.decays(learner, params)
        ),
        key=jax.random.key(settings["seed"]),
        mesh=mesh,
        accumulation=settings["gradient_accumulation_steps"],
    )
    rows = settings["per_device_train_batch_size"] * batch_parts(mesh)
    batch = task.planned_batch(settings, learner, rows=rows)
    shapes = learner.shapes()
    plan = trainer.plan(batch, shapes)
    return (
        plan,
        batch,
        needs(
            plan.memory,
            shapes,
            adapter=method.adapter,
            generates="text-generation" in getattr(shell, "tasks", ()),
        ),
    )


def _whole(needed: Needs, space: Any) -> str:
    """Return what a run takes in all, part by part, and what there is."""
    total = needed.total + space.taken
    parts = [("the step", needed.step), ("the model as loaded", needed.loaded)]
    parts += [("more, to write it", needed.beyond)] if needed.beyond else []
    parts += [("the process itself", space.taken)] if space.taken else []
    lines = [f"  {name:<20} {size / GIB:9.3f} GiB" for name, size in (*parts, ("in all", total))]
    if space.limit is not None:
        lines.append(f"  {'there is':<20} {space.limit / GIB:9.3f} GiB")
    return "\n".join(["a run takes", *lines])


def model_without_weights(settings: Settings, mesh: Any, loading: Mapping[str, Any]) -> Any:
    """Return a bundle of the model that the config describes, without values.

    Args:
        settings: of `dew finetune`.
        mesh: how the devices are shared out.
        loading: the task's own options of `bridges.load`.

    Raises:
        InputRefused: a config that cannot be used.
        LayoutRefused: the mesh does not cut a traced model's parameters.
    """
    from bridges.family import FAMILIES, NotNative
    from bridges.finetune.source_config import source_config
    from bridges.hub import resolve
    from bridges.labels import relabelled
    from bridges.loading import read_model
    from bridges.torch.checkpoint import is_traceable, traced_shapes
    from dew.inference.bundle import Bundle
    from dew.placement import Layout, Placement

    path = Path(resolve(settings["model_name_or_path"], settings["model_revision"]))
    dtype = settings["dtype"]
    folder = path.is_dir() and (path / "config.json").exists()
    config = source_config(settings)
    if "labels" in loading:
        config = relabelled(config, loading["labels"], problem=loading["problem"])

    def traced() -> Any:
        print("no native family: traced from transformers, with its own classes", flush=True)
        return traced_shapes(
            path,
            config,
            dtype=dtype,
            placement=Placement.of(mesh, Layout(), {}),
            task=loading.get("task"),
            fresh=bool(loading),
        )

    if folder and config.get("model_type") not in FAMILIES and is_traceable(config, dtype):
        return traced()
    try:
        model = read_model(config, str(path), task=loading.get("task")).clone(dtype=dtype)
    except NotNative:
        if not folder or not is_traceable(config, dtype):
            raise
        return traced()
    return Bundle(model=model, variables={}, config=config, family=config["model_type"])


def _shapes(params: Any) -> str:
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    width = max(len(name) for name in names)
    lines = [
        f"  {name:<{width}}  {leaf.dtype} {list(leaf.shape)}"
        for name, (_, leaf) in zip(names, leaves, strict=True)
    ]
    total = sum(leaf.size for _, leaf in leaves)
    return "\n".join([*lines, f"  {total:,} in all"])


def _fields(batch: Mapping[str, Any]) -> str:
    lines = [f"  {name} {field.dtype} {list(field.shape)}" for name, field in batch.items()]
    return "\n".join(lines)


def _memory(memory: Any) -> str:
    parts = (
        ("arguments", memory.argument),
        ("outputs", memory.output),
        ("temporaries", memory.temporary),
        ("reused", -memory.aliased),
        ("in all", memory.total),
    )
    unit, name = (GIB, "GiB") if memory.total >= GIB else (2**20, "MiB")
    return "\n".join(f"  {part:<12} {size / unit:9.3f} {name}" for part, size in parts)
