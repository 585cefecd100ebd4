"""Classifier-free guidance: each row beside one of a negative prompt, in one batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.inference.engine import Engine, Filled, NativeEngine
from dew.inference.generation import GenerationOptions
from dew.inference.model_inputs import checked_prompts


class Negative(NamedTuple):
    """The negative prompts int32 [N, Q], where they are real, and how much the others count."""

    prompts: np.ndarray
    real: np.ndarray
    scale: float


class GuidedEngine(NamedTuple):
    """An engine over twice the rows, whose logits are those of the pairs mixed.

    Source: Sanchez et al. 2023, arXiv:2306.17806, as in transformers 5.24 without its cache.
    """

    inner: NativeEngine

    def fill(
        self, bundle: Bundle, prompts: np.ndarray, real: np.ndarray, new: int, source: Negative
    ) -> Filled:
        """Read the prompts and, behind them, the negative ones of `source`."""
        width = max(prompts.shape[1], source.prompts.shape[1])
        both, kept = (
            np.concatenate([_widened(part, width) for part in parts])
            for parts in ((prompts, source.prompts), (real, source.real))
        )
        filled = self.inner.fill(bundle, both, kept, new)
        layers = {"layers": filled.layers, "scale": jnp.float32(source.scale)}
        logits = mixed(filled.logits, layers["scale"])
        return filled._replace(logits=logits, layers=layers, keep=None)

    def weights(self, bundle: Bundle) -> Any:
        """Return the inner engine's weights."""
        return self.inner.weights(bundle)

    def renewal(self, longest: int) -> int | None:
        """Return None: such models are refused."""
        del longest

    def reordered(self, layers: Any, index: jax.Array) -> Any:
        """Return the cache with its pairs of rows in the order of `index` [N]."""
        both = jnp.concatenate([index, index + len(index)])
        return {**layers, "layers": self.inner.reordered(layers["layers"], both)}

    def step(
        self, weights: Any, layers: Any, *, tokens: jax.Array, **row: Any
    ) -> tuple[jax.Array, Any]:
        """Return the mixed logits [N, V] after one more token [N] a pair, and the cache."""
        both = jnp.concatenate([tokens, tokens])
        logits, inner = self.inner.step(weights, layers["layers"], tokens=both, **row)
        return mixed(logits, layers["scale"]), {**layers, "layers": inner}


@jax.jit
def mixed(logits: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the logits [N, V] of pairs [2 N, V]: from the negative ones `scale` times on."""
    scores = jax.nn.log_softmax(logits, axis=-1)
    wanted, negative = jnp.split(scores, 2)
    return scale * (wanted - negative) + negative


def guided(
    engine: Engine, settings: GenerationOptions, prompts: np.ndarray, source: Any
) -> tuple[Engine, Any]:
    """Return the engine of a call and what it reads beside its prompts [N, P].

    Raises:
        InputRefused: guidance of a model that is not computed with it.
    """
    scale, given = settings.guidance_scale, settings.negative_prompt_ids
    if scale == 1.0:
        return engine, source
    if not isinstance(engine, NativeEngine) or engine.model.rope.renewed:
        raise InputRefused(f"guidance_scale is {scale}: not computed for this model; leave it out")
    if given is None:
        last = prompts[:, -1:]
        return GuidedEngine(engine), Negative(last, np.ones_like(last), scale)
    mask = settings.negative_prompt_attention_mask
    ids, real = checked_prompts(engine.model, {"input_ids": given, "attention_mask": mask})
    if len(prompts) % len(ids):
        raise InputRefused(
            f"negative_prompt_ids has {len(ids)} rows and there are {len(prompts)} to continue; "
            "give one a prompt"
        )
    copies = len(prompts) // len(ids)
    return GuidedEngine(engine), Negative(
        np.repeat(ids, copies, axis=0), np.repeat(real, copies, axis=0), scale
    )


def _widened(part: np.ndarray, width: int) -> np.ndarray:
    return np.pad(part, ((0, 0), (width - part.shape[1], 0)))
