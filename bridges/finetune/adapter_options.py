"""The settings of `dew finetune` that make an adapter, by peft's names."""

from __future__ import annotations

from dew.cli.command import Option

_LORA = {"use_peft": True}
ADAPTER = (
    Option("use_peft", "switch", False, "train a LoRA adapter, not the weights", section="adapter"),
    Option(
        "lora_r", "integer", 16, "rank", ("lora_rank",), low=1, implies=_LORA, section="adapter"
    ),
    Option(
        "lora_alpha",
        "number",
        32,
        "the adapter is scaled by alpha / rank",
        low=0,
        implies=_LORA,
        section="adapter",
    ),
    Option(
        "lora_dropout",
        "number",
        0.05,
        "share of a map's inputs that the adapter does not see in a step",
        low=0,
        high=0.99,
        implies=_LORA,
        section="adapter",
    ),
    Option(
        "lora_target_modules",
        "texts",
        (),
        "module names, or one regular expression; empty takes every linear map of the layers",
        implies=_LORA,
        section="adapter",
    ),
    Option(
        "lora_modules_to_save",
        "texts",
        (),
        "modules that are trained whole beside the adapter",
        implies=_LORA,
        section="adapter",
    ),
    Option(
        "use_rslora",
        "switch",
        False,
        "scale the adapter by alpha / sqrt(rank)",
        implies=_LORA,
        section="adapter",
    ),
    Option(
        "use_dora",
        "switch",
        False,
        "train each output's magnitude too (weight-decomposed)",
        implies=_LORA,
        section="adapter",
    ),
    Option(
        "load_in_8bit",
        "switch",
        False,
        "store the frozen base's linear maps in int8; native models only",
        implies=_LORA,
        section="adapter",
    ),
    Option(
        "load_in_4bit",
        "switch",
        False,
        "store them in nf4, as QLoRA does",
        implies=_LORA,
        section="adapter",
    ),
)
