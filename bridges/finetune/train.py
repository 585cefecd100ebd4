"""Training itself, and everything that a finished run leaves in its folder."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridges.finetune.best import best_fields, best_of, best_state
from bridges.finetune.certify import certified
from bridges.finetune.log import RunLog, write_loss_plot
from bridges.finetune.model_card import model_card, versions
from bridges.finetune.parts import Parts
from bridges.finetune.progress import UpdateProgress
from bridges.finetune.run_checkpoints import RunCheckpoints
from bridges.finetune.run_folder import LOG, STATE
from bridges.finetune.scores import scored
from bridges.finetune.settings import settings_yaml
from bridges.finetune.task import TIMES
from bridges.finetune.tokens import counter
from bridges.finetune.trackers import tracker_of
from dew.artifacts import agreed, broadcast_from_process_zero, collective_host
from dew.artifacts.coordination import pooled, rank
from dew.config.durable import write_atomic, write_json
from dew.training.best import Best


def train(parts: Parts) -> int:
    """Train to the end, evaluate, export and describe; return the exit status."""
    settings, plan = parts.settings, parts.plan
    checkpoints = _checkpoints(parts)
    latest = None if checkpoints is None else checkpoints.latest
    start = latest or 0
    lines = sys.stdout if settings["log_format"] == "json" and not settings["quiet"] else None
    rows = getattr(parts.data, "rows", None)
    tokens = targets = None
    if rows is not None:
        targets = parts.task.row_tokens(rows)
    if targets is not None:
        tokens = counter(targets, seed=settings["seed"], batch=plan.rows)
    path = Path(os.devnull) if rank() else parts.folder / LOG
    log = RunLog(path, plan, results=parts.task.results, updates=start, tokens=tokens, lines=lines)
    if checkpoints is not None:
        checkpoints.describe = lambda done, folder: _write_state(parts, log, done, folder)
    if latest is not None:
        print(f"going on from checkpoint-{start} of {plan.updates}", flush=True)
    try:
        before = _before(parts, log) if latest is None else log.evaluated(0)
        began = time.perf_counter()
        state = _fit(parts, checkpoints, log)
        seconds = time.perf_counter() - began
        results = _results(parts, log, state, seconds, start)
        results |= _after(parts, log, state)
    finally:
        log.close()
    return _finish(parts, log, state, before, results)


def resume_command(argv: tuple[str, ...]) -> str:
    """Return the command that goes on with the run."""
    return shlex.join(["dew", "finetune", *argv])


def _checkpoints(parts: Parts) -> RunCheckpoints | None:
    if parts.settings["save_strategy"] == "no":
        return None
    return RunCheckpoints(
        str(parts.folder),
        keep=parts.settings["save_total_limit"],
        learned=dict,
        write=lambda learned, folder: parts.method.write(parts.learner, learned, folder),
        accumulation=parts.plan.accumulation,
    )


def _fit(parts: Parts, checkpoints: RunCheckpoints | None, log: RunLog) -> Any:
    import jax

    from dew import Trainer
    from dew.training.progress import Silent, default_progress

    settings, plan = parts.settings, parts.plan
    hidden = settings["quiet"] or settings["log_format"] == "json"
    shown = UpdateProgress(default_progress(), plan.accumulation)
    trainer = Trainer(
        parts.objective,
        parts.optimizer.transform(lambda params: parts.method.decays(parts.learner, params)),
        key=jax.random.key(settings["seed"]),
        mesh=parts.mesh,
        accumulation=plan.accumulation,
        checkpoints=checkpoints,
        tracker=tracker_of(settings, parts.folder, parts.name, log, plan),
    )
    best = best_of(settings, plan, parts.task)
    earlier = [] if best is None else _earlier(log, best)
    state = trainer.fit(
        parts.data,
        steps=plan.microbatches,
        log_every=plan.log_every,
        eval_every=plan.eval_every,
        checkpoint_every=None if checkpoints is None else plan.save_every,
        metrics=parts.metrics,
        best=best,
        scored=earlier,
        variables=parts.learner.bundle.variables,
        progress=Silent() if hidden else shown,
    )
    if int(state.step) < plan.microbatches:
        print(f"stopped early: {plan.updates} updates were planned", flush=True)
    if not settings["load_best_model_at_end"]:
        return state
    return best_state(trainer, checkpoints, state, parts.learner.bundle.variables)


def _earlier(log: RunLog, best: Best) -> list[dict[str, float]]:
    """Return the scores of the evaluations before this start, on every process."""
    name = f"eval_{best.score.removeprefix('val/')}"
    found = [
        {best.score: record[name]}
        for record in log.history
        if record["step"] and isinstance(record.get(name), float)
    ]
    return broadcast_from_process_zero(found)


def _before(parts: Parts, log: RunLog) -> dict[str, Any]:
    """Score the model as it was loaded, where asked."""
    if not parts.settings["eval_on_start"] or parts.data.val is None:
        return {}
    variables = parts.objective.init(_key(parts), parts.learner.bundle.variables)
    averaged = None if parts.objective.ema is None else variables
    found = _scored(parts, variables, averaged=averaged)
    log.record({"step": 0, "epoch": 0.0, **found})
    print(f"before: {_headline(parts, found)}", flush=True)
    return found


def _scored(parts: Parts, variables: Any, *, step: int = 0, averaged: Any = None) -> dict[str, Any]:
    return scored(
        parts.objective,
        variables,
        parts.data.val,
        metrics=parts.metrics,
        results=parts.task.results,
        step=step,
        averaged=averaged,
        mesh=parts.mesh,
    )


def _headline(parts: Parts, found: dict[str, Any]) -> str:
    name = parts.task.headline(found)
    return f"{name.removeprefix('eval_').replace('_', ' ')} {found[name]:.6g}"


def _after(parts: Parts, log: RunLog, state: Any) -> dict[str, Any]:
    """Return the scores of the trained model, measured now unless they just were."""
    if parts.data.val is None:
        return {}
    step = int(state.updates)
    # Only process 0 logs.
    found = broadcast_from_process_zero(log.evaluated(step))
    if not found:
        averaged = None if state.ema is None else state.averaged
        found = _scored(parts, state.params, step=int(state.step), averaged=averaged)
        log.record({"step": step, "epoch": _epoch(parts, state), **found})
    print(f"held out: {_headline(parts, found)}", flush=True)
    return found


def _results(parts: Parts, log: RunLog, state: Any, seconds: float, start: int) -> dict[str, Any]:
    done = int(state.updates) - start
    samples = done * parts.plan.accumulation * parts.plan.rows
    losses = log.losses()
    return {
        "epoch": _epoch(parts, state),
        **({"train_loss": sum(losses) / len(losses)} if losses else {}),
        "train_runtime": round(seconds, 4),
        "train_samples_per_second": round(samples / seconds, 4),
        "train_steps_per_second": round(done / seconds, 4),
    }


def _finish(
    parts: Parts, log: RunLog, state: Any, before: dict[str, Any], results: dict[str, Any]
) -> int:
    """Bring the model to process 0, which writes everything."""
    frozen = parts.objective.frozen
    learned = {name: part for name, part in state.params.items() if name not in frozen}
    learned = collective_host(learned, phase="export", held_by="first")
    learner = parts.learner
    if parts.method.adapter and pooled():
        whole = collective_host(learner.bundle.variables, phase="export", held_by="first")
        learner = replace(learner, bundle=learner.bundle.replace(variables=whole or {}))
    parts = replace(parts, learner=learner)

    def write() -> int:
        return 0 if rank() else _write(parts, log, state, learned, before, results)

    return agreed("export", write)


def _write(
    parts: Parts,
    log: RunLog,
    state: Any,
    learned: Any,
    before: dict[str, Any],
    results: dict[str, Any],
) -> int:
    """Write everything; train_results.json comes last and says that the run is finished."""
    folder, settings = parts.folder, parts.settings
    parts.method.finish(parts.learner, learned, folder)
    held_out = {name: value for name, value in results.items() if name.startswith("eval_")}
    training = {name: value for name, value in results.items() if name not in held_out}
    if held_out:
        write_json(folder / "eval_results.json", {"epoch": results["epoch"], **held_out})
    write_json(folder / "all_results.json", results)
    write_json(folder / "training_args.json", _arguments(parts))
    _write_state(parts, log, int(state.step), folder)
    write_loss_plot(log.history, folder / "loss.png")
    write_atomic(folder / "README.md", _card(parts, before, results))
    _report(parts, log, state, learned, before, results)
    status = certified(parts) if settings["certify"] else 0
    write_json(folder / "train_results.json", training)
    print(f"{folder}: {state.updates} updates; the model was reloaded and is the one trained")
    return status


def _report(
    parts: Parts,
    log: RunLog,
    state: Any,
    learned: Any,
    before: dict[str, Any],
    results: dict[str, Any],
) -> None:
    """Write report.html, with samples where one process holds the model."""
    from bridges.finetune.report import write_report

    samples, matrix = (), None
    count = 0 if pooled() else parts.settings["report_samples"]
    if count:
        live = parts.method.live(parts.learner, learned)
        samples = parts.task.samples(parts.learner.bundle, live, parts.data, count=count)
        matrix = parts.task.confusion(live, parts.data)
    write_report(
        parts.folder / "report.html",
        name=parts.name,
        task=parts.task.name,
        source=parts.settings["model_name_or_path"],
        updates=int(state.updates),
        rows=parts.plan.accumulation * parts.plan.rows,
        settings=settings_yaml(parts.settings),
        data=str(parts.data.report),
        history=log.history,
        before=before,
        results=_told_scores(results),
        samples=samples,
        matrix=matrix,
    )


def _told_scores(results: dict[str, Any]) -> dict[str, float]:
    """Return the scores among the results, those held out first."""
    timed = {f"eval_{name}" for name in TIMES}
    kept = [name for name in results if name.startswith("eval_") and name not in timed]
    return {name: results[name] for name in (*kept, "train_loss") if name in results}


def _arguments(parts: Parts) -> dict[str, Any]:
    """Return the settings, the sizes, the versions and the fingerprint of the data."""
    return {
        **{name: value for name, value in parts.settings.values.items() if value is not None},
        "dew": {
            "updates": parts.plan.updates,
            "rows": parts.plan.rows,
            "versions": versions(),
            "data": parts.data.report.to_dict(),
        },
    }


def _write_state(parts: Parts, log: RunLog, microbatches: int, folder: Path) -> None:
    """Write trainer_state.json as Hugging Face's trainer lays it out."""
    settings, plan = parts.settings, parts.plan
    updates = microbatches // plan.accumulation
    history = [record for record in list(log.history) if record["step"] <= updates]
    state = {
        **best_fields(best_of(settings, plan, parts.task), history, parts.folder),
        "epoch": plan.epoch(microbatches),
        "eval_steps": settings["eval_steps"] or settings["logging_steps"],
        "global_step": updates,
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
        "logging_steps": settings["logging_steps"],
        "max_steps": plan.updates,
        "num_train_epochs": settings["num_train_epochs"],
        "save_steps": settings["save_steps"],
        "train_batch_size": settings["per_device_train_batch_size"],
    }
    write_json(folder / STATE, state)


def _card(parts: Parts, before: dict[str, Any], results: dict[str, Any]) -> str:
    return model_card(
        name=parts.name,
        source=parts.settings["model_name_or_path"],
        adapter=parts.method.adapter,
        pipeline=parts.task.pipeline,
        usage=parts.task.usage(parts.method.adapter),
        settings=settings_yaml(parts.settings),
        before=before,
        results=_told_scores(results),
        rows=parts.data.records,
    )


def _epoch(parts: Parts, state: Any) -> float:
    return parts.plan.epoch(int(state.step))


def _key(parts: Parts) -> Any:
    import jax

    return jax.random.key(parts.settings["seed"])
