"""Does a LoRA run hold the base, the adapters' state and the activations, and nothing else?

Each way of storing the base is a process of its own. Its peak is the resident memory of steps
behind the first, less what the process holds beside arrays; it stands against the sum of the base's
bytes, those of adapters and moments, and XLA's own account of a step's temporaries.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STORED = ("float32", "int8", "nf4")
BOUND = 0.15
SIZES = {
    "vocab_size": 4096,
    "emb_features": 512,
    "num_layers": 12,
    "num_heads": 8,
    "mlp_features": 1536,
    "max_seq_len": 256,
}
ROWS, LENGTH, RANK, STEPS = 4, 128, 16, 3


def status(name: str) -> int:
    """Return one of this process's sizes in bytes, as Linux tells them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def base_params(model: Any, stored: str) -> Any:
    """Return random params, the kernels of the layers stored as asked."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from dew.nn.lora import ADAPTED, found_module, path_of, replaced
    from dew.nn.quantized import quantized

    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(0.02 * generator.standard_normal(leaf.shape, np.float32)),
        model.parameter_shapes(),
    )
    for target, inputs in ADAPTED.items() if stored != "float32" else ():
        module = found_module(params, path_of(target))
        if module is not None:
            narrow = quantized(module["kernel"], stored, inputs=inputs, stacked=True)
            params = replaced(params, path_of(target), {**module, "kernel": narrow})
    return params


def measured(stored: str) -> dict[str, float]:
    """Return what a run's arrays take at most, and the parts that they are made of, in bytes."""
    import jax
    import numpy as np

    from dew import Trainer
    from dew.nn.backbones.causal_transformer import CausalTransformer
    from dew.nn.lora import ADAPTED, LoRA
    from dew.objectives.lm import LoRAObjective
    from dew.training.adam import adamw

    model = CausalTransformer(**SIZES, remat=True)
    objective = LoRAObjective(model, LENGTH, LoRA(RANK, 32.0, tuple(ADAPTED)))
    trainer = Trainer(objective, adamw(1e-3), key=jax.random.key(0))
    params = base_params(model, stored)
    base = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    state, frozen = trainer.beginning().fresh({"params": params})
    del params
    adapters = sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, state.opt_state)))
    batch = {"text": np.zeros((ROWS, LENGTH + 1), np.int32)}
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)
    plan = trainer.plan(shapes, {"params": frozen["frozen"]})
    placed = trainer.placement.batch(batch)
    step = trainer.compiled_step().ready(state, frozen, placed)

    def run(state: Any) -> Any:
        for _ in range(STEPS):
            state, said = step(state, frozen, placed)
            float(said["total"])
        return state

    state = run(state)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    others = status("VmRSS") - sum(array.nbytes for array in jax.live_arrays())
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    run(state)
    return {
        "peak": status("VmHWM") - others,
        "base": base,
        "adapters": adapters,
        "activations": plan.memory.temporary,
    }


def main() -> int:
    """Print a table; fail where a peak is not within the bound of its sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stored", choices=STORED, help="measure one, in this process")
    asked = parser.parse_args().stored
    if asked:
        print(json.dumps(measured(asked)))
        return 0
    failed = False
    print("stored    base MB  adapters MB  activations MB  peak MB  peak / sum")
    for stored in STORED:
        command = [sys.executable, __file__, "--stored", stored]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(out.splitlines()[-1])
        ratio = found["peak"] / sum(found[part] for part in ("base", "adapters", "activations"))
        failed |= abs(ratio - 1) > BOUND
        sizes = [found[part] / 1e6 for part in ("base", "adapters", "activations", "peak")]
        print(
            f"{stored:<9} {sizes[0]:7.1f}  {sizes[1]:11.1f}  {sizes[2]:14.1f}  {sizes[3]:7.1f}",
            end="",
        )
        print(f"  {ratio:10.3f}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
