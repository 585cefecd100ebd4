"""FID: the features are pytorch-fid's, the distance is exact where the reference's is not."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_networks import as_floats, pictures, seeded_state

from bridges.encoders.inception import load_inception
from dew.artifacts import ImageGrid, VideoGrid
from dew.errors import InputRefused, WeightMismatch
from dew.evaluation.frechet import FrechetDistance, frechet_distance
from dew.evaluation.moments import merged, moments
from dew.evaluation.pixels import Reference
from dew.nn.inception import InceptionEncoder

LARGER = ((64, 48), (299, 299), (400, 333))
FEATURES_TOLERANCE, DISTANCE_TOLERANCE = 1e-4, 1e-5


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """pytorch-fid's network with seeded weights, and the same weights in a file."""
    import pytorch_fid.inception as theirs
    import torchvision
    from safetensors.torch import save_file

    bare = torchvision.models.inception_v3(
        num_classes=1008, aux_logits=False, weights=None, init_weights=False
    )
    state = seeded_state(bare)
    folder = tmp_path_factory.mktemp("inception")
    save_file(state, folder / "seeded.safetensors")
    patch = pytest.MonkeyPatch()
    patch.setattr(theirs, "load_state_dict_from_url", lambda *args, **options: state)
    yield theirs, folder / "seeded.safetensors"
    patch.undo()


def torch_features(network, levels):
    """Return pytorch-fid's features of bytes, its own way from bytes to tensor."""
    import torch

    images = torch.from_numpy(levels).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        features = network(images)[0]
    return features.mean((2, 3)).numpy()


SIZES = [(32, 32), *(pytest.param(size, marks=pytest.mark.slow) for size in LARGER)]


@pytest.mark.torch
@pytest.mark.parametrize("size", SIZES)
def test_features_are_those_of_pytorch_fid(reference, size):
    """P077: oracle, pytorch-fid 0.3.0's network on equal weights."""
    theirs, file = reference
    levels = pictures(2, *size)
    expected = torch_features(theirs.InceptionV3().eval(), levels)
    assert 0.1 < np.abs(expected).max() < 100, "features of another scale would show nothing"
    features = load_inception(file)(levels)
    assert (features.shape, features.dtype) == ((2, 2048), np.float32)  # P079
    np.testing.assert_allclose(features, expected, rtol=0, atol=FEATURES_TOLERANCE)


@pytest.mark.torch
@pytest.mark.parametrize("features", [64, 192])
def test_earlier_features_are_those_of_pytorch_fid(reference, features):
    theirs, file = reference
    network = theirs.InceptionV3([theirs.InceptionV3.BLOCK_INDEX_BY_DIM[features]]).eval()
    levels = pictures(3, 40, 30)
    ours = load_inception(file, features=features)(levels)
    np.testing.assert_allclose(
        ours, torch_features(network, levels), rtol=0, atol=FEATURES_TOLERANCE
    )


@pytest.mark.torch
@pytest.mark.slow
def test_features_of_trained_weights_are_those_of_pytorch_fid():
    """Needs trained weights in pytorch-fid's layout: DEW_FIXTURES/inception-trained."""
    import pytorch_fid.inception as theirs
    from safetensors.torch import load_file

    file = Path(os.environ.get("DEW_FIXTURES", "absent")) / "inception-trained/model.safetensors"
    if not file.exists():
        pytest.skip("DEW_FIXTURES names no folder with inception-trained/model.safetensors")
    state = {
        name: value.float() if value.is_floating_point() else value
        for name, value in load_file(file).items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theirs, "load_state_dict_from_url", lambda *args, **options: state)
        network = theirs.InceptionV3().eval()
    levels = pictures(4, 96, 80)
    expected = torch_features(network, levels)
    np.testing.assert_allclose(
        load_inception(file)(levels), expected, rtol=0, atol=FEATURES_TOLERANCE
    )


