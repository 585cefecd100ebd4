"""Rotary frequencies and turns against transformers' own, kind by kind."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused
from dew.nn.rotary import Rope, angles, frequencies, rotate

CONTEXT = 512
KINDS = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "llama3": {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 128},
}


def _rope(kind: str, theta: float, features: int) -> Rope:
    extra = dict(KINDS[kind])
    if kind == "longrope":
        extra["short_factor"] = tuple(1.0 + 0.1 * i for i in range(features // 2))
        extra["long_factor"] = tuple(2.0 + 0.3 * i for i in range(features // 2))
    return Rope(kind=kind, theta=theta, **extra)


def _reference(rope: Rope, features: int, length: int):
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    extra = {k: list(v) if isinstance(v, tuple) else v for k, v in KINDS[rope.kind].items()}
    if rope.kind == "longrope":
        extra |= {"short_factor": list(rope.short_factor), "long_factor": list(rope.long_factor)}
    config = LlamaConfig(
        hidden_size=2 * features,
        num_attention_heads=2,
        head_dim=features,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_theta": rope.theta, "rope_type": rope.kind, **extra},
    )
    embedding = LlamaRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.arange(length)[None])
    half = features // 2
    return cos.numpy()[..., :half], sin.numpy()[..., :half], embedding.inv_freq.numpy()


@pytest.mark.torch
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5])
@pytest.mark.parametrize("length", [100, 500, 700])
def test_cos_and_sin_equal_transformers(kind, theta, length):
    rope = _rope(kind, theta, 64)
    cos, sin, _ = _reference(rope, 64, length)
    positions = jnp.arange(length, dtype=jnp.int32)[None]
    ours = angles(rope, positions, features=64, max_seq_len=CONTEXT)
    # One unit in the last place of a frequency turns position 700 by at most 4e-5.
    np.testing.assert_allclose(np.asarray(ours[0]), cos, atol=5e-6 if kind != "dynamic" else 5e-5)
    np.testing.assert_allclose(np.asarray(ours[1]), sin, atol=5e-6 if kind != "dynamic" else 5e-5)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["default", "linear", "yarn", "llama3"])
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
def test_constant_frequencies_are_within_one_last_place_of_transformers(kind, theta):
    # torch's own power is off by up to one unit in the last place, more after interpolation.
    for features in (8, 32, 64, 80, 128):
        rope = _rope(kind, theta, features)
        wanted = _reference(rope, features, 4)[2]
        ulps = 1 if kind in ("default", "linear") else 4
        np.testing.assert_allclose(
            frequencies(rope, features, CONTEXT), wanted, rtol=ulps * 1.2e-7, atol=0
        )
        if theta in (1e4, 5e5) and features == 64:
            assert np.array_equal(frequencies(rope, features, CONTEXT), wanted)


def test_a_turn_keeps_lengths_and_depends_only_on_the_distance():
    # Closed form: rotation matrices are orthogonal and R(a)ᵀ R(b) = R(b - a).
    generator = np.random.default_rng(0)
    query, key = (jnp.asarray(generator.normal(size=(1, 2, 1, 16)), jnp.float32) for _ in "qk")

    def product(first: int, second: int) -> float:
        positions = jnp.asarray([[first, second]], jnp.int32)
        turn = angles(Rope(), positions, features=16, max_seq_len=64)
        turned_query, turned_key = rotate(query, *turn), rotate(key, *turn)
        assert jnp.allclose(jnp.linalg.norm(turned_query), jnp.linalg.norm(query), atol=1e-5)
        return float(turned_query[0, 0, 0] @ turned_key[0, 1, 0])

    assert product(3, 8) == pytest.approx(product(20, 25), abs=1e-4)
    assert product(3, 8) != pytest.approx(product(3, 9), abs=1e-3)


def test_an_unknown_kind_and_a_missing_factor_are_refused():
    with pytest.raises(InputRefused, match=r"rope type 'spiral'.*known: default, linear"):
        Rope(kind="spiral")
    with pytest.raises(InputRefused, match="needs a factor"):
        Rope(kind="linear")
    with pytest.raises(InputRefused, match=r"short_factor holds 0 numbers.*needs 4"):
        angles(Rope(kind="longrope"), jnp.zeros((1, 1), jnp.int32), features=8, max_seq_len=8)
