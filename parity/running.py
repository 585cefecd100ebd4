"""Running checks: on dew's own release with `run`, on one checkpoint with `certify`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dew.errors import UnknownName, nearest, shown
from parity.check import Check, Skipped, Verdict, judge
from parity.subject import Subject, load_subject

CHECKS: Mapping[str, str] = {
    "weights": "parity.checks.weights:Weights",
    "tokenizer": "parity.checks.tokenizer:Tokenizer",
    "logits": "parity.checks.logits:Logits",
    "padding": "parity.checks.padding:Padding",
    "loss and gradient": "parity.checks.loss_and_gradient:LossAndGradient",
    "update": "parity.checks.update:Update",
    "greedy": "parity.checks.greedy:Greedy",
    "beams": "parity.checks.beams:Beams",
    "perplexity": "parity.checks.perplexity:Perplexity",
    "export": "parity.checks.export:Export",
    "round trip": "parity.checks.round_trip:RoundTrip",
}
"""Every check's name and where it lives, in the order that they run."""

SEED = 0
REPORT = "parity.json"
PACKAGES = ("dew", "jax", "jaxlib", "flax", "numpy")

Seen = Callable[[Verdict], None]


def run(
    checks: Sequence[str] | None = None,
    *,
    model: str | Path | None = None,
    report: str | Path | None = None,
    seed: int = SEED,
    seen: Seen | None = None,
    skipped: Callable[[Skipped], None] | None = None,
) -> list[Verdict]:
    """Run checks against torch and transformers, and return their verdicts.

    Args:
        checks: names of `CHECKS`; None runs all.
        model: a Hugging Face folder or a GGUF file; None takes tiny random models that cover
            what dew computes.
        report: where to write the JSON report, or None.
        seed: of every input, and of the tiny models.
        seen: called with each verdict as it comes.
        skipped: called with each check that a subject cannot be asked, and why.

    Raises:
        UnknownName: a check that does not exist.
        InputRefused: a model that dew refuses.
    """
    chosen = _chosen(checks)
    verdicts, left_out = [], []
    for subject in _subjects(model, seed):
        for check in chosen:
            reason = subject.why_not(check.name)
            if reason:
                left_out.append(Skipped(check.name, subject.name, reason))
                if skipped is not None:
                    skipped(left_out[-1])
                continue
            verdicts.append(judge(check, subject, seed=seed))
            if seen is not None:
                seen(verdicts[-1])
        subject.checkpoint.release()
    if report is not None:
        write_report(Path(report), verdicts, seed=seed, skipped=left_out)
    return verdicts


def certify(
    path: str | Path,
    *,
    seed: int = SEED,
    seen: Seen | None = None,
    skipped: Callable[[Skipped], None] | None = None,
) -> list[Verdict]:
    """Run every check on one checkpoint, and write `parity.json` beside its weights.

    Args:
        path: a Hugging Face folder or a GGUF file.
        seed: of every input.
        seen: called with each verdict as it comes.
        skipped: called with each check that the checkpoint cannot be asked, and why.

    Raises:
        InputRefused: a checkpoint that dew refuses: config keys that it does not know included.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    return run(model=path, report=folder / REPORT, seed=seed, seen=seen, skipped=skipped)


def certificate(path: str | Path) -> dict[str, Any]:
    """Return the report about one checkpoint, for programs that write it themselves."""
    return report_of(run(model=path), seed=SEED)


def report_of(
    verdicts: Sequence[Verdict], *, seed: int, skipped: Sequence[Skipped] = ()
) -> dict[str, Any]:
    """Return the report as JSON takes it: versions, the seed, and every verdict's figures."""
    from parity import reference

    return {
        "passed": bool(verdicts) and all(verdict.passed for verdict in verdicts),
        "seed": seed,
        "versions": {name: version(name) for name in PACKAGES} | reference.versions(),
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "skipped": [vars(check) for check in skipped],
    }


def load_check(name: str) -> Check:
    """Return the check called `name`."""
    module, attribute = CHECKS[name].split(":")
    return getattr(import_module(module), attribute)()


def write_report(
    path: Path, verdicts: Sequence[Verdict], *, seed: int, skipped: Sequence[Skipped] = ()
) -> None:
    """Write the report aside and rename it, so that no reader meets half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    record = report_of(verdicts, seed=seed, skipped=skipped)
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        aside.write_text(text + "\n", encoding="utf-8")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _chosen(names: Sequence[str] | None) -> list[Check]:
    wanted = list(CHECKS) if names is None else [name.replace("_", " ") for name in names]
    for name in wanted:
        if name not in CHECKS:
            raise UnknownName(
                f"no check is called {shown(name)}{nearest(name, CHECKS)} "
                f"Known: {', '.join(CHECKS)}."
            )
    return [load_check(name) for name in wanted]


def _subjects(model: str | Path | None, seed: int) -> Iterator[Subject]:
    if model is not None:
        yield load_subject(model)
        return
    from parity import tiny

    with tempfile.TemporaryDirectory() as folder:
        for name in tiny.NATIVE:
            yield tiny.subject(name, Path(folder), seed=seed)
