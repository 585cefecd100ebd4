"""What torch's `train()` changes in a model, and dew where it trains one: dropout, batch norms.

Every place and rate of dropout is held to transformers' classes with the draws taken out: both
sides keep every value and scale it by what a kept value is scaled by, 1 / (1 - rate), a different
rate for each key of the config.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import text_encoders
from helpers import write_llama

import bridges
from bridges.finetune.outputs_learner import learnt_outputs
from bridges.training_mode import dropout_lines, with_batch_statistics, with_dropout
from dew.errors import InputRefused
from dew.nn.convolution import FOLLOWED, BatchNorm
from dew.nn.dropout import NO_DROPOUT, streams
from dew.objectives.base import Aux, Objective
from dew.training.state import first_state
from dew.training.step import microstep
from parity import random_models, reference
from parity.rounding import deviations, judged

pytestmark = pytest.mark.torch
BERT = {"hidden_dropout_prob": 0.125, "attention_probs_dropout_prob": 0.25}
LABELLED = {**BERT, "classifier_dropout": 0.375}
DISTIL = {"dropout": 0.125, "attention_dropout": 0.25, "seq_classif_dropout": 0.375}
MODERN = {
    "embedding_dropout": 0.125,
    "attention_dropout": 0.25,
    "mlp_dropout": 0.375,
    "classifier_dropout": 0.5,
}
DEBERTA = {**BERT, "pooler_dropout": 0.375, "cls_dropout": 0.5}
ENCODERS = [
    ("bert", "sequence", LABELLED),
    ("bert", "token", LABELLED),
    ("bert", "span", LABELLED),
    ("roberta", "sequence", LABELLED),
    ("xlm-roberta", "token", LABELLED),
    ("electra", "sequence", LABELLED),
    ("electra", "detection", LABELLED),
    ("mpnet", "sequence", BERT),
    ("distilbert", "sequence", DISTIL),
    ("distilbert", "span", {**DISTIL, "qa_dropout": 0.5}),
    ("modernbert", "token", MODERN),
    ("deberta-v2", "sequence", DEBERTA),
    ("deberta-v2 split", "token", DEBERTA),
]
DEFAULTED = ("bert", "distilbert", "deberta-v2", "gpt2", "opt", "llama")
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
LLAMA = {**TINY, "intermediate_size": 48, "num_key_value_heads": 2, "attention_dropout": 0.25}
DECODERS = {
    "gpt2": {
        "vocab_size": 99,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "resid_pdrop": 0.125,
        "embd_pdrop": 0.25,
        "attn_pdrop": 0.375,
    },
    "gpt_neox": {
        **TINY,
        "intermediate_size": 48,
        "hidden_dropout": 0.125,
        "attention_dropout": 0.25,
    },
    "opt": {
        **TINY,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
        "dropout": 0.125,
        "attention_dropout": 0.25,
    },
    "phi3": {**LLAMA, "resid_pdrop": 0.125, "pad_token_id": 0},
    "llama": LLAMA,
    "gemma": {**LLAMA, "head_dim": 8},
}
WRITERS = {
    "t5": {
        "vocab_size": 99,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "dropout_rate": 0.125,
        "architectures": ["T5ForConditionalGeneration"],
    },
    "bart": {
        "vocab_size": 99,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "dropout": 0.125,
        "attention_dropout": 0.25,
        "activation_dropout": 0.375,
        "architectures": ["BartForConditionalGeneration"],
    },
}
FAST = (("bert", "sequence"), ("modernbert", "token"))


def quick(case: Any) -> Any:
    return case if case[:2] in FAST else pytest.param(*case, marks=pytest.mark.slow)


@pytest.fixture
def nothing_drawn(monkeypatch):
    """Keep every value on both sides, scaled as a kept one is."""
    import torch

    def scaled(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return x / (1 - p) if training else x

    def highest(key: Any, shape: Any, dtype: Any) -> jax.Array:
        return jnp.full(shape, 2**32 - 1, dtype)

    monkeypatch.setattr(torch.nn.functional, "dropout", scaled)
    monkeypatch.setattr(jax.random, "bits", highest)


def assert_places(folder: Path, inputs: dict[str, np.ndarray]) -> None:
    """Hold a model that trains to transformers' in `train()`; float32 against float32."""
    import torch

    plain = bridges.load(folder, traced="never")
    bundle = with_dropout(plain)
    assert bundle.model.dropout != NO_DROPOUT
    rngs = streams(bundle.model, jax.random.key(0))
    found: Any = jax.jit(
        lambda variables: bundle.model.apply(variables, **inputs, method="outputs", rngs=rngs)
    )(bundle.variables)
    model = reference.Checkpoint(folder, own_class=True).fresh_model(reference.SINGLE)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = model.train()(**{name: torch.tensor(part) for name, part in inputs.items()})
    assert found
    for name, ours in found.items():
        expected = theirs[name].numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(ours, expected, atol=2e-5 * scale, err_msg=name)
        assert np.abs(np.asarray(plain(**inputs)[name]) - expected).max() > 1e-2 * scale


