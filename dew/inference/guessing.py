"""Guessing ahead: cheap guesses of the next ids, tried together; those that are right stay.

An id stands only where the model chooses it from what came before, so no id depends on a guess.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.inference.choice import Choice, Fixed
from dew.inference.engine import Engine, NativeEngine
from dew.inference.generation import GenerationOptions
from dew.inference.rows import CHUNK, State, choose


class Guesser(Protocol):
    """Makes `count` guesses; hashable."""

    @property
    def count(self) -> int:
        """How many guesses it makes."""
        ...

    def guesses(
        self, weights: Any, held: Any, state: State, choice: Choice
    ) -> tuple[jax.Array, Any]:
        """Return int32 [1, count], and what it holds after."""
        ...


class Lookup(NamedTuple):
    """Guesses that what followed the newest ids before follows them again.

    Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding.
    """

    count: int
    longest: int

    def guesses(
        self, weights: Any, held: Any, state: State, choice: Choice
    ) -> tuple[jax.Array, Any]:
        """Return what followed where a run of the row's newest ids, the longest, came last."""
        del weights
        row, length = state.past.ids[0], choice.width + state.count
        place, at = jnp.arange(len(row)), length
        for size in range(1, self.longest + 1):
            met = place + size < length
            for within in range(size):
                own = row[jnp.maximum(length - size + within, 0)]
                met = met & (jnp.roll(row, -within) == own)
            last = jnp.max(jnp.where(met & (length > size), place, -1))
            at = jnp.where(last >= 0, last + size, at)
        ahead = jnp.pad(row, (0, self.count))
        found = jax.lax.dynamic_slice(ahead, (at,), (self.count,))
        return jnp.maximum(found, 0)[None], held


class Draft(NamedTuple):
    """Guesses what a smaller model finds likeliest; it holds that model's cache.

    Source: Leviathan et al. 2023, arXiv:2211.17192; a guess stays where it is what the big model
    chooses.
    """

    count: int
    engine: NativeEngine

    def guesses(
        self, weights: Any, held: Any, state: State, choice: Choice
    ) -> tuple[jax.Array, Any]:
        """Return its own continuation; one step more leaves the last guess in its cache."""
        del choice
        slots = jnp.arange(state.visible.shape[1])

        def advance(carry: tuple, ahead: jax.Array) -> tuple:
            layers, tokens = carry
            slot = state.slot + ahead
            logits, layers = self.engine.step(
                weights,
                layers,
                tokens=tokens,
                positions=state.positions + ahead,
                visible=state.visible | ((slots >= state.slot) & (slots <= slot)),
                slot=slot,
            )
            tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            return (layers, tokens), tokens

        ahead = jnp.arange(self.count + 1)
        (layers, _), made = jax.lax.scan(advance, (held, state.tokens), ahead)
        return made[: self.count].T, layers


class Guesses:
    """The guesses of one call.

    Args:
        engine: of the model whose ids count.
        guesser: who guesses.
        bundle: the guesser's own, or None.
    """

    def __init__(self, engine: NativeEngine, guesser: Guesser, bundle: Bundle | None):
        self._engine, self._guesser, self._bundle = engine, guesser, bundle
        self._weights: Any = None
        self._held: Any = None

    @property
    def count(self) -> int:
        """How many guesses are tried together."""
        return self._guesser.count

    def begin(self, prompts: np.ndarray, real: np.ndarray, limit: int) -> None:
        """Take note of the one row's prompt [1, P], real where `real` is 1, and of the limit."""
        if isinstance(self._guesser, Draft) and self._bundle is not None:
            engine = self._guesser.engine
            filled = engine.fill(self._bundle, prompts, real, limit + self.count)
            self._weights, self._held = engine.weights(self._bundle), filled.layers

    def chunk(
        self, fixed: Fixed, weights: Any, state: State, choice: Choice, steps: int
    ) -> tuple[State, np.ndarray]:
        """Return the state after up to `steps` ids more, and those int32 [1, C]."""
        state, self._held, out, taken = guess_chunk(
            self._engine, fixed, self._guesser, weights, self._weights, state, self._held, choice,
            steps,
        )  # fmt: skip
        return state, np.asarray(out)[:, : int(taken)]


