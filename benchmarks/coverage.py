"""Which torch models run on JAX by tracing? One process a model, each with a limit of time.

python benchmarks/coverage.py                  every type; writes coverage.json as it goes
python benchmarks/coverage.py bert vit         some types
python benchmarks/coverage.py --again          types that are in coverage.json too
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("coverage.json")
STAGES = ("built", "ran", "exported", "forward", "gradient", "step")
SECONDS = 200
"""Of processor time; of the clock five times as many, for what else the machine does."""
SEEDS = 12
"""How many sets of weights are tried for one that chooses among no ties."""
HASTE = "--xla_backend_optimization_level=0"
# Each process is split off from one that has imported what all of them need.
_PROCESSES = multiprocessing.get_context("forkserver")
FORWARD, GRADIENT, STEP = 1e-4, 1e-3, 1e-3
"""Largest errors: of the outputs' scale, of each gradient's norm, of each parameter's change."""


def examine(kind: str, seed: int) -> dict[str, Any]:
    """Return how far one model comes, in a process of its own."""
    found: dict[str, Any] = {"kind": kind, "seed": seed}
    started = time.perf_counter()
    try:
        _stages(kind, found)
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        found["cause"] = f"{type(error).__name__}: {str(error).strip()[:600]} {notes}".strip()
    found["seconds"] = round(time.perf_counter() - started, 1)
    return found


def _stages(kind: str, found: dict[str, Any]) -> None:
    import numpy as np
    import torch
    from ties import chooses_among_ties
    from tiny_models import built

    from bridges.torch.tracing import from_torch

    module, inputs = built(kind, found["seed"])
    found["built"] = True
    outputs = _floats(module(**inputs))
    again = _floats(module(**inputs))
    found["ran"] = True
    # What torch itself does not repeat (a draw in the forward pass) cannot be compared, nor what
    # holds no numbers.
    repeats = all(torch.equal(a, b) for a, b in zip(outputs, again, strict=True))
    traced = from_torch(module, inputs, dynamic=False)
    found["exported"] = True
    found["compares"] = repeats
    if not repeats:
        numbers = all(bool(out.isfinite().all()) for out in outputs)
        found["cause"] = "torch's own outputs " + ("differ each time" if numbers else "hold NaN")
        return
    arrays = {name: value.numpy() for name, value in inputs.items()}
    weights = [np.random.default_rng(0).normal(size=out.shape) for out in outputs]
    ours, gradients = _run(traced, arrays, weights, found)
    found["forward_error"] = worst = _error(ours, [out.detach().numpy() for out in outputs])
    found["forward"] = bool(worst <= FORWARD)
    if not found["forward"]:
        found["ties"] = chooses_among_ties(module, inputs)
        exact, given = _exact(module, inputs)
        truth = [out.detach().numpy() for out in _floats(exact(**given))]
        theirs_off = _error([out.detach().numpy() for out in outputs], truth)
        _judge(found, "forward", _error(ours, truth), theirs_off, FORWARD)
    if gradients is None:
        return
    if not any(out.requires_grad for out in outputs):
        found["cause"] = "torch gives no gradient: its parameters are fixed"
        return
    theirs = _torch_gradients(module, outputs, weights)
    found["gradient_error"] = worst = _gradient_error(gradients, theirs)
    found["gradient"] = bool(worst <= GRADIENT)
    if not found["gradient"]:
        exact, given = _exact(module, inputs)
        truth = _torch_gradients(exact, _floats(exact(**given)), weights)
        off = _gradient_error(gradients, truth), _gradient_error(theirs, truth)
        _judge(found, "gradient", *off, GRADIENT)
    found["step_error"] = worst = _step_error(traced, module, gradients)
    found["step"] = bool(worst <= STEP)


def _run(
    traced: Any, arrays: Mapping[str, Any], weights: list[Any], found: dict[str, Any]
) -> tuple[list[Any], Any]:
    """Return the outputs and the gradients of one jitted call, or None where there are none."""
    from dew.errors import InputRefused

    try:
        return _gradients(traced, arrays, weights)
    except InputRefused:
        # An integer input decides a shape: its values are taken as constants.
        traced._static = tuple(n for n, value in arrays.items() if value.dtype.kind in "iub")
    try:
        return _gradients(traced, arrays, weights)
    except Exception as error:
        ours = _floats(traced(**arrays))
        found["cause"] = f"gradient: {type(error).__name__}: {str(error)[:600]}"
        return ours, None


