"""Tiny random text encoders, as transformers writes them and as both sides run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridges
from bridges.family import family_of
from bridges.table import out_of_tree
from parity import random_models, reference

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
MODERN = {
    **SIZES,
    "num_hidden_layers": 3,
    "local_attention": 6,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "cls_token_id": 0,
    "sep_token_id": 2,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SIZES),
    "roberta": ("Roberta", {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "xlm-roberta": ("XLMRoberta", {**SIZES, "type_vocab_size": 1}),
    "distilbert": (
        "DistilBert",
        {
            "vocab_size": 99,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 40,
        },
    ),
    "mpnet": ("MPNet", SIZES),
    "electra": ("Electra", {**SIZES, "embedding_size": 24, "hidden_act": "gelu_new"}),
    "modernbert": ("ModernBert", {**MODERN, "classifier_pooling": "mean"}),
    "modernbert biased": (
        "ModernBert",
        {
            **MODERN,
            "norm_bias": True,
            "mlp_bias": True,
            "attention_bias": True,
            "classifier_bias": True,
            "decoder_bias": False,
        },
    ),
    "deberta-v2": (
        "DebertaV2",
        {
            **SIZES,
            "relative_attention": True,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "position_biased_input": False,
        },
    ),
    "deberta-v2 split": (
        "DebertaV2",
        {
            **SIZES,
            "relative_attention": True,
            "max_relative_positions": 5,
            "pos_att_type": ["p2c", "c2p"],
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "embedding_size": 24,
            "type_vocab_size": 2,
        },
    ),
    "deberta-v2 plain": ("DebertaV2", {**SIZES, "pos_att_type": ["c2p"]}),
}
HEADS = {
    "": "Model",
    "masked": "ForMaskedLM",
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "detection": "ForPreTraining",
}
FAST = {
    "bert": "sequence",
    "roberta": "masked",
    "xlm-roberta": "span",
    "distilbert": "sequence",
    "mpnet": "",
    "electra": "masked",
    "modernbert": "masked",
    "deberta-v2": "token",
}
"""Each family with one head; all the others are slow tests."""
DIFFERENTIATED = ("bert", "mpnet", "modernbert", "deberta-v2")
"""The families whose gradients are no slow tests: the others' layers are BERT's."""
CASES = [
    (family, head)
    for family in FAMILIES
    for head in HEADS
    if head != "detection" or family == "electra"
]
PADDING = 1
"""What roberta, mpnet and modernbert pad with; nothing may depend on it in the others."""


def each_case(fast: Any = tuple(FAST)) -> Any:
    """Return the parameters of a test over families and heads, slow but for those of `fast`."""
    quick = [(family, FAST[family]) for family in fast]
    slow = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in quick]
    return pytest.mark.parametrize(("family", "head"), [*quick, *slow])


@dataclass(frozen=True)
class Pair:
    """One checkpoint: its folder, as dew loads it, and as transformers does."""

    folder: Path
    bundle: Any
    checkpoint: reference.Checkpoint
    compiled: bool

    @cached_property
    def differentiated(self) -> tuple[Any, dict[str, Any]]:
        """The gradient, as dew's tree, of what `torch_gradients` sums; and the outputs."""

        def total(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            outputs = self.bundle.apply({"params": params}, **batch())
            ways = directions(outputs)
            parts = [jnp.sum(outputs[name] * ways[name].astype(np.float32)) for name in ways]
            return sum(parts, jnp.zeros(())), outputs

        return jax.jit(jax.grad(total, has_aux=True))(self.bundle.variables["params"])

    @cached_property
    def outputs(self) -> dict[str, Any]:
        """The outputs of `batch`: of the gradient's run where there is one, to compile less."""
        return self.differentiated[1] if self.compiled else self.bundle(**batch())


def pairs_in(root: Path) -> Callable[[str, str], Pair]:
    """Return what makes the pair of a family and a head, in a folder of `root`, when first asked.

    A run that compares gradients too is compiled with them.
    """
    pytest.importorskip("torch").set_num_threads(1)

    @cache
    def made(family: str, head: str) -> Pair:
        folder = root / f"{family} {head}".replace(" ", "-")
        save_random(family, head, folder)
        bundle = bridges.load(folder, strict=True, traced="never")
        checkpoint = reference.Checkpoint(folder, own_class=True)
        return Pair(folder, bundle, checkpoint, compiled=family in DIFFERENTIATED)

    return made


def save_random(family: str, head: str, folder: Path, **more: Any) -> Path:
    """Write a model of transformers whose every tensor is random, biases and scales too."""
    import torch
    import transformers

    name, config = FAMILIES[family]
    labels = 2 if head == "span" else 3
    made = transformers.AutoConfig.for_model(
        family.split()[0], **{**config, "num_labels": labels, **more}
    )
    with reference.quiet():
        model = getattr(transformers, name + HEADS[head])(made)
    generator = np.random.default_rng(len(family) + 7 * len(head))
    with torch.no_grad():
        for tensor_name, tensor in sorted(model.named_parameters()):
            drawn = random_models.drawn(tensor_name, tuple(tensor.shape), generator)
            tensor.copy_(torch.tensor(drawn))
    with reference.quiet():
        model.save_pretrained(folder)
    return folder


def batch(length: int = 16) -> dict[str, np.ndarray]:
    """Return three rows of ids, the last two with padding on the right."""
    ids = np.random.default_rng(3).integers(3, 99, (3, length)).astype(np.int64)
    mask = np.ones_like(ids)
    mask[1, length - 3 :] = 0
    mask[2, length // 2 :] = 0
    return {"input_ids": np.where(mask == 1, ids, PADDING), "attention_mask": mask}


def directions(outputs: Any) -> dict[str, np.ndarray]:
    """Return an array like each output, random and 0 at padding."""
    generator = np.random.default_rng(5)
    real = batch()["attention_mask"]
    found = {}
    for name in sorted(outputs):
        shape = tuple(outputs[name].shape)
        drawn = generator.standard_normal(shape)
        if shape[:2] == real.shape:
            drawn = drawn * real.reshape(*real.shape, *(1 for _ in shape[2:]))
        found[name] = drawn
    return found


def torch_outputs(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    import torch

    with reference.precision_of(model):
        found = model(**{name: torch.tensor(value) for name, value in inputs.items()})
    return {name: value for name, value in found.items() if value.ndim and name != "hidden_states"}


def real_outputs(outputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the outputs at real tokens."""
    real = batch()["attention_mask"]
    host = {name: np.asarray(value) for name, value in outputs.items()}
    return {
        name: value[real != 0] if value.shape[:2] == real.shape else value
        for name, value in host.items()
    }


def torch_gradients(model: Any) -> dict[str, np.ndarray]:
    """Return by name the gradient of the outputs' sum along fixed random directions."""
    import torch

    model.zero_grad(set_to_none=True)
    with reference.precision_of(model):
        outputs = torch_outputs(model, batch())
        total: Any = 0.0
        for name, direction in directions(outputs).items():
            total = total + (outputs[name] * torch.tensor(direction).to(outputs[name].dtype)).sum()
        total.backward()
    found = {
        name: tensor.grad.numpy().copy()
        for name, tensor in by_first_name(model).items()
        if tensor.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return found


def by_first_name(model: Any) -> dict[str, Any]:
    """Return the parameters, tied ones by the name of what they are tied to."""
    tied = getattr(model, "_tied_weights_keys", None) or {}
    return {tied.get(name, name): tensor for name, tensor in model.named_parameters()}


def by_torch_name(bundle: Any, params: Any) -> dict[str, np.ndarray]:
    """Return leaves by the names that the source gave its tensors."""
    family = family_of(bundle.config)
    named = dict(out_of_tree(family.rows(bundle.model), params))
    if not bundle.stored.bare:
        return named
    return {name.removeprefix(family.base_prefix): value for name, value in named.items()}
