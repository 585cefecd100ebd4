"""The settings of `dew finetune`: Hugging Face's names, and their defaults where they apply."""

from __future__ import annotations

from bridges.finetune.adapter_options import ADAPTER
from bridges.finetune.optimizer_names import OPTIMS, SCHEDULES
from bridges.finetune.policy_options import POLICY
from bridges.finetune.task_names import TASKS
from bridges.finetune.task_options import TASK_OPTIONS
from dew.cli.command import Former, Option, Settings

SOURCE_KEYS = ("path", "name", "data_files", "split", "columns", "fraction")
"""Those of `bridges.data.mixtures`, which is too heavy for a list of options."""

MODEL = (
    Option(
        "model_name_or_path",
        "text",
        None,
        "a folder, a .gguf or .safetensors file, or a hub id",
        ("model",),
        positional=True,
        required=True,
        section="model",
    ),
    Option("model_revision", "text", "main", "branch, tag or commit on the hub", section="model"),
    Option(
        "dtype",
        "text",
        "float32",
        "what activations are computed in; parameters and moments stay float32",
        ("torch_dtype",),
        choices=("float32", "bfloat16", "float16"),
        section="model",
    ),
    Option(
        "activation_checkpointing",
        "switch",
        False,
        "recompute each layer in the backward pass: less memory, more time",
        ("gradient_checkpointing",),
        section="model",
    ),
    Option(
        "dropout",
        "number",
        None,
        "what is zeroed while training, wherever the model has dropout; as its config says if "
        "absent, 0 for nothing",
        low=0,
        high=0.99,
        section="model",
    ),
    Option(
        "batch_norm",
        "text",
        "fixed",
        "of networks that have it: the checkpoint's own statistics, or each batch's, which the "
        "running ones follow as under torch's train()",
        choices=("fixed", "batch"),
        section="model",
    ),
    Option(
        "mesh",
        "text",
        "",
        "how devices are shared out, as in fsdp=4,tensor=2; data parallelism takes the rest",
        section="model",
    ),
)

TASK = Option(
    "task",
    "text",
    None,
    "what is taught; guessed from the checkpoint where it is plain",
    choices=tuple(TASKS),
    section="data",
)
DATA = (
    Option(
        "dataset_name",
        "text",
        None,
        "a file (text, CSV, JSON lines, parquet, arrow), a folder of them, or a hub id",
        ("data",),
        required=True,
        section="data",
    ),
    Option(
        "datasets",
        "parts",
        (),
        "several sources in place of dataset_name, one after another",
        choices=SOURCE_KEYS,
        implies={"dataset_name": ""},
        section="data",
    ),
    TASK,
    Option(
        "text_column_names",
        "texts",
        (),
        "the columns with the text, or with the two texts of a pair; usual names are found",
        ("text_column_name",),
        section="data",
    ),
    Option(
        "label_column_name",
        "text",
        None,
        "the column with the labels; usual names are found",
        section="data",
    ),
    Option("dataset_train_split", "text", "train", "the split that is trained on", section="data"),
    Option(
        "dataset_test_split", "text", "test", "the split of eval_data that is used", section="data"
    ),
    Option(
        "dataset_text_field",
        "text",
        "text",
        "the field that holds a row's text",
        ("text_field",),
        section="data",
    ),
    Option(
        "dataset_streaming",
        "switch",
        False,
        "causal-lm: read, tokenize and pack while training; needs max_steps",
        section="data",
    ),
    Option(
        "shuffle_buffer_size",
        "integer",
        1000,
        "documents that are shuffled together where they are streamed",
        low=1,
        section="data",
    ),
    Option("max_length", "integer", 1024, "tokens a row", low=2, section="data"),
    Option(
        "packing",
        "switch",
        True,
        "put several documents into one row, no attention and no loss across them",
        section="data",
    ),
    Option("eval_data", "text", None, "held-out data, read as the training data", section="data"),
    Option(
        "eval_split",
        "number",
        None,
        "share of the documents held out for evaluation",
        low=0,
        high=0.9,
        section="data",
    ),
    *TASK_OPTIONS,
    *POLICY,
)

