"""transformers' names of optimizers and schedules: what `dew finetune` takes, as data alone."""

from __future__ import annotations

# `OptimizerNames` of transformers 5.24 whose arithmetic dew has, to dew's names, and "muon", which
# torch has and transformers names nowhere. Fused, paged and sync-free ones differ in how they are
# run, not in their numbers.
OPTIMS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_torch_xla": "adamw",
    "adamw_torch_npu_fused": "adamw",
    "paged_adamw_32bit": "adamw",
    "adafactor": "adafactor",
    "lion_32bit": "lion",
    "paged_lion_32bit": "lion",
    "muon": "muon",
    "sgd": "sgd",
}

# Those that keep their moments in fewer bits, to the same ones in float32.
NARROW_OPTIMS = {
    "adamw_8bit": "adamw_torch",
    "adamw_bnb_8bit": "adamw_torch",
    "adamw_torch_4bit": "adamw_torch",
    "adamw_torch_8bit": "adamw_torch",
    "paged_adamw_8bit": "adamw_torch",
    "lion_8bit": "lion_32bit",
    "paged_lion_8bit": "lion_32bit",
}

# `SchedulerType` of transformers 5.24 but for the two that follow a metric.
SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
)
