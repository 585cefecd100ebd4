"""Checkpoints: what was saved comes back, in the same containers, or is refused aloud."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from dew.checkpoints import CheckpointDamaged, CheckpointFailed, Checkpoints
from dew.checkpoints.commit import SENTINEL
from dew.checkpoints.lock import NAME as LOCK
from dew.data import DataPartition
from dew.errors import InputRefused
from dew.training.adam import adamw

SHARE = DataPartition()
PARAMS = {
    "layer": {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(4, "f4")},
    "scale": jnp.array([1.5, -2.25], jnp.bfloat16),
}


@struct.dataclass
class State:
    """A state with the kinds of fields that a `TrainState` has."""

    step: object
    params: object
    opt_state: object
    ema: object = None
    key: object = None


def state_of(optimizer: optax.GradientTransformation, step: int = 0) -> State:
    params = jax.tree.map(jnp.asarray, PARAMS)
    opt_state = optimizer.init(params)
    for _ in range(2):
        changes, opt_state = optimizer.update(
            jax.tree.map(jnp.ones_like, params), opt_state, params
        )
        params = optax.apply_updates(params, changes)
    return State(
        jnp.int32(step), {"params": params}, opt_state, key=jax.random.key(step, impl="rbg")
    )


def template_of(state):
    return jax.eval_shape(lambda: state)


def assert_same(one, other) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def saved(directory, steps=(1,), losses=None, **options) -> Checkpoints:
    checkpoints = Checkpoints(str(directory), **options)
    for step in steps:
        loss = (losses or {}).get(step)
        metrics = None if loss is None else {"loss": loss}
        checkpoints.save(
            step, {"w": np.full(3, step, np.float32)}, b"%d" % step, metrics, share=SHARE
        )
    checkpoints.wait()
    return checkpoints


def names_in(directory) -> list[str]:
    """What lies in a run's folder; the lock is there for as long as its holder lives."""
    return sorted(path.name for path in directory.iterdir() if path.name != LOCK)


def steps_in(directory) -> list[int]:
    return sorted(int(name.split("-")[1]) for name in names_in(directory) if "tmp" not in name)