def _floats(output: Any) -> list[Any]:
    """Return every array of floats in an output: of a mapping by its names in order."""
    if isinstance(output, Mapping):
        return [leaf for name in sorted(output) for leaf in _floats(output[name])]
    if isinstance(output, list | tuple):
        return [leaf for part in output for leaf in _floats(part)]
    return [output] if "float" in str(getattr(output, "dtype", "")) else []


def _error(ours: list[Any], theirs: list[Any]) -> float:
    import numpy as np

    if [out.shape for out in ours] != [out.shape for out in theirs]:
        raise ValueError(f"outputs {[o.shape for o in ours]}, torch's {[o.shape for o in theirs]}")
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        mine, other = np.asarray(mine, np.float64), np.asarray(other, np.float64)
        if not np.array_equal(np.isnan(mine), np.isnan(other)):
            return float("inf")
        finite = np.isfinite(other)
        if finite.any():
            scale = max(np.abs(other[finite]).max(), 1e-6)
            worst = max(worst, float(np.abs(mine - other)[finite].max() / scale))
    return worst


def _torch_gradients(module: Any, outputs: list[Any], weights: list[Any]) -> dict[str, Any]:
    import torch

    module.zero_grad()
    pairs = zip(outputs, weights, strict=True)
    loss: Any = sum((out * torch.tensor(w, dtype=out.dtype)).sum() for out, w in pairs)
    loss.backward()
    return {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}


def _gradients(
    traced: Any, arrays: Mapping[str, Any], weights: list[Any]
) -> tuple[list[Any], dict[str, Any]]:
    import jax
    import jax.numpy as jnp

    known, varying = traced._parted((), arrays)

    def loss(params: Any) -> Any:
        variables = {**traced.variables, "params": params}
        outputs = _floats(traced.apply(variables, **known, **varying))
        total = sum(jnp.sum(out * w) for out, w in zip(outputs, weights, strict=True))
        return jnp.float32(total), outputs

    call = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, outputs), gradients = call(traced.variables["params"])
    return outputs, gradients


