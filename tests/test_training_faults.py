"""Real processes that are signalled, killed, or lose their disk, and what they leave behind.

The oracle is a run, or a save, that nothing happened to: equal bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regression import Line
from saving_child import save
from training_child import trainer_of

from dew.checkpoints import Checkpoints
from dew.checkpoints.commit import is_aside
from dew.data import DataPartition
from dew.training.progress import Silent

# A run that was killed leaves its mark in the folder, and who goes on there says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*taking over from run:UserWarning")

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
    "JAX_PLATFORMS": "cpu",
    "PYTHONUNBUFFERED": "1",
}
STEPS = 14


def child(script: str, *arguments: object, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        env=os.environ | ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen, seconds: float = 120) -> tuple[int, str, str]:
    try:
        out, error = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, error


def wait_for_step(process: subprocess.Popen, step: int) -> None:
    """Read the child's lines until it reports `step`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"step {step}/"):
            return
    raise AssertionError(f"the run ended before step {step}: {process.stderr.read()}")


@pytest.fixture(scope="module")
def whole():
    """The state after a run that nothing happened to."""
    return trainer_of(None).fit(Line().dataset(), steps=STEPS, progress=Silent())


def assert_goes_on_to(directory: Path, whole) -> None:
    resumed = trainer_of(str(directory)).fit(Line().dataset(), steps=STEPS, progress=Silent())
    assert jax.tree.structure(resumed) == jax.tree.structure(whole)
    for one, other in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_a_signal_saves_and_the_rerun_ends_bit_equal(number, status, tmp_path, whole):
    """Fault 16: the step is finished, the state saved, the status is the shell's."""
    process = child("training_child.py", tmp_path, STEPS, 0.2)
    wait_for_step(process, 5)
    process.send_signal(number)
    code, _, _ = finished(process)
    assert code == status
    latest = Checkpoints(str(tmp_path)).latest
    assert latest is not None
    assert 5 <= latest < STEPS
    assert latest % 4, "saved where it stood, not at the last multiple of checkpoint_every"
    assert_goes_on_to(tmp_path, whole)


def test_sigkill_loses_only_what_came_after_the_last_save(tmp_path, whole):
    process = child("training_child.py", tmp_path, STEPS, 0.2)
    deadline = time.monotonic() + 120
    while Checkpoints(str(tmp_path)).latest is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    finished(process)
    latest = Checkpoints(str(tmp_path)).latest
    assert latest is not None
    assert latest % 4 == 0
    assert_goes_on_to(tmp_path, whole)


def test_a_second_sigint_leaves_at_once(tmp_path, whole):
    """Be it in the middle of the save that the first one asked for: nothing is half there."""
    process = child("training_child.py", tmp_path, STEPS, 0.2)
    wait_for_step(process, 5)
    started = time.monotonic()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    code, _, _ = finished(process)
    assert code == 130
    assert time.monotonic() - started < 10
    assert_goes_on_to(tmp_path, whole)


def broken_run(plan: str, directory: Path, steps: int, fault_library: Path) -> tuple[int, str]:
    broken = {"BREAK": plan, "BREAK_UNDER": str(directory), "LD_PRELOAD": str(fault_library)}
    code, _, error = finished(child("training_child.py", directory, steps, 0.05, **broken))
    return code, error