@pytest.mark.parametrize(("family", "head", "rates"), [quick(case) for case in ENCODERS])
def test_an_encoders_dropout_stands_where_transformers_has_it(
    family, head, rates, tmp_path, nothing_drawn
):
    folder = text_encoders.save_random(family, head, tmp_path / "model", **rates)
    ids = np.random.default_rng(0).integers(3, 99, (2, 9))
    assert_places(folder, {"input_ids": ids, "attention_mask": np.ones_like(ids)})


@pytest.mark.slow
@pytest.mark.parametrize("family", DECODERS)
def test_a_decoders_dropout_stands_where_transformers_has_it(family, tmp_path, nothing_drawn):
    config = {"model_type": family, "max_position_embeddings": 40, **DECODERS[family]}
    folder = random_models.save_random(config, tmp_path / "model", seed=1)
    assert_places(folder, {"input_ids": np.random.default_rng(0).integers(3, 99, (2, 9))})


@pytest.mark.slow
@pytest.mark.parametrize("family", WRITERS)
def test_a_writers_dropout_stands_where_transformers_has_it(family, tmp_path, nothing_drawn):
    config = {"model_type": family, **WRITERS[family]}
    folder = random_models.save_random(config, tmp_path / "model", seed=1)
    ids = np.random.default_rng(0).integers(3, 99, (2, 9))
    written = {"decoder_input_ids": ids[:, :5], "attention_mask": np.ones_like(ids)}
    assert_places(folder, {"input_ids": ids, **written})


@pytest.mark.slow
@pytest.mark.parametrize("family", [*DEFAULTED, "t5", "bart", "marian"])
def test_a_config_that_names_no_rate_has_transformers_defaults(family):
    """Right values: the attributes of transformers' own config classes."""
    from transformers import AutoConfig

    from bridges.training_mode import RATES

    theirs = AutoConfig.for_model(family).to_dict()
    read: dict[str, Any] = {}
    for head in ("", "sequence", "token", "span"):
        RATES[family](lambda key, default: read.setdefault(key, default), head)
    assert read
    for key, default in read.items():
        assert theirs.get(key) == default, key


def test_rates_that_do_not_fit_are_refused_and_one_rate_serves_all_places(tmp_path):
    folder = write_llama(tmp_path / "model", tokenizer=False)
    bundle = bridges.load(folder)
    assert with_dropout(bundle) is bundle
    assert with_dropout(bundle, 0.2).model.dropout.attention == 0.2
    config = json.loads((folder / "config.json").read_text()) | {"attention_dropout": 1.5}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputRefused, match=r"attention_dropout is 1\.5; expected from 0 to below"):
        with_dropout(bridges.load(folder))
    other = bundle.replace(family="whisper", config={"dropout": 0.1, "layerdrop": 0.0})
    (line,) = dropout_lines(other)
    assert line.startswith("dropout: dropout 0.1 of the config is not drawn")
    (line,) = dropout_lines(with_dropout(bundle, 0.2))
    assert line == "dropout: attention 0.2; --dropout 0 trains without"
    with pytest.raises(InputRefused, match="whisper has no place for a rate"):
        with_dropout(other, 0.1)
    with pytest.raises(InputRefused, match="llama has no batch norms"):
        with_batch_statistics(bundle)


NETWORKS = {
    "resnet": {
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 2],
        "layer_type": "basic",
        "architectures": ["ResNetForImageClassification"],
        "num_labels": 3,
    },
    "mobilenet_v2": {
        "depth_multiplier": 0.35,
        "image_size": 64,
        "classifier_dropout_prob": 0.0,
        "architectures": ["MobileNetV2ForImageClassification"],
        "num_labels": 3,
    },
}


