"""I-JEPA: the masks' statistics, the loss's parts against torch, and that training learns."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew import Trainer, metrics
from dew.artifacts import Representations
from dew.data import Dataset
from dew.errors import InputRefused
from dew.evaluation import evaluate
from dew.nn.backbones.vision_transformer import VisionTransformer
from dew.objectives.base import Step
from dew.objectives.block_masks import BlockMasks
from dew.objectives.jepa import JepaObjective, effective_rank, normed, pixels, smooth_l1
from dew.training.progress import Silent

KEY = jax.random.key(5)
ENCODER = VisionTransformer(
    image_size=(12, 12),
    patch_size=2,
    emb_features=16,
    num_layers=1,
    num_heads=2,
    mlp_features=32,
    channels=1,
)
OBJECTIVE = JepaObjective(ENCODER, updates=40, decay=0.9, predictor_features=8)
PAPER = BlockMasks((14, 14))


def images(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Noisy pictures of three kinds: bright above, bright on the left, and waves."""
    generator = np.random.default_rng(seed)
    row, column = np.mgrid[:12, :12] / 12
    kinds = np.stack([1 - 2 * row, 1 - 2 * column, np.sin(25 * (row + column))])
    label = generator.integers(0, 3, count).astype(np.int32)
    noise = 0.2 * generator.normal(size=(count, 12, 12))
    return {"image": (kinds[label] + noise)[..., None].astype(np.float32), "label": label}


@pytest.fixture(scope="module")
def drawn():
    """The paper's masks of 3000 images as arrays of bools, [B, N] and [B, 4, N]."""
    masks = jax.device_get(jax.jit(PAPER.draw, static_argnums=1)(KEY, 3000))
    context = np.zeros((3000, 196), bool)
    targets = np.zeros((3000, 4, 196), bool)
    np.put_along_axis(context, masks.context, masks.context_mask, axis=1)
    np.put_along_axis(targets, masks.targets, masks.target_mask, axis=2)
    return masks, context, targets


def test_targets_are_whole_blocks_of_the_papers_areas_and_aspects(drawn):
    """Oracle: 4 blocks, areas uniform in 0.15 to 0.2, aspects in 0.75 to 1.5, before rounding."""
    masks, _, targets = drawn
    grids = targets.reshape(-1, 14, 14)
    heights, widths = grids.any(2).sum(1), grids.any(1).sum(1)
    np.testing.assert_array_equal(heights * widths, grids.sum((1, 2)))
    assert masks.targets.shape == (3000, 4, PAPER.target_patches)
    shares = heights * widths / 196
    assert shares.mean() == pytest.approx(0.175, abs=0.003)
    # A side of 4 to 8 patches is rounded by half of one at most.
    assert ((heights - 0.5) * (widths - 0.5) / 196 <= 0.2).all()
    assert ((heights + 0.5) * (widths + 0.5) / 196 >= 0.15).all()
    assert ((heights - 0.5) / (widths + 0.5) <= 1.5).all()
    assert ((heights + 0.5) / (widths - 0.5) >= 0.75).all()
    aspects = np.random.default_rng(0).uniform(0.75, 1.5, 100000)
    assert (heights / widths).mean() == pytest.approx(aspects.mean(), abs=0.03)


def test_every_place_of_a_block_is_as_likely_as_any_other(drawn):
    _, _, targets = drawn
    grids = targets.reshape(-1, 14, 14)
    heights, widths = grids.any(2).sum(1), grids.any(1).sum(1)
    chosen = (heights == 6) & (widths == 6)
    corners = grids[chosen].reshape(chosen.sum(), -1).argmax(1)
    rows, columns = np.divmod(corners, 14)
    for place in (rows, columns):
        shares = np.bincount(place, minlength=14) / chosen.sum()
        assert shares[9:].sum() == 0
        deviation = np.sqrt(8) / 9 / np.sqrt(chosen.sum())
        np.testing.assert_allclose(shares[:9], 1 / 9, atol=5 * deviation)


def by_the_paper(count: int) -> np.ndarray:
    """Oracle: context patches of images by the paper's recipe, written with slices."""
    generator = np.random.default_rng(1)
    kept = np.zeros(count)
    for image in range(count):

        def box(scale, aspect):
            size, ratio = 196 * generator.uniform(*scale), generator.uniform(*aspect)
            height, width = (min(14, round(np.sqrt(x))) for x in (size * ratio, size / ratio))
            top = generator.integers(0, 14 - height + 1)
            left = generator.integers(0, 14 - width + 1)
            return slice(top, top + height), slice(left, left + width)

        grid = np.zeros((14, 14), bool)
        grid[box((0.85, 1.0), (1.0, 1.0))] = True
        for _ in range(4):
            grid[box((0.15, 0.2), (0.75, 1.5))] = False
        kept[image] = grid.sum()
    return kept


