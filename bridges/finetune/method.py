"""What a run trains: the whole model, or a LoRA adapter beside it; and how either is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dew.cli.command import Settings


class Method(Protocol):
    """Builds the objective and writes what was trained."""

    adapter: bool

    def objective(self, bundle: Any, model: Any, seq_len: int) -> Any:
        """Return the objective for a bundle's model, or for that model changed."""
        ...

    def write(self, bundle: Any, params: Any, folder: Path) -> None:
        """Write a checkpoint's weights into an existing folder, unverified."""
        ...

    def finish(self, bundle: Any, params: Any, folder: Path) -> None:
        """Write the finished run's weights, reload and compare them."""
        ...


@dataclass(frozen=True)
class WholeModel:
    """Every weight is trained."""

    adapter = False

    def objective(self, bundle: Any, model: Any, seq_len: int) -> Any:
        """Return next-token prediction over the model's own parameters."""
        from dew.objectives.lm import LMObjective

        return LMObjective(model, seq_len)

    def write(self, bundle: Any, params: Any, folder: Path) -> None:
        """Write the model beside the checkpoint's `dew` folder."""
        import bridges

        trained = bundle.replace(variables={"params": params})
        bridges.export(trained, folder, verify=False)

    def finish(self, bundle: Any, params: Any, folder: Path) -> None:
        """Write the model into the output folder and compare it."""
        import bridges

        bridges.export(bundle.replace(variables={"params": params}), folder, verify=True)


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter is trained; the model's weights stay.

    Args:
        rank: of the adapter.
        alpha: the adapter is scaled by alpha / rank.
        targets: module names as in the checkpoint; empty for every linear map of the layers.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    adapter = True

    def objective(self, bundle: Any, model: Any, seq_len: int) -> Any:
        """Return next-token prediction over adapters, the model's parameters frozen."""
        from dew.objectives.lm import LoRAObjective

        return LoRAObjective(model, seq_len, self._lora(bundle))

    def write(self, bundle: Any, params: Any, folder: Path) -> None:
        """Write adapter_config.json and adapter_model.safetensors."""
        import bridges

        bridges.export_adapter(self._adapted(bundle, params), folder)

    def finish(self, bundle: Any, params: Any, folder: Path) -> None:
        """Write the adapter, and the merged model into `merged`; reload and compare both."""
        import bridges
        from bridges.adapters import merge

        live = self._adapted(bundle, params)
        bridges.export_adapter(live, folder)
        bridges.export(merge(live), folder / "merged", verify=True)
        compare_adapters(live, bridges.load_adapter(bundle, folder))

    def _lora(self, bundle: Any) -> Any:
        from bridges.adapters import adapter_targets
        from dew.nn.lora import LoRA

        return LoRA(self.rank, self.alpha, adapter_targets(bundle, self.targets))

    def _adapted(self, bundle: Any, params: Any) -> Any:
        lora = self._lora(bundle)
        return bundle.replace(
            model=bundle.model.clone(adapter_scale=lora.scale),
            variables={"params": bundle.variables["params"], "lora": params},
            adapter=lora,
        )


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
    if live.model.adapter_scale != again.model.adapter_scale:
        differing.append(f"scale {live.model.adapter_scale} against {again.model.adapter_scale}")
    if differing:
        raise RuntimeError(f"the adapter that was written differs: {', '.join(sorted(differing))}")


def method_of(settings: Settings) -> Method:
    """Return what the settings ask to train.

    Raises:
        InputRefused: adapter settings while the adapter is switched off.
    """
    if settings["use_peft"]:
        targets = tuple(settings["lora_target_modules"])
        return Adapter(settings["lora_r"], settings["lora_alpha"], targets)
    return WholeModel()