def _exact(module: Any, inputs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a copy of the module in float64, and its inputs."""
    import copy

    exact = copy.deepcopy(module).double()
    if getattr(exact, "_can_set_experts_implementation", lambda: False)():
        # The fused product of experts has no float64 form.
        exact.set_experts_implementation("eager")
    given = {n: v.double() if v.is_floating_point() else v for n, v in inputs.items()}
    return exact, given


def _judge(found: dict[str, Any], stage: str, ours: float, theirs: float, limit: float) -> None:
    """Judge what missed the limit by how far either side is from torch in float64.

    Where torch's own float32 is further from float64 than the limit, the two cannot be expected to
    agree: dew's then counts as equal when it is at most twice as far from the truth.
    """
    found[stage] = bool(theirs > limit and ours <= 2 * theirs)
    found["cause"] = (
        f"{stage}, from torch in float64: dew {ours:.1e}, torch's own float32 {theirs:.1e}"
    )


def _gradient_error(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    import numpy as np

    largest = max((np.abs(value).max() for value in theirs.values() if value.size), default=0.0)
    worst = 0.0
    for name, value in theirs.items():
        if value.size:
            gap = np.linalg.norm(np.asarray(ours[name], np.float64) - value)
            floor = 1e-3 * largest * value.size**0.5
            worst = max(worst, float(gap / max(np.linalg.norm(value), floor, 1e-30)))
    return worst


def _step_error(traced: Any, module: Any, gradients: Mapping[str, Any]) -> float:
    """Return how far one step of gradient descent ends from torch's, of the step's own size."""
    import jax
    import optax
    import torch

    rate = 1e-2
    before = {n: p.detach().clone() for n, p in module.named_parameters() if p.grad is not None}
    torch.optim.SGD(module.parameters(), lr=rate).step()
    moved = {n: (p.detach() - before[n]) for n, p in module.named_parameters() if n in before}
    tx = optax.sgd(rate)
    params = traced.variables["params"]
    updates, _ = tx.update(gradients, tx.init(params), params)
    changes = jax.tree.map(lambda new, old: new - old, optax.apply_updates(params, updates), params)
    return _gradient_error(
        {name: changes[name] / rate for name in moved},
        {name: (change / rate).numpy() for name, change in moved.items()},
    )


def run_one(kind: str) -> dict[str, Any]:
    """Examine a model, with other weights where it chooses among ties.

    It is compiled in haste first, and with XLA's own settings where that fails.
    """
    haste = os.environ["COVERAGE_FLAGS"]
    for seed in range(SEEDS):
        found = _examined(kind, seed, haste)
        if not found.get("ties"):
            break
    hasty = found.get("exported") and not (found.get("forward") and found.get("gradient"))
    return _examined(kind, found["seed"], "") if hasty and haste else found


def _examined(kind: str, seed: int, flags: str) -> dict[str, Any]:
    """Examine a model in a process of its own, which is ended when it takes too long."""
    reader, writer = _PROCESSES.Pipe(duplex=False)
    child = _PROCESSES.Process(target=_answer, args=(kind, seed, flags, writer))
    child.start()
    writer.close()
    named: dict[str, Any] = {"kind": kind, "seed": seed}
    try:
        if reader.poll(5 * SECONDS):
            return reader.recv()
    except EOFError:
        child.join()
        if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return {**named, "cause": f"took over {SECONDS} s of processor time"}
        return {**named, "cause": f"the process ended with status {child.exitcode}"}
    finally:
        child.kill()
        child.join()
    return {**named, "cause": f"took over {SECONDS} s"}


def _answer(kind: str, seed: int, flags: str, writer: Any) -> None:
    os.environ["XLA_FLAGS"] = flags
    memory = int(os.environ.get("COVERAGE_GIB", 5)) * 2**30
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    writer.send(examine(kind, seed))


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return how many models reach each stage, and the causes of those that were exported only."""
    counts = Counter(s for found in results.values() for s in STAGES if found.get(s))
    apart = sum(not found.get("compares", True) for found in results.values())
    lines = [f"{len(results)} types"] + [f"{stage:10s}{counts[stage]:6d}" for stage in STAGES]
    lines.append(f"{apart} of the exported do not repeat in torch itself, or give no numbers")
    for kind, found in sorted(results.items()):
        if found.get("exported") and not (found.get("forward") and found.get("gradient")):
            errors = [f"{s} {found[f'{s}_error']:.1e}" for s in STAGES if f"{s}_error" in found]
            lines.append(f"  {kind}: {found.get('cause') or ', '.join(errors)}"[:300])
    return "\n".join(lines)


def main() -> None:
    """Sweep, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", type=int, default=5, help="GiB a process may hold")
    parser.add_argument("--optimized", action="store_true", help="compile with XLA's own settings")
    options = parser.parse_args()
    # jaxlib 0.10.2 never ends some triangular solves that it compiled in haste.
    os.environ["COVERAGE_FLAGS"] = "" if options.optimized else HASTE
    os.environ["COVERAGE_GIB"] = str(options.memory)
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
    os.environ["OMP_NUM_THREADS"] = "1"
    _PROCESSES.set_forkserver_preload(["preload", "jax", "optax", "bridges.torch.tracing"])
    from tiny_models import known_types, vision_models

    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kinds = options.kinds or [*known_types(), *vision_models()]
    wanted = [k for k in kinds if options.again or options.kinds or k not in results]
    wanted.sort(key=lambda kind: zlib.crc32(kind.encode()))  # so that a part is a fair sample
    with ThreadPoolExecutor(options.workers) as pool:
        running = [pool.submit(run_one, kind) for kind in wanted]
        for number, done in enumerate(as_completed(running), 1):
            found = done.result()
            results[found["kind"]] = found
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
            reached = [stage for stage in STAGES if found.get(stage)]
            print(f"{number}/{len(wanted)} {found['kind']}: {' '.join(reached)}", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
