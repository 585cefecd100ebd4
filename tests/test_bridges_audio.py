"""Sounds prepared as transformers' own feature extractors do it, and bad sound files refused."""

from __future__ import annotations

import json
import struct
import sys

import numpy as np
import pytest
import soundfile
import soxr

from bridges.audio.log_mel import LogMel, mel_filters
from bridges.audio.sound import read_sound
from bridges.audio.waveform import Waveform
from bridges.processing import JointProcessor, read_processor
from dew.errors import InputRefused

RATE = 16_000


def sweep(seconds, rate=RATE, seed=0):
    """A rising tone over noise, float32 below full scale."""
    times = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.05, len(times))
    return (0.5 * np.sin(2 * np.pi * (200 + 900 * times) * times) + noise).astype(np.float32)


SOUNDS = [sweep(0.5), sweep(0.31, seed=1), sweep(0.02, seed=2)]


def reader(folder, settings, **config):
    """Our processor of a preprocessor_config.json."""
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return read_processor(folder, config)


@pytest.mark.parametrize("bands", [80, 128])
def test_log_mel_features_are_those_of_transformers(bands, tmp_path):
    from transformers import WhisperFeatureExtractor

    theirs = WhisperFeatureExtractor(feature_size=bands, chunk_length=4)
    ours = reader(tmp_path, json.loads(theirs.to_json_string()), model_type="whisper")
    assert isinstance(ours, LogMel)
    # One shorter than the chunk, one that fills it, one longer, and silence.
    sounds = [sweep(1.3), sweep(4, seed=1), sweep(4.7, seed=2), np.zeros(RATE, np.float32)]
    wanted = theirs(sounds, sampling_rate=RATE, return_attention_mask=True, return_tensors="np")
    found = ours(sounds, sampling_rate=RATE, return_attention_mask=True)
    assert found["input_features"].dtype == np.float32
    assert found["input_features"].shape == (4, bands, 400)
    # transformers computes in float32 where torch is there, in numpy where it is not. Of 128
    # bands its float32 is up to 2e-5 from float64 (the test below), which is what is left here.
    features = wanted["input_features"]
    np.testing.assert_allclose(found["input_features"], features, rtol=0, atol=3e-5)
    padded = np.stack(
        [np.pad(sound[: 4 * RATE], (0, 4 * RATE - len(sound[: 4 * RATE]))) for sound in sounds]
    )
    numpy = theirs._np_extract_fbank_features(padded, "cpu")
    np.testing.assert_allclose(found["input_features"], numpy, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found["attention_mask"], wanted["attention_mask"])


@pytest.mark.parametrize("bands", [80, 128])
def test_log_mel_is_nearer_to_float64_than_transformers_is(bands):
    # The definition in float64 throughout, frame by frame, with transformers' filters.
    from transformers import WhisperFeatureExtractor

    theirs = WhisperFeatureExtractor(feature_size=bands, chunk_length=2)
    samples = sweep(2)
    frames = np.pad(samples.astype(np.float64), 200, mode="reflect")
    window = np.hanning(401)[:-1]
    spectrum = [np.fft.rfft(frames[i * 160 : i * 160 + 400] * window) for i in range(200)]
    mel = np.log10(np.maximum(np.abs(spectrum) ** 2 @ theirs.mel_filters, 1e-10)).T
    exact = (np.maximum(mel, mel.max() - 8) + 4) / 4
    found = LogMel(bands, seconds=2)(samples, sampling_rate=RATE)["input_features"][0]
    own = theirs(samples, sampling_rate=RATE, return_tensors="np")["input_features"][0]
    error, theirs_error = np.abs(found - exact).max(), np.abs(own - exact).max()
    assert error <= min(2 * theirs_error, 1e-6)
    assert theirs_error < 3e-5