def test_the_context_holds_no_target_and_as_many_patches_as_the_recipe_leaves(drawn):
    masks, context, targets = drawn
    assert not (context[:, None] & targets).any()
    counts = context.sum(1)
    wanted = by_the_paper(3000)
    assert counts.max() <= masks.context.shape[1] == 131
    deviation = wanted.std() / np.sqrt(3000)
    assert counts.mean() == pytest.approx(np.minimum(wanted, 131).mean(), abs=6 * deviation)
    assert (wanted > 131).mean() < 0.02, "K is to hold nearly every context"


def test_masks_of_a_tiny_grid_keep_one_context_patch_and_fixed_shapes():
    masks = BlockMasks((2, 2), targets=4, target_scale=(0.5, 0.9), context_patches=3)
    drawn = jax.jit(masks.draw, static_argnums=1)(KEY, 50)
    assert drawn.context.shape == (50, 3)
    assert (drawn.context_mask.sum(1) >= 1).all()
    assert int(drawn.targets.max()) < 4


@pytest.fixture(scope="module")
def variables():
    return jax.jit(OBJECTIVE.init)(KEY)


@pytest.fixture(scope="module")
def encode():
    return jax.jit(ENCODER.apply)


@pytest.mark.torch
def test_patches_go_through_a_strided_convolution():
    """Oracle: torch's conv2d with the same kernel."""
    import torch

    from dew.nn.backbones.vision_transformer import patches

    picture = np.random.default_rng(0).normal(size=(2, 6, 4, 3))
    kernel = np.random.default_rng(1).normal(size=(2, 2, 3, 5))
    wanted = torch.nn.functional.conv2d(
        torch.tensor(picture).permute(0, 3, 1, 2),
        torch.tensor(kernel).permute(3, 2, 0, 1),
        stride=2,
    )
    ours = np.asarray(patches(jnp.asarray(picture), 2)) @ kernel.reshape(-1, 5)
    np.testing.assert_allclose(
        ours, wanted.flatten(2).permute(0, 2, 1).numpy(), rtol=1e-5, atol=1e-5
    )


def test_kept_patches_keep_their_places_and_see_only_each_other(variables, encode):
    encoder = {"params": variables["params"]["encoder"]}
    picture = jnp.asarray(images(2)["image"])
    order = jnp.asarray(np.random.default_rng(0).permutation(36)[None].repeat(2, 0))
    whole, mixed = encode(encoder, picture), encode(encoder, picture, order)
    np.testing.assert_allclose(mixed, np.take_along_axis(whole, order[..., None], 1), atol=1e-5)
    keep = jnp.asarray([[0, 1, 7, 20]] * 2)
    hidden = jnp.asarray([[1, 1, 1, 0]] * 2)
    base = encode(encoder, picture, keep, hidden)
    changed = picture.at[:, 4:, 4:].set(9.0)  # all but the patches 0, 1 and 7 and their rows
    np.testing.assert_allclose(
        encode(encoder, changed, keep, hidden)[:, :3], base[:, :3], atol=1e-5
    )
    assert not np.allclose(
        encode(encoder, picture.at[:, 0, 0].set(9.0), keep, hidden)[:, 1], base[:, 1]
    )


@pytest.mark.torch
def test_targets_and_distances_are_torchs():
    """Oracle: torch's layer_norm and smooth_l1_loss."""
    import torch

    tokens = np.random.default_rng(0).normal(size=(3, 5, 16)) * 4 + 1
    wanted = torch.nn.functional.layer_norm(torch.tensor(tokens), (16,))
    np.testing.assert_allclose(normed(jnp.asarray(tokens)), wanted.numpy(), atol=1e-5)
    errors = np.linspace(-3, 3, 41)
    zero = torch.zeros(41, dtype=torch.float64)
    wanted = torch.nn.functional.smooth_l1_loss(torch.tensor(errors), zero, reduction="none")
    np.testing.assert_allclose(smooth_l1(jnp.asarray(errors)), wanted.numpy(), atol=1e-6)