OPTIMIZERS = {
    "clip, adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=2),
    "lion": optax.lion(1e-3),
    "lamb": optax.lamb(1e-3),
    "sgd with momentum": optax.sgd(1e-3, momentum=0.9),
    "multi steps": optax.MultiSteps(optax.adam(1e-3), 3),
    "injected": optax.inject_hyperparams(optax.adam)(optax.linear_schedule(0, 1, 10)),
    "masked": optax.masked(optax.adam(1e-3), {"layer": True, "scale": False}),
    "adamw": optax.adamw(1e-3),
    "dew's adamw": adamw(1e-3),
    "multi transform": optax.multi_transform(
        {"slow": optax.adam(1e-4), "fast": optax.sgd(0.1)}, {"layer": "slow", "scale": "fast"}
    ),
    "schedule free": optax.contrib.schedule_free_adamw(1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_containers_come_back_as_the_types_they_were(tmp_path, name):
    """P062, P063: tree structure equal, and a jitted step with `lax.cond` takes the result."""
    optimizer = OPTIMIZERS[name]
    state = state_of(optimizer)
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(0, state, None)
    checkpoints.wait()
    back, position = checkpoints.restore(template_of(state))
    assert position is None
    assert_same(back, state)

    @jax.jit
    def update(state, opt_state):
        gradients = jax.tree.map(jnp.ones_like, state.params["params"])
        _, moved = optimizer.update(gradients, opt_state, state.params["params"])
        return jax.lax.cond(state.step == 0, lambda: moved, lambda: state.opt_state)

    assert_same(update(back, back.opt_state), update(state, state.opt_state))


def test_without_a_template_everything_comes_to_the_host_by_name(tmp_path):
    state = state_of(optax.adam(1e-3), step=4)
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(4, state, None)
    checkpoints.wait()
    back, _ = checkpoints.restore()
    assert {type(leaf) for leaf in jax.tree.leaves(back)} == {np.ndarray}
    assert set(back) == {"step", "params", "opt_state", "ema", "key"}
    assert back["ema"] is None
    kernel = back["params"]["params"]["layer"]["kernel"]
    np.testing.assert_array_equal(kernel, state.params["params"]["layer"]["kernel"])
    assert back["params"]["params"]["scale"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(back["opt_state"]["0"]["count"], 2)


def test_a_sharding_in_the_template_places_the_array_and_none_leaves_it_on_the_host(tmp_path):
    saved(tmp_path)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed, _ = Checkpoints(str(tmp_path)).restore(
        {"w": jax.ShapeDtypeStruct((3,), np.float32, sharding=place)}
    )
    assert isinstance(placed["w"], jax.Array)
    host, _ = Checkpoints(str(tmp_path)).restore({"w": jax.ShapeDtypeStruct((3,), np.float32)})
    assert isinstance(host["w"], np.ndarray)


def test_a_mapping_may_name_some_fields_and_some_leaves(tmp_path):
    state = state_of(optax.adam(1e-3))
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(0, state, None)
    checkpoints.wait()
    wanted = {"params": {"params": {"scale": jax.ShapeDtypeStruct((2,), jnp.bfloat16)}}}
    back, _ = checkpoints.restore(wanted)
    assert_same(
        back, {"params": {"params": {"scale": np.asarray(state.params["params"]["scale"])}}}
    )


def test_stored_tells_shapes_without_reading_values(tmp_path):
    state = state_of(optax.adam(1e-3))
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(3, state, None)
    checkpoints.wait()
    for path in (tmp_path / "checkpoint-3" / "dew" / "tree").rglob("*"):
        if path.is_file():
            path.unlink()
    stored = checkpoints.stored()
    assert stored["params"]["params"]["layer"]["kernel"] == jax.ShapeDtypeStruct((3, 4), np.float32)
    assert stored["params"]["params"]["scale"].dtype == jnp.bfloat16
    assert stored["ema"] is None
    assert checkpoints.accumulation_template(3) is None


def test_a_wider_model_and_another_dtype_are_refused_leaf_by_leaf(tmp_path):
    """BP095, fault 11: nothing is cast or cut in silence, and all differences come at once."""
    state = state_of(optax.adam(1e-3))
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(0, state, None)
    checkpoints.wait()
    template = template_of(state)
    params = {
        "layer": {
            "kernel": jax.ShapeDtypeStruct((6, 4), np.float32),
            "bias": jax.ShapeDtypeStruct((4,), np.float16),
        },
        "scale": jax.ShapeDtypeStruct((2,), jnp.bfloat16),
        "extra": jax.ShapeDtypeStruct((1,), np.float32),
    }
    wanted = dataclasses.replace(template, params={"params": params}, opt_state=())
    with pytest.raises(InputRefused) as caught:
        checkpoints.restore(wanted)
    message = str(caught.value)
    assert "params/params/layer/kernel is [3, 4], wanted [6, 4]" in message
    assert "params/params/layer/bias is float32, wanted float16" in message
    assert "missing    params/params/extra float32[1]" in message
    assert "left over  opt_state/0/count int32[]" in message


def test_a_donated_step_right_after_a_save_does_not_reach_the_checkpoint(tmp_path):
    """Oracle: the values before the step."""
    state = {"w": jnp.arange(1_000_000, dtype=jnp.float32)}
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, state, None)
    jax.block_until_ready(jax.jit(lambda s: {"w": s["w"] * 0 - 1}, donate_argnums=0)(state))
    checkpoints.wait()
    np.testing.assert_array_equal(checkpoints.restore()[0]["w"], np.arange(1_000_000, dtype="f4"))


def test_the_data_position_comes_back_for_its_share(tmp_path):
    checkpoints = Checkpoints(str(tmp_path))
    position = b'{"next": 5}\x00\xff'
    checkpoints.save(1, {"w": np.zeros(1, "f4")}, position, share=DataPartition(1, 2))
    checkpoints.wait()
    assert checkpoints.restore(share=DataPartition(1, 2))[1] == position
    assert checkpoints.restore()[1] is None
    with pytest.raises(InputRefused, match="share 0 of 3"):
        checkpoints.restore(share=DataPartition(0, 3))


def test_an_empty_position_is_not_none(tmp_path):
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, {"w": np.zeros(1, "f4")}, b"", share=SHARE)
    checkpoints.save(2, {"w": np.zeros(1, "f4")}, None)
    checkpoints.wait()
    assert checkpoints.restore(step=1, share=SHARE)[1] == b""
    assert checkpoints.restore(step=2, share=SHARE)[1] is None


def test_a_position_without_its_share_is_refused(tmp_path):
    with pytest.raises(ValueError, match="share"):
        Checkpoints(str(tmp_path)).save(1, {"w": np.zeros(1)}, b"5")


def test_kept_are_the_latest_and_the_best(tmp_path):
    """Losses 3, 1, 2, none, 2.2 with keep=2 leave steps 2, 4 and 5."""
    checkpoints = saved(tmp_path, (1, 2, 3, 4, 5), {1: 3.0, 2: 1.0, 3: 2.0, 5: 2.2})
    assert steps_in(tmp_path) == [2, 4, 5]
    assert (checkpoints.latest, checkpoints.best) == (5, 2)
    reopened = Checkpoints(str(tmp_path))
    assert (reopened.latest, reopened.best) == (5, 2)


def test_a_save_without_metrics_or_with_a_loss_of_nan_is_never_best(tmp_path):
    checkpoints = saved(tmp_path, (1, 2, 3), {2: float("nan"), 3: float("inf")}, keep=5)
    assert checkpoints.best is None


def test_a_run_without_checkpoints_has_no_latest_and_no_directory(tmp_path):
    checkpoints = Checkpoints(str(tmp_path / "none"))
    assert (checkpoints.latest, checkpoints.best) == (None, None)
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputRefused, match="holds no checkpoint"):
        checkpoints.restore()
    with pytest.raises(ValueError, match="keep"):
        Checkpoints(str(tmp_path), keep=0)


