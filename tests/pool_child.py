"""A rank for tests: `pool_child.py WHAT [ARGUMENTS]` does WHAT, often on rank 1 alone."""

from __future__ import annotations

import os
import signal
import sys
import time


def here() -> tuple[int, int]:
    from dew.artifacts.coordination import pool_size, rank

    return rank(), pool_size()


def total():
    """Return a function that sums one number a device over the pool, a collective each time."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    row = jax.make_array_from_process_local_data(
        spread, jnp.full((jax.local_device_count(),), here()[0] + 1.0)
    )
    summed = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))
    return lambda: float(summed(row))


def agree() -> None:
    """All ranks agree on a value, and sum over a collective."""
    from dew.artifacts import broadcast_from_process_zero

    rank, size = here()
    value = broadcast_from_process_zero({"from": rank, "word": "even"})
    print(f"rank {rank} of {size} has {value} and {total()():g}", flush=True)


def raise_before_agreement(who: str = "1") -> None:
    from dew.artifacts import agreed

    def work() -> None:
        if here()[0] == int(who):
            raise ValueError("the text of the failure")

    agreed("opening the data", work)


def raise_alone(who: str = "1") -> None:
    """One rank raises while its peers wait for it at an agreement it never reaches."""
    from dew.artifacts import agreed

    if here()[0] == int(who):
        raise ValueError("the text of the failure")
    agreed("never met", lambda: None)


def step_forever(before_step_three) -> None:
    step = total()
    for at in range(100_000):
        if at == 3:
            before_step_three()
        step()
        if at == 3:
            print("past three", flush=True)
        time.sleep(0.002)


def raise_between_steps(who: str = "1") -> None:
    def fail() -> None:
        if here()[0] == int(who):
            time.sleep(0.3)
            raise ValueError("the text of the failure")

    step_forever(fail)


def exit_three(who: str = "1") -> None:
    def leave() -> None:
        if here()[0] == int(who):
            print("dew: no such thing", file=sys.stderr)
            sys.exit(3)

    step_forever(leave)


def killed(who: str = "1", name: str = "SIGKILL") -> None:
    def die() -> None:
        if here()[0] == int(who):
            os.kill(os.getpid(), getattr(signal, name))

    step_forever(die)


def backend_fails(who: str = "1") -> None:
    import jax

    if here()[0] == int(who):
        jax.config.update("jax_platforms", "nonsense")
    jax.devices()


def run_on() -> None:
    """Say this rank's process number, then step until somebody ends it."""
    print(f"pid {os.getpid()}", flush=True)
    step_forever(lambda: None)


def stop_politely() -> None:
    """Step until a signal, which all ranks take at one step; leave as a trainer does."""
    from jax.experimental import multihost_utils

    step = total()
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    for at in range(100_000):
        step()
        if at == 3:
            print("past three", flush=True)
        heard = multihost_utils.reached_preemption_sync_point(at)
        if heard:
            print(f"saved at {at}", flush=True)
            sys.exit(143)
        time.sleep(0.002)


def no_pool(*words: str) -> None:
    print("alone", "jax" in sys.modules, list(words), flush=True)


def start_another(code: str) -> None:
    import subprocess

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(said.stdout.strip(), flush=True)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
