"""The decode engine compiles rarely, guesses without changing an id, and streams narrow weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.inference.cache import room
from dew.inference.narrow import narrow, product, row_products
from dew.inference.prefixes import kept_prefix
from dew.nn.backbones.causal_transformer import CausalTransformer

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "emb_features": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_features": 24,
}
PROMPT = [[3, 4, 5, 3, 4]]
MOST_COMPILES = 12
FLOAT = jnp.dtype("float32")


def made(seed: int, **changes: Any) -> Bundle:
    model = CausalTransformer(**SIZES | changes, num_kv_heads=1, max_seq_len=640)
    variables = jax.jit(model.init)(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32))
    return Bundle(model, jax.tree.map(lambda x: 6 * x, variables))


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return made(1)


@pytest.fixture(scope="module")
def draft() -> Bundle:
    return made(2, num_layers=1)


@pytest.fixture
def compiles():
    """A list that grows by one with every program that XLA compiles."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_prompts_of_1_to_512_ids_compile_few_programs(compiles):
    # A width of its own, so that no test before this one has compiled for it.
    own = made(3, emb_features=24, num_layers=1)
    generator = np.random.default_rng(0)
    compiles.clear()
    for length in (1, 2, 9, 31, 64, 65, 108, 109, 129, 200, 256, 300, 384, 492, 493, 512):
        own.generate(generator.integers(0, 40, (1, length)), max_new_tokens=20)
    assert 0 < len(compiles) <= MOST_COMPILES


def test_every_length_up_to_512_has_one_of_four_rooms():
    # Closed form: the rooms are what programs are compiled for.
    rooms = {room(length, 20) for length in range(1, 513)}
    assert rooms == {(128, 16), (256, 32), (512, 64), (768, 64)}
    for length in range(1, 3000, 7):
        slots, piece = room(length, 50)
        assert slots % piece == 0
        assert length + 50 <= slots
        assert -(-length // piece) * piece <= slots


def test_a_long_prompt_in_pieces_leads_where_the_whole_does(bundle):
    # The right logits are the model's own over the whole sequence.
    prompt = np.random.default_rng(1).integers(0, 40, (2, 150))
    mask = np.ones_like(prompt)
    mask[1, :70] = 0
    new = bundle.generate(prompt, mask, max_new_tokens=12)
    whole = np.concatenate([mask, np.ones((2, 12), np.int64)], axis=1)
    logits = np.asarray(bundle(input_ids=new, attention_mask=whole)["logits"])
    np.testing.assert_array_equal(new[:, 150:], logits[:, 149:-1].argmax(-1))


def test_a_prompt_that_begins_as_the_one_before_reads_the_rest_alone(bundle):
    prompt = np.random.default_rng(2).integers(0, 40, (1, 60))
    longer = np.concatenate([prompt, [[7, 8, 9]]], axis=1)
    fresh = bundle.generate(longer, max_new_tokens=10)
    bundle.generate(prompt, max_new_tokens=10)
    # Three pieces of 16 are shared; the fourth is not whole.
    layers, count = kept_prefix(bundle, (None, 128), longer[0], 16)
    assert count == 48
    assert layers is not None
    bundle.generate(prompt, max_new_tokens=10)
    np.testing.assert_array_equal(bundle.generate(longer, max_new_tokens=10), fresh)
    other = longer.copy()
    other[0, 0] += 1
    assert kept_prefix(bundle, (None, 128), other[0], 16) == (None, 0)


SETTINGS = {
    "greedy": {},
    "drawn": {"do_sample": True, "temperature": 0.8, "seed": 5},
    "with rules": {
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.2,
        "eos_token_id": [11, 12],
        "min_new_tokens": 30,
    },
}


@pytest.mark.parametrize(
    "name",
    [
        name if name == "with rules" else pytest.param(name, marks=pytest.mark.slow)
        for name in SETTINGS
    ],
)
def test_guesses_change_no_id(bundle, draft, name):
    # The right ids are those without guesses.
    options = {"max_new_tokens": 90, **SETTINGS[name]}
    prompts = np.asarray([[3, 4, 5, 3, 4], [9, 8, 7, 6, 5]])
    plain = bundle.generate(prompts, **options)
    for guess in (
        {"prompt_lookup_num_tokens": 4},
        {"assistant_model": draft, "num_assistant_tokens": 3},
    ):
        np.testing.assert_array_equal(bundle.generate(prompts, **options, **guess), plain)


def test_guesses_that_are_right_save_steps(bundle, monkeypatch):
    # The model as its own draft guesses all: a pass makes four ids and the one that follows.
    from dew.inference import guessing

    passes = []
    tried = guessing._tried

    def counted(*arguments):
        jax.debug.callback(lambda: passes.append(1))
        return tried(*arguments)

    monkeypatch.setattr(guessing, "_tried", counted)
    chunk: Any = guessing.guess_chunk
    chunk.clear_cache()
    plain = bundle.generate(PROMPT, max_new_tokens=61)
    options = {"assistant_model": bundle, "num_assistant_tokens": 4}
    got = bundle.generate(PROMPT, max_new_tokens=61, **options)
    jax.effects_barrier()
    chunk.clear_cache()
    np.testing.assert_array_equal(got, plain)
    assert len(passes) == 12


def test_guesses_that_do_not_fit_are_refused(bundle, draft):
    small = made(4, vocab_size=30)
    with pytest.raises(InputRefused, match="vocabulary of 30 and the model one of 40"):
        bundle.generate(PROMPT, assistant_model=small)
    with pytest.raises(InputRefused, match="assistant_model is 'x'"):
        bundle.generate(PROMPT, assistant_model="x")
    with pytest.raises(InputRefused, match="not computed with assistant_model"):
        bundle.generate(PROMPT, assistant_model=draft, guidance_scale=2.0)


def test_seeds_make_a_prompts_draws_its_own(bundle):
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 2.0}
    prompts = np.asarray([[3, 4, 5], [7, 8, 9], [3, 4, 5]])
    drawn = bundle.generate(prompts, seeds=[5, 6, 5], **options)
    np.testing.assert_array_equal(drawn[0], drawn[2])
    turned = bundle.generate(prompts[::-1], seeds=[5, 6, 5], **options)
    np.testing.assert_array_equal(turned, drawn[::-1])
    alone = bundle.generate(prompts[1:2], seed=6, **options)
    np.testing.assert_array_equal(alone[0], drawn[1])
    with pytest.raises(InputRefused, match="seeds has 2 and there are 3 rows"):
        bundle.generate(prompts, seeds=[5, 6], **options)


