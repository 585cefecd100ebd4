"""Rotary position embedding and its scaling kinds, by the names of Hugging Face configs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


@dataclass(frozen=True)
class Rope:
    """How positions turn queries and keys; the fields are those of `rope_parameters`.

    Args:
        kind: one of `ROPE_KINDS`.
        theta: base of the wavelengths.
        factor: how many times the context was stretched; None lets `yarn` and `longrope` take
            the ratio of the two context lengths.
        original_max_position_embeddings: context of the pretraining, in tokens; None means the
            model's own.
        attention_factor: multiplies cos and sin (`yarn`, `longrope`); None derives it.
        beta_fast, beta_slow: rotations that bound yarn's ramp.
        mscale, mscale_all_dim: yarn's two attention scales, used together.
        truncate: whether yarn's ramp starts and ends at whole dimensions.
        short_factor, long_factor: longrope's divisor of each frequency, within and beyond the
            original context.
        renewed: whether a text that grows past the original context has its cached keys turned
            anew, as Phi 3's class in transformers does (`longrope`).
        low_freq_factor, high_freq_factor: llama3's band of interpolated wavelengths.
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    renewed: bool = False

    def __post_init__(self) -> None:
        """Refuse a kind that is not computed here."""
        if self.kind not in ROPE_KINDS:
            raise InputRefused(
                f"rope type {self.kind!a:.200} is not computed; known: {', '.join(ROPE_KINDS)}"
            )
        if self.kind in ("linear", "dynamic", "llama3") and self.factor is None:
            raise InputRefused(f"rope type {self.kind!r} needs a factor, and the config has none")


def angles(
    rope: Rope, positions: jax.Array, *, features: int, max_seq_len: int
) -> tuple[jax.Array, jax.Array]:
    """Return the cosines and sines that turn each position.

    Args:
        rope: the kind and its numbers.
        positions: int32 [B, L], at least 0.
        features: K, the width of a head.
        max_seq_len: the model's context, in tokens.

    Returns:
        float32 cos and sin, [B, L, K/2] each.

    Source: Su et al. 2021, arXiv:2104.09864. The scaling kinds follow transformers 5.24's
    definitions (linear and NTK interpolation; YaRN, arXiv:2309.00071; LongRoPE,
    arXiv:2402.13753; Llama 3.1). Constant frequencies are held to one unit in the last place
    of its own, and to the bit for theta 10000 and 500000 at common head widths.
    """
    if rope.kind == "dynamic":
        frequency = _dynamic(rope, positions, features, max_seq_len)
    elif rope.kind == "longrope":
        frequency = _longrope(rope, positions, features, max_seq_len)
    else:
        frequency = jnp.asarray(frequencies(rope, features, max_seq_len))
    turned = positions.astype(jnp.float32)[..., None] * frequency
    scale = attention_scale(rope, max_seq_len)
    return jnp.cos(turned) * scale, jnp.sin(turned) * scale


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn the two halves of each head of `x` [B, L, H, K] by `angles`' cos and sin.

    Angles of fewer than K features turn the first of them and leave the rest.
    """
    features = 2 * cos.shape[-1]
    turned, left = x[..., :features], x[..., features:]
    first, second = jnp.split(turned, 2, axis=-1)
    cos, sin = cos[:, :, None, :].astype(x.dtype), sin[:, :, None, :].astype(x.dtype)
    parts = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate([*parts, left] if left.shape[-1] else parts, axis=-1)


def frequencies(rope: Rope, features: int, max_seq_len: int) -> np.ndarray:
    """Return the float32 [K/2] frequencies of the kinds whose frequencies are constants."""
    plain = _inverse(rope.theta, features)
    if rope.kind == "linear":
        return plain / np.float32(rope.factor or 1.0)
    if rope.kind == "yarn":
        return _yarn(rope, features, max_seq_len)
    if rope.kind == "llama3":
        return _llama3(rope, plain, max_seq_len)
    return plain


def attention_scale(rope: Rope, max_seq_len: int) -> float:
    """Return the factor on cos and sin that `yarn` and `longrope` ask for, else 1."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    original = rope.original_max_position_embeddings or max_seq_len
    factor = rope.factor if rope.factor is not None else max_seq_len / original
    if rope.kind == "longrope":
        return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_scale(factor, rope.mscale) / _yarn_scale(factor, rope.mscale_all_dim)
    return _yarn_scale(factor, 1.0)