@pytest.mark.parametrize("bands", [80, 128])
def test_mel_filters_are_those_of_transformers(bands):
    from transformers import WhisperFeatureExtractor

    wanted = WhisperFeatureExtractor(feature_size=bands).mel_filters
    np.testing.assert_allclose(mel_filters(bands, 400, RATE), wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("normalise", [True, False])
def test_waveforms_with_a_mask_are_those_of_transformers(normalise, tmp_path):
    from transformers import Wav2Vec2FeatureExtractor

    theirs = Wav2Vec2FeatureExtractor(do_normalize=normalise, return_attention_mask=True)
    ours = reader(tmp_path, json.loads(theirs.to_json_string()), model_type="wav2vec2")
    assert isinstance(ours, Waveform)
    wanted = theirs(SOUNDS, sampling_rate=RATE, padding=True, return_tensors="np")
    found = ours(SOUNDS, sampling_rate=RATE)
    assert set(found) == {"input_values", "attention_mask"}
    np.testing.assert_array_equal(found["input_values"], wanted["input_values"])
    np.testing.assert_array_equal(found["attention_mask"], wanted["attention_mask"])


def test_waveforms_without_a_mask_are_each_sound_of_transformers_by_itself(tmp_path):
    from transformers import Wav2Vec2FeatureExtractor

    theirs = Wav2Vec2FeatureExtractor(return_attention_mask=False)
    ours = reader(tmp_path, json.loads(theirs.to_json_string()), model_type="wav2vec2")
    found = ours(SOUNDS, sampling_rate=RATE)
    assert set(found) == {"input_values"}
    for row, sound in zip(found["input_values"], SOUNDS, strict=True):
        wanted = theirs(sound, sampling_rate=RATE, return_tensors="np")["input_values"][0]
        np.testing.assert_array_equal(row[: len(sound)], wanted)
        assert not row[len(sound) :].any()


def test_one_sound_a_list_of_numbers_and_an_array_of_rows_are_read_alike():
    samples = sweep(0.1)
    ours = Waveform()
    wanted = ours(samples, sampling_rate=RATE)["input_values"]
    assert wanted.shape == (1, 1600)
    listed = ours(samples.tolist(), sampling_rate=RATE)["input_values"]
    np.testing.assert_array_equal(listed, wanted)
    rows = ours(np.stack([samples, samples]), sampling_rate=RATE)["input_values"]
    np.testing.assert_array_equal(rows, np.concatenate([wanted, wanted]))


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg"])
def test_files_are_read_as_soundfile_does_and_channels_are_averaged(kind, tmp_path):
    both = np.stack([sweep(0.2), sweep(0.2, seed=1)], 1) / 2
    soundfile.write(tmp_path / f"a.{kind}", both, RATE)
    wanted, _ = soundfile.read(tmp_path / f"a.{kind}", dtype="float32")
    found = read_sound(tmp_path / f"a.{kind}", RATE)
    np.testing.assert_array_equal(found, wanted.mean(1))


def test_another_rate_is_resampled_as_soxr_does(tmp_path):
    soundfile.write(tmp_path / "a.wav", sweep(3, 44_100), 44_100, subtype="FLOAT")
    samples = sweep(3, 44_100)
    wanted = soxr.resample(samples, 44_100, RATE)
    np.testing.assert_array_equal(read_sound(tmp_path / "a.wav", RATE), wanted)
    found = Waveform(normalise=False)(samples, sampling_rate=44_100)["input_values"]
    np.testing.assert_array_equal(found[0], wanted)


def wav(data=b"\0\0" * 1600, kind=1, channels=1, rate=RATE, bits=16, size=None):
    """A WAV file by hand, as BAD-INPUTS lays it out; `size` is what its data chunk claims."""
    block = channels * bits // 8
    fields = struct.pack("<HHIIHH", kind, channels, rate, rate * block % 2**32, block, bits)
    body = b"WAVEfmt " + struct.pack("<I", 16) + fields + b"data"
    claimed = len(data) if size is None else size
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + body + struct.pack("<I", claimed) + data


WRONG = np.array([np.nan, np.inf, 0.5], "<f4").tobytes()
HOURS = bytes(2 * 1000 * 36_000)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(wav(rate=0), "0 samples a second.*1000 to 768000|not a sound", id="BP070"),
        pytest.param(wav(WRONG, kind=3, bits=32), "2 of 3 samples are NaN or inf", id="BP071"),
        pytest.param(wav(HOURS, rate=1000), "36000 s. Expected .* at most 3600 s", id="BP072"),
        pytest.param(wav(b""), "0 samples", id="no samples"),
        pytest.param(b"", "not a sound", id="empty"),
        pytest.param(b"<html>" * 20, "not a sound", id="page"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull", id="pointer"),
    ],
)
def test_a_bad_sound_file_is_refused(content, words, tmp_path):
    (tmp_path / "x.wav").write_bytes(content)
    with pytest.raises(InputRefused, match=rf"x\.wav: (?s:.*)({words})"):
        read_sound(tmp_path / "x.wav", RATE)


