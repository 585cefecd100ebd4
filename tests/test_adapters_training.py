"""Training adapters: the curve of peft and transformers' trainer, and what is trained and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import llama_config, llama_tensors, write_checkpoint

import bridges
from bridges.adapter_settings import AdapterSettings
from bridges.adapters import export_adapter, laid_over, lora_of, merge
from bridges.loading import load
from dew import Dataset, Trainer
from dew.checkpoints import Checkpoints
from dew.nn.lora import WHOLE, LoRA
from dew.objectives.adapted import AdaptedObjective
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective, LoRAObjective
from dew.training.progress import Silent

LENGTH, ROWS, RATE = 12, 4, 5e-3
Q_V = ("q_proj", "v_proj")
IDS = np.array([[5, 7, 11, 13, 2], [3, 1, 4, 1, 5]])


class Losses:
    """A tracker that keeps each step's loss."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def log(self, scalars: Any, step: int) -> None:
        if "train/loss" in scalars:
            self.values.append(float(scalars["train/loss"]))

    def artifact(self, value: Any, step: int) -> None:
        raise TypeError

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A Llama with a head of its own, and its folder."""
    config = llama_config(tie_word_embeddings=False)
    folder = write_checkpoint(tmp_path_factory.mktemp("llama"), config, llama_tensors(config))
    return load(folder)


def token_rows(steps: int) -> np.ndarray:
    """Return batches of tokens that repeat, so that there is something to learn."""
    generator = np.random.default_rng(5)
    starts = generator.integers(0, 300, (steps, ROWS, 1))
    return ((starts + 3 * np.arange(LENGTH)) % 300).astype(np.int32)


def dataset(batches: np.ndarray) -> Dataset:
    opened = [{"text": rows} for rows in batches]
    return Dataset(lambda share: iter(opened), None, records=ROWS * len(opened), batch=ROWS)


def fitted(objective: Any, bundle: Any, batches: np.ndarray, **options: Any) -> Any:
    """Return the state behind one step a batch, of AdamW as torch's without decay."""
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(RATE, eps=1e-8, weight_decay=0.0)
    )
    trainer = Trainer(objective, optimizer, key=jax.random.key(0), **options)
    fit = {"variables": bundle.variables, "progress": Silent(), "log_every": 1}
    return trainer.fit(dataset(batches), steps=len(batches), **fit)


