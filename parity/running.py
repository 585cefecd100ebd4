"""Running checks: on dew's own release with `run`, on one checkpoint with `certify`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from dew.config.durable import write_json
from dew.errors import UnknownName, nearest, shown
from parity.answer_cache import AnswerCache
from parity.check import METRICS, NOT_PROVEN, TORCH, Check, Skipped, Verdict, judge
from parity.evidence import Certificate, certificate_of
from parity.far_reference import FarReference
from parity.pins import unmet
from parity.subject import Subject, load_subject
from parity.torch_process import ReferenceFailed, TorchProcess
from parity.watcher import Watcher

CHECKS: Mapping[str, str] = {
    "weights": "parity.checks.weights:Weights",
    "tokenizer": "parity.checks.tokenizer:Tokenizer",
    "processor": "parity.checks.processor:Processor",
    "logits": "parity.checks.logits:Logits",
    "hidden states": "parity.checks.hidden_states:HiddenStates",
    "padding": "parity.checks.padding:Padding",
    "loss and gradient": "parity.checks.loss_and_gradient:LossAndGradient",
    "update": "parity.checks.update:Update",
    "loss curve": "parity.checks.loss_curve:LossCurve",
    "greedy": "parity.checks.greedy:Greedy",
    "beams": "parity.checks.beams:Beams",
    "sampled": "parity.checks.sampled:Sampled",
    "dtypes": "parity.checks.dtypes:Dtypes",
    "adapters": "parity.checks.adapters:Adapters",
    "perplexity": "parity.checks.perplexity:Perplexity",
    "export": "parity.checks.export:Export",
    "round trip": "parity.checks.round_trip:RoundTrip",
}
"""Every check's name and where it lives, in the order that they run."""
FULL = frozenset({"loss curve", "dtypes", "adapters"})
"""The checks among them that take minutes: run where they are named, or with `full`."""

SEED = 0
REPORT = "parity.json"
ANSWERS = Path("parity") / "answers"
"""Where answers of the reference are kept, in dew's cache."""


def run(
    checks: Sequence[str] | None = None,
    *,
    model: str | Path | None = None,
    report: str | Path | None = None,
    seed: int = SEED,
    full: bool = False,
    cache: bool = True,
    watcher: Watcher | None = None,
) -> list[Verdict]:
    """Run checks against torch and transformers, and return their verdicts.

    Args:
        checks: names of `CHECKS` or of the metrics' checks; None runs all.
        model: a Hugging Face folder or a GGUF file; None takes tiny random models that cover
            what dew computes, and the metrics.
        report: where to write the JSON report, or None.
        seed: of every input, and of the tiny models.
        full: whether the checks that take minutes are among all.
        cache: whether the reference's answers are kept and used again.
        watcher: what is told while the checks run.

    Raises:
        UnknownName: a check that does not exist.
        InputRefused: a model that dew refuses.
    """
    found = examined(
        checks, model=model, seed=seed, full=full, cache=cache, watcher=watcher or Watcher()
    )
    if report is not None:
        write_json(Path(report), found.to_dict())
    return list(found.verdicts)


def certify(
    path: str | Path,
    *,
    seed: int = SEED,
    full: bool = False,
    cache: bool = True,
    watcher: Watcher | None = None,
) -> list[Verdict]:
    """Run every check on one checkpoint, and write `parity.json` beside its weights.

    Args:
        path: a Hugging Face folder or a GGUF file.
        seed: of every input.
        full: whether to run the checks that take minutes.
        cache: whether the reference's answers are kept and used again.
        watcher: what is told while the checks run.

    Raises:
        InputRefused: a checkpoint that dew refuses: config keys that it does not know included.
    """
    path = Path(path)
    found = examined(
        None, model=path, seed=seed, full=full, cache=cache, watcher=watcher or Watcher()
    )
    folder = path if path.is_dir() else path.parent
    write_json(folder / REPORT, found.to_dict())
    return list(found.verdicts)


def certificate(path: str | Path) -> dict[str, Any]:
    """Return the report about one checkpoint, for programs that write it themselves."""
    return examined(None, model=path, watcher=Watcher()).to_dict()