def test_a_chunk_that_claims_4_gb_gives_what_is_there_aloud(tmp_path):
    # BAD-INPUTS BP069: memory is taken by the file's size.
    (tmp_path / "x.wav").write_bytes(wav(size=2**32 - 1))
    with pytest.warns(UserWarning, match=r"claims 4294967295 bytes of samples, 3200 are there"):
        found = read_sound(tmp_path / "x.wav", RATE)
    assert found.tolist() == [0.0] * 1600


def test_a_flac_that_is_cut_off_is_refused(tmp_path):
    soundfile.write(tmp_path / "x.flac", sweep(1), RATE)
    data = (tmp_path / "x.flac").read_bytes()
    (tmp_path / "x.flac").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputRefused, match=r"x\.flac: (cut off|cannot be decoded)"):
        read_sound(tmp_path / "x.flac", RATE)


@pytest.mark.parametrize(
    ("sound", "rate", "words"),
    [
        (np.zeros(8, np.float32), None, "samples without their rate.*16000"),
        (np.zeros(8, np.int16), RATE, "samples of int16.*Divide them by 32768"),
        (np.zeros((2, 2, 2), np.float32), RATE, r"float32 \[2, 2, 2\]"),
        (np.zeros(0, np.float32), RATE, "at least one"),
        ([], RATE, "no sounds"),
        (np.full(8, np.nan, np.float32), RATE, "8 of 8 samples are NaN"),
        (np.zeros(8, np.float32), 10, "10 samples a second"),
    ],
)
def test_what_is_no_sound_is_refused(sound, rate, words):
    with pytest.raises(InputRefused, match=words):
        Waveform()(sound, sampling_rate=rate)


def test_a_small_file_of_very_many_samples_is_refused_from_its_header(tmp_path):
    # Silence costs FLAC next to nothing: the header is changed to 20 minutes of 8 channels at
    # 96 kHz (RFC 9639, section 8.2: 36 bits of samples before the MD5).
    soundfile.write(tmp_path / "x.flac", np.zeros((4096, 8)), 96_000, format="FLAC")
    data = bytearray((tmp_path / "x.flac").read_bytes())
    frames = 1200 * 96_000
    data[21] = data[21] & 0xF0 | frames >> 32
    data[22:26] = struct.pack(">I", frames & 0xFFFFFFFF)
    (tmp_path / "x.flac").write_bytes(data)
    with pytest.raises(InputRefused, match=r"115200000 samples of 8 channels are more than"):
        read_sound(tmp_path / "x.flac", RATE)


def test_without_the_extra_the_message_says_how_to_get_it(monkeypatch, tmp_path):
    (tmp_path / "x.wav").write_bytes(wav())
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(InputRefused, match=r'Resampling needs soxr: pip install "dew\[audio\]"'):
        read_sound(tmp_path / "x.wav", 8000)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InputRefused, match=r'pip install "dew\[audio\]"'):
        read_sound(tmp_path / "x.wav", RATE)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feature_extractor_type": "WhisperFeatureExtractor", "dither": 0.1}, "dither is 0.1"),
        ({"feature_extractor_type": "WhisperFeatureExtractor", "n_fft": "400"}, "n_fft is '400'"),
        ({"feature_extractor_type": "Wav2Vec2FeatureExtractor", "padding_side": "left"}, "left"),
    ],
)
def test_settings_that_are_not_computed_are_refused_by_name(settings, words, tmp_path):
    with pytest.raises(InputRefused, match=words):
        reader(tmp_path, settings)


def test_what_whispers_own_repositories_carry_is_read_and_other_keys_are_named(tmp_path, recwarn):
    # openai/whisper-tiny's file also lists the filters themselves.
    settings = {"feature_extractor_type": "WhisperFeatureExtractor", "mel_filters": [[0.0]]}
    settings |= {"n_samples": 480_000, "nb_max_frames": 3000, "return_attention_mask": False}
    assert isinstance(reader(tmp_path, settings), LogMel)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="feature extractor.*(?s:.*)preemphasis"):
        reader(tmp_path, settings | {"preemphasis": 0.9})


def test_a_tokenizer_and_a_feature_extractor_are_one_processor(tokenizer_folder, tmp_path):
    for file in tokenizer_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    found = reader(tmp_path, {"feature_extractor_type": "WhisperFeatureExtractor"})
    assert isinstance(found, JointProcessor)
    assert isinstance(found.sounds, LogMel)
    assert found.eos_token_ids == found.tokenizer.eos_token_ids
    assert {"tokenizer.json", "preprocessor_config.json"} <= set(found.files)