@pytest.mark.torch
def test_the_score_is_that_of_pytorch_fid_on_folders_of_the_same_pictures(reference, tmp_path):
    """P070, P076, P080: oracle, its command on PNG files, with fewer images than features."""
    from PIL import Image
    from pytorch_fid.fid_score import calculate_fid_given_paths

    _, file = reference
    made, real = pictures(12, 36, 28, seed=1), pictures(9, 36, 28, seed=2)
    for name, levels in (("made", made), ("real", real)):
        (tmp_path / name).mkdir()
        for index, picture in enumerate(levels):
            Image.fromarray(picture).save(tmp_path / name / f"{index}.png")
    paths = [str(tmp_path / "made"), str(tmp_path / "real")]
    theirs = calculate_fid_given_paths(paths, 3, "cpu", 64, num_workers=0)
    metric = FrechetDistance(load_inception(file, features=64))
    total = metric(ImageGrid(as_floats(made)), {"image": real})
    with pytest.warns(UserWarning, match="12 generated and 9 real images for 64 features"):
        assert metric.finalize(total) == pytest.approx(theirs, rel=DISTANCE_TOLERANCE)


@pytest.mark.torch
def test_weights_are_read_from_torchs_own_file_and_from_numpys(reference):
    import torch
    from safetensors.torch import load_file

    _, file = reference
    state = load_file(file)
    torch.save(state, file.with_suffix(".pth"))
    np.savez(file.with_suffix(".npz"), **{name: value.numpy() for name, value in state.items()})
    levels = pictures(2, 16, 16)
    expected = load_inception(file, features=64)(levels)
    for suffix in (".pth", ".npz"):
        given = load_inception(file.with_suffix(suffix), features=64)
        np.testing.assert_array_equal(given(levels), expected)


def test_weights_that_do_not_fit_are_listed(tmp_path):
    from safetensors.numpy import save_file

    wrong = {
        "Conv2d_1a_3x3.conv.weight": np.zeros((32, 3, 5, 5), np.float32),
        "stray": np.zeros(2, np.float32),
        "fc.weight": np.zeros((1, 2), np.float32),
    }
    for part in ("weight", "bias", "running_mean", "running_var"):
        wrong[f"Conv2d_1a_3x3.bn.{part}"] = np.ones(32, np.float32)
    save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(WeightMismatch, match=r"(?s)misshapen.*Conv2d_1a.*missing.*and \d+ more"):
        load_inception(tmp_path / "wrong.safetensors")


@pytest.mark.parametrize("kind", ["pickle", "text"])
def test_weights_that_are_no_plain_arrays_are_refused_and_run_nothing(kind, tmp_path):
    import pickle

    class Payload:
        def __reduce__(self):
            return (Path(tmp_path / "CANARY").touch, ())

    np.savez(tmp_path / "w.npz", a=np.array([Payload()], object))
    files = {"pickle": pickle.dumps(Payload()), "text": b"no weights"}
    for suffix in (".pth", ".npz", ".safetensors"):
        (tmp_path / f"x{suffix}").write_bytes(files[kind])
        with pytest.raises(InputRefused, match=f"x{suffix}"):
            load_inception(tmp_path / f"x{suffix}")
    with pytest.raises(InputRefused, match="plain arrays"):
        load_inception(tmp_path / "w.npz")
    assert not (tmp_path / "CANARY").exists()


def population(count, features, seed, shift=0.0):
    """Return feature rows like an encoder's: not negative, of a fast falling spectrum."""
    mixing = np.random.default_rng(9).normal(size=(features, features)) / np.sqrt(features)
    rows = np.random.default_rng(seed).normal(size=(count, features))
    return np.abs(rows * np.exp(-np.arange(features) / (features / 10)) @ mixing + shift)


def pytorch_fid_distance(first, second):
    from pytorch_fid.fid_score import calculate_frechet_distance

    fits = [(rows.mean(0), np.cov(rows, rowvar=False)) for rows in (first, second)]
    return calculate_frechet_distance(*fits[0], *fits[1])