@pytest.mark.slow
def test_a_run_killed_in_a_save_and_again_after_its_restart_ends_bit_equal(
    tmp_path, whole, fault_library
):
    """Fault 5: in the save of step 8, once more in that save, and then nothing happens."""
    directory = tmp_path / "run"
    _, error = broken_run("count:0", tmp_path / "count", 4, fault_library)
    calls = int(error.rpartition("calls=")[2])
    # The restart first clears away what the killed save left.
    for call in (calls + calls // 2, calls):
        code, error = broken_run(f"kill:{call}", directory, STEPS, fault_library)
        assert code == -signal.SIGKILL, error
        aside = [path.name for path in directory.iterdir() if is_aside(path.name)]
        assert [name.partition(".")[0] for name in aside] == ["checkpoint-8"]
        assert Checkpoints(str(directory)).latest == 4
    assert_goes_on_to(directory, whole)


@pytest.fixture(scope="module")
def step_one(tmp_path_factory) -> Path:
    """A directory that holds step 1."""
    directory = tmp_path_factory.mktemp("one") / "run"
    save(str(directory), 1)
    return directory


def broken_save(plan: str, directory: Path, fault_library: Path) -> subprocess.Popen:
    return child(
        "saving_child.py",
        directory,
        2,
        BREAK=plan,
        BREAK_UNDER=str(directory),
        LD_PRELOAD=str(fault_library),
    )


def calls_of_a_save(step_one: Path, base: Path, fault_library: Path) -> int:
    directory = base / "count"
    shutil.copytree(step_one, directory)
    code, _, error = finished(broken_save("count:0", directory, fault_library))
    assert code == 0, error
    return int(error.rpartition("calls=")[2])


def check_after(directory: Path, code: int, error: str, plan: str) -> int:
    """Return the step that stands; all its bytes must, and the next save must work."""
    checkpoints = Checkpoints(str(directory), keep=1)
    latest = checkpoints.latest
    assert latest in (1, 2), f"{plan}: {latest}"
    state, position = checkpoints.restore(share=DataPartition())
    np.testing.assert_array_equal(state["w"], np.full(2000, latest, np.float32))
    assert position == b"%d" % latest
    if plan.startswith("kill"):
        # One past the save's last call does not fire.
        assert code == -signal.SIGKILL or (code, latest) == (0, 2), error
    elif code:
        assert "CheckpointFailed: checkpoint-2" in error
        assert str(directory) in error
    save(str(directory), 3)
    assert [path.name for path in directory.iterdir()] == ["checkpoint-3"]
    return latest


def break_all(plans: list[str], step_one: Path, base: Path, fault_library: Path) -> set[int]:
    """Break a save of step 2 by each plan, two processes at a time."""
    stood, missed = set(), 0
    for pair in zip(plans[::2], [*plans[1::2], None], strict=False):
        running = []
        for plan in filter(None, pair):
            directory = base / plan.replace(":", "-")
            shutil.copytree(step_one, directory)
            running.append((plan, directory, broken_save(plan, directory, fault_library)))
        for plan, directory, process in running:
            code, _, error = finished(process)
            latest = check_after(directory, code, error, plan)
            if plan.startswith("kill") and code == 0:
                missed += 1
            else:
                stood.add(latest)
            with contextlib.suppress(OSError):
                shutil.rmtree(directory)
    # Two saves differ by a few calls, as TensorStore joins its writes.
    assert missed <= 10, f"{missed} of {len(plans)} kills did not fire"
    return stood


def test_a_kill_or_a_full_disk_during_a_save_leaves_a_whole_step(step_one, tmp_path, fault_library):
    """Faults 1, 2, 3 and 12 at a few calls; all of them: slow."""
    calls = calls_of_a_save(step_one, tmp_path, fault_library)
    assert calls > 50
    kills = [f"kill:{1 + n * (calls - 9) // 4}" for n in range(4)]
    breaks = [f"enospc:{calls // 3}", f"eio:{2 * calls // 3}", f"enospc:{calls // 2}"]
    assert 1 in break_all([*kills, *breaks], step_one, tmp_path, fault_library)
    # A few calls follow the rename. Their number differs from run to run, so ever later ones are
    # broken until a kill finds the new step in place.
    late = (f"kill:{n}" for n in range(calls - 9, calls + 10))
    assert any(2 in break_all([plan], step_one, tmp_path, fault_library) for plan in late)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("action", ["kill", "enospc", "eio"])
def test_a_fault_at_every_call_of_a_save_leaves_a_whole_step(
    action, step_one, tmp_path, fault_library
):
    calls = calls_of_a_save(step_one, tmp_path, fault_library)
    plans = [f"{action}:{n}" for n in range(1, calls + 6)]
    assert break_all(plans, step_one, tmp_path, fault_library) == {1, 2}


def test_a_full_disk_frees_what_it_took(step_one, tmp_path, fault_library):
    """Fault 2: an error with path and bytes, the temporary folder gone."""
    directory = tmp_path / "run"
    shutil.copytree(step_one, directory)
    process = broken_save("enospc:60", directory, fault_library)
    code, _, error = finished(process)
    assert code == 1
    assert "did not land" in error
    assert "bytes were written, and removed" in error
    assert not [path for path in directory.iterdir() if is_aside(path.name)]