def guesses_of(bundle: Bundle, settings: GenerationOptions, engine: Engine) -> Guesses | None:
    """Return the guesses that a call asks for, or None.

    Raises:
        InputRefused: a model that they are not computed for, or another vocabulary.
    """
    draft, lookup = settings.assistant_model, settings.prompt_lookup_num_tokens
    if draft is None and lookup is None:
        return None
    if not isinstance(engine, NativeEngine) or engine.model.rope.renewed:
        raise InputRefused(
            "assistant_model and prompt_lookup_num_tokens are not computed for this model; leave "
            "them out"
        )
    if draft is None:
        return Guesses(engine, Lookup(int(lookup or 1), settings.max_matching_ngram_size), None)
    own, theirs = bundle.model.vocab_size, getattr(draft.model, "vocab_size", None)
    native = "text-generation" in draft.tasks and not hasattr(draft.model, "engine")
    if not native or theirs != own or draft.model.rope.renewed:
        raise InputRefused(
            f"assistant_model has a vocabulary of {theirs} and the model one of {own}; expected a "
            "causal language model of dew's own with the same vocabulary"
        )
    helper = NativeEngine(draft.model, settings.weights)
    return Guesses(engine, Draft(settings.num_assistant_tokens, helper), draft)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(5, 6))
def guess_chunk(
    engine: NativeEngine,
    fixed: Fixed,
    guesser: Guesser,
    weights: Any,
    guesser_weights: Any,
    state: State,
    held: Any,
    choice: Choice,
    steps: jax.Array | int,
) -> tuple[State, Any, jax.Array, jax.Array]:
    """Make up to `steps` ids of one row, at most `CHUNK`; stop when it has ended.

    Returns:
        The new state, what the guesser holds, int32 [1, CHUNK] ids, and how many were made.
    """

    def going(carry: tuple) -> jax.Array:
        state, _, _, taken = carry
        return (taken < steps) & ~state.finished[0]

    def advance(carry: tuple) -> tuple:
        state, held, out, taken = carry
        guesses, held = guesser.guesses(guesser_weights, held, state, choice)
        logits, layers, visible = _tried(engine, weights, state, guesses)
        begun = state.slot

        def fits(inner: tuple) -> jax.Array:
            state, _, made, right = inner
            return right & (made <= guesser.count) & (taken + made < steps) & ~state.finished[0]

        def chosen(inner: tuple) -> tuple:
            state, out, made, _ = inner
            state = choose(fixed, logits[:, made], state, choice)
            guess = guesses[0, jnp.minimum(made, guesser.count - 1)]
            out = out.at[:, taken + made].set(state.tokens)
            return state, out, made + 1, (made < guesser.count) & (state.tokens[0] == guess)

        carried = (state, out, jnp.int32(0), jnp.bool(True))
        state, out, made, _ = jax.lax.while_loop(fits, chosen, carried)
        slots = jnp.arange(visible.shape[1])
        state = state._replace(
            layers=layers,
            visible=visible & (slots < begun + made),
            slot=begun + made,
            positions=state.positions + made,
        )
        return state, held, out, taken + made

    out = jnp.zeros((1, CHUNK), jnp.int32)
    return jax.lax.while_loop(going, advance, (state, held, out, jnp.int32(0)))


def _tried(
    engine: NativeEngine, weights: Any, state: State, guesses: jax.Array
) -> tuple[jax.Array, Any, jax.Array]:
    """Return the logits [1, 1 + G, V] after the newest id and each guess, cache and slots."""
    count = guesses.shape[1] + 1
    slots = jnp.arange(state.visible.shape[1])
    visible = state.visible | ((slots >= state.slot) & (slots < state.slot + count))
    logits, layers = engine.steps(
        weights,
        state.layers,
        tokens=jnp.concatenate([state.tokens[:, None], guesses], axis=1),
        positions=state.positions[:, None] + jnp.arange(count),
        visible=visible,
        slot=state.slot,
    )
    return logits, layers, visible
