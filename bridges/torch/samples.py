"""What a traced model's preview writes, as `dew.objectives.samples.Samples` asks for it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bridges.torch.checkpoint import TracedBundle
from dew.artifacts import TextSamples, collective_host
from dew.artifacts.coordination import pooled
from dew.errors import InputRefused, shown
from dew.objectives.samples import Samples
from dew.typing import Variables


def check_samples(bundle: TracedBundle, samples: Samples | None) -> None:
    """Refuse samples that the model has no positions for.

    Raises:
        InputRefused: the longest needs more positions than there are.
    """
    limit = bundle.position_limit
    if samples is not None and limit is not None and samples.length > limit:
        raise InputRefused(
            f"the longest of the samples needs {shown(samples.length)} positions and the model "
            f"has {limit}; shorten its prompt or max_new_tokens"
        )


def written_samples(
    bundle: TracedBundle, samples: Samples, variables: Variables, key: jax.Array
) -> tuple[TextSamples, ...] | None:
    """Return `samples.count` rows for each prompt, on the host of process 0; None elsewhere.

    A row holds what was written, without its prompt; after its end stands 0.

    Args:
        bundle: the model.
        samples: the prompts, and how they are continued.
        variables: `params` and `buffers` by torch's names.
        key: of the draws.
    """
    held: Any = variables
    if pooled():
        held = collective_host(variables, phase="samples of a traced model", held_by="first")
        if held is None:
            return None
    width = max(len(prompt) for prompt in samples.prompts)
    ids, mask = np.zeros((2, len(samples.prompts), width), np.int32)
    for row, prompt in enumerate(samples.prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    draws: dict[str, Any] = {}
    if samples.temperature > 0:
        draws = {"temperature": samples.temperature, "top_k": samples.top_k or 0}
        draws |= {"top_p": 1.0 if samples.top_p is None else samples.top_p}
    # Not the checkpoint's own options: the preview says how it writes.
    plain = bundle.replace(variables=held, generation_config={})
    rows = plain.generate(
        np.repeat(ids, samples.count, axis=0),
        np.repeat(mask, samples.count, axis=0),
        max_new_tokens=samples.max_new_tokens,
        do_sample=samples.temperature > 0,
        eos_token_id=list(samples.ends) or None,
        pad_token_id=0,
        seed=int(jax.random.bits(key) >> 1),
        **draws,
    )
    new = rows[:, width:].reshape(len(samples.prompts), samples.count, -1)
    return tuple(
        _shown(samples, prompt, tokens) for prompt, tokens in zip(samples.prompts, new, strict=True)
    )


def _shown(samples: Samples, prompt: Any, tokens: np.ndarray) -> TextSamples:
    if samples.decode is None:
        return TextSamples(tokens)
    ends = np.isin(tokens, list(samples.ends))
    kept = np.cumsum(ends, axis=1) - ends == 0
    rows = [row[real].tolist() for row, real in zip(tokens, kept, strict=True)]
    texts = tuple(samples.decode(row) for row in rows)
    return TextSamples(tokens, samples.decode(list(prompt)), texts)