def examined(
    checks: Sequence[str] | None,
    *,
    model: str | Path | None,
    seed: int = SEED,
    full: bool = False,
    cache: bool = True,
    watcher: Watcher,
) -> Certificate:
    """Run checks as `run` does, and return all that a report tells of them."""
    from bridges.assets import cache_directory

    chosen = _chosen(checks, full=full, metrics=model is None)
    answers = AnswerCache(cache_directory() / ANSWERS) if cache else None
    with ExitStack() as stack:
        process = stack.enter_context(TorchProcess())
        # torch is imported there while dew loads the model here.
        process.begin("parity.worker:ready")
        far = FarReference(process, answers)
        asking = _Asking(chosen, seed, far, watcher)
        if set(chosen) - set(metric_checks()):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            asking.models(*_subjects(model, seed, process, folder))
        asking.metrics()
        files = {} if model is None else far.digests(Path(model).resolve())
    return certificate_of(asking.verdicts, asking.skipped, seed=seed, files=files)


def load_check(name: str) -> Check:
    """Return the check called `name`."""
    module, attribute = {**CHECKS, **metric_checks()}[name].split(":")
    return getattr(import_module(module), attribute)()


def metric_checks() -> dict[str, str]:
    """Return the checks that are about no model, and where they live."""
    return dict(import_module("parity.metric_checks").METRICS)


@dataclass
class _Asking:
    """Checks being asked, one after the other, and what came of it."""

    checks: Sequence[str]
    seed: int
    far: FarReference
    watcher: Watcher
    verdicts: list[Verdict] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def models(self, subjects: Iterator[Subject], count: int) -> None:
        """Ask each subject the checks of models."""
        names = [name for name in self.checks if name not in metric_checks()]
        try:
            for place, subject in enumerate(subjects):
                for part, name in enumerate(names):
                    reason = subject.why_not(name)
                    if reason:
                        self._skip(Skipped(name, subject.name, reason))
                        continue
                    self._ask(name, subject, (place + part / len(names)) / count)
                subject.checkpoint.release()
        except ReferenceFailed as error:
            # transformers could not write the next tiny model.
            said = f"{NOT_PROVEN}{unmet(TORCH) or error}"
            self._tell(Verdict("tiny models", False, {}, "written by transformers", said, 0.0))

    def metrics(self) -> None:
        """Ask the checks that are about no model."""
        names = [name for name in self.checks if name in metric_checks()]
        for part, name in enumerate(names):
            self._ask(name, None, part / len(names))

    def _ask(self, name: str, subject: Subject | None, share: float) -> None:
        if self.watcher.begun is not None:
            self.watcher.begun(name, METRICS if subject is None else subject.name, share)
        check = load_check(name)
        verdict = judge(check, subject, seed=self.seed, begin=self.far)
        if not verdict.passed:
            from parity.localising import localised

            again = partial(judge, begin=self.far)
            verdict = localised(
                verdict, check, subject, seed=self.seed, judge=again, begin=self.far
            )
        self._tell(verdict)

    def _tell(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if self.watcher.seen is not None:
            self.watcher.seen(verdict)

    def _skip(self, check: Skipped) -> None:
        self.skipped.append(check)
        if self.watcher.skipped is not None:
            self.watcher.skipped(check)


def _chosen(names: Sequence[str] | None, *, full: bool, metrics: bool) -> list[str]:
    known = {**CHECKS, **(metric_checks() if metrics else {})}
    if names is None:
        return [name for name in known if full or name not in FULL]
    wanted = [name.replace("_", " ") for name in names]
    for name in wanted:
        if name not in known:
            raise UnknownName(
                f"no check is called {shown(name)}{nearest(name, known)} Known: {', '.join(known)}."
            )
    return wanted


def _subjects(
    model: str | Path | None, seed: int, process: TorchProcess, folder: Path
) -> tuple[Iterator[Subject], int]:
    """Return the subjects, each loaded when it is its turn, and how many they are."""
    if model is not None:
        return iter([load_subject(model)]), 1
    from parity import tiny
    from parity.tiny import vision

    def tiny_ones() -> Iterator[Subject]:
        for name in tiny.NATIVE:
            written = process.call("parity.worker:tiny_model", name, folder, seed)
            yield load_subject(written, name=name, image_size=vision.SIZES.get(name))

    return tiny_ones(), len(tiny.NATIVE)