@pytest.mark.parametrize("family", ["resnet", pytest.param("mobilenet_v2", marks=pytest.mark.slow)])
def test_batch_norms_follow_as_torch_has_them_in_train(family, tmp_path):
    """Logits, gradients and running statistics, by the float64 rule."""
    import torch

    from bridges.family import family_of
    from bridges.table import out_of_tree

    config = {"model_type": family, **NETWORKS[family]}
    folder = random_models.save_random(config, tmp_path / "model", seed=2)
    bundle = with_batch_statistics(bridges.load(folder, traced="never"))
    pixels = np.random.default_rng(0).normal(size=(6, 3, 64, 64)).astype(np.float32)
    way = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)

    @jax.jit
    def ours(params: Any) -> Any:
        def total(params: Any) -> Any:
            made, changed = learnt_outputs(
                bundle.model, {"params": params}, {"pixel_values": pixels}, jax.random.key(0)
            )
            return jnp.sum(made["logits"] * way), (made["logits"], changed["followed"])

        return jax.grad(total, has_aux=True)(params)

    gradients, (logits, followed) = ours(bundle.variables["params"])
    rows = family_of(bundle.config).rows(bundle.model)
    named = dict(out_of_tree(rows, gradients))
    moved = dict(out_of_tree(rows, laid_over(bundle.variables["params"], followed)))
    sides = []
    for precision in (reference.SINGLE, reference.EXACT):
        model = reference.Checkpoint(folder, own_class=True).fresh_model(precision).train()
        dtype = getattr(torch, precision)
        made = model(pixel_values=torch.tensor(pixels, dtype=dtype)).logits
        (made * torch.tensor(way, dtype=dtype)).sum().backward()
        grads = {name: part.grad.numpy() for name, part in model.named_parameters()}
        stats = {n: b.numpy() for n, b in model.named_buffers() if "running_" in n}
        sides.append(({"logits": made.detach().numpy()}, grads, stats))
    single, exact = sides
    mine = ({"logits": np.asarray(logits)}, named, moved)
    assert exact[2]
    for number, part in enumerate(exact):
        scale = max(float(np.abs(value).max()) for value in part.values())
        finding = judged(deviations(mine[number], single[number], part, scale=scale))
        assert finding.passed, finding


def test_steps_move_running_statistics_as_torch_does_and_a_refused_one_does_not():
    """Right values: torch's own after the same microbatches, two to an update."""
    import optax
    import torch

    draw = np.random.default_rng(0)
    batches = draw.normal(1.0, 2.0, size=(2, 3, 4, 4, 5)).astype(np.float32)
    norm = BatchNorm(1e-5, follow=0.1)

    class Sum(Objective):
        def loss(self, variables: Any, batch: Any, step: Any) -> Any:
            normed, changed = norm.apply(variables, batch["x"], mutable=[FOLLOWED])
            return jnp.sum(normed**3), Aux({}, dict(changed))

    params = norm.init(jax.random.key(0), jnp.asarray(batches[0]))
    optimizer = optax.adamw(0.1, weight_decay=0.5)
    state = first_state(params, optimizer, key=jax.random.key(0), ema=None, accumulation=2)
    step = jax.jit(microstep(Sum(), optimizer, accumulation=2))
    theirs = torch.nn.BatchNorm2d(5, eps=1e-5).train()
    for part in batches:
        state, report = step(state, {}, {"x": jnp.asarray(part)})
        theirs(torch.tensor(part).permute(0, 3, 1, 2))
    assert report["updated"]
    found = state.params["params"]
    np.testing.assert_allclose(found["running_mean"], theirs.running_mean, atol=1e-6)
    np.testing.assert_allclose(found["running_variance"], theirs.running_var, rtol=1e-5)
    refused, report = step(state, {}, {"x": jnp.full(batches[0].shape, np.nan)})
    assert not report["finite"]
    for name, value in refused.params["params"].items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)


def laid_over(params: Any, new: Any) -> Any:
    """Return nested params with the leaves of `new` in their places."""
    return {
        **params,
        **{
            name: laid_over(params[name], part) if isinstance(part, dict) else part
            for name, part in new.items()
        },
    }
