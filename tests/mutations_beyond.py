"""Faults of training, decoding, tokens and metrics: CASES E and H to K. Few are in a layer."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from mutations import Change, Fault, patched, with_processor

from parity.subject import Subject


def forgets_masses(right: Any) -> Any:
    """Return `Ratio.of` that makes each microbatch weigh the same: means of means."""

    def wrong(loss: Any) -> Any:
        ratio = right(loss)
        return type(ratio)(ratio.value, jnp.ones_like(ratio.mass))

    return wrong


def late(right: Any) -> Any:
    """Return `learning_rate` that is an update behind."""

    def wrong(*args: Any, **kw: Any) -> Any:
        rate = right(*args, **kw)
        return lambda update: rate(jnp.maximum(update - 1, 0))

    return wrong


def bare_vector(right: Any) -> Any:
    """Return weight decay that leaves nothing out."""
    return lambda decay, mask=None: right(decay)


def across_documents(right: Any) -> Any:
    """Return `causal_mask` that sees from one document into the next."""
    return lambda mask, segments: right(None if segments is None else segments != 0, None)


def half_tied(subject: Subject) -> Any:
    """Give a tied head whose gradient does not reach the embedding."""
    import dataclasses

    model = subject.bundle.model

    class Detached(type(model)):
        def head_table(self) -> jax.Array:
            return jax.lax.stop_gradient(self.embed())

    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    kept = {key: value for key, value in fields.items() if key not in ("parent", "name")}
    bundle = subject.bundle.replace(model=Detached(**kept))
    return nullcontext(dataclasses.replace(subject, bundle=bundle))


def equal_batches(right: Any) -> Any:
    """Return a perplexity's sums that weigh each batch the same."""

    def wrong(self: Any, scores: Any, batch: Any) -> Any:
        found = right(self, scores, batch)
        return type(found)(found.nats / found.tokens, 1.0)

    return wrong


def counted_padding(right: Any) -> Any:
    """Return `counted` that scores padding and ends of documents too."""

    def wrong(scores: Any) -> Any:
        _, weights = right(scores)
        return np.asarray(scores.losses, np.float64), np.ones_like(weights)

    return wrong


def ids(change: Any) -> Change:
    """Change what the tokenizer makes of a text with its special tokens."""

    def made(processor: Any) -> Any:
        class Wrong:
            def __getattr__(self, name: str) -> Any:
                return getattr(processor, name)

            def encode_batch(self, texts: Any, *, add_special_tokens: bool = True) -> Any:
                found = processor.encode_batch(texts, add_special_tokens=add_special_tokens)
                return [change(row) if add_special_tokens else row for row in found]

        return Wrong()

    return with_processor(made)


LOSS, CURVE, DRAWN = ("loss and gradient",), ("loss curve",), ("sampled",)
STATISTICS = "dew.evaluation.moments.Moments.covariance"

BEYOND = (
    Fault(
        "microbatches weigh the same",
        "unweighted average",
        "llama",
        patched("dew.objectives.base.Ratio.of", forgets_masses),
        checks=CURVE,
    ),
    Fault(
        "batches of a perplexity weigh the same",
        "unweighted average",
        "llama",
        patched("dew.evaluation.perplexity.Perplexity.__call__", equal_batches),
        checks=("perplexity",),
    ),
    Fault(
        "padding scored",
        "counted padding",
        "llama",
        patched("dew.evaluation.perplexity.counted", counted_padding),
        checks=("perplexity",),
    ),
    Fault(
        "rates an update late",
        "schedule",
        "llama",
        patched("dew.training.schedules.learning_rate", late),
        checks=CURVE,
    ),
    Fault(
        "biases and norms decay",
        "weight decay",
        "gpt2",
        patched("optax.add_decayed_weights", bare_vector),
        checks=CURVE,
    ),
    Fault(
        "gradients not clipped",
        "clipping",
        "llama",
        patched("dew.training.optimizers.clip_as_torch", lambda right: lambda _: optax.identity()),
        checks=CURVE,
    ),
    Fault(
        "moments not corrected",
        "optimizer",
        "gpt2",
        patched("dew.training.adam._correction", lambda right: lambda *_: jnp.ones(())),
        checks=("update",),
    ),
    Fault(
        "documents see each other",
        "packing",
        "llama",
        patched("dew.nn.backbones.causal_transformer.causal_mask", across_documents),
        checks=LOSS,
    ),
    Fault(
        "tied head's gradient lost",
        "tied head",
        "llama tied",
        half_tied,
        place="embed_tokens",
        checks=LOSS,
    ),
    Fault(
        "alpha for alpha / rank",
        "adapter scale",
        "llama",
        patched("dew.nn.lora.LoRA.scale_of", lambda right: lambda self, rank, alpha: alpha),
        checks=("adapters",),
    ),
    Fault(
        "temperature left out",
        "drawing",
        "llama",
        patched("dew.sampling.text.scale_temperature", lambda right: lambda logits, _: logits),
        checks=DRAWN,
    ),
    Fault(
        "top-p keeps one fewer",
        "drawing",
        "llama",
        patched(
            "dew.sampling.text._nucleus_removes",
            lambda right: (
                lambda rising, p: jnp.roll(right(rising, p), 1, -1).at[..., -1].set(False)
            ),
        ),
        checks=DRAWN,
    ),
    Fault("no BOS", "BOS", "llama spoken", ids(lambda row: row[1:]), checks=("tokenizer",)),
    Fault(
        "BOS twice", "BOS", "llama spoken", ids(lambda row: row[:1] + row), checks=("tokenizer",)
    ),
    Fault(
        "PSNR of the mean error",
        "unweighted average",
        "",
        patched("dew.evaluation.image_quality.SignalToNoise", lambda right: pooled()),
        checks=("psnr",),
    ),
    Fault(
        "SSIM's borders left out",
        "picture windows",
        "",
        patched(
            "dew.evaluation.image_quality.StructuralSimilarity",
            lambda right: lambda *_: right("valid"),
        ),
        checks=("ssim",),
    ),
    Fault(
        "covariance over N",
        "covariance",
        "",
        patched(STATISTICS, lambda right: lambda self: right(self) * (1 - 1 / self.count)),
        checks=("fid",),
    ),
)
"""What fails elsewhere than in a layer."""


def pooled() -> Any:
    """Return the metric that takes the logarithm last."""
    from dew.evaluation.image_quality import PooledSignalToNoise

    return PooledSignalToNoise