BELOW_AND_ABOVE = [
    pytest.param(64, 5, 5, id="64-few"),
    pytest.param(64, 40, 300, id="64-below"),
    pytest.param(64, 200, 150, id="64-above"),
    pytest.param(2048, 300, 500, id="2048-below", marks=pytest.mark.slow),
    pytest.param(2048, 2500, 3000, id="2048-above", marks=pytest.mark.slow),
]


@pytest.mark.torch
@pytest.mark.timeout(3600)  # sqrtm of 2048 features takes minutes on a busy machine
@pytest.mark.parametrize(("features", "count", "other"), BELOW_AND_ABOVE)
def test_the_distance_is_that_of_pytorch_fid(features, count, other):
    """P070, P071, P080: oracle, pytorch-fid's sqrtm in float64."""
    first, second = population(count, features, 1), population(other, features, 2, 0.05)
    ours = frechet_distance(moments(first), moments(second))
    expected = pytorch_fid_distance(first, second)
    assert ours == pytest.approx(expected, rel=DISTANCE_TOLERANCE)


def test_the_distance_needs_no_scipy():
    """P071: its square root of a matrix changes from version to version."""
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "import numpy as np\n"
        "from dew.evaluation.frechet import frechet_distance\n"
        "from dew.evaluation.moments import moments\n"
        "rows = np.arange(12.0).reshape(4, 3) % 5\n"
        "print(frechet_distance(moments(rows), moments(rows + 2)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(12, rel=1e-9)


def test_the_distance_is_symmetric():
    first, second = moments(population(40, 64, 1)), moments(population(300, 64, 2, 0.05))
    there = frechet_distance(first, second)
    assert there > 0.1
    assert frechet_distance(second, first) == pytest.approx(there, rel=1e-9)


@pytest.mark.parametrize("count", [2, 5, 70, 400])
def test_a_population_lies_at_distance_zero_from_itself(count):
    """P070: closed form; the reference gives -7e-6 or an imaginary part here."""
    rows = population(count, 64, 3)
    doubled = np.concatenate([rows, rows])
    assert 0 <= frechet_distance(moments(rows), moments(rows)) <= 1e-6
    assert 0 <= frechet_distance(moments(doubled), moments(doubled[::-1])) <= 1e-6


def test_equal_covariances_give_the_squared_shift_of_the_means():
    """Closed form."""
    rows = population(300, 20, 4)
    shift = np.arange(20) / 7
    assert frechet_distance(moments(rows), moments(rows + shift)) == pytest.approx(
        (shift**2).sum(), rel=1e-9
    )