def torch_curve(folder: Path, source: str, batches: np.ndarray, out: Path) -> list[float]:
    """Return the losses of transformers' trainer over peft's model of an adapter's folder."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    base = AutoModelForCausalLM.from_pretrained(source)
    model = PeftModel.from_pretrained(base, str(folder), is_trainable=True)
    losses: list[float] = []

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            found = super().compute_loss(*args, **options)
            losses.append(float(found.detach()))
            return found

    rows = [
        {"input_ids": torch.tensor(row), "labels": torch.tensor(row)}
        for row in batches.reshape(-1, LENGTH).astype(np.int64)
    ]
    arguments = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=ROWS,
        max_steps=len(batches),
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    InOrder(model=model, args=arguments, train_dataset=rows).train()
    return losses


PLAIN = AdapterSettings(4, 8.0, Q_V)
EVERYTHING = AdapterSettings(
    4,
    6.0,
    (*Q_V, "down_proj"),
    ranks={r"layers\.1\.self_attn\.q_proj": 2},
    alphas={"v_proj": 3.0},
    rslora=True,
    dora=True,
    saved=("lm_head",),
)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*pin_memory.*")
@pytest.mark.parametrize("settings", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_fifty_steps_have_the_loss_curve_of_peft(settings, llama, tmp_path):
    batches = token_rows(50)
    lora = lora_of(llama, settings)
    objective = LoRAObjective(llama.model, LENGTH - 1, lora)
    first = objective.init(jax.random.key(0), llama.variables)["params"]
    export_adapter(laid_over(llama, lora, first), tmp_path / "first")
    theirs = torch_curve(tmp_path / "first", llama.source, batches, tmp_path / "out")
    losses = Losses()
    start = {**llama.variables, "lora": lora.collection(first)}
    fitted(objective, llama.replace(variables=start), batches, tracker=losses)
    assert len(losses.values) == len(theirs) == 50
    assert theirs[-1] < theirs[0] - 0.1
    assert np.abs(np.array(losses.values) - theirs).max() < 1e-4


def test_the_optimizer_and_the_checkpoint_hold_the_adapters_alone(llama, tmp_path):
    lora = lora_of(llama, PLAIN)
    objective = LoRAObjective(llama.model, LENGTH - 1, lora)
    checkpoints = Checkpoints(tmp_path / "run")
    state = fitted(objective, llama, token_rows(2), checkpoints=checkpoints)
    adapters = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params["params"]))
    moments = sum(leaf.nbytes for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim)
    assert moments == 2 * adapters  # AdamW's mean and square
    base = sum(leaf.nbytes for leaf in jax.tree.leaves(llama.variables))
    assert adapters < base / 10
    saved = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    # Parameters and two moments, and what names them.
    assert 3 * adapters < saved < 3 * adapters + 40_000 < base
    export_adapter(laid_over(llama, lora, state.params["params"]), tmp_path / "adapter")
    written = (tmp_path / "adapter/adapter_model.safetensors").stat().st_size
    assert adapters < written < adapters + 4_000


@pytest.mark.slow
def test_columns_beyond_a_layers_own_rank_stay_zero(llama):
    settings = AdapterSettings(4, 8.0, Q_V, ranks={r"layers\.1\.self_attn\.q_proj": 1})
    lora = lora_of(llama, settings)
    state = fitted(LoRAObjective(llama.model, LENGTH - 1, lora), llama, token_rows(3))
    leaf = state.params["params"]["layers"]["attention"]["query"]
    assert np.abs(leaf["a"][0]).min(axis=0).max() > 0
    assert np.abs(leaf["b"][0]).max() > 0
    assert not np.asarray(leaf["a"][1, :, 1:]).any()
    assert not np.asarray(leaf["b"][1, 1:]).any()
    assert np.asarray(leaf["b"][1, :1]).any()


@pytest.mark.slow
def test_adapters_beside_a_bfloat16_base_are_float32_and_learn(llama):
    # CASES P057: in bfloat16 a parameter at 1 does not move under a rate of 1e-3.
    narrow = load(llama.source, dtype="bfloat16", param_dtype="bfloat16")
    assert narrow.variables["params"]["head"]["table"].dtype == jnp.bfloat16
    lora = lora_of(narrow, AdapterSettings(4, 8.0, Q_V, saved=("lm_head",), dora=True))
    losses = Losses()
    objective = LoRAObjective(narrow.model, LENGTH - 1, lora)
    batches = np.repeat(token_rows(1), 4, axis=0)
    state = fitted(objective, narrow, batches, tracker=losses)
    leaves = [*jax.tree.leaves(state.params["params"]), *jax.tree.leaves(state.opt_state)]
    assert {leaf.dtype.name for leaf in leaves if leaf.ndim} == {"float32"}
    assert len(set(losses.values)) == len(losses.values)
    assert losses.values[-1] < losses.values[0]
    over = laid_over(narrow, lora, state.params["params"])
    # CASES P060: merged in float32 and rounded once to what the base is stored in.
    found, wanted = (np.asarray(b(input_ids=IDS)["logits"]) for b in (over, merge(over)))
    assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()


@pytest.mark.slow
def test_dropout_draws_anew_each_step_from_the_steps_key_and_never_in_evaluation(llama):
    lora = LoRA(rank=4, alpha=8.0, dropout=0.5)
    objective = LoRAObjective(llama.model, LENGTH - 1, lora)
    held = objective.init(jax.random.key(0), llama.variables)
    held["params"] = jax.tree.map(lambda leaf: leaf + 0.1, held["params"])
    batch = {"text": jnp.asarray(token_rows(1)[0])}

    @jax.jit
    def loss(seed: jax.Array) -> jax.Array:
        return objective.loss(held, batch, Step(jnp.int32(0), jax.random.key(seed))).value

    assert loss(jnp.int32(1)) == loss(jnp.int32(1)) != loss(jnp.int32(2))
    scores = objective.evaluate(held, batch, Step(jnp.int32(0), jax.random.key(1)))
    without = LoRAObjective(llama.model, LENGTH - 1, LoRA(rank=4, alpha=8.0))
    plain = without.evaluate(held, batch, Step(jnp.int32(0), jax.random.key(1)))
    np.testing.assert_array_equal(scores.losses, plain.losses)


def test_dropout_keeps_the_mean_and_drops_inputs_of_the_product_alone():
    """Oracle: torch's dropout, which zeroes a value or divides it by what is kept."""
    from dew.nn.dense import low_rank

    x = jnp.asarray(np.random.default_rng(1).uniform(1, 2, (400, 6)), jnp.float32)
    leaf = {
        "a": jnp.eye(6),
        "b": jnp.eye(6),
        "seed": jnp.uint32(3),
        "keep": jnp.float32(0.75),
    }
    seen = np.asarray((low_rank(x, x, jnp.eye(6), leaf, 1, 2.0) - x) / (2 * x))
    kept = seen > 0.5
    np.testing.assert_allclose(seen[kept], 1 / 0.75, rtol=1e-5)
    np.testing.assert_allclose(seen[~kept], 0, atol=1e-6)
    assert abs(kept.mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / seen.size)


