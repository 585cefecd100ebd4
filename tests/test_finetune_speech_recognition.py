"""Writing down sounds: torch's losses of Whisper and of CTC, error rates, refusals by row."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from task_proof import hold_to_torch, learnt, loss_and_gradients, write_word_pieces

from dew.artifacts import Predictions
from dew.cli.main import main
from dew.errors import InputRefused
from dew.objectives.base import Step
from dew.objectives.ctc import LetterLoss
from parity import random_models
from parity.tiny.speech import STABLE, WHISPER, WRITER

pytestmark = pytest.mark.torch
RATE = 2800
TEXTS = ("fair is foul", "so foul", "when shall we three meet again in rain")
LETTERS = [*["<pad>", "<s>", "</s>", "<unk>", "|"], *"ABEFHINOR"]
PROMPT = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 100, "<|de|>": 101},
    "task_to_id": {"transcribe": 102, "translate": 103},
    "no_timestamps_token_id": 104,
    "decoder_start_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 3,
}


def write_sounds(folder, texts, rate: int, seconds=(0.3, 0.7, 1.0)):
    import soundfile

    draws, rows = np.random.default_rng(0), []
    folder.mkdir(parents=True, exist_ok=True)
    for number, (text, length) in enumerate(zip(texts, seconds, strict=True)):
        samples = 0.3 * draws.standard_normal(int(length * rate))
        soundfile.write(folder / f"{number}.wav", samples.astype(np.float32), rate)
        rows.append({"file_name": f"{number}.wav", "text": text})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    ends = {"bos_token_id": 3, "eos_token_id": 3, "pad_token_id": 3, "decoder_start_token_id": 2}
    sizes = {"vocab_size": 160, "begin_suppress_tokens": None, "suppress_tokens": None}
    random_models.save_random({**WHISPER, **WRITER, **sizes, **ends}, folder, seed=1)
    write_word_pieces(folder, ending=True)
    (folder / "generation_config.json").write_text(json.dumps(PROMPT))
    extractor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        **{"feature_size": 10, "sampling_rate": RATE, "hop_length": 100},
        **{"n_fft": 80, "chunk_length": 1},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    return folder


@pytest.fixture(scope="module")
def speller(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wav2vec2")
    config = {**STABLE, "architectures": ["Wav2Vec2ForCTC"], "vocab_size": len(LETTERS)}
    config |= {"ctc_loss_reduction": "mean", "pad_token_id": 0}
    random_models.save_random(config, folder, seed=1)
    (folder / "vocab.json").write_text(json.dumps({one: n for n, one in enumerate(LETTERS)}))
    settings = {"tokenizer_class": "Wav2Vec2CTCTokenizer", "word_delimiter_token": "|"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    extractor = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        **{"sampling_rate": RATE, "return_attention_mask": True, "do_normalize": True},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    return folder


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    return write_sounds(tmp_path_factory.mktemp("heard"), TEXTS, RATE)


@pytest.fixture(scope="module")
def spelt(tmp_path_factory):
    return write_sounds(tmp_path_factory.mktemp("spelt"), ("FAIR", "NO BEE", "HERE ON"), RATE)


@pytest.mark.slow
def test_whispers_first_loss_and_its_gradient_are_transformers(whisper, heard):
    made = learnt("speech-recognition", whisper, heard, "--language", "en")
    batch = made.batch(range(3))
    # The language, the task, no times; then the text and its end.
    assert batch["labels"][0, :3].tolist() == [100, 102, 104]
    assert batch["decoder_input_ids"][0, :4].tolist() == [2, 100, 102, 104]
    assert [int(row[row >= 0][-1]) for row in batch["labels"]] == [3, 3, 3]

    def loss(model, given, dtype):
        return model(input_features=given["input_features"], labels=given["labels"]).loss

    hold_to_torch(made, whisper, batch, loss)


@pytest.mark.slow
def test_the_first_loss_of_letters_and_its_gradient_are_transformers(speller, spelt):
    made = learnt("speech-recognition", speller, spelt)
    batch = made.data.rows.take(np.arange(3), (int(made.data.rows.samples.max()), 7))
    assert batch["labels"][1].tolist() == [LETTERS.index(one) for one in "NO|BEE"] + [-100]
    assert batch["attention_mask"].sum(axis=1).tolist() == [840, 1959, 2800]

    def loss(model, given, dtype):
        names = ("input_values", "attention_mask", "labels")
        return model(**{name: given[name] for name in names}).loss

    hold_to_torch(made, speller, batch, loss)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_letters_is_torchs_in_both_reductions(reduction):
    import torch

    draws = np.random.default_rng(1)
    logits = (3 * draws.standard_normal((4, 30, 6))).astype(np.float32)
    samples, lengths = np.array([30, 22, 30, 12]), np.array([9, 5, 1, 6])
    labels = draws.integers(1, 6, (4, 9)).astype(np.int32)
    labels[np.arange(9) >= lengths[:, None]] = -100
    criterion = LetterLoss(0, (1,), (1,), reduction)
    losses, weights = criterion.losses({"logits": logits}, {"labels": labels, "samples": samples})
    ours = float((losses * weights).sum() / weights.sum())

    def theirs(dtype):
        scores = torch.tensor(logits).to(dtype).log_softmax(-1).transpose(0, 1)
        flat = torch.tensor(labels[labels >= 0].astype(np.int64))
        told = flat, torch.tensor(samples), torch.tensor(lengths)
        return float(torch.nn.functional.ctc_loss(scores, *told, reduction=reduction))

    exact = theirs(torch.float64)
    room = 2 * abs(theirs(torch.float32) - exact) + abs(exact) * np.finfo(np.float32).eps
    assert abs(ours - exact) <= room


@pytest.mark.slow
def test_the_loss_of_letters_does_not_depend_on_the_padding(speller, spelt):
    made = learnt("speech-recognition", speller, spelt)
    narrow = loss_and_gradients(made, made.data.rows.take(np.arange(3), (2800, 7)))
    wide = loss_and_gradients(made, made.data.rows.take(np.arange(3), (3400, 12)))
    np.testing.assert_allclose(wide[0], narrow[0], rtol=1e-6)
    for name, gradient in narrow[1].items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(wide[1][name], gradient, atol=1e-5 + 1e-5 * scale, err_msg=name)


@pytest.mark.slow
def test_evaluation_writes_what_generate_writes(whisper, heard):
    flags = ("--language", "en", "--predict_with_generate", "--max_target_length", 12)
    made = learnt("speech-recognition", whisper, heard, *flags)
    batch = made.batch(range(3))
    step = Step(np.int32(0), jax.random.key(0))
    scored = jax.jit(made.objective.evaluate)(made.bundle.variables, batch, step)
    (found,) = [part for part in scored if isinstance(part, Predictions)]
    options = {"language": "en", "task": "transcribe", "max_new_tokens": 8}
    wanted = made.bundle.generate(input_features=batch["input_features"], **options)
    written = np.asarray(found.outputs["written"])
    for row, right in zip(written, wanted, strict=True):
        assert [i for i in row.tolist() if i != 3] == [i for i in right.tolist() if i != 3]


@pytest.mark.slow
def test_a_run_learns_to_spell_and_tells_its_error_rates(speller, spelt, tmp_path):
    out = tmp_path / "out"
    words = ["finetune", speller, "--data", spelt, "--output_dir", out, "--steps", 150]
    words += ["--lr", 3e-3, "--eval_data", spelt, "--no_certify", "--quiet", "--eval_on_start"]
    assert main([str(word) for word in words]) == 0
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    before, after = (r for r in (records[0], records[-1]))
    assert before["eval_wer"] >= 1.0
    assert after["eval_cer"] < 0.5
    assert json.loads((out / "preprocessor_config.json").read_text())["sampling_rate"] == RATE


def test_what_cannot_be_heard_is_refused_by_row(speller, tmp_path):
    folder = write_sounds(tmp_path / "bad", ("FAIR", "ON", "BEE"), RATE)
    (folder / "1.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(InputRefused, match=r"cannot be decoded:(.|\n)*1\.wav"):
        learnt("speech-recognition", speller, folder)


def test_a_sound_too_short_for_its_text_is_refused(speller, tmp_path):
    folder = write_sounds(tmp_path / "short", ("FAIR" * 12, "ON", "BEE"), RATE)
    with pytest.raises(InputRefused, match=r"0\.wav: 48 places for 48 letters, the sound has 41"):
        learnt("speech-recognition", speller, folder)


def test_texts_of_another_alphabet_and_a_language_not_named_are_refused(
    speller, whisper, heard, tmp_path
):
    folder = write_sounds(tmp_path / "lower", ("fair", "on", "bee"), RATE)
    with pytest.raises(InputRefused, match="9 of 9 letters are not in the vocabulary"):
        learnt("speech-recognition", speller, folder)
    with pytest.raises(InputRefused, match="give --language"):
        learnt("speech-recognition", whisper, heard)