TRAINING = (
    Option(
        "max_steps",
        "integer",
        -1,
        "optimizer updates in all; -1 leaves it to num_train_epochs",
        ("steps",),
        low=-1,
        section="training",
    ),
    Option("num_train_epochs", "number", 3.0, "passes over the data", low=0, section="training"),
    Option("per_device_train_batch_size", "integer", 8, "rows a device", low=1, section="training"),
    Option("per_device_eval_batch_size", "integer", 8, "rows a device", low=1, section="training"),
    Option(
        "gradient_accumulation_steps",
        "integer",
        1,
        "batches an update; gradients are weighed by their tokens",
        low=1,
        section="training",
    ),
    Option("seed", "integer", 42, "of order, noise and adapter", low=0, section="training"),
)

OPTIMIZER = (
    Option(
        "learning_rate",
        "number",
        2e-5,
        "the highest rate; LoRA usually wants ten times the default",
        ("lr",),
        low=0,
        section="optimizer",
    ),
    Option(
        "lr_scheduler_type",
        "text",
        "linear",
        "how the rate falls",
        choices=SCHEDULES,
        section="optimizer",
    ),
    Option(
        "lr_scheduler_kwargs",
        "pairs",
        (),
        'its arguments: min_lr=1e-6, or {"min_lr": 1e-6} as transformers takes them',
        section="optimizer",
    ),
    Option(
        "warmup_steps",
        "number",
        0,
        "updates of rising rate; below 1 a share of all updates",
        low=0,
        section="optimizer",
    ),
    Option(
        "optim",
        "text",
        "adamw_torch",
        "what moves the weights",
        choices=tuple(OPTIMS),
        section="optimizer",
    ),
    Option(
        "optim_args",
        "pairs",
        (),
        "its further arguments by torch's names: momentum=0.9,nesterov=true",
        section="optimizer",
    ),
    Option(
        "layer_decay",
        "number",
        1.0,
        "each layer's rate over that of the one above it; 1 is the same rate for all",
        low=1e-6,
        high=1,
        section="optimizer",
    ),
    Option(
        "weight_decay",
        "number",
        0.0,
        "the optimizer's decay; none on biases and norms",
        low=0,
        section="optimizer",
    ),
    Option(
        "adam_beta1", "number", 0.9, "decay of the mean", low=0, high=0.9999999, section="optimizer"
    ),
    Option(
        "adam_beta2",
        "number",
        0.999,
        "decay of the square",
        low=0,
        high=0.9999999,
        section="optimizer",
    ),
    Option("adam_epsilon", "number", 1e-8, "added to the root", low=0, section="optimizer"),
    Option(
        "max_grad_norm",
        "number",
        1.0,
        "gradients are scaled down to this norm; 0 leaves them",
        low=0,
        section="optimizer",
    ),
)

EVAL_BATCH = next(option for option in TRAINING if option.name == "per_device_eval_batch_size")
TRAINED_WITH = ("activation_checkpointing", "dropout", "batch_norm", "mesh")
EVAL_MODEL = tuple(option for option in MODEL if option.name not in TRAINED_WITH)

