"""Speech recognition as transformers' pipeline does it: its texts, its chunks, its times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipeline_pictures import assert_same
from pipeline_sounds import RATE, drawn, save_letters, save_whisper, theirs, wav

import dew
from dew.errors import InputRefused

pytestmark = pytest.mark.torch
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch").set_num_threads(1)
    return tmp_path_factory.mktemp("speech")


# Letters.


@pytest.fixture(scope="module", params=["stable", pytest.param("grouped", marks=SLOW)])
def letters(request, root) -> tuple[Any, Any]:
    folder = save_letters(root / request.param, stable=request.param == "stable")
    return dew.pipeline(str(folder)), theirs(folder)


def sounds() -> dict[str, Any]:
    """Return sounds that transformers takes too, by what they are; new ones, as it eats dicts."""
    one, two = drawn(0.31), drawn(0.3, 1)
    return {
        "float32": one,
        "float64": two.astype(np.float64),
        "two channels": np.stack([one, drawn(0.31, 2)]),
        "one channel": one[None],
        "raw": {"raw": one, "sampling_rate": RATE},
        "array": {"array": two, "sampling_rate": RATE, "path": "nowhere.wav"},
        "beside": {"raw": one, "sampling_rate": RATE, "speaker": "KING", "n": 3},
        "stride": {"raw": two, "sampling_rate": RATE, "stride": (800, 1600)},
        "silent": np.zeros(5000, np.float32),
        "loud": 30 * two,
        "quiet": 1e-3 * one,
        "short": one[:420],
        "long": drawn(0.9, 3),
    }


def test_each_kind_of_sound_gets_transformers_text(letters):
    ours, wanted = letters
    assert len(sounds()) >= 12
    for name in sounds():
        assert_same(ours(sounds()[name]), wanted(sounds()[name]))
    arrays = [sounds()[name] for name in ("float32", "long", "short", "float64")]
    expected = [wanted(one) for one in arrays]
    assert_same(ours(arrays, batch_size=3), expected)
    assert_same(list(ours(iter(arrays))), expected)
    assert len(expected[1]["text"]) > 10


@pytest.mark.parametrize(
    "options",
    [
        {"return_timestamps": "char"},
        {"return_timestamps": "word"},
        {"chunk_length_s": 0.3},
        {"chunk_length_s": 0.3, "stride_length_s": (0.1, 0.02), "return_timestamps": "word"},
        pytest.param({"chunk_length_s": 0.4, "stride_length_s": 0.05}, marks=SLOW),
        pytest.param({"chunk_length_s": 9, "return_timestamps": "word"}, marks=SLOW),
    ],
)
def test_pieces_and_times_are_those_of_transformers(letters, options):
    ours, wanted = letters
    for name in ("long", "float32", "beside"):
        assert_same(ours(sounds()[name], **options), wanted(sounds()[name], **options))


def test_files_are_what_their_samples_are(letters, tmp_path):
    import soxr

    ours, wanted = letters
    samples = drawn(0.4, 5)
    (tmp_path / "it.wav").write_bytes(wav(samples))
    expected = wanted(samples)
    path = tmp_path / "it.wav"
    for value in (path, str(path), wav(samples), {"path": str(path), "bytes": None}):
        assert ours(value) == expected
    # transformers resamples with another filter: soxr's is the one that is meant here.
    slower = wanted(soxr.resample(samples, 22_050, RATE))
    assert ours({"raw": samples, "sampling_rate": 22_050}) == slower
    assert ours(wav(samples, 22_050)) == slower


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ("nowhere.wav", {}, "no such file"),
        (b"no sound", {}, "the sound of 8 bytes: not a sound that can be read"),
        ("https://example.org/a.wav", {}, "the network is off"),
        (np.zeros((900, 2), np.float32), {}, "axis 0 counts channels, and 900 are too many"),
        (np.zeros(900, np.int16), {}, "expected floating ones"),
        (
            {"raw": np.zeros(9, np.float32)},
            {},
            "expected raw .or array., the samples",
        ),
        ([drawn(0.1), b"x"], {}, "sound 1 of 2: the sound of 1 bytes"),
        (drawn(0.1), {"return_timestamps": True}, "letters have times by 'char' or by 'word'"),
        (drawn(0.1), {"return_timestamps": "line"}, "return_timestamps is 'line'"),
        (drawn(0.1), {"return_language": True}, "the model names letters, not languages"),
        (drawn(0.1), {"num_beams": 2}, "no option 'num_beams' for a model of letters"),
        (drawn(0.1), {"chunk_length_s": 1, "stride_length_s": 0.5}, "nothing is left of a piece"),
        (np.zeros(25, np.float32), {}, "a sound of 25 samples; the model looks at"),
        (7, {}, "expected a sound"),
    ],
)
def test_what_is_no_sound_is_refused(letters, monkeypatch, given, options, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((InputRefused, KeyError), match=words):
        letters[0](given, **options)


def test_what_lacks_beside_the_weights_is_named(letters):
    bundle = letters[0].bundle
    with pytest.raises(InputRefused, match=r"it has no vocab\.json"):
        dew.pipeline(bundle.replace(processor=bundle.processor.sounds))
    with pytest.raises(InputRefused, match="needs a feature extractor"):
        dew.pipeline(bundle.replace(processor=None))


# Texts.


@pytest.fixture(scope="module")
def whisper(root) -> tuple[Any, Any]:
    folder = save_whisper(root / "whisper", max_new_tokens=9, num_beams=1)
    return dew.pipeline(str(folder)), theirs(folder)


def spoken(seed: int, seconds: float) -> np.ndarray:
    return drawn(seconds, seed)


WHOLE = [(0, 3.0), (1, 6.9), (2, 5.0)]
CALLS: list[tuple[float, dict[str, Any]]] = [
    (4, {"return_timestamps": True}),
    (4, {"generate_kwargs": {"num_beams": 3}}),
    (4, {"language": "german", "task": "translate", "return_language": True}),
    (25, {"return_timestamps": True, "max_new_tokens": 20}),
    (25, {"return_timestamps": True, "return_language": True}),
    (25, {"return_timestamps": True, "num_beams": 2}),
    (16, {"chunk_length_s": 7}),
    (16, {"chunk_length_s": 6, "stride_length_s": (2, 1), "return_timestamps": True}),
    (16, {"chunk_length_s": 5, "return_language": True}),
    (25, {"condition_on_prev_tokens": True, "language": "en", "return_timestamps": True}),
    (6, {"return_timestamps": "word"}),
    (25, {"return_timestamps": "word", "num_beams": 2}),
    (16, {"chunk_length_s": 6, "return_timestamps": "word"}),
]
FAST = {7, 10}
EACH = [
    call if place in FAST else pytest.param(*call, marks=SLOW) for place, call in enumerate(CALLS)
]


def test_windows_get_transformers_texts(whisper):
    ours, wanted = whisper
    given = [spoken(*one) for one in WHOLE]
    expected = [wanted(one) for one in given]
    assert_same(ours(given, batch_size=1), expected)
    assert len({one["text"] for one in expected}) > 1
    assert_same(ours(given[0]), expected[0])


@pytest.mark.parametrize(("seconds", "options"), EACH)
def test_longer_sounds_and_times_are_those_of_transformers(whisper, seconds, options):
    ours, wanted = whisper
    for seed in range(2):
        found = ours(spoken(seed, seconds), **options)
        assert_same(found, wanted(spoken(seed, seconds), **options))


def test_the_checkpoints_own_numbers_are_not_overruled(root):
    folder = save_whisper(root / "plain", max_length=12)
    found = dew.pipeline(str(folder)).checked(dew.pipeline(str(folder)).merged({}))["asked"]
    assert found == {"num_beams": 5}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"return_timestamps": "char"}, "Whisper has times by 'word'"),
        ({"decoder_kwargs": {"beam_width": 2}}, "Whisper reads no language model"),
        ({"return_timestamps": None}, "100 frames, the model hears 28 at a time"),
        ({"language": "fr"}, "language is 'fr', which this checkpoint has no id for"),
        ({"max_new_tokens": 60}, "the model has 40 positions"),
        ({"num_beems": 2}, "unknown generation option 'num_beems'"),
    ],
)
def test_what_whisper_is_not_asked_is_refused(whisper, options, words):
    with pytest.raises((InputRefused, KeyError), match=words):
        whisper[0](spoken(0, 25), **{"return_timestamps": True, **options})
