"""Text encoders of every family, against transformers' own classes on tiny random weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bridges
from bridges.family import NotNative, family_of
from bridges.sentence_pooling import pooling_files, read_pooling
from bridges.table import out_of_tree
from dew.errors import InputRefused, WeightMismatch
from dew.nn.backbones.deberta import Distances, distance_rows
from dew.nn.backbones.text_encoder import distance_buckets
from dew.nn.heads import SentencePooling
from parity import reference
from parity.rounding import ULP, deviations, judged

pytestmark = pytest.mark.torch

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
    "modernbert": "token",
    "deberta-v2": "masked",
}
"""Each family with one head; all the others are slow tests."""
DIFFERENTIATED = ("bert", "mpnet", "electra", "modernbert", "deberta-v2")
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


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pair]:
    pytest.importorskip("torch").set_num_threads(1)
    root = tmp_path_factory.mktemp("encoders")

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
    with reference._quiet():
        model = getattr(transformers, name + HEADS[head])(made)
    generator = np.random.default_rng(len(family) + 7 * len(head))
    with torch.no_grad():
        for tensor_name, tensor in sorted(model.named_parameters()):
            drawn = reference._drawn(tensor_name, tuple(tensor.shape), generator)
            tensor.copy_(torch.tensor(drawn))
    with reference._quiet():
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

    with reference._precision_of(model):
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
    with reference._precision_of(model):
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


# transformers' own classes, run in float64 and float32, are the reference below.


@each_case()
def test_outputs_are_those_of_transformers(pairs: Any, family: str, head: str) -> None:
    import torch

    pair = pairs(family, head)
    with torch.no_grad():
        single, exact = (
            {
                name: value.numpy()
                for name, value in torch_outputs(pair.checkpoint.model(kind), batch()).items()
            }
            for kind in (reference.SINGLE, reference.EXACT)
        )
    ours = pair.outputs
    assert set(ours) == set(exact)
    found = judged(deviations(*(real_outputs(side) for side in (ours, single, exact))))
    assert found.passed, found


@each_case(DIFFERENTIATED)
def test_gradients_are_those_of_transformers(pairs: Any, family: str, head: str) -> None:
    pair = pairs(family, head)
    single, exact = (
        torch_gradients(pair.checkpoint.model(kind)) for kind in (reference.SINGLE, reference.EXACT)
    )
    ours = by_torch_name(pair.bundle, pair.differentiated[0])
    scale = max(float(np.abs(value).max()) for value in exact.values())
    found = judged(deviations(ours, single, exact, scale=scale))
    assert found.passed, found


@each_case()
def test_padding_changes_nothing(pairs: Any, family: str, head: str) -> None:
    pair = pairs(family, head)
    whole, inputs = pair.outputs, batch()
    real = int(inputs["attention_mask"][2].sum())
    alone = pair.bundle(input_ids=inputs["input_ids"][2:, :real])
    for name, value in alone.items():
        padded = np.asarray(whole[name])[2:]
        by_token = padded.shape[1:2] == inputs["input_ids"].shape[1:]
        cut = padded[:, :real] if by_token and head != "sequence" else padded
        np.testing.assert_allclose(cut, value, rtol=2e-5, atol=2e-5)


@each_case()
def test_export_gives_the_same_bytes(pairs: Any, tmp_path: Path, family: str, head: str) -> None:
    import torch

    pair = pairs(family, head)
    bridges.export(pair.bundle, tmp_path)
    source, written = (load_file(path / "model.safetensors") for path in (pair.folder, tmp_path))
    assert set(source) == set(written)
    assert all(np.array_equal(source[name], written[name]) for name in source)
    again = reference.Checkpoint(tmp_path, own_class=True)
    with torch.no_grad():
        first, second = (
            torch_outputs(checkpoint.model(reference.SINGLE), batch())
            for checkpoint in (pair.checkpoint, again)
        )
    info = again.loading_info()
    assert not any(info.values()), info
    assert all(torch.equal(first[name], second[name]) for name in first)


@each_case(())
def test_a_second_export_writes_the_same_config(
    pairs: Any, tmp_path: Path, family: str, head: str
) -> None:
    bridges.export(pairs(family, head).bundle, tmp_path / "first")
    bridges.export(bridges.load(tmp_path / "first", strict=True), tmp_path / "second")
    first, second = ((tmp_path / name / "config.json").read_bytes() for name in ("first", "second"))
    assert first == second


@each_case(())
def test_one_step_of_adamw_is_that_of_torch(pairs: Any, family: str, head: str) -> None:
    import optax
    import torch

    pair = pairs(family, head)
    settings = reference.AdamW(epsilon=1e-4)
    single, exact = {}, {}
    gradients: dict[str, np.ndarray] = {}
    for kind, found in ((reference.SINGLE, single), (reference.EXACT, exact)):
        model = pair.checkpoint.fresh_model(kind)
        gradients = torch_gradients(model)
        for name, gradient in gradients.items():
            model.get_parameter(name).grad = torch.tensor(gradient)
        torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            foreach=False,
        ).step()
        found |= {name: t.detach().numpy() for name, t in by_first_name(model).items()}
    params = pair.bundle.variables["params"]
    optimizer = optax.adamw(
        settings.learning_rate, eps=settings.epsilon, weight_decay=settings.weight_decay
    )
    updates, _ = optimizer.update(pair.differentiated[0], optimizer.init(params), params)
    ours = by_torch_name(pair.bundle, optax.apply_updates(params, updates))
    # Where the exact gradient is below the rounding of float32, AdamW goes in any direction: a
    # key's bias, for one, has the gradient zero.
    least = ULP * max(float(np.abs(gradient).max()) for gradient in gradients.values())
    kept = {name: np.abs(gradient) >= least for name, gradient in gradients.items()}
    sides = ({n: side[n][kept[n]] for n in kept if kept[n].any()} for side in (ours, single, exact))
    found = judged(deviations(*sides))
    assert found.passed, found


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2 split"])
@pytest.mark.slow
def test_segments_and_places_may_be_given(pairs: Any, family: str) -> None:
    import torch

    pair = pairs(family, "")
    inputs = batch()
    inputs["position_ids"] = np.random.default_rng(4).integers(2, 30, inputs["input_ids"].shape)
    if family != "mpnet":
        inputs["token_type_ids"] = inputs["position_ids"] % 2
    with torch.no_grad():
        single, exact = (
            {"x": torch_outputs(pair.checkpoint.model(kind), inputs)["last_hidden_state"].numpy()}
            for kind in (reference.SINGLE, reference.EXACT)
        )
    ours = {"x": np.asarray(pair.bundle(**inputs)["last_hidden_state"])}
    found = judged(deviations(*(real_outputs(side) for side in (ours, single, exact))))
    assert found.passed, found


def test_distances_share_the_rows_that_transformers_gives_them() -> None:
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    length = 300
    place = np.arange(length)
    away = torch.tensor(place[None] - place[:, None])
    theirs = MPNetEncoder.relative_position_bucket(away).numpy()
    assert np.array_equal(distance_buckets(length), theirs)
    for span, farthest in ((256, 512), (32, 128), (8, 40)):
        states = torch.zeros(1, length, 4)
        rows = build_relative_position(states, states, bucket_size=span, max_position=farthest)
        wanted = np.clip(rows[0].numpy() + span, 0, 2 * span - 1)
        distances = Distances(True, True, True, span, True, farthest, False)
        found = distance_rows(length, distances)[length - 1 - place[:, None] + place[None]]
        assert np.array_equal(found, wanted)


READ_BY_FOUR = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
torch.set_num_threads(1)
for folder in sys.argv[2:]:
    with open(folder + "/config.json") as file:
        kind = getattr(transformers, json.load(file)["architectures"][0])
    model, found = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    given = {name: torch.tensor(value) for name, value in np.load(folder + "/inputs.npz").items()}
    with torch.no_grad():
        outputs = model.eval()(**given)
    np.savez(folder + "/four.npz", **{k: v.numpy() for k, v in outputs.items() if v is not None})
    # Buffers that 4 keeps in the state of a model and 5 does not.
    found["missing_keys"] = [name for name in found["missing_keys"] if "position_ids" not in name]
    print(json.dumps({key: sorted(map(str, value)) for key, value in found.items() if value}))
"""


