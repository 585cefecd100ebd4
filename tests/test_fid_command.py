"""`dew fid`: pytorch-fid's flags and files, its numbers, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from image_networks import pictures

from bridges.commands.fid import COMMAND, MODES, cached_weights
from bridges.encoders.fid_statistics import read_statistics
from dew.cli import main as program
from dew.cli.main import main
from dew.errors import InputRefused
from dew.nn.inception import InceptionEncoder

DIMS = "64"


class Point:
    """Stands for the entry point of the package, whatever is installed."""

    name = "fid"

    def load(self):
        return COMMAND


@pytest.fixture(autouse=True)
def command(monkeypatch):
    monkeypatch.setattr(program, "entry_points", lambda group: [Point()])


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Seeded weights in pytorch-fid's layout."""
    from parity.seeded_inception import seeded_weights, weight_shapes

    path = tmp_path_factory.mktemp("weights") / "seeded.npz"
    np.savez(path, **seeded_weights(0, weight_shapes()))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders of pictures of unlike sizes."""
    from PIL import Image

    root = tmp_path_factory.mktemp("pictures")
    for name, count in (("made", 7), ("real", 5)):
        (root / name).mkdir()
        for index in range(count):
            picture = pictures(1, 20 + index % 2, 24, seed=index + 50 * (name == "real"))[0]
            Image.fromarray(picture).save(root / name / f"{index}.png")
    return root


def printed(capsys, *words):
    """Return the distance that the command prints."""
    assert main(["fid", *map(str, words), "--dims", DIMS]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    return float(line.removeprefix("FID: "))


def theirs(folders, weights):
    """Return pytorch-fid's distance, one picture at a time since sizes differ."""
    import pytorch_fid.inception as network
    import torch
    from pytorch_fid.fid_score import calculate_fid_given_paths

    with np.load(weights) as archive:
        state = {name: torch.from_numpy(archive[name]) for name in archive.files}
    paths = [str(path) if isinstance(path, Path) else path for path in folders]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "load_state_dict_from_url", lambda *args, **options: state)
        return calculate_fid_given_paths(paths, 1, "cpu", int(DIMS), num_workers=0)


@pytest.mark.torch
def test_the_command_prints_pytorch_fids_distance_and_statistics_stand_for_folders(
    folders, weights, tmp_path, capsys
):
    """Oracle, pytorch-fid's command on folders, and on statistics that dew wrote."""
    made, real, saved = folders / "made", folders / "real", tmp_path / "real.npz"
    expected = theirs((made, real), weights)
    given = ("--weights", weights)
    assert printed(capsys, made, real, *given) == pytest.approx(expected, rel=1e-5)
    assert (
        main(["fid", str(real), str(saved), "--save-stats", "--dims", DIMS, *map(str, given)]) == 0
    )
    assert f"wrote {saved}" in capsys.readouterr().out
    assert printed(capsys, made, saved, *given) == pytest.approx(expected, rel=1e-5)
    assert printed(capsys, saved, made, *given) == pytest.approx(expected, rel=1e-5)
    assert theirs((made, saved), weights) == pytest.approx(expected, rel=1e-5)
    assert printed(capsys, saved, saved) <= 1e-6, "two files of statistics need no weights"


@pytest.mark.torch
def test_statistics_that_pytorch_fid_wrote_are_read(folders, weights, tmp_path, capsys):
    import pytorch_fid.inception as network
    import torch
    from pytorch_fid.fid_score import save_fid_stats

    with np.load(weights) as archive:
        state = {name: torch.from_numpy(archive[name]) for name in archive.files}
    saved = tmp_path / "theirs.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "load_state_dict_from_url", lambda *args, **options: state)
        save_fid_stats([str(folders / "real"), str(saved)], 1, "cpu", int(DIMS), 0)
    words = (folders / "made", saved, "--weights", weights)
    expected = theirs((folders / "made", folders / "real"), weights)
    assert printed(capsys, *words) == pytest.approx(expected, rel=1e-5)


def encoder(levels):
    return levels.mean((1, 2))


@pytest.fixture
def small(monkeypatch):
    """Three features instead of a network: what is refused does not hang on it."""
    import bridges.encoders.inception as inception

    monkeypatch.setattr(inception, "load_inception", lambda *args, **options: encoder)


def refusal(capsys, *words):
    """Return what a refused call says; it leaves with status 2."""
    assert main(["fid", *map(str, words)]) == 2
    return capsys.readouterr().err


