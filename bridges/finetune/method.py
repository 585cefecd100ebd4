"""What a run trains: the whole model, or a LoRA adapter beside it; and how either is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bridges.finetune.learner import Learner, LowRank
from dew.cli.command import Settings
from dew.errors import InputRefused


class Method(Protocol):
    """Builds the objective and writes what was trained: the collections that are not frozen."""

    adapter: bool

    def objective(self, learner: Learner, seq_len: int) -> Any:
        """Return the objective of a learner.

        Raises:
            InputRefused: what would be trained could not be written in the end.
        """
        ...

    def decays(self, learner: Learner, params: Any) -> Any:
        """Return which of the trained parameters decay."""
        ...

    def write(self, learner: Learner, variables: Mapping[str, Any], folder: Path) -> None:
        """Write a checkpoint's weights into an existing folder, unverified."""
        ...

    def finish(self, learner: Learner, variables: Mapping[str, Any], folder: Path) -> None:
        """Write the finished run's weights, reload and compare them."""
        ...


@dataclass(frozen=True)
class WholeModel:
    """Every weight is trained."""

    adapter = False

    def objective(self, learner: Learner, seq_len: int) -> Any:
        """Return the objective over the model's own parameters."""
        if learner.no_export is not None:
            raise InputRefused(f"{learner.no_export}; train an adapter with --lora_rank")
        return learner.objective(seq_len)

    def decays(self, learner: Learner, params: Any) -> Any:
        """Return which of the model's parameters decay."""
        return learner.decays(params)

    def write(self, learner: Learner, variables: Mapping[str, Any], folder: Path) -> None:
        """Write the model beside the checkpoint's `dew` folder."""
        import bridges

        bridges.export(_trained(learner, variables), folder, verify=False)

    def finish(self, learner: Learner, variables: Mapping[str, Any], folder: Path) -> None:
        """Write the model into the output folder and compare it."""
        import bridges

        bridges.export(_trained(learner, variables), folder, verify=True)


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter is trained; the model's weights stay.

    Args:
        asked: its rank, scale, targets and dropout.
    """

    asked: LowRank
    adapter = True

    def objective(self, learner: Learner, seq_len: int) -> Any:
        """Return the objective over adapters, the model's parameters frozen."""
        return learner.adapter_objective(seq_len, self.asked)

    def decays(self, learner: Learner, params: Any) -> Any:
        """Return that every A and B decays."""
        from dew.training.optimizers import decayed

        return decayed(params)

    def write(self, learner: Learner, variables: Mapping[str, Any], folder: Path) -> None:
        """Write adapter_config.json and adapter_model.safetensors."""
        import bridges

        bridges.export_adapter(learner.adapted(variables["params"], self.asked), folder)

    def finish(self, learner: Learner, variables: Mapping[str, Any], folder: Path) -> None:
        """Write the adapter, and the merged model into `merged`; reload and compare both."""
        import bridges
        from bridges.adapters import merge

        live = learner.adapted(variables["params"], self.asked)
        bridges.export_adapter(live, folder)
        if learner.no_export is None:
            bridges.export(merge(live), folder / "merged", verify=True)
        else:
            print(f"merged: not written. {learner.no_export}", flush=True)
        compare_adapters(live, bridges.load_adapter(learner.bundle, folder))


def _trained(learner: Learner, variables: Mapping[str, Any]) -> Any:
    """Return the bundle with the collections that were trained in place of its own."""
    return learner.bundle.replace(variables={**learner.bundle.variables, **variables})


def compare_adapters(live: Any, again: Any) -> None:
    """Hold a reloaded adapter to the one in memory: equal scale, equal leaves, bit for bit.

    Raises:
        RuntimeError: something differs; the folder does not hold what was trained.
    """
    import jax
    import numpy as np

    ours, theirs = (
        {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
        for leaves in (
            jax.tree_util.tree_flatten_with_path(bundle.variables["lora"])[0]
            for bundle in (live, again)
        )
    )
    differing = [
        name
        for name in ours.keys() | theirs.keys()
        if name not in ours or name not in theirs or not np.array_equal(ours[name], theirs[name])
    ]
    # Alpha is written and divided anew.
    if not math.isclose(live.adapter.scale, again.adapter.scale, rel_tol=1e-12):
        differing.append(f"scale {live.adapter.scale} against {again.adapter.scale}")
    if differing:
        raise RuntimeError(f"the adapter that was written differs: {', '.join(sorted(differing))}")


def method_of(settings: Settings) -> Method:
    """Return what the settings ask to train.

    Raises:
        InputRefused: adapter settings while the adapter is switched off.
    """
    if settings["use_peft"]:
        targets = tuple(settings["lora_target_modules"])
        dropout = settings["lora_dropout"] or 0.0
        return Adapter(LowRank(settings["lora_r"], settings["lora_alpha"], targets, dropout))
    return WholeModel()