def test_diagonal_covariances_give_the_squared_difference_of_deviations():
    """Closed form: rows ± s e_i have the covariance 2 s² / (N - 1) on the diagonal."""
    first, second = np.array([1.0, 2.0, 0.0]), np.array([3.0, 0.5, 1.0])

    def rows(deviations):
        spread = np.diag(deviations) * math.sqrt((6 - 1) / 2)
        return moments(np.concatenate([spread, -spread]))

    assert frechet_distance(rows(first), rows(second)) == pytest.approx(
        ((first - second) ** 2).sum(), rel=1e-12
    )


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.sampled_from([0.0, 1e3]))
def test_moments_of_any_split_are_those_of_the_whole(sizes, offset):
    """P077: oracle, numpy in one pass; a mean of a thousand costs no digits."""
    rows = np.random.default_rng(0).normal(size=(sum(sizes), 5)) + offset
    total, start = moments(rows[:0]), 0
    for size in sizes:
        total = merged(total, moments(rows[start : start + size]))
        start += size
    whole = moments(rows)
    assert total.count == whole.count
    np.testing.assert_allclose(total.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(total.scatter, whole.scatter, rtol=1e-9, atol=1e-9)
    if len(rows) > 1:
        np.testing.assert_allclose(
            whole.covariance(), np.cov(rows, rowvar=False), rtol=1e-9, atol=1e-9
        )


def mean_colours(levels):
    """An encoder of three features."""
    return levels.mean((1, 2))


def scored(generated, batch, **options):
    metric = FrechetDistance(mean_colours, **options)
    return metric.finalize(metric(generated, batch))


def test_fewer_than_two_images_of_a_side_are_an_error():
    """P081: numpy's own covariance of one row is NaN."""
    levels = pictures(4, 8, 8)
    for made, real in ((1, 4), (4, 1), (0, 4)):
        with pytest.raises(ValueError, match=f"{made} generated and {real} real images"):
            scored(ImageGrid(as_floats(levels[:made])), {"image": levels[:real]})


def test_an_image_that_is_not_finite_makes_the_distance_nan():
    images = as_floats(pictures(6, 8, 8))
    assert scored(ImageGrid(images), {"image": images}) == 0
    for bad in (np.nan, np.inf):
        images[2, 3, 3, 1] = bad
        assert math.isnan(scored(ImageGrid(images), {"image": pictures(6, 8, 8)}))
        with pytest.raises(InputRefused, match="1 of 1152 values are not finite"):
            scored(ImageGrid(as_floats(pictures(6, 8, 8))), {"image": images})


def test_frames_count_as_images_and_sizes_may_differ():
    levels, real = pictures(6, 8, 8), pictures(5, 12, 10, seed=1)
    frames = VideoGrid(as_floats(levels).reshape(2, 3, 8, 8, 3))
    expected = scored(ImageGrid(as_floats(levels)), {"image": real})
    assert scored(frames, {"video": real[:, None]}) == pytest.approx(expected, rel=1e-12)


def test_a_reference_range_is_declared_and_held():
    """P082: floats in [0, 1] count as such only where it is said."""
    levels, real = pictures(6, 8, 8), pictures(5, 8, 8, seed=1)
    made, unit = ImageGrid(as_floats(levels)), (real / 255).astype(np.float32)
    expected = scored(made, {"image": real})
    declared = Reference("photo", low=0, high=1)
    assert scored(made, {"photo": unit}, reference=declared) == pytest.approx(expected, rel=1e-9)
    assert scored(made, {"image": as_floats(real)}) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(InputRefused, match=r"outside \[0, 1\].*1.7"):
        scored(made, {"photo": np.full_like(unit, 1.7)}, reference=declared)
    with pytest.raises(InputRefused, match="int64"):
        scored(made, {"photo": real.astype(np.int64)}, reference=declared)
    with pytest.raises(InputRefused, match=r"no field 'photo'.*image"):
        scored(made, {"image": real}, reference=declared)


def test_what_is_generated_is_scored_as_the_bytes_of_a_png():
    """P076: a shift below half a level changes nothing, and what leaves the range is clipped."""
    levels, real = pictures(6, 8, 8), pictures(6, 8, 8, seed=1)
    expected = scored(ImageGrid(as_floats(levels)), {"image": real})
    assert scored(ImageGrid(as_floats(levels) + 1e-3), {"image": real}) == expected
    clipped = np.where(as_floats(levels) > 0.999, 3, as_floats(levels))
    assert scored(ImageGrid(clipped), {"image": real}) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(InputRefused, match="uint8; expected floats"):
        scored(ImageGrid(levels), {"image": real})


def test_without_weights_the_message_says_where_they_come_from():
    metric, levels = FrechetDistance(), pictures(2, 8, 8)
    with pytest.raises(InputRefused, match=r"load_inception\(PATH\)"):
        metric(ImageGrid(as_floats(levels)), {"image": levels})
    with pytest.raises(InputRefused, match="features is 100; Inception gives 64, 192, 768, 2048"):
        InceptionEncoder({}, 100)


def test_a_drawn_encoder_is_the_same_for_the_same_key():
    levels = pictures(5, 20, 20)
    first, again = (InceptionEncoder.random(jax.random.key(3), 64)(levels) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (5, 64)
    one = InceptionEncoder.random(jax.random.key(3), 64)(levels[4:])
    np.testing.assert_allclose(one, first[4:], rtol=1e-5)