def test_each_mode_is_told_in_the_file_and_not_mixed_with_another(small, folders, tmp_path, capsys):
    saved, given = tmp_path / "clean.npz", ("--weights", "w")
    words = (folders / "made", saved, "--save-stats", "--mode", "clean-fid")
    assert main(["fid", *map(str, words), *given]) == 0
    other = refusal(capsys, folders / "made", saved, *given)
    assert "features of mode 'clean-fid', where pytorch-fid is asked for" in other
    assert main(["fid", *map(str, (folders / "made", saved)), "--mode", "clean-fid", *given]) == 0
    assert float(capsys.readouterr().out.split()[-1]) <= 1e-6
    assert "there already" in refusal(capsys, folders / "made", saved, "--save-stats", *given)
    named = refusal(capsys, folders / "made", tmp_path / "x.txt", "--save-stats", *given)
    assert "ends in .npz" in named
    lost = refusal(capsys, folders / "made", tmp_path / "no" / "x.npz", "--save-stats", *given)
    assert "no such folder" in lost


def test_one_picture_and_none_are_refused_by_name(small, folders, tmp_path, capsys):
    """P074, P081."""
    from PIL import Image

    (tmp_path / "one" / "deeper").mkdir(parents=True)
    Image.fromarray(pictures(1, 8, 8)[0]).save(tmp_path / "one" / "a.PNG")
    words = ("--weights", "w")
    assert "1 image; a covariance needs at least two" in refusal(
        capsys, tmp_path / "one", folders / "real", *words
    )
    none = refusal(capsys, tmp_path / "one" / "deeper", folders / "real", *words)
    assert "0 images found; searched" in none
    assert "no such folder" in refusal(capsys, tmp_path / "x", folders / "real", *words)


def test_few_pictures_and_a_device_are_spoken_of(small, folders, tmp_path, capsys):
    from PIL import Image

    for index, picture in enumerate(pictures(3, 8, 8)):
        Image.fromarray(picture).save(tmp_path / f"{index}.png")
    words = (str(tmp_path), str(folders / "real"), "--device", "cuda:0", "--weights", "w")
    assert main(["fid", *words]) == 0
    told = capsys.readouterr().out
    assert "--device cuda:0 has no effect" in told
    assert "3 images for 3 features" in told


class Payload:
    def __reduce__(self):
        return (Path("CANARY").touch, ())


SIGMA = np.eye(3)
BROKEN = {
    "no archive": (lambda path: path.write_bytes(b"nothing"), "not an .npz archive"),
    "objects": (lambda path: np.savez(path, mu=np.array([Payload()])), "not an .npz archive"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Payload())), "not an .npz archive"),
    "other names": (lambda path: np.savez(path, m=SIGMA), "no mu and no sigma; it holds 'm'"),
    "shapes": (lambda path: np.savez(path, mu=np.zeros(4), sigma=SIGMA), r"\(4,\) and sigma"),
    "whole numbers": (
        lambda path: np.savez(path, mu=np.zeros(3, int), sigma=SIGMA),
        "expected floats",
    ),
    "not finite": (
        lambda path: np.savez(path, mu=np.full(3, np.nan), sigma=SIGMA),
        "not finite",
    ),
    "not symmetric": (
        lambda path: np.savez(path, mu=np.zeros(3), sigma=SIGMA + np.tri(3)),
        "not symmetric",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_statistics_that_are_none_are_refused_and_run_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write, match = BROKEN[kind]
    write(tmp_path / "broken.npz")
    with pytest.raises(InputRefused, match=match):
        read_statistics(tmp_path / "broken.npz", mode="pytorch-fid")
    assert not (tmp_path / "CANARY").exists()


def test_statistics_of_unlike_features_are_refused(tmp_path, capsys):
    for features in (3, 4):
        sides = {"mu": np.zeros(features), "sigma": np.eye(features)}
        np.savez(tmp_path / f"{features}.npz", **sides)
    said = refusal(capsys, tmp_path / "3.npz", tmp_path / "4.npz")
    assert "features of 4 and 3; expected one encoder for both" in said


def test_without_weights_the_message_says_where_they_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(InputRefused, match=r"--weights PATH, the file https://github.com"):
        cached_weights()
    kept = tmp_path / "hub" / "checkpoints" / "pt_inception-2015-12-05-6726825d.pth"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert cached_weights() == kept


def test_the_flags_offer_what_the_network_has():
    from dew.nn import fid_sampling
    from dew.nn.inception import TAPS

    options = {option.name: option for option in COMMAND.options}
    assert set(options["mode"].choices) == set(MODES) == set(fid_sampling.MODES)
    assert {int(dims) for dims in options["dims"].choices} == {*TAPS} - {1008}
    assert options["batch_size"].default == 50
    assert InceptionEncoder.__dataclass_fields__["mode"].default == options["mode"].default
