"""A model that writes text, as rewards teach it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bridges.finetune.chat_tokens import end_token
from bridges.finetune.data import chosen, most_tokens
from bridges.finetune.learner import Learner, NativeText, learner_of
from dew.cli.command import Settings
from dew.errors import InputRefused


@dataclass(frozen=True)
class NativePolicy(NativeText):
    """A model of a native family that draws completions and learns from their rewards.

    See `Learner`.

    Args:
        longest: tokens of a prompt with its completion, at most.
        new_tokens: T, tokens of a completion, at most.
        options: further ones of `GRPOObjective`.
    """

    longest: int = 2
    new_tokens: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def objective(self, seq_len: int) -> Any:
        """Return group relative policy optimisation of the model's own parameters.

        Args:
            seq_len: predicted positions of a row: its prompt and completion less one token.
        """
        return self._policy(self._model(), seq_len)

    def adapter_objective(self, seq_len: int, asked: Any) -> Any:
        """Return the same over adapters."""
        from dew.objectives.adapted import AdaptedObjective

        lora = self._lora(asked)
        model = self._model().clone(adapter_scale=lora.scale)
        return AdaptedObjective(self._policy(model, seq_len), lora)

    def _policy(self, model: Any, seq_len: int) -> Any:
        from dew.objectives.grpo import GRPOObjective

        prompt = seq_len + 1 - self.new_tokens
        return GRPOObjective(model, prompt, self.new_tokens, **self.options)


def policy_learner(bundle: Any, settings: Settings, *, remat: bool) -> Learner:
    """Return a model as rewards teach it.

    Args:
        bundle: see `learner_of`.
        settings: of `dew finetune`.
        remat: recompute activations in the backward pass.

    Raises:
        InputRefused: a model that writes no text, or a traced one; completions that leave no room
            for a prompt.
    """
    found = learner_of(bundle, remat=remat)
    if not isinstance(found, NativeText):
        raise InputRefused(f"grpo teaches native families; {bundle.family} is traced")
    longest = most_tokens(settings, found)
    new_tokens = _new_tokens(settings, longest)
    return NativePolicy(bundle, remat, longest, new_tokens, _options(settings, bundle))


def _new_tokens(settings: Settings, longest: int) -> int:
    """Return the tokens of a completion: a default that leaves no room for a prompt is cut."""
    new = settings["max_completion_length"]
    if new < longest:
        return new
    if chosen(settings, "max_completion_length"):
        raise InputRefused(
            f"max_completion_length is {new}, but a row has {longest} tokens with its prompt; give "
            f"--max_completion_length {longest - 1} or less, or a larger --max_length"
        )
    print(
        f"max_completion_length: {longest // 2} rather than {new}, to leave room for prompts",
        file=sys.stderr,
    )
    return longest // 2


def _options(settings: Settings, bundle: Any) -> dict[str, Any]:
    """Return the options of the objective."""
    tokenizer = bundle.tokenizer
    ends: tuple[int, ...] = ()
    if tokenizer is not None:
        end = end_token(tokenizer)
        own = () if end is None else (end,)
        ends = tuple(dict.fromkeys((*own, *tokenizer.eos_token_ids)))
    return {
        "group": settings["num_generations"],
        "beta": settings["beta"] or 0.0,
        "correct_kl": settings["use_bias_correction_kl"],
        "epsilon": settings["epsilon"],
        "epsilon_high": settings["epsilon_high"],
        "loss_type": settings["loss_type"],
        "scale_rewards": settings["scale_rewards"],
        "iterations": settings["num_iterations"],
        "temperature": settings["temperature"],
        "top_k": settings["top_k"] or None,
        "top_p": settings["top_p"],
        "ends": ends,
        "pad": 0 if tokenizer is None else tokenizer.pad_token_id or 0,
    }
