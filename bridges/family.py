"""What a family of checkpoints is: its config's meaning and its weight table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bridges.config import Keys
from bridges.table import Row
from dew.errors import InputRefused, UnknownName, nearest, shown

# The only names that are ever imported for a model_type; the config's own text never is.
NATIVE = """
gpt2 gpt_neox opt llama mistral mixtral qwen2 qwen3 qwen3_moe gemma gemma2 gemma3_text phi3 olmo2
smollm3 granite
t5 bart marian
whisper wav2vec2
bert roberta xlm-roberta distilbert mpnet electra modernbert deberta-v2
vit dinov2
clip clip_text_model clip_vision_model siglip siglip_text_model siglip_vision_model
resnet convnext mobilenet_v2
swin segformer
"""
FAMILIES = {name: f"bridges.families.{name.replace('-', '_')}" for name in NATIVE.split()}

# Keys that change neither the forward pass nor the shapes: bookkeeping, training-time dropout,
# and generation defaults that old configs carried (they are read from generation_config.json).
_HARMLESS = """
model_type auto_map architectures dtype torch_dtype transformers_version _name_or_path _commit_hash
name_or_path use_cache bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id
decoder_start_token_id initializer_range gradient_checkpointing return_dict
output_attentions output_hidden_states output_scores return_dict_in_generate torchscript
use_bfloat16 tf_legacy_loss id2label label2id num_labels problem_type task_specific_params
finetuning_task tokenizer_class prefix is_decoder tie_encoder_decoder max_length min_length
do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
typical_p repetition_penalty length_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
begin_suppress_tokens attn_implementation _attn_implementation
_attn_implementation_autoset transformers.js_config unsloth_version unsloth_fixed
base_model_tp_plan base_model_pp_plan
"""
HARMLESS = frozenset(_HARMLESS.split())


class NotNative(InputRefused):
    """A config that its family does not compute natively, although its type has one."""


@dataclass(frozen=True)
class Family:
    """One Hugging Face `model_type`.

    Attributes:
        model_type: its name.
        architectures: the classes whose checkpoints this table reads, the exported one first.
        model: the config's keys to dew's model; refuses what dew does not compute.
        rows: the model to its weight table, by full tensor names.
        base_prefix: what the tensors of the model without head start with, and lack in
            checkpoints of the bare model.
        embedding: the tensor of the token embedding, or another that every checkpoint holds.
        head: the tensor of the language-model head; "" where the table has none that may be tied.
        tied_default: `tie_word_embeddings` where the config does not say.
        heads: for a model with a field `head`, what each architecture puts there; "" is the model
            without a head.
        head_names: regular expressions of the tensors of any of these heads.
        parts: fields of the model that are off where the checkpoint holds no tensor of this
            regular expression, and nobody asked for a head.
        spare: fields of the model that are on exactly where the checkpoint holds a tensor of this
            regular expression, since no output depends on it.
        spellings: regular expressions of names that are as good as the table's, and what the
            table has; an export gives the source's back.
        old_names: regular expressions of names that older checkpoints used, and what they read
            now.
        harmless: config keys, beyond the common ones, that ask for no computation.
        ignored: regular expressions of tensors that hold no weights.
        exported: the config to the keys that an export writes over it, for readers that spell
            them otherwise.
        answers: whether an encoder reads the prompts and a decoder answers.
        conv1d: whether kernels lie as [inputs, outputs], which PEFT calls fan_in_fan_out.
    """

    model_type: str
    architectures: tuple[str, ...]
    model: Callable[[Keys], Any]
    rows: Callable[[Any], tuple[Row, ...]]
    base_prefix: str
    embedding: str
    head: str = ""
    tied_default: bool = False
    heads: Mapping[str, str] = field(default_factory=dict)
    head_names: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    spare: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    old_names: Mapping[str, str] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    exported: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: {}
    conv1d: bool = False
    answers: bool = False


TASK_HEADS = {
    "text-generation": "causal",
    "feature-extraction": "",
    "image-feature-extraction": "",
    "fill-mask": "masked",
    "text-classification": "sequence",
    "token-classification": "token",
    "question-answering": "span",
    "text2text-generation": "causal",
    "image-classification": "image",
    "image-segmentation": "segmentation",
    "automatic-speech-recognition": "speech",
    "zero-shot-image-classification": "towers",
}
"""The pipeline's task to the head that does it, as `Family.heads` spells it."""


def head_of(family: Family, config: Mapping[str, Any], task: str | None) -> str:
    """Return the head to load: the task's, else that of the config's architecture.

    Args:
        family: one with `heads`.
        config: the config, for its `architectures`.
        task: a name of `TASK_HEADS`, or None.

    Raises:
        UnknownName: no such task.
        InputRefused: the family has no head for it.
    """
    if task is None:
        named = config.get("architectures")
        found = [family.heads[name] for name in named or () if name in family.heads]
        if found:
            return found[0]
        return "" if "" in family.heads.values() else next(iter(family.heads.values()))
    if task not in TASK_HEADS:
        raise UnknownName(f"unknown task {shown(task)}{nearest(task, TASK_HEADS)}")
    if TASK_HEADS[task] not in family.heads.values():
        fit = [name for name, head in TASK_HEADS.items() if head in family.heads.values()]
        raise InputRefused(
            f"{family.model_type} has no head for {task}; it is fit for {', '.join(fit)}"
        )
    return TASK_HEADS[task]


def family_of(config: dict[str, Any], where: str = "config.json") -> Family:
    """Return the family that a config names.

    Args:
        config: the config as it was read.
        where: the file, for messages.

    Raises:
        UnknownName: a `model_type` that dew does not read.
        InputRefused: no `model_type`, or one that is no string.
    """
    name = config.get("model_type")
    if not isinstance(name, str):
        known = ", ".join(sorted(FAMILIES))
        raise InputRefused(
            f"{where}: model_type is {shown(name)}; expected the name of a family. Known: {known}"
        )
    if name not in FAMILIES:
        code = (
            " Its auto_map needs remote code, which dew never runs." if "auto_map" in config else ""
        )
        raise UnknownName(
            f"{where}: unknown model_type {shown(name)}{nearest(name, FAMILIES) or '.'}"
            f" Known: {', '.join(sorted(FAMILIES))}.{code}"
        )
    return importlib.import_module(FAMILIES[name]).FAMILY