def test_a_relative_directory_is_where_the_run_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints("runs/relative")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    checkpoints.save(3, state_of(optax.sgd(0.1), 3), None)
    checkpoints.wait()
    assert (tmp_path / "runs" / "relative" / "checkpoint-3").is_dir()
    assert Checkpoints(str(tmp_path / "runs" / "relative")).latest == 3


def test_a_step_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(InputRefused, match=r"step 7; it holds steps \[1, 2\]"):
        saved(tmp_path, (1, 2)).restore(step=7)


def test_leftover_temporaries_are_ignored_and_cleaned(tmp_path):
    """BP094: a newer step that never got its name; saving that step works."""
    saved(tmp_path, (1,))
    aside = tmp_path / "checkpoint-2.tmp-0123abcd"
    shutil.copytree(tmp_path / "checkpoint-1", aside)
    (aside / SENTINEL).write_text("x")
    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.latest == 1
    checkpoints.save(2, {"w": np.full(3, 2, "f4")}, None)
    checkpoints.wait()
    assert not aside.exists()
    assert checkpoints.latest == 2


def test_odd_names_are_passed_over_with_one_warning(tmp_path):
    """BP096: -5, 007, latest and 10^30, with and without our prefix."""
    saved(tmp_path, (3,))
    names = ["-5", "007", "latest", "1" + "0" * 30]
    for name in names:
        shutil.copytree(tmp_path / "checkpoint-3", tmp_path / f"checkpoint-{name}")
        shutil.copytree(tmp_path / "checkpoint-3", tmp_path / name)
    shutil.copytree(tmp_path / "checkpoint-3", tmp_path / "checkpoint-9")
    checkpoints = Checkpoints(str(tmp_path))
    with pytest.warns(UserWarning, match="passed over") as caught:
        found = [checkpoints.latest, checkpoints.latest]
    assert found == [3, 3]
    assert len(caught) == 1


