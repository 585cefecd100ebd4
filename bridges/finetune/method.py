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
        """Return next-token prediction over adapters."""
        raise NotImplementedError

    def write(self, bundle: Any, params: Any, folder: Path) -> None:
        """Write adapter_config.json and adapter_model.safetensors."""
        raise NotImplementedError

    def finish(self, bundle: Any, params: Any, folder: Path) -> None:
        """Write the adapter, and the merged model into `merged`, reloaded and compared."""
        raise NotImplementedError


def method_of(settings: Settings) -> Method:
    """Return what the settings ask to train.

    Raises:
        InputRefused: adapter settings while the adapter is switched off.
    """
    if settings["use_peft"]:
        targets = tuple(settings["lora_target_modules"])
        return Adapter(settings["lora_r"], settings["lora_alpha"], targets)
    return WholeModel()
