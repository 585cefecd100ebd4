"""Masked diffusion: its loss is the bound, worked out in closed form and by enumeration."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew import Trainer
from dew.artifacts import TextSamples
from dew.data import Dataset
from dew.errors import InputRefused
from dew.evaluation import evaluate
from dew.nn.backbones.masked_transformer import MaskedTransformer
from dew.objectives.base import Step
from dew.objectives.masked_diffusion import MaskedDiffusionObjective, spread_times
from dew.sampling.unmasking import unmasked
from dew.training.progress import Silent

KEY = jax.random.key(3)
SHARES = np.array([0.5, 0.25, 0.15, 0.1])
SIZES = {"emb_features": 8, "num_layers": 1, "num_heads": 2, "mlp_features": 16}
MODEL = MaskedTransformer(vocab_size=4, max_seq_len=8, norm="layer", tied_head=False, **SIZES)


@pytest.fixture(scope="module")
def variables():
    fresh = jax.jit(MODEL.init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))
    return jax.tree.map(lambda leaf: 8 * leaf, fresh)


@pytest.fixture(scope="module")
def marginals(variables):
    """Variables whose logits are log `SHARES` at every place, whatever the model is shown."""
    params = dict(variables["params"])
    one = jnp.zeros(8).at[0].set(1.0)
    params["final_norm"] = {"scale": jnp.zeros(8), "bias": one}
    params["head"] = {"table": jnp.zeros((4, 8)).at[:, 0].set(np.log(SHARES))}
    return {"params": params}


def estimates(objective, variables, batch, draws):
    """The loss under many keys: totals over masses, [draws]."""

    def one(key):
        return objective.loss(variables, batch, Step(jnp.int32(0), key)).value

    keys = jax.random.split(KEY, draws)
    return np.asarray(jax.jit(jax.vmap(one))(keys), np.float64)


def assert_mean(values, wanted):
    """The mean is `wanted`, up to four of its standard errors."""
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - wanted) < 4 * error
    assert error < 0.02 * wanted


def test_the_bound_of_a_model_that_knows_the_marginals_is_the_entropy(marginals):
    """Closed form: independent tokens; rows that hold each token in its share."""
    text = np.repeat(np.arange(4), [10, 5, 3, 2])
    batch = {"text": jnp.asarray(np.random.default_rng(0).permutation(text).reshape(4, 5))}
    entropy = -(SHARES * np.log(SHARES)).sum()
    assert_mean(
        estimates(MaskedDiffusionObjective(MODEL, 5, min_time=0.0), marginals, batch, 4000), entropy
    )


def filled_in(variables, rows):
    """log p of each token given what each mask leaves visible: {mask: [rows, L]}, float64."""
    length = rows.shape[1]
    forward = jax.jit(MODEL.apply)
    scores = {}
    for hidden in itertools.product([False, True], repeat=length):
        seen = np.where(hidden, MODEL.mask_token, rows)
        logits = np.asarray(forward(variables, jnp.asarray(seen)), np.float64)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        scores[hidden] = np.take_along_axis(logs, rows[..., None], -1)[..., 0]
    return scores


def bound(scores, length):
    """The integral over t of 1/t sum_masks P(mask) losses: a Beta function for each mask."""
    total = 0.0
    for hidden, logs in scores.items():
        count = sum(hidden)
        if count:
            share = math.factorial(count - 1) * math.factorial(length - count)
            share /= math.factorial(length)
            total = total - share * (logs * np.array(hidden)).sum(axis=1)
    return total


def test_the_loss_is_the_bound_without_bias_and_the_bound_is_above_the_likelihood(variables):
    """Oracle: every mask of three tokens, and the likelihood as the mean over all orders."""
    rows = np.array([[0, 1, 2], [3, 3, 1]])
    scores = filled_in(variables, rows)
    exact = bound(scores, 3)
    objective = MaskedDiffusionObjective(MODEL, 3, min_time=0.0)
    assert_mean(estimates(objective, variables, {"text": jnp.asarray(rows)}, 6000), exact.sum() / 6)
    likelihoods = []
    for order in itertools.permutations(range(3)):
        hidden, logs = [True] * 3, 0.0
        for place in order:
            logs = logs + scores[tuple(hidden)][:, place]
            hidden[place] = False
        likelihoods.append(np.exp(logs))
    true = -np.log(np.mean(likelihoods, axis=0))
    assert (exact >= true).all()
    assert (exact - true > 1e-4).all(), "the case is too easy: the bound is tight"


def test_samples_of_many_steps_follow_the_models_likelihood(variables):
    """Oracle: the mean over both orders of two tokens, 16 outcomes."""
    outcomes = np.array(list(itertools.product(range(4), repeat=2)))
    scores = filled_in(variables, outcomes)
    first = scores[True, True][:, 0] + scores[False, True][:, 1]
    second = scores[True, True][:, 1] + scores[True, False][:, 0]
    wanted = (np.exp(first) + np.exp(second)) / 2
    assert wanted.sum() == pytest.approx(1, abs=1e-6)

    @jax.jit
    def draw(key):
        blank = jnp.full((20000, 2), MODEL.mask_token, jnp.int32)
        return unmasked(
            lambda tokens: MODEL.apply(variables, tokens), blank, mask_token=4, steps=40, key=key
        )

    tokens = np.asarray(draw(KEY))
    seen = np.bincount(tokens[:, 0] * 4 + tokens[:, 1], minlength=16) / len(tokens)
    # A share's deviation is at most 0.0035; two masks leaving in one step add 1/40 of a bias.
    np.testing.assert_allclose(seen, wanted, atol=0.02)


def test_what_is_no_mask_never_changes_and_no_mask_is_left(variables):
    given = jnp.asarray([[4, 2, 4, 1], [4, 4, 4, 4]])
    tokens = unmasked(
        lambda tokens: MODEL.apply(variables, tokens), given, mask_token=4, steps=3, key=KEY
    )
    assert tokens[0, 1] == 2
    assert tokens[0, 3] == 1
    assert int(tokens.max()) < 4


def test_times_are_uniform_and_evenly_spread_over_a_batch():
    keys = jax.random.split(KEY, 2000)
    times = np.asarray(jax.vmap(lambda key: spread_times(key, 8, 0.1))(keys))
    assert times.min() > 0.1
    assert times.max() <= 1
    np.testing.assert_allclose(np.diff(np.sort(times, axis=1), axis=1), 0.9 / 8, atol=1e-5)
    for column in times.T:
        np.testing.assert_allclose(
            np.quantile(column, [0.25, 0.5, 0.75]), [0.325, 0.55, 0.775], atol=0.04
        )


def test_padding_and_unweighted_tokens_are_shown_and_not_counted(marginals):
    """Closed form under known marginals: only the counted token's -log p is left."""
    row = {
        "text": jnp.asarray([[0, 1, 2, 3, 3]]),
        "segments": jnp.asarray([[1, 1, 2, 2, 0]]),
        "weights": jnp.asarray([[0.0, 2.0, 0.0, 0.0, 1.0]]),
    }
    batch = {name: jnp.repeat(value, 8, axis=0) for name, value in row.items()}
    objective = MaskedDiffusionObjective(MODEL, 5, min_time=0.0)
    assert float(objective.loss(marginals, batch, Step(jnp.int32(0), KEY)).mass) == 16
    assert_mean(estimates(objective, marginals, batch, 20000), -math.log(SHARES[1]))


