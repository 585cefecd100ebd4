"""What transformers' TrainingArguments hold by default, for telling which were set.

Source: `TrainingArguments(output_dir=...).to_dict()` of transformers 5.24, held to it by
tests/test_finetune_training_args.py. Fields that a setting of `dew finetune` stands for are left
out: their value is always taken.
"""

from __future__ import annotations

from typing import Any

# What each group is about, to its fields and their defaults.
GROUPS: dict[str, dict[str, Any]] = {
    "optimizer": {
        "optim_target_modules": None,
        "average_tokens_across_devices": True,
        "label_smoothing_factor": 0.0,
        "neftune_noise_alpha": None,
    },
    "precision and kernels": {
        "bf16_full_eval": False,
        "fp16_full_eval": False,
        "tf32": None,
        "torch_compile": False,
        "torch_compile_backend": None,
        "torch_compile_mode": None,
        "use_liger_kernel": False,
        "liger_kernel_config": None,
        "use_cache": False,
        "activation_checkpointing_kwargs": None,
        "gradient_checkpointing_kwargs": None,
        "torch_empty_cache_steps": None,
        "auto_find_batch_size": False,
        "full_determinism": False,
    },
    "logging": {
        "logging_strategy": "steps",
        "logging_first_step": False,
        "log_on_each_node": True,
        "logging_nan_inf_filter": True,
        "include_num_input_tokens_seen": "no",
        "log_level": "passive",
        "log_level_replica": "warning",
        "project": "huggingface",
        "trackio_space_id": None,
        "trackio_bucket_id": None,
        "trackio_static_space_id": None,
        "debug": [],
        "skip_memory_metrics": True,
    },
    "evaluation": {
        "eval_delay": 0,
        "prediction_loss_only": False,
        "eval_do_concat_batches": True,
        "eval_use_gather_object": False,
        "eval_accumulation_steps": None,
        "include_for_metrics": [],
        "batch_eval_metrics": False,
        "do_train": False,
        "do_eval": False,
        "do_predict": False,
    },
    "saving": {
        "save_only_model": False,
        "save_on_each_node": False,
        "enable_jit_checkpoint": False,
        "ignore_data_skip": False,
        "restore_callback_states_from_checkpoint": False,
    },
    "hub": {
        "push_to_hub": False,
        "hub_token": "<HUB_TOKEN>",
        "hub_private_repo": None,
        "hub_model_id": None,
        "hub_strategy": "every_save",
        "hub_always_push": False,
        "hub_revision": None,
    },
    "data": {
        "data_seed": None,
        "dataloader_drop_last": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": True,
        "dataloader_persistent_workers": False,
        "dataloader_prefetch_factor": None,
        "dataloader_multiprocessing_context": None,
        "dataloader_in_order": True,
        "remove_unused_columns": True,
        "label_names": None,
        "train_sampling_strategy": "random",
        "length_column_name": "length",
    },
    "devices": {
        "accelerator_config": {
            "split_batches": False,
            "dispatch_batches": None,
            "even_batches": True,
            "use_seedable_sampler": True,
            "non_blocking": False,
            "gradient_accumulation_kwargs": None,
        },
        "parallelism_config": None,
        "ddp_find_unused_parameters": None,
        "ddp_bucket_cap_mb": None,
        "ddp_broadcast_buffers": None,
        "ddp_static_graph": None,
        "ddp_backend": None,
        "ddp_timeout": 1800,
        "fsdp": None,
        "fsdp_config": None,
        "deepspeed": None,
        "local_rank": -1,
    },
}
