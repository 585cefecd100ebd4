"""Does a low-rank adapter of PEFT's change the outputs as PEFT itself does?"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity import inputs as model_inputs
from parity import reference
from parity.check import TORCH, Finding
from parity.checks.logits import SHORT
from parity.inputs import Inputs
from parity.reference_inside import live_names
from parity.rounding import RULE, deviations, judged
from parity.subject import Subject

RANK, ALPHA = 4, 6
START = "base_model.model."
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

Answers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Asked:
    """A batch, and an adapter: each adapted module's name in the files, its A and its B."""

    inputs: Inputs
    low: dict[str, np.ndarray]
    high: dict[str, np.ndarray]
    across: bool


class Adapters:
    """Every output under an adapter of every linear map of the layers, at real positions."""

    name = "adapters"
    tolerance = RULE
    needs = (*TORCH, "peft>=0.17")

    def inputs(self, subject: Subject, seed: int) -> Asked:
        """Return a batch and a random adapter."""
        from bridges.family import family_of

        generator = np.random.default_rng(seed)
        across = family_of(subject.bundle.config).conv1d
        low, high = {}, {}
        for name, shape in adapted_shapes(subject).items():
            size, inner = shape[::-1] if across else shape
            low[name] = generator.standard_normal((RANK, inner)) / np.sqrt(inner)
            high[name] = 0.3 * generator.standard_normal((size, RANK)) / np.sqrt(RANK)
        low, high = ({n: v.astype(np.float32) for n, v in side.items()} for side in (low, high))
        batch = model_inputs.batch(subject, min(SHORT, subject.context), seed)
        return Asked(batch, low, high, across)

    def ours(self, subject: Subject, inputs: Asked) -> Answers:
        """Return the outputs of the bundle with the adapter."""
        import bridges

        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), inputs, {}, subject.bundle.source)
            adapted = bridges.load_adapter(subject.bundle, folder)
        changed = dataclasses.replace(subject, bundle=adapted)
        return model_inputs.real(model_inputs.outputs(changed, inputs.inputs), inputs.inputs)

    def reference(self, subject: Subject, inputs: Asked) -> tuple[Answers, Answers]:
        """Return what PEFT makes of it in float32 and in float64."""
        single, exact = (
            _answers(subject.checkpoint.fresh_model(precision), inputs)
            for precision in (reference.SINGLE, reference.EXACT)
        )
        return single, exact

    def compare(self, ours: Answers, reference: tuple[Answers, Answers]) -> Finding:
        """Hold each output to the rule."""
        return judged(deviations(ours, *reference))


def adapted_shapes(subject: Subject) -> dict[str, tuple[int, int]]:
    """Return the linear maps of the layers, by their names in the files, and their shapes there."""
    from bridges.adapters import places

    files = subject.by_torch_name(subject.bundle.variables["params"])
    names = [n for place in places(subject.bundle) if place.layers for n in place.names]
    return {n: files[f"{n}.weight"].shape for n in names if f"{n}.weight" in files}


def _answers(model: Any, inputs: Asked) -> Answers:
    from peft import PeftModel

    stored = live_names(model)
    renamed = {
        name: stored.get(f"{name}.weight", f"{name}.weight").removesuffix(".weight")
        for name in inputs.low
    }
    dtype = model.dtype
    with tempfile.TemporaryDirectory() as folder, reference.quiet():
        _write(Path(folder), inputs, renamed)
        # PEFT puts its modules into the model itself.
        PeftModel.from_pretrained(model, folder).eval()
    model.to(dtype)
    return model_inputs.real(reference.outputs(model, inputs.inputs), inputs.inputs)


def _write(folder: Path, inputs: Asked, renamed: dict[str, str], base: str = "") -> None:
    from safetensors.numpy import save_file

    names = [renamed.get(name, name) for name in inputs.low]
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": names,
        "fan_in_fan_out": inputs.across,
        "base_model_name_or_path": base,
    }
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    tensors = {}
    for side, held in (("A", inputs.low), ("B", inputs.high)):
        for name, value in held.items():
            tensors[f"{START}{renamed.get(name, name)}.lora_{side}.weight"] = value
    save_file(tensors, str(folder / WEIGHTS), metadata={"format": "pt"})