def test_a_narrow_product_is_within_its_steps():
    # Closed form: weights are off by half a step of a column's largest value over 127, and `x`
    # by half a step of its row's largest over 127 * 254.
    generator = np.random.default_rng(3)
    x = generator.standard_normal((3, 64)).astype(np.float32)
    x[1] *= 1e4
    x[2] = 0
    matrix = generator.standard_normal((64, 40)).astype(np.float32)
    exact = x.astype(np.float64) @ matrix
    largest = np.abs(x).max(axis=1, keepdims=True)
    step = np.abs(matrix).max(axis=0) / 127
    bound = np.abs(x).sum(axis=1, keepdims=True) * step / 2
    bound = bound + largest / (127 * 254 * 2) * np.abs(matrix).sum(axis=0) + 1e-6
    wide = np.asarray(product(jnp.asarray(x), narrow(jnp.asarray(matrix), "int8", FLOAT)))
    assert (np.abs(wide - exact) <= bound).all()
    half: Any = narrow(jnp.asarray(matrix), "bfloat16", FLOAT)
    rows = np.asarray(row_products(jnp.asarray(x), half.T))
    kept = x.astype(np.float64) @ np.asarray(half, np.float64)
    np.testing.assert_allclose(rows, kept, atol=float(largest.max()) * 64 / 2**15)


@pytest.mark.parametrize("stored", ["int8", "bfloat16"])
def test_narrow_weights_decode_nearly_as_the_models_own(bundle, stored):
    # Decoding by the model whose weights are the rounded ones gives the right ids.
    from dew.inference.weights import decode_weights

    weights = decode_weights(bundle, stored)
    made = bundle.generate(PROMPT, max_new_tokens=20, weights=stored)
    assert made.shape == (1, 25)
    full = np.asarray(bundle(input_ids=made)["logits"])[0, 4:-1]
    chosen = full[np.arange(20), made[0, 5:]]
    spread = full.max(axis=1) - full.min(axis=1)
    assert (full.max(axis=1) - chosen <= 0.05 * spread).all()
    bytes_kept = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(decode_weights(bundle)))
    assert bytes_kept < whole * 0.65


def test_unknown_storage_is_refused(bundle):
    with pytest.raises(InputRefused, match="weights is 'int3', expected one of int8"):
        bundle.generate(PROMPT, weights="int3")