def test_documents_do_not_see_each_other_and_both_sides_are_seen(variables):
    forward = jax.jit(MODEL.apply)
    text = jnp.asarray([[0, 1, 4, 2, 3]])
    segments = jnp.asarray([[1, 1, 1, 2, 2]])
    base = forward(variables, text, segments=segments)
    other = forward(variables, text.at[0, 3].set(0), segments=segments)
    np.testing.assert_array_equal(base[0, :3], other[0, :3])
    assert not np.allclose(
        forward(variables, text)[0, 2], forward(variables, text.at[0, 4].set(0))[0, 2]
    )
    assert not np.allclose(
        base[0, 2], forward(variables, text.at[0, 0].set(3), segments=segments)[0, 2]
    )
    alone = forward(variables, text[:, 3:])
    np.testing.assert_allclose(base[0, 3:], alone[0], atol=1e-5)
    masked = forward(variables, text, mask=jnp.asarray([[1, 1, 1, 0, 0]]))
    np.testing.assert_allclose(masked[0, :3], base[0, :3], atol=1e-5)


@pytest.fixture(scope="module")
def run():
    """A run over one repeated row, its state and its log."""
    row = np.tile(np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int32), (16, 1))
    data = Dataset(
        train=lambda partition: itertools.repeat({"text": row}),
        val=lambda partition: iter([{"text": row[:5]}]),
        records=16,
        batch=16,
    )
    model = MaskedTransformer(
        vocab_size=4,
        max_seq_len=8,
        positions="learned",
        mlp="plain",
        activation="gelu",
        remat=True,
        bias=True,
        **SIZES | {"emb_features": 32},
    )
    objective = MaskedDiffusionObjective(model, 8, sampling_steps=8, preview_count=3)
    log = []
    trainer = Trainer(objective, optax.adam(0.01), key=KEY)
    state = trainer.fit(
        data,
        steps=80,
        log_every=5,
        on_report=lambda scalars, step: log.append(dict(scalars)),
        progress=Silent(),
    )
    return objective, state, log, data


@pytest.mark.slow
def test_training_brings_the_bound_down(run):
    _, _, log, _ = run
    losses = [scalars["train/loss"] for scalars in log]
    # Before any step it is log 4 = 1.39.
    assert losses[0] > 0.8 > 0.2 > np.mean(losses[-4:])


def test_evaluation_writes_a_batch_and_a_preview_its_own_count(run):
    objective, state, _, data = run

    class Wrote:
        """The share of written tokens that are the learned row's."""

        name, reads = "right", TextSamples

        def __call__(self, samples, batch):
            assert samples.tokens.shape == batch["text"].shape
            return np.array([(samples.tokens == batch["text"]).sum(), samples.tokens.size])

        def merge(self, total, part):
            return total + part

        def finalize(self, total):
            return total[0] / total[1]

    event = evaluate(objective, state.params, data.val, key=KEY, metrics=(Wrote(),), preview=True)
    assert event.scores["val/right"] > 0.9
    assert event.previews[0].tokens.shape == (3, 8)


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(InputRefused, match="seq_len 9, sampling_steps 0"):
        MaskedDiffusionObjective(MODEL, 9, sampling_steps=0)
    with pytest.raises(InputRefused, match="9 tokens for a model of 8 positions"):
        MODEL.init(KEY, jnp.zeros((1, 9), jnp.int32))
    with pytest.raises(InputRefused, match="norm 'batch' and positions 'rotary'"):
        MODEL.clone(norm="batch").init(KEY, jnp.zeros((1, 2), jnp.int32))