def test_other_folders_of_a_run_are_no_checkpoints(tmp_path):
    saved(tmp_path, (3,))
    (tmp_path / "merged").mkdir()
    (tmp_path / "log.jsonl").write_text("")
    assert Checkpoints(str(tmp_path)).latest == 3


def largest_file(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return max(files, key=lambda path: (path.stat().st_size, str(path)))


def flip(folder):
    path = largest_file(folder / "dew" / "tree" / "state")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(folder):
    path = largest_file(folder / "dew" / "tree" / "state")
    os.truncate(path, path.stat().st_size // 2)


def lose(folder):
    for path in folder.rglob("ocdbt.process_*"):
        shutil.rmtree(path)


@pytest.mark.parametrize("damage", [flip, cut, lose])
def test_a_damaged_step_falls_back_to_the_one_before_with_one_warning(tmp_path, damage):
    """BP091 to BP093: found by the sha256 of each file; the warning names both steps."""
    saved(tmp_path, (1, 2))
    damage(tmp_path / "checkpoint-2")
    checkpoints = Checkpoints(str(tmp_path))
    with pytest.warns(UserWarning, match=r"(?s)checkpoint-2 is damaged.*checkpoint-1") as caught:
        state, position = checkpoints.restore(share=SHARE)
    assert len(caught) == 1
    np.testing.assert_array_equal(state["w"], np.full(3, 1, "f4"))
    assert position == b"1"
    with pytest.raises(CheckpointDamaged, match=r"dew/tree/state"):
        checkpoints.restore(step=2)
    assert checkpoints.latest == 1
    for step in (3, 4):
        checkpoints.save(step, {"w": np.full(3, step, "f4")}, None)
    checkpoints.wait()
    assert steps_in(tmp_path) == [3, 4], "the damaged step is not one of the two that stay"


def test_every_byte_of_a_checkpoint_is_watched(tmp_path):
    """Fault 8, a seeded flip in each file: all are found."""
    saved(tmp_path, (1,))
    rng = np.random.default_rng(0)
    files = [p for p in (tmp_path / "checkpoint-1" / "dew" / "tree").rglob("*") if p.is_file()]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        if not content:
            continue
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        with pytest.raises(CheckpointDamaged):
            Checkpoints(str(tmp_path)).restore()
        path.write_bytes(content)
    Checkpoints(str(tmp_path)).restore()


def test_a_newer_format_is_refused(tmp_path):
    checkpoints = saved(tmp_path, (1,))
    path = tmp_path / "checkpoint-1" / "dew" / "checkpoint.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(InputRefused, match="format 99"):
        checkpoints.restore(step=1)


class WithExtra(Checkpoints):
    fail = False

    def _write_extra(self, step, state, folder):
        assert (folder / SENTINEL).exists()
        if self.fail:
            raise OSError("no space left for the extra")
        (folder / "model.txt").write_text(f"{step} {np.asarray(state['w']).sum()}")


def test_a_subclass_adds_files_that_are_committed_and_watched_too(tmp_path):
    checkpoints = WithExtra(str(tmp_path))
    checkpoints.save(2, {"w": np.ones(3, "f4")}, None)
    checkpoints.wait()
    folder = tmp_path / "checkpoint-2"
    assert (folder / "model.txt").read_text() == "2 3.0"
    assert not (folder / SENTINEL).exists()
    (folder / "model.txt").write_text("2 4.0")
    with pytest.raises(CheckpointDamaged, match=r"model\.txt"):
        checkpoints.restore()


def test_a_write_that_fails_surfaces_from_wait_and_leaves_nothing(tmp_path):
    """Fault 2: the error names path and bytes, the older step is whole, saving again works."""
    checkpoints = WithExtra(str(tmp_path))
    checkpoints.save(1, {"w": np.ones(3, "f4")}, None)
    checkpoints.wait()
    checkpoints.fail = True
    checkpoints.save(2, {"w": np.ones(3, "f4")}, None)
    with pytest.raises(CheckpointFailed, match=r"checkpoint-2.*\d+ bytes.*no space left") as caught:
        checkpoints.wait()
    assert str(tmp_path) in str(caught.value)
    assert names_in(tmp_path) == ["checkpoint-1"]
    checkpoints.save(3, {"w": np.ones(3, "f4")}, None)
    with pytest.raises(CheckpointFailed, match="checkpoint-3"):
        checkpoints.save(4, {"w": np.ones(3, "f4")}, None)
    checkpoints.fail = False
    checkpoints.save(4, {"w": np.ones(3, "f4")}, None)
    checkpoints.wait()
    assert steps_in(tmp_path) == [1, 4]


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpoints = saved(tmp_path, (1,))
    checkpoints.save(1, {"w": np.full(3, 9, "f4")}, None)
    checkpoints.wait()
    np.testing.assert_array_equal(checkpoints.restore()[0]["w"], np.full(3, 9, "f4"))
    assert names_in(tmp_path) == ["checkpoint-1"]


def test_save_returns_while_the_write_goes_on(tmp_path):
    """The writer is held up by a lock; `latest` names the step only once it has landed."""
    gate = threading.Event()

    class Slow(Checkpoints):
        def _write_extra(self, step, state, folder):
            assert gate.wait(60)

    checkpoints = Slow(str(tmp_path))
    checkpoints.save(1, {"w": np.ones(3, "f4")}, None)
    assert checkpoints.latest is None
    gate.set()
    checkpoints.wait()
    assert checkpoints.latest == 1
    assert checkpoints.path(1) == checkpoints.source(1) == str(tmp_path / "checkpoint-1")


def test_a_local_step_is_the_latest_and_the_only_one(tmp_path):
    with pytest.raises(ValueError, match="local_directory"):
        Checkpoints(str(tmp_path), local_every=5)
    with pytest.raises(ValueError, match="local_every"):
        Checkpoints(str(tmp_path), local_every=0, local_directory="x")
    with pytest.raises(ValueError, match="no local_directory"):
        Checkpoints(str(tmp_path)).save_local(1, {}, None)
    checkpoints = saved(tmp_path / "run", (1,), local_directory=str(tmp_path / "local"))
    for step in (2, 3):
        checkpoints.save_local(step, {"w": np.full(3, step, "f4")}, b"%d" % step, share=SHARE)
    checkpoints.wait()
    assert names_in(tmp_path / "local" / "process-0") == ["checkpoint-3"]
    assert (checkpoints.latest, checkpoints.best) == (3, None)
    assert checkpoints.source(3) == os.path.join(checkpoints.local_path, "checkpoint-3")
    state, position = checkpoints.restore(share=SHARE)
    assert (state["w"][0], position) == (3, b"3")
    assert checkpoints.stored()["w"] == jax.ShapeDtypeStruct((3,), np.float32)
    assert Checkpoints(str(tmp_path / "run")).latest == 1
    other = Checkpoints(str(tmp_path / "other"), local_directory=str(tmp_path / "local"))
    assert other.latest is None, "another run's local checkpoint is none of this one's"
    flip(tmp_path / "local" / "process-0" / "checkpoint-3")
    with pytest.warns(UserWarning, match="checkpoint-3 is damaged.*checkpoint-1"):
        state, _ = checkpoints.restore()
    assert (state["w"][0], checkpoints.latest) == (1, 1)
