"""Training sentence vectors: texts that belong together are drawn near, others apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dew.artifacts import Artifacts, Predictions, TokenScores
from dew.errors import InputRefused
from dew.objectives.base import Aux, Objective, Ratio, Step
from dew.typing import Variables

Embed = Callable[[Variables, Mapping[str, jax.Array], jax.Array | None], Any]
"""`embed(variables, inputs, key)` gives vectors [N, S] and the collections that changed."""
KINDS = ("ranking", "cosent", "cosine")
SCALE = 20.0
SMALLEST_NORM = 1e-12


class SentencesObjective(Objective):
    """The loss of the vectors of several texts a row.

    A batch holds `input_ids_0`, `attention_mask_0` and so on, [N, L] each: the inputs of the
    row's texts, in their order; perhaps `labels` [N], how alike two texts are; and perhaps
    `weights` [N], 0 for rows that fill up a batch.

    Args:
        embed: makes vectors of one text a row.
        inputs: the names of the inputs that it may take.
        texts: how many texts a row has.
        kind: "ranking": each first text is to find its second one among the second and further
            texts of all rows. "cosent": of any two pairs the one with the higher label is to be
            the more alike. "cosine": the squared difference of cosine and label.
        scale: of the cosines, for the first two kinds.
        axes: names of the parameters' axes, for a layout.
        begin: what the variables of a loaded model become before the first step.

    Raises:
        InputRefused: no such kind, or a number of texts that it does not take.

    Source: Henderson et al. 2017, arXiv:1705.00652; Su 2022 (CoSENT); as MultipleNegativesRanking
    Loss, CoSENTLoss and CosineSimilarityLoss of sentence-transformers 5.
    """

    def __init__(
        self,
        embed: Embed,
        inputs: tuple[str, ...],
        texts: int,
        *,
        kind: str = "ranking",
        scale: float = SCALE,
        axes: Mapping[str, Any] | None = None,
        begin: Callable[[Variables], Variables] = dict,
    ) -> None:
        if kind not in KINDS or texts < 2 or (kind != "ranking" and texts != 2):
            raise InputRefused(
                f"a loss of {kind!a:.100} over {texts} texts; expected one of {', '.join(KINDS)}, "
                "and two texts where they are scored"
            )
        self.embed, self.names, self.texts = embed, inputs, texts
        self.kind, self.scale = kind, scale
        self.axes, self.begin = dict(axes or {}), begin

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return the variables to begin with: those of a loaded model.

        Raises:
            ValueError: there are none.
        """
        if variables is None:
            raise ValueError("sentence vectors are learnt from a loaded model; pass its variables")
        return self.begin(variables)

    def logical_axes(self) -> Mapping[str, Any]:
        """Return the axes that were given."""
        return self.axes

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[Ratio, Aux]:
        """Return the mean over rows, or over the pairs of rows that "cosent" compares at once."""
        vectors, changed = self._vectors(variables, batch, step.key)
        losses, weights = self._losses(vectors, batch)
        total = jnp.sum(jnp.where(weights > 0, weights * losses, 0.0))
        return Ratio(total, jnp.sum(weights)), Aux({}, changed)

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts:
        """Return the losses, and how alike the first two texts of each row are, `cosine` [N]."""
        vectors, _ = self._vectors(variables, batch, None)
        losses, weights = self._losses(vectors, batch)
        cosine = jnp.sum(vectors[0] * vectors[1], axis=1)
        scores = TokenScores(losses.reshape(-1, 1), weights.reshape(-1, 1))
        others = jnp.stack([jnp.sum(vectors[0] * v, axis=1) for v in vectors[1:]], axis=1)
        kept = {"cosine": cosine, "logits": others}
        return scores, Predictions(kept, _rows(batch, vectors[0]))

    def _vectors(
        self, variables: Variables, batch: Mapping[str, jax.Array], key: jax.Array | None
    ) -> tuple[list[jax.Array], dict[str, Any]]:
        """Return the vectors of each text, float32 [N, S] of length 1."""
        found, changed = [], {}
        for number in range(self.texts):
            given = {name: batch.get(f"{name}_{number}") for name in self.names}
            inputs = {name: value for name, value in given.items() if value is not None}
            drawn = None if key is None else jax.random.fold_in(key, number)
            vectors, changed = self.embed({**variables, **changed}, inputs, drawn)
            found.append(_unit(vectors.astype(jnp.float32)))
        return found, dict(changed)

    def _losses(
        self, vectors: list[jax.Array], batch: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        rows = _rows(batch, vectors[0])
        if self.kind == "ranking":
            scores = self.scale * vectors[0] @ jnp.concatenate(vectors[1:]).T
            real = jnp.tile(rows, self.texts - 1)[None, :] > 0
            scores = jnp.where(real, scores, jnp.finfo(scores.dtype).min)
            own = jnp.arange(len(rows))
            return jax.nn.logsumexp(scores, axis=1) - scores[own, own], rows
        cosine = jnp.sum(vectors[0] * vectors[1], axis=1)
        labels = batch["labels"].astype(jnp.float32)
        if self.kind == "cosine":
            return jnp.square(cosine - labels), rows
        higher = (labels[:, None] < labels[None, :]) & (rows[:, None] > 0) & (rows[None, :] > 0)
        gaps = self.scale * (cosine[:, None] - cosine[None, :])
        gaps = jnp.where(higher, gaps, jnp.finfo(gaps.dtype).min)
        # log(1 + sum of exp): one number for the whole batch.
        whole = jax.nn.logsumexp(jnp.append(gaps.reshape(-1), 0.0))
        counted = jnp.sum(rows)
        return jnp.full_like(rows, whole), rows / jnp.maximum(counted, 1.0)


def _rows(batch: Mapping[str, jax.Array], vectors: jax.Array) -> jax.Array:
    """Return the rows' weights, float32 [N]."""
    given = batch.get("weights")
    return jnp.ones(len(vectors)) if given is None else given.astype(jnp.float32)


def _unit(vectors: jax.Array) -> jax.Array:
    squares = jnp.sum(jnp.square(vectors), axis=1, keepdims=True)
    # The root of what is at least the least: its slope at 0 is none.
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, SMALLEST_NORM**2))
