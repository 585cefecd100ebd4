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

    def prepared(self, bundle: Any) -> Any:
        """Return a loaded bundle, or one without values, as it is to be trained.

        Raises:
            InputRefused: it cannot be stored as was asked.
        """
        ...

    def objective(self, learner: Learner, seq_len: int) -> Any:
        """Return the objective of a learner.

        Raises:
            InputRefused: what would be trained could not be written in the end.
        """
        ...

    def decays(self, learner: Learner, params: Any) -> Any:
        """Return which of the trained parameters decay."""
        ...

    def live(self, learner: Learner, variables: Mapping[str, Any]) -> Any:
        """Return the bundle with what was trained in it."""
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

    def prepared(self, bundle: Any) -> Any:
        """Return the bundle as it is."""
        return bundle

    def objective(self, learner: Learner, seq_len: int) -> Any:
        """Return the objective over the model's own parameters."""
        if learner.no_export is not None:
            raise InputRefused(f"{learner.no_export}; train an adapter with --lora_rank")
        return learner.objective(seq_len)

    def decays(self, learner: Learner, params: Any) -> Any:
        """Return which of the model's parameters decay."""
        return learner.decays(params)

    def live(self, learner: Learner, variables: Mapping[str, Any]) -> Any:
        """Return the bundle with the trained weights."""
        return _trained(learner, variables)

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
        stored: how the base's linear maps are stored, "int8" or "nf4"; "" for as they are.
    """

    asked: LowRank
    stored: str = ""
    adapter = True

    def prepared(self, bundle: Any) -> Any:
        """Return the bundle with its linear maps stored as was asked."""
        from bridges.adapter_quantized import quantize

        return quantize(bundle, self.stored) if self.stored else bundle

    def objective(self, learner: Learner, seq_len: int) -> Any:
        """Return the objective over adapters, the model's parameters frozen."""
        return learner.adapter_objective(seq_len, self.asked)

    def decays(self, learner: Learner, params: Any) -> Any:
        """Return that all decays but the biases and scales of norms among what is trained whole."""
        from bridges.table import flat, nested
        from dew.nn.lora import WHOLE
        from dew.training.optimizers import decayed

        found = decayed({name: part for name, part in params.items() if name != WHOLE})
        if WHOLE in params:
            found[WHOLE] = flat(learner.decays(nested(params[WHOLE])))
        return found

    def live(self, learner: Learner, variables: Mapping[str, Any]) -> Any:
        """Return the bundle with the adapter laid over it."""
        return learner.adapted(variables["params"], self.asked)

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
            whole = merge(live)
            compare_merged(live, whole)
            bridges.export(whole, folder / "merged", verify=True)
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
            jax.tree_util.tree_flatten_with_path(bundle.adapters[bundle.active].params)[0]
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


def compare_merged(live: Any, whole: Any) -> None:
    """Hold a merged model's outputs to those of the base with the adapter beside it.

    Raises:
        RuntimeError: they are further apart than another order of sums explains.
    """
    import jax.numpy as jnp
    import numpy as np

    model = live.model
    if not hasattr(model, "example_inputs"):
        return
    rounding = max(float(jnp.finfo(dtype).eps) for dtype in (model.dtype, model.param_dtype))
    inputs = model.example_inputs()
    beside, within = live(**inputs), whole(**inputs)
    for name, ours in beside.items():
        ours, theirs = np.asarray(ours, np.float64), np.asarray(within[name], np.float64)
        apart, most = np.abs(ours - theirs).max(), np.abs(ours).max()
        if not apart <= max(1e-3, 8 * rounding) * most:
            raise RuntimeError(
                f"the merged model is not the one that was trained: {name} are {apart:.3g} apart, "
                f"of {most:.3g} at most. Nothing was merged; the adapter is whole"
            )


def method_of(settings: Settings) -> Method:
    """Return what the settings ask to train.

    Raises:
        InputRefused: adapter settings while the adapter is switched off.
    """
    if settings["use_peft"]:
        if settings["load_in_8bit"] and settings["load_in_4bit"]:
            raise InputRefused("load_in_8bit and load_in_4bit exclude each other; choose one")
        stored = "int8" if settings["load_in_8bit"] else "nf4" if settings["load_in_4bit"] else ""
        return Adapter(
            LowRank(
                rank=settings["lora_r"],
                alpha=settings["lora_alpha"],
                targets=tuple(settings["lora_target_modules"]),
                dropout=settings["lora_dropout"],
                rslora=settings["use_rslora"],
                dora=settings["use_dora"],
                saved=tuple(settings["lora_modules_to_save"]),
            ),
            stored,
        )
    return WholeModel()