@pytest.mark.slow
def test_transformers_4_reads_every_export(
    pairs: Any, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """The second environment: transformers 4 beside the same torch, in a process of its own."""
    four = tmp_path_factory.mktemp("four")
    packages = ["transformers==4.57.6", "tokenizers==0.22.2", "huggingface_hub==0.36.2"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--target", str(four), *packages], check=True)
    folders = {}
    for case in CASES:
        folder = tmp_path / " ".join(case).replace(" ", "-")
        bridges.export(pairs(*case).bundle, folder, verify=False)
        np.savez(folder / "inputs.npz", **batch())
        folders[case] = folder
    run = subprocess.run(
        [sys.executable, "-c", READ_BY_FOUR, str(four), *map(str, folders.values())],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for (case, folder), line in zip(folders.items(), run.stdout.splitlines(), strict=True):
        assert json.loads(line) == {}, case
        theirs = real_outputs(dict(np.load(folder / "four.npz")))
        for name, ours in real_outputs(pairs(*case).outputs).items():
            largest = np.abs(theirs[name]).max()
            assert np.abs(ours - theirs[name]).max() <= 2e-5 * largest, case


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

    with reference._quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    real = inputs["attention_mask"][..., None].to(states.dtype)
    return torch.nn.functional.normalize((states * real).sum(1) / real.sum(1)).numpy()
