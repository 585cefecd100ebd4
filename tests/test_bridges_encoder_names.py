"""Text encoders' names, heads and refusals, and the files of sentence encoders."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from text_encoders import Pair, pairs_in

import bridges
from bridges.family import NotNative
from bridges.sentence_pooling import pooling_files, read_pooling
from dew.errors import InputRefused, WeightMismatch
from dew.nn.heads import SentencePooling
from parity import reference

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pair]:
    """Each checkpoint as dew and as transformers reads it, made when it is first wanted."""
    return pairs_in(tmp_path_factory.mktemp("encoders"))


# Names that older checkpoints used. The values must be those of the checkpoint as it is written
# today: loading is exact.


def old_checkpoint(folder: Path, target: Path, change: Callable[[dict], dict]) -> Path:
    """Write a folder like `folder` whose tensors are what `change` makes of them."""
    target.mkdir()
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()}, target / "model.safetensors"
    )
    return target


def with_gamma_and_beta(tensors: dict) -> dict:
    def old(name: str) -> str:
        for new, former in (("weight", "gamma"), ("bias", "beta")):
            name = name.replace(f"LayerNorm.{new}", f"LayerNorm.{former}")
        return name

    return {old(name): value for name, value in tensors.items()}


def with_copies_and_buffers(tensors: dict) -> dict:
    return {
        **tensors,
        "bert.embeddings.position_ids": np.arange(40)[None],
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
    }


def with_the_decoders_bias_alone(tensors: dict) -> dict:
    bias = tensors.pop("cls.predictions.bias")
    return {**tensors, "cls.predictions.decoder.bias": bias}


@pytest.mark.parametrize(
    "change", [with_gamma_and_beta, with_copies_and_buffers, with_the_decoders_bias_alone]
)
def test_names_of_older_checkpoints_are_read(
    pairs: Any, tmp_path: Path, change: Callable[[dict], dict]
) -> None:
    pair = pairs("bert", "masked")
    again = bridges.load(old_checkpoint(pair.folder, tmp_path / "old", change))
    same = jax.tree.map(
        lambda a, b: np.array_equal(a, b),
        pair.bundle.variables["params"],
        again.variables["params"],
    )
    assert jax.tree.all(same)


def test_a_base_model_is_read_with_or_without_its_prefix(pairs: Any, tmp_path: Path) -> None:
    pair = pairs("bert", "sequence")

    def bare(tensors: dict) -> dict:
        return {n.removeprefix("bert."): v for n, v in tensors.items() if n.startswith("bert.")}

    folder = old_checkpoint(pair.folder, tmp_path / "bare", bare)
    with pytest.raises(WeightMismatch, match=r"classifier\.weight"):
        bridges.load(folder)
    with pytest.warns(UserWarning, match=r"drawn anew for training: classifier\.weight"):
        bundle = bridges.load(folder, task="text-classification")
    kernel = bundle.variables["params"]["top"]["dense"]["kernel"]
    assert np.array_equal(kernel, pair.bundle.variables["params"]["top"]["dense"]["kernel"])
    assert np.std(np.asarray(bundle.variables["params"]["top"]["out"]["kernel"])) < 0.03


def test_another_task_takes_the_base_and_names_what_it_draws(pairs: Any, tmp_path: Path) -> None:
    pair = pairs("bert", "masked")
    with pytest.warns(UserWarning, match="no pooler|not used") as told:
        bundle = bridges.load(pair.folder, task="feature-extraction")
    assert "cls.predictions.bias" in " ".join(str(one.message) for one in told)
    assert not bundle.model.has_pooler
    assert bundle.tasks == ("feature-extraction",)
    with pytest.warns(UserWarning, match="drawn anew|not used") as told:
        bundle = bridges.load(pair.folder, task="text-classification")
    drawn = next(str(one.message) for one in told if "drawn anew" in str(one.message))
    names = ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight")
    assert all(name in drawn for name in names)
    bridges.export(bundle, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert bridges.load(tmp_path).tasks == ("text-classification",)


def test_a_stored_head_that_is_not_asked_for_is_not_exported(pairs: Any, tmp_path: Path) -> None:
    pair = pairs("bert", "masked")
    folder = old_checkpoint(pair.folder, tmp_path / "old", with_copies_and_buffers)
    with pytest.warns(UserWarning, match="not used|no pooler"):
        bundle = bridges.load(folder, task="feature-extraction")
    bridges.export(bundle, tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written
    assert not [name for name in written if name.startswith("cls.")]


def changed_config(folder: Path, target: Path, **more: Any) -> Path:
    """Write a copy of `folder` with other keys in its config."""
    old_checkpoint(folder, target, lambda tensors: tensors)
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | more))
    return target


def test_what_an_encoder_does_not_compute_is_refused(pairs: Any, tmp_path: Path) -> None:
    folder = pairs("bert", "masked").folder
    with pytest.raises(InputRefused, match="is_decoder"):
        bridges.load(changed_config(folder, tmp_path / "a", is_decoder=True))
    relative = changed_config(folder, tmp_path / "b", position_embedding_type="relative_key")
    with pytest.raises(NotNative, match="position_embedding_type"):
        bridges.load(relative, traced="never")
    with pytest.raises(InputRefused, match="id2label"):
        bridges.load(changed_config(folder, tmp_path / "c", id2label=["a", "b"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputRefused, match="3 labels; question answering has 2"):
            bridges.load(folder, task="question-answering")


def test_a_text_longer_than_the_positions_is_refused(pairs: Any) -> None:
    bundle = pairs("roberta", "masked").bundle
    # Of 40 rows two lie below the first position.
    assert bundle.model.position_limit == 38
    with pytest.raises(InputRefused, match="38 positions"):
        bundle(input_ids=np.full((1, 39), 5))


# Sentence encoders: the files are sentence-transformers', the three cosines ASSETS.md's, measured
# with transformers.


def test_the_files_of_a_sentence_encoder_are_read_and_written(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
    wanted = SentencePooling(("cls", "mean"), normalized=True, max_tokens=256)
    for name, data in pooling_files(wanted, 384).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert read_pooling(tmp_path) == wanted
    settings = {"pooling_mode_lasttoken": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="pooling_mode_lasttoken"):
        assert read_pooling(tmp_path) is None


@pytest.mark.slow
@pytest.mark.assets
def test_minilm_gives_the_three_cosines() -> None:
    from bridges.assets import fetch
    from dew.inference.embedding import sentence_embeddings

    folder = fetch("minilm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bundle = bridges.load(folder, strict=True, traced="never")
    pooling = read_pooling(folder)
    assert pooling == SentencePooling(("mean",), normalized=True, max_tokens=256)
    texts = [
        "That is a happy person",
        "That is a happy dog",
        "That is a very happy person",
        "Today is a sunny day",
    ]
    ours = sentence_embeddings(bundle, texts, pooling=pooling)
    theirs = torch_sentences(folder, texts)
    np.testing.assert_allclose(ours[1:] @ ours[0], theirs[1:] @ theirs[0], atol=1e-5)
    np.testing.assert_allclose(ours[1:] @ ours[0], [0.6946, 0.9429, 0.2569], atol=5e-5)


def torch_sentences(folder: Path, texts: list[str]) -> np.ndarray:
    """Return transformers' unit mean vectors."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    with reference.quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    real = inputs["attention_mask"][..., None].to(states.dtype)
    return torch.nn.functional.normalize((states * real).sum(1) / real.sum(1)).numpy()