def test_any_objective_trains_adapters(llama):
    lora = lora_of(llama, PLAIN)
    model = llama.model.clone(adapter_scale=lora.scale)
    whole = AdaptedObjective(LMObjective(model, LENGTH - 1), lora)
    own = LoRAObjective(llama.model, LENGTH - 1, lora)
    step = Step(jnp.int32(0), jax.random.key(0))
    batch = {"text": jnp.asarray(token_rows(1)[0])}
    losses = []
    for objective in (whole, own):
        held = objective.init(jax.random.key(0), llama.variables)
        held["params"] = jax.tree.map(lambda leaf: leaf + 0.1, held["params"])
        losses.append(objective.loss(held, batch, step).value)
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_an_adapter_that_begins_with_the_weights_factors_changes_nothing_at_first(start, llama):
    lora = lora_of(llama, AdapterSettings(4, 6.0, Q_V, start=start))
    objective = LoRAObjective(llama.model, LENGTH - 1, lora)
    held = objective.init(jax.random.key(0), llama.variables)
    base = llama.variables["params"]["layers"]["attention"]["query"]["kernel"]
    rest = held["frozen"]["layers"]["attention"]["query"]["kernel"]
    assert np.abs(rest - base).max() > 0.01
    over = laid_over(llama, lora, held["params"])
    ours = np.asarray(llama(input_ids=IDS)["logits"])
    np.testing.assert_allclose(over(input_ids=IDS)["logits"], ours, atol=1e-5)
    # Over the untouched base it is one of twice the rank, and as much as beside the rest.
    moved = jax.tree.map(lambda leaf: leaf * 1.3, held["params"])
    beside = llama.model.clone(adapter_scale=lora.scale).apply(
        {"params": held["frozen"], "lora": lora.collection(moved)}, jnp.asarray(IDS)
    )
    settled = laid_over(llama, lora, moved)
    assert settled.adapter.rank == 8
    np.testing.assert_allclose(settled(input_ids=IDS)["logits"], beside, atol=2e-5)


def test_a_loaded_adapter_goes_on_from_where_it_was(llama, tmp_path):
    lora = lora_of(llama, EVERYTHING)
    first = lora.init(jax.random.key(1), llama.variables["params"])
    moved = jax.tree.map(lambda leaf: leaf + 0.1, first)
    export_adapter(laid_over(llama, lora, moved), tmp_path)
    again = bridges.load_adapter(llama, tmp_path)
    objective = LoRAObjective(llama.model, LENGTH - 1, again.adapter)
    held = objective.init(jax.random.key(2), again.variables)
    found, wanted = held["params"], dict(moved)
    assert set(found[WHOLE]) == {"head/table"}
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        # Columns beyond a layer's rank were never the adapter's.
        same = np.asarray(ours) == np.asarray(theirs)
        assert (same | (np.asarray(ours) == 0)).all()


def test_adapters_have_names_and_take_turns(llama, tmp_path):
    made = {}
    for number, name in enumerate(("first", "second")):
        lora = lora_of(llama, AdapterSettings(2 + number, 8.0, Q_V[: 1 + number]))
        tree = lora.init(jax.random.key(number), llama.variables["params"])
        tree = jax.tree.map(lambda leaf: leaf + 0.1, tree)
        export_adapter(laid_over(llama, lora, tree), tmp_path / name)
        alone = bridges.load_adapter(llama, tmp_path / name)
        made[name] = np.asarray(alone(input_ids=IDS)["logits"])
    base = np.asarray(llama(input_ids=IDS)["logits"])
    both = bridges.load_adapter(llama, tmp_path / "first", name="first")
    both = bridges.load_adapter(both, tmp_path / "second", name="second")

    def logits(bundle: Any) -> np.ndarray:
        return np.asarray(bundle(input_ids=IDS)["logits"])

    assert both.active == "first"  # as in peft, until it is told otherwise
    np.testing.assert_array_equal(logits(both), made["first"])
    np.testing.assert_array_equal(logits(both.set_adapter("second")), made["second"])
    off = both.disable_adapter()
    np.testing.assert_array_equal(logits(off), base)
    np.testing.assert_array_equal(logits(off.set_adapter("first")), made["first"])
    within = both.set_adapter("second").merge_adapter()
    np.testing.assert_allclose(logits(within), made["second"], atol=1e-5)
    back = within.unmerge_adapter().disable_adapter()
    for ours, theirs in zip(
        jax.tree.leaves(back.variables), jax.tree.leaves(llama.variables), strict=True
    ):
        assert ours is theirs
    assert set(both.delete_adapter("second").adapters) == {"first"}
    with pytest.raises(KeyError, match="no adapter 'secnd'; did you mean 'second'"):
        both.set_adapter("secnd")


@pytest.mark.slow
def test_an_adapter_of_many_ranks_generates_as_merged(llama):
    lora = lora_of(llama, EVERYTHING)
    tree = lora.init(jax.random.key(3), llama.variables["params"])
    over = laid_over(llama, lora, jax.tree.map(lambda leaf: leaf + 0.1, tree))
    ids = over.generate(IDS[:, :3], max_new_tokens=4, do_sample=False)
    merged_ids = merge(over).generate(IDS[:, :3], max_new_tokens=4, do_sample=False)
    np.testing.assert_array_equal(ids, merged_ids)
