"""`causal-lm`: the next token of plain text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bridges.finetune.data import open_data, row_length
from bridges.finetune.learner import Learner, learner_of
from bridges.finetune.samples import Sample, written_samples
from bridges.finetune.task import Task
from bridges.finetune.tokens import row_targets
from dew.cli.command import Settings


class CausalLM(Task):
    """Next-token prediction; see `Task`."""

    name = "causal-lm"
    pipeline = "text-generation"

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model as it writes text."""
        return learner_of(bundle, remat=remat)

    def data(
        self, settings: Settings, learner: Learner, examples: Any, *, rows: int, eval_rows: int
    ) -> Any:
        """Return the `TextDataset` of the settings."""
        return open_data(settings, learner, seq_len=row_length(settings, learner), rows=rows)

    def batches(self, rows: Any, *, batch: int) -> Any:
        """Return a pass over token rows."""
        from dew.data import finite_batches

        return finite_batches(rows, batch=batch)

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the perplexity."""
        from dew import metrics

        return (metrics.perplexity(),)

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return `text` and `segments` of full rows."""
        import jax
        import jax.numpy as jnp

        field = jax.ShapeDtypeStruct((rows, row_length(settings, learner) + 1), jnp.int32)
        return {"text": field, "segments": field}

    def results(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Return the perplexity, and eval_loss in nats a token."""
        found = super().results(scores)
        perplexity = found["eval_perplexity"]
        loss = math.log(perplexity) if isinstance(perplexity, float) else perplexity
        return {"eval_loss": loss, **found}

    def scored_as(self, name: str) -> str:
        """Return the perplexity, which rises and falls with the loss."""
        return "perplexity" if name == "loss" else name

    def headline(self, results: Mapping[str, float]) -> str:
        """Return the perplexity."""
        return "eval_perplexity"

    def samples(self, before: Any, after: Any, data: Any, *, count: int) -> Sequence[Sample]:
        """Return how two models go on with the beginnings of rows."""
        if before.tokenizer is None:
            return ()
        rows = getattr(data, "rows", ())  # a stream has none to choose from
        held = getattr(data, "eval_rows", None)
        rows = rows if held is None else held
        return written_samples(before, after, rows, count=count)

    def row_tokens(self, rows: Any) -> Any:
        """Return how many targets each row holds."""
        return row_targets(rows)

    def usage(self, adapter: bool) -> str:
        """Return a call that continues a text."""
        return '("Once upon a time")'
