"""The settings of `--task grpo`, by trl's names."""

from __future__ import annotations

from dew.cli.command import Option

LOSS_TYPES = ("dapo", "grpo", "dr_grpo")
SCALES = ("group", "batch", "none")

POLICY = (
    Option(
        "reward",
        "texts",
        (),
        "grpo: what scores completions: accuracy, think_format, regex, file.py:function, "
        "module:function; several add up",
        ("reward_funcs",),
        section="data",
    ),
    Option(
        "reward_weights",
        "texts",
        (),
        "grpo: what each reward counts, in their order; 1 each if absent",
        section="data",
    ),
    Option(
        "reward_pattern",
        "text",
        None,
        "grpo: the regular expression of the reward regex, from a completion's first letter on",
        section="data",
    ),
    Option(
        "num_generations",
        "integer",
        8,
        "grpo: completions of each prompt; they share a batch",
        low=2,
        section="data",
    ),
    Option(
        "max_completion_length",
        "integer",
        512,
        "grpo: tokens of a completion, at most; max_length less these is left for the prompt",
        low=1,
        section="data",
    ),
    Option(
        "use_bias_correction_kl",
        "switch",
        True,
        "grpo: count the divergence times the probability ratio, so that its gradient has no bias",
        section="data",
    ),
    Option(
        "epsilon",
        "number",
        0.2,
        "grpo: how far below 1 a token's probability ratio still counts",
        low=0,
        high=1,
        section="data",
    ),
    Option(
        "epsilon_high",
        "number",
        None,
        "grpo: and how far above; epsilon if absent",
        low=0,
        section="data",
    ),
    Option(
        "loss_type",
        "text",
        "dapo",
        "grpo: how the losses of tokens add up",
        choices=LOSS_TYPES,
        section="data",
    ),
    Option(
        "scale_rewards",
        "text",
        "group",
        "grpo: whose deviation of rewards divides an advantage",
        choices=SCALES,
        section="data",
    ),
    Option(
        "num_iterations",
        "integer",
        1,
        "grpo: steps that each batch of completions is used for",
        low=1,
        section="data",
    ),
    Option(
        "temperature",
        "number",
        1.0,
        "grpo: divides the logits that completions are drawn from",
        low=1e-6,
        section="data",
    ),
    Option(
        "top_k",
        "integer",
        0,
        "grpo: only so many of the likeliest tokens are drawn; 0 for all",
        low=0,
        section="data",
    ),
    Option(
        "top_p",
        "number",
        1.0,
        "grpo: only the likeliest tokens that hold this probability are drawn",
        low=1e-6,
        high=1,
        section="data",
    ),
)
