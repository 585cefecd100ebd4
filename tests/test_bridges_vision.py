"""What is particular to image models; the contract in test_families holds what all share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file
from tiny_subjects import TinySubjects

import bridges
from bridges.exporting import fits
from bridges.family import NotNative
from dew.errors import InputRefused, WeightMismatch
from dew.nn.convolution import BatchNorm
from dew.objectives.base import Objective
from dew.training.state import first_state
from dew.training.step import microstep
from parity import inputs as model_inputs
from parity import reference, tiny
from parity.inputs import Inputs
from parity.rounding import deviations, judged
from parity.subject import Subject

pytestmark = pytest.mark.torch

SIDE, ROWS = 24, 2


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """Tiny random checkpoints, written by transformers when they are first wanted."""
    pytest.importorskip("torch")
    return TinySubjects(tmp_path_factory.mktemp("vision"))


def pictures(height: int = SIDE, width: int = SIDE) -> np.ndarray:
    """Return random images [N, C, H, W]."""
    drawn = np.random.default_rng(3).standard_normal((ROWS, 3, height, width))
    return drawn.astype(np.float32)


def assert_agrees(bundle: Any, checkpoint: reference.Checkpoint, inputs: Inputs) -> None:
    """Hold every output to transformers' own class, run in float64 and float32."""
    single, exact = (
        reference.outputs(checkpoint.model(dtype), inputs)
        for dtype in (reference.SINGLE, reference.EXACT)
    )
    ours = {name: np.asarray(value) for name, value in bundle(**inputs).items()}
    found = judged(deviations(ours, single, exact))
    assert found.passed, found


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.vision.MODELS)
def test_shapes_and_axes_are_those_of_the_parameters(subjects: Any, name: str) -> None:
    model = subjects[name].bundle.model
    inputs = model_inputs.batch(subjects[name], 12, 0)

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
def test_positions_are_interpolated_as_transformers_does(
    subjects: Any, size: tuple[int, int]
) -> None:
    subject = subjects["dinov2"]
    assert_agrees(subject.bundle, subject.checkpoint, {"pixel_values": pictures(*size)})


def test_images_that_do_not_fit_are_refused(subjects: Any) -> None:
    bundle, pixels = subjects["vit labels"].bundle, pictures()
    with pytest.raises(InputRefused, match=r"\(2, 3, 24, 16\); the model reads images of 24 x 24"):
        bundle(pixel_values=pixels[..., :16])
    with pytest.raises(InputRefused, match=r"expected \[N, 3, height, width\]"):
        bundle(pixel_values=pixels[:, :1])
    with pytest.raises(InputRefused, match="floating point"):
        bundle(pixel_values=(pixels * 10).astype(np.int32))
    small = subjects["swin"].bundle
    with pytest.raises(InputRefused, match="2 x 6 places, fewer than the 3 of a window's side"):
        small(pixel_values=pixels[..., :8, :])
    with pytest.raises(InputRefused, match="input_ids is missing"):
        subjects["clip"].bundle(pixel_values=pixels)


def test_weight_decay_leaves_running_statistics_alone() -> None:
    """Closed form: torch keeps them as buffers, which no optimizer moves."""
    norm = BatchNorm(1e-5)
    params = norm.init(jax.random.key(0), jnp.ones((1, 4)))
    params = jax.tree.map(lambda leaf: leaf + 0.5, params)

    class Sum(Objective):
        def loss(self, variables: Any, batch: Any, step: Any) -> Any:
            normed: Any = norm.apply(variables, batch["x"])
            return jnp.sum(normed)

    optimizer = optax.adamw(0.1, weight_decay=0.5)
    state = first_state(params, optimizer, key=jax.random.key(0), ema=None, accumulation=1)
    step = microstep(Sum(), optimizer, accumulation=1)
    moved = step(state, {}, {"x": jnp.arange(8.0).reshape(2, 4)})[0].params["params"]
    for name, value in params["params"].items():
        assert np.array_equal(moved[name], value) == name.startswith("running_"), name


def test_a_batch_norms_counter_fits_the_dtype_it_came_in() -> None:
    """A traced export failed on it: it has no axes, and JAX holds it as int32."""
    assert fits(np.asarray(7, np.int32), np.dtype(np.int64))
    assert not fits(np.asarray(0.1, np.float32), np.dtype(np.float16))


# transformers 4 stores the halves of CLIP and SigLIP beneath a prefix, and a counter of places.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("clip text", "text_model."),
        ("clip vision", "vision_model."),
        ("siglip text", "text_model."),
        ("siglip vision", "vision_model."),
    ],
)
def test_halves_are_read_with_their_prefix_and_given_back(
    subjects: Any, tmp_path: Path, name: str, prefix: str
) -> None:
    source = subjects[name].source
    tensors = {
        f"{prefix}{tensor}": value
        for tensor, value in load_file(source / "model.safetensors").items()
    }
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    counter = {f"{prefix}embeddings.position_ids": np.arange(20)[None]}
    save_file({**tensors, **counter}, folder / "model.safetensors")
    bundle = bridges.load(folder, strict=True)
    jax.tree.map(np.testing.assert_array_equal, bundle.variables, subjects[name].bundle.variables)
    bridges.export(bundle, tmp_path / "again")
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert set(written) == set(tensors)
    assert all(np.array_equal(written[name], value) for name, value in tensors.items())


@pytest.mark.slow
def test_a_head_may_be_left_out_or_drawn_anew(subjects: Any) -> None:
    inputs = {"pixel_values": pictures()}
    with pytest.warns(UserWarning, match="loaded without their head: classifier"):
        bare = bridges.load(subjects["resnet labels"].source, task="image-feature-extraction")
    assert bare.tasks == ("image-feature-extraction",)
    assert set(bare(**inputs)) == {"last_hidden_state", "pooler_output"}
    with pytest.warns(UserWarning, match=r"drawn anew for training: classifier\.1\.weight"):
        headed = bridges.load(subjects["resnet"].source, task="image-classification")
    assert headed(**inputs)["logits"].shape == (ROWS, 3)


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:not used", "ignore:not in the checkpoint")
def test_a_dual_encoder_may_be_read_by_its_half(subjects: Any) -> None:
    """As transformers does, labels are put on the image tower; no tower is drawn anew."""
    folder = subjects["clip"].source
    with pytest.warns(UserWarning, match="classifier.weight, classifier.bias") as said:
        half = bridges.load(folder, task="image-classification", traced="never")
    assert any("text_model" in str(warning.message) for warning in said)
    assert half(pixel_values=pictures())["logits"].shape == (ROWS, 3)
    labels = subjects["clip labels"].source
    with pytest.raises(WeightMismatch, match="text_model"):
        bridges.load(labels, task="zero-shot-image-classification", traced="never")