def _exponents(features: int) -> np.ndarray:
    return np.arange(0, features, 2, dtype=np.float32) / np.float32(features)


def _wavelengths(theta: float, features: int) -> np.ndarray:
    # Rounded once from float64; torch's float32 power is within one unit in the last place of it.
    return (np.float64(theta) ** _exponents(features).astype(np.float64)).astype(np.float32)


def _inverse(theta: float, features: int) -> np.ndarray:
    return np.float32(1.0) / _wavelengths(theta, features)


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn(rope: Rope, features: int, max_seq_len: int) -> np.ndarray:
    original = rope.original_max_position_embeddings or max_seq_len
    factor = rope.factor if rope.factor is not None else max_seq_len / original

    def dimension(rotations: float) -> float:
        wave = original / (rotations * 2 * math.pi)
        return features * math.log(wave) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, features - 1)
    if low == high:
        high += 0.001
    steps = np.arange(features // 2, dtype=np.float32)
    ramp = np.clip((steps - np.float32(low)) / np.float32(high - low), 0, 1)
    kept = np.float32(1.0) - ramp
    wavelengths = _wavelengths(rope.theta, features)
    stretched = np.float32(1.0) / (np.float32(factor) * wavelengths)
    return stretched * (np.float32(1.0) - kept) + (np.float32(1.0) / wavelengths) * kept


def _llama3(rope: Rope, plain: np.ndarray, max_seq_len: int) -> np.ndarray:
    original = rope.original_max_position_embeddings or max_seq_len
    low, high = rope.low_freq_factor, rope.high_freq_factor
    factor = np.float32(rope.factor or 1.0)
    # torch divides a number by a tensor as number * (1 / tensor); the last bit depends on it.
    waves = np.float32(2 * math.pi) * (np.float32(1.0) / plain)
    scaled = np.where(waves > np.float32(original / low), plain / factor, plain)
    turns = np.float32(original) * (np.float32(1.0) / waves)
    smooth = (turns - np.float32(low)) / np.float32(high - low)
    smoothed = (np.float32(1.0) - smooth) * scaled / factor + smooth * scaled
    between = ~(waves < np.float32(original / high)) & ~(waves > np.float32(original / low))
    return np.where(between, smoothed, scaled).astype(np.float32)


def _dynamic(rope: Rope, positions: jax.Array, features: int, max_seq_len: int) -> jax.Array:
    length = jnp.maximum(jnp.max(positions) + 1, max_seq_len).astype(jnp.float32)
    factor = rope.factor or 1.0
    grown = factor * length / max_seq_len - (factor - 1)
    base = rope.theta * grown ** (features / (features - 2))
    stretched = 1.0 / base ** jnp.asarray(_exponents(features))
    within = jnp.max(positions) + 1 <= max_seq_len
    return jnp.where(within, jnp.asarray(_inverse(rope.theta, features)), stretched)


def _longrope(rope: Rope, positions: jax.Array, features: int, max_seq_len: int) -> jax.Array:
    original = rope.original_max_position_embeddings or max_seq_len
    waves = _wavelengths(rope.theta, features)
    for name, factors in (("short_factor", rope.short_factor), ("long_factor", rope.long_factor)):
        if len(factors) != features // 2:
            raise InputRefused(
                f"longrope {name} holds {len(factors)} numbers; a head of {features} features"
                f" needs {features // 2}"
            )
    short = np.float32(1.0) / (np.asarray(rope.short_factor, np.float32) * waves)
    long = np.float32(1.0) / (np.asarray(rope.long_factor, np.float32) * waves)
    return jnp.where(jnp.max(positions) + 1 > original, jnp.asarray(long), jnp.asarray(short))