OUTPUT = (
    Option(
        "output_dir",
        "text",
        None,
        "becomes a Hugging Face folder, checkpoint-N folders inside",
        ("output",),
        section="output",
    ),
    Option(
        "run_name", "text", None, "defaults to the folder's name", pathless=True, section="output"
    ),
    Option("logging_steps", "integer", 10, "updates between lines", low=1, section="output"),
    Option(
        "eval_strategy",
        "text",
        "no",
        "when to evaluate; at the end in any case, if there is held-out data",
        choices=("no", "steps", "epoch"),
        section="output",
    ),
    Option(
        "eval_steps",
        "integer",
        None,
        "updates between; logging_steps if absent",
        low=1,
        section="output",
    ),
    Option(
        "eval_on_start", "switch", False, "evaluate before the first step too", section="output"
    ),
    Option(
        "save_strategy",
        "text",
        "steps",
        "when to save",
        choices=("no", "steps", "epoch"),
        section="output",
    ),
    Option("save_steps", "integer", 500, "updates between checkpoints", low=1, section="output"),
    Option("save_total_limit", "integer", None, "checkpoints to keep", low=1, section="output"),
    Option(
        "resume_from_checkpoint",
        "text",
        None,
        "true, or a checkpoint of this folder; without it the newest one is taken all the same",
        section="output",
    ),
    Option(
        "load_best_model_at_end",
        "switch",
        False,
        "what is exported is the checkpoint of the best evaluation, not the last",
        section="output",
    ),
    Option(
        "metric_for_best_model",
        "text",
        None,
        "the score that says which evaluation is best, such as accuracy; the loss if absent",
        section="output",
    ),
    Option(
        "greater_is_better",
        "switch",
        None,
        "whether more of it is better; told by its name if absent",
        section="output",
    ),
    Option(
        "early_stopping_patience",
        "integer",
        None,
        "evaluations without a better one before the run stops; never if absent",
        low=1,
        section="output",
    ),
    Option(
        "early_stopping_threshold",
        "number",
        0.0,
        "by how much an evaluation must be better to count",
        low=0,
        section="output",
    ),
    Option(
        "report_samples",
        "integer",
        3,
        "held-out rows that report.html shows before and after; 0 for none",
        low=0,
        section="output",
    ),
    Option(
        "report_to",
        "text",
        "none",
        "where curves go beside log.jsonl: files in output_dir, which these tools show",
        choices=("none", "tensorboard", "wandb", "mlflow"),
        section="output",
    ),
    Option(
        "log_format", "text", "text", "of the lines", choices=("text", "json"), section="output"
    ),
    Option(
        "quiet", "switch", False, "no lines while training", ("disable_tqdm",), section="output"
    ),
    Option("use_cpu", "switch", False, "leave accelerators alone", section="general"),
    Option(
        "certify",
        "switch",
        True,
        "where torch is there, compare the result with transformers and write parity.json",
        section="output",
    ),
    Option(
        "dry_run",
        "switch",
        False,
        "compile from shapes alone, print them and the memory they take, and stop",
        section="general",
    ),
    Option(
        "memory_limit",
        "integer",
        None,
        "bytes that a device may hold, for --dry-run, as in 8G; what the device says if absent",
        low=1,
        section="general",
    ),
)

TRAINING_ARGS = Option(
    "training_args",
    "text",
    None,
    "a JSON file of transformers' TrainingArguments; flags and --config win",
    ("from_training_args",),
    section="general",
)

OPTIONS = (*MODEL, *DATA, *TRAINING, *OPTIMIZER, *ADAPTER, *OUTPUT, TRAINING_ARGS)

FORMERS = (
    Former("warmup_ratio", "warmup_steps", "is now warmup_steps, where a value below 1 is a share"),
    Former("evaluation_strategy", "eval_strategy", "is now eval_strategy"),
    Former("no_cuda", "use_cpu", "is now use_cpu"),
    Former(
        "overwrite_output_dir",
        None,
        "has no effect; choose a new output_dir, a known one goes on where it stopped",
    ),
    Former(
        "max_prompt_length",
        None,
        "has no effect; a prompt may have max_length less max_completion_length, and longer ones "
        "are left out",
    ),
    Former("logging_dir", None, "has no effect; log.jsonl lies in output_dir"),
    Former("save_safetensors", None, "has no effect; safetensors is the only format written"),
)

# What may differ between two calls on one folder without making it another run.
FREE = frozenset(
    {
        *("output_dir", "run_name", "logging_steps", "save_strategy", "save_steps"),
        *("save_total_limit", "resume_from_checkpoint", "report_to", "report_samples"),
        *("log_format", "quiet"),
        *(
            "use_cpu",
            "dry_run",
            "memory_limit",
            "certify",
            "eval_on_start",
            "max_steps",
            "num_train_epochs",
            "eval_strategy",
            "eval_steps",
        ),
        *("per_device_eval_batch_size", "activation_checkpointing"),
    }
)


def settings_yaml(settings: Settings) -> str:
    """Return the settings as the YAML that `--config` reads; what is unset is left out."""
    import yaml

    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in settings.values.items()
        if value is not None and name not in ("dry_run", "resume_from_checkpoint")
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
