"""Adam whose bias correction keeps its digits in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


def scale_by_adam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Rescale gradients by Adam's moments; the state is `optax.scale_by_adam`'s.

    The correction 1 - b^t is taken as -expm1(t log b). In float32 the plain difference keeps
    four digits at t = 1 and b = 0.999, and that error goes into the first steps as it is;
    torch computes it in Python's float64.

    Args:
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second moment, in [0, 1).
        eps: added to the root of the corrected second moment.

    Source: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        count = optax.safe_increment(state.count)
        mu = _mixed(updates, state.mu, b1, lambda g: g)
        nu = _mixed(updates, state.nu, b2, lambda g: g * g)
        if jax.default_backend() == "cpu":
            # XLA writes one array a loop there: computed anew inside the parameters' loop, the
            # moments would keep their old values alive, and be copied.
            mu, nu = jax.lax.optimization_barrier((mu, nu))
        first, second = _correction(b1, count), _correction(b2, count)
        scaled = jax.tree.map(lambda m, v: (m / first) / (jnp.sqrt(v / second) + eps), mu, nu)
        return scaled, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def adamw(
    learning_rate: float | optax.Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    mask: Any | Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """Return AdamW with torch's defaults and torch's accuracy.

    Args:
        learning_rate: a number, or a schedule over updates.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added to the root of the corrected second moment.
        weight_decay: each update also takes learning_rate * weight_decay off the weights.
        mask: the leaves that decay, as for `optax.add_decayed_weights`; None decays all.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101; held to torch.optim.AdamW by
    tests/test_training_step.py.
    """
    return optax.chain(
        scale_by_adam(b1, b2, eps),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def _mixed(gradients: Any, moments: Any, decay: float, power: Callable[[Any], Any]) -> Any:
    return jax.tree.map(lambda g, m: decay * m + (1.0 - decay) * power(g), gradients, moments)


def _correction(decay: float, count: Any) -> jax.Array:
    return -jnp.expm1(jnp.asarray(count) * math.log(decay)) if decay > 0 else jnp.ones(())