def test_the_effective_rank_counts_directions():
    """Closed form: k equal singular values give k; equal rows give 1."""
    assert float(effective_rank(jnp.ones((6, 4)))) == pytest.approx(1.0)
    corners = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=3)))
    assert float(effective_rank(corners)) == pytest.approx(3.0, rel=1e-4)
    assert float(effective_rank(corners @ jnp.ones((3, 12)))) == pytest.approx(1.0, rel=1e-2)


@pytest.mark.slow
def test_the_gradient_agrees_with_finite_differences_and_spares_the_target(variables):
    """Oracle: central differences along a random direction."""
    batch = {name: jnp.asarray(value) for name, value in images(4).items()}

    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(KEY, len(leaves))
    draws = [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    way = jax.tree.unflatten(tree, draws)

    @jax.jit
    @jax.value_and_grad
    def along(amount):
        moved = jax.tree.map(lambda a, b: a + amount * b, variables, way)
        ratio, _ = OBJECTIVE.loss(moved, batch, Step(jnp.int32(0), KEY, variables))
        return ratio.value

    slope = float(along(0.0)[1])
    difference = float(along(2e-3)[0] - along(-2e-3)[0])
    assert slope == pytest.approx(difference / 4e-3, rel=2e-2)


@pytest.fixture(scope="module")
def run():
    data = Dataset(
        train=lambda partition: map(lambda n: images(16, n), itertools.count()),
        val=lambda partition: iter([images(40, 900), images(40, 901)]),
        records=16,
        batch=16,
    )
    log = {}
    trainer = Trainer(OBJECTIVE, optax.adam(3e-3), key=KEY)
    state = trainer.fit(
        data,
        steps=40,
        log_every=10,
        eval_every=40,
        metrics=(metrics.linear_probe(), metrics.knn_probe(neighbours=3)),
        on_report=lambda scalars, step: log.update({step: log.get(step, {}) | dict(scalars)}),
        progress=Silent(),
    )
    return state, log, data


@pytest.mark.slow
def test_training_brings_the_distance_down_without_collapse(run):
    _, log, _ = run
    assert log[40]["train/loss"] < 0.8 * log[10]["train/loss"]
    assert log[40]["train/target_std"] > 0.1
    assert log[40]["train/effective_rank"] > 1.5
    assert 1 <= log[40]["train/context_patches"] <= 24


@pytest.mark.slow
def test_probes_read_the_target_encoders_features(run):
    state, log, data = run
    assert log[40]["val/batch_linear_probe_accuracy"] > 0.9
    assert log[40]["val/batch_knn_probe_accuracy"] > 0.8
    event = evaluate(
        OBJECTIVE, state.params, data.val, key=KEY, averaged=state.averaged, preview=True
    )
    features = event.previews[0]
    assert isinstance(features, Representations)
    assert features.features.shape == (40, 16)
    step = Step(jnp.int32(0), KEY, state.averaged)
    unlabelled = OBJECTIVE.evaluate(state.params, {"image": images(3)["image"]}, step)
    assert unlabelled.labels.tolist() == [-1] * 3


@pytest.mark.slow
def test_only_the_encoder_is_averaged_and_its_average_comes_to_rest(run):
    state, _, _ = run
    averages = state.ema["params"]
    assert not jax.tree.leaves(averages["predictor"])
    live, slow = state.params["params"]["encoder"], averages["encoder"]
    assert not np.allclose(live["patches"]["kernel"], slow["patches"]["kernel"])
    decay = OBJECTIVE.ema.decay
    assert [float(decay(jnp.int32(n))) for n in (0, 20, 40, 80)] == pytest.approx([0.9, 0.95, 1, 1])


def test_bytes_are_read_as_pixels_and_settings_that_cannot_work_are_refused():
    np.testing.assert_allclose(pixels(jnp.asarray([0, 255], jnp.uint8)), [-1, 1])
    with pytest.raises(InputRefused, match=r"masks of grid \(3, 3\) for an encoder of \(6, 6\)"):
        JepaObjective(ENCODER, 10, masks=BlockMasks((3, 3)))
    with pytest.raises(InputRefused, match="0 targets"):
        BlockMasks((4, 4), targets=0)
    with pytest.raises(InputRefused, match="context_patches 17; expected 1 to 16"):
        BlockMasks((4, 4), context_patches=17)
    with pytest.raises(InputRefused, match=r"images \(1, 12, 10, 1\)"):
        jax.eval_shape(ENCODER.init, KEY, jnp.zeros((1, 12, 10, 1)))
    with pytest.raises(InputRefused, match="divisible by 4; found 6"):
        jax.eval_shape(ENCODER.clone(emb_features=6).init, KEY, jnp.zeros((1, 12, 12, 1)))
