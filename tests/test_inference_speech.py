"""What is heard: Whisper's ids and wav2vec 2.0's letters, equal to transformers' own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_speech import FRAMES, save_random

import bridges
from bridges.audio.letters import read_letters
from bridges.audio.log_mel import LogMel
from bridges.processing import JointProcessor
from dew.errors import InputRefused
from dew.inference.ctc import collapsed, letter_ids, letter_texts
from dew.inference.languages import LANGUAGE_CODES
from parity.tiny.speech import MODELS

pytestmark = pytest.mark.torch
SLOW = pytest.mark.slow
SOUNDS = np.random.default_rng(0).standard_normal((3, 10, FRAMES)).astype(np.float32)
PLAIN = {
    "begin_suppress_tokens": [3, 50],
    "decoder_start_token_id": 51,
    "bos_token_id": 50,
    "eos_token_id": 50,
    "pad_token_id": 50,
}
MANY = {
    **PLAIN,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 52, "<|de|>": 53, "<|zh|>": 54},
    "task_to_id": {"translate": 55, "transcribe": 56},
    "no_timestamps_token_id": 60,
    "suppress_tokens": [7, 8, 9, *range(51, 60)],
    "return_timestamps": False,
    "alignment_heads": [[0, 0]],
}
FEW = [token for token in range(61) if token not in (50, 11, 12, 44)]
OLD = {**PLAIN, "forced_decoder_ids": [[1, 52], [2, 56], [3, 60]], "max_length": 15}
HEARD = {**MANY, "forced_decoder_ids": [[1, None], [2, 56]]}
CALLS: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {
    "heard": (MANY, {"max_new_tokens": 9}),
    "beams": (MANY, {"language": "German", "num_beams": 3, "max_new_tokens": 12}),
    "plain": (PLAIN, {}),
    "ends": ({**PLAIN, "suppress_tokens": FEW}, {"max_new_tokens": 25}),
    "ends and beams": (
        {**PLAIN, "suppress_tokens": FEW},
        {"max_new_tokens": 25, "num_beams": 3, "early_stopping": True, "num_return_sequences": 2},
    ),
    "pad of its own": ({**PLAIN, "pad_token_id": 9}, {"max_new_tokens": 25, "num_beams": 2}),
    "forced": (OLD, {}),
    "forced and longer": (OLD, {"max_length": 40, "num_beams": 2}),
    "forced and heard": (HEARD, {"max_new_tokens": 9}),
    "languages": (
        MANY,
        {"language": ["en", "mandarin", "<|de|>"], "task": "translate", "max_new_tokens": 9},
    ),
    "task": (MANY, {"task": "translate", "max_new_tokens": 9}),
    "before": (MANY, {"language": "en", "prompt_ids": [57, 4, 6], "max_new_tokens": 9}),
    "rules": (
        MANY,
        {
            "language": "en",
            "repetition_penalty": 1.7,
            "min_new_tokens": 6,
            "max_new_tokens": 14,
            "bad_words_ids": [[word] for word in range(10, 30)],
        },
    ),
    "nothing stored": ({}, {"max_new_tokens": 9}),
}


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch").set_num_threads(1)
    import transformers

    transformers.utils.logging.set_verbosity_error()
    folder = tmp_path_factory.mktemp("whisper")
    save_random(MODELS["whisper"], folder)
    return folder


def with_config(folder: Path, stored: Mapping[str, Any]) -> Path:
    """Return the folder with `stored` as its generation config, without one where it is empty."""
    path = folder / "generation_config.json"
    path.unlink(missing_ok=True)
    if stored:
        path.write_text(json.dumps(stored))
    return folder


def theirs(folder: Path, sounds: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    import torch
    import transformers

    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    given = dict(options)
    if "prompt_ids" in given:
        given["prompt_ids"] = torch.tensor(given["prompt_ids"])
    return model.generate(torch.tensor(sounds), **given).numpy()


# transformers' own generate is the reference.


@SLOW
@pytest.mark.parametrize("call", CALLS)
def test_whispers_ids_are_those_of_transformers(whisper: Path, call: str) -> None:
    stored, options = CALLS[call]
    folder = with_config(whisper, stored)
    found = bridges.load(folder, strict=True).generate(input_features=SOUNDS, **options)
    np.testing.assert_array_equal(found, theirs(folder, SOUNDS, options))


@SLOW
def test_a_shorter_sound_is_followed_by_zeros(whisper: Path) -> None:
    folder, options = with_config(whisper, MANY), {"language": "en", "max_new_tokens": 9}
    found = bridges.load(folder).generate(SOUNDS[..., :19], **options)
    np.testing.assert_array_equal(found, theirs(folder, SOUNDS[..., :19], options))


@SLOW
def test_draws_depend_on_the_temperature_and_the_seed(whisper: Path) -> None:
    bundle = bridges.load(with_config(whisper, PLAIN))

    def drawn(**options: Any) -> list[list[int]]:
        return bundle.generate(SOUNDS, max_new_tokens=12, top_k=0, **options).tolist()

    assert drawn(temperature=5.0, seed=1) == drawn(temperature=5.0, seed=1)
    assert drawn(temperature=5.0, seed=1) != drawn(temperature=5.0, seed=2)
    # As in transformers, `do_sample` alone draws nothing.
    assert drawn(do_sample=True) == drawn()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"return_segments": True}, "return_segments is True: not computed here"),
        ({"prompt_condition_type": "no"}, "prompt_condition_type is 'no'; expected first-segment"),
        ({"temperature": (0.0, 0.5)}, "several are tried on longer sounds"),
        ({"language": "fr"}, "language is 'fr', which this checkpoint has no id for"),
        ({"language": ["en"]}, "names 1 languages for 3 sounds"),
        ({"task": "summarise"}, "task is 'summarise'; expected transcribe or translate"),
        ({"prompt_ids": [61]}, r"an id of the prompt is 61, outside the vocabulary \[0, 61\)"),
        ({"language": "en", "max_new_tokens": 40}, "4 prompt tokens and 40 new ones make 44"),
        ({"langauge": "en"}, "unknown generation option 'langauge'"),
    ],
)
def test_what_whisper_is_not_asked_is_refused(whisper: Path, options: Any, words: str) -> None:
    bundle = bridges.load(with_config(whisper, MANY))
    with pytest.raises((InputRefused, KeyError), match=words):
        bundle.generate(SOUNDS, **options)


def test_longer_sounds_and_other_models_are_refused(whisper: Path) -> None:
    bundle = bridges.load(with_config(whisper, {**MANY, "is_multilingual": False}))
    with pytest.raises(InputRefused, match="56 frames, the model hears 28 at a time"):
        bundle.generate(np.concatenate([SOUNDS, SOUNDS], axis=2), return_timestamps=False)
    with pytest.raises(InputRefused, match="hears English alone"):
        bundle.generate(SOUNDS, language="en")
    bare = bundle.replace(model=bundle.model.clone(head=""))
    with pytest.raises(InputRefused, match="loaded without its head"):
        bare.generate(SOUNDS)


def test_the_names_of_languages_are_those_of_transformers() -> None:
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    assert LANGUAGE_CODES == TO_LANGUAGE_CODE


# Letters: transformers' Wav2Vec2CTCTokenizer is the reference.

ENGLISH = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGH'"]
VOCABULARIES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "english": (ENGLISH, {}),
    "added": (
        ["|", *"abc", "[UNK]", "[PAD]", "ch"],
        {"unk_token": "[UNK]", "pad_token": "[PAD]", "do_lower_case": True},
    ),
    "gap": (["<pad>", "_", *"XYZ", "<unk>"], {"word_delimiter_token": "_"}),
}


def saved(folder: Path, name: str) -> Any:
    """Return transformers' tokenizer of a vocabulary, written into the folder."""
    from transformers import Wav2Vec2CTCTokenizer

    letters, options = VOCABULARIES[name]
    path = folder / "letters.json"
    path.write_text(json.dumps({letter: at for at, letter in enumerate(letters)}))
    tokenizer = Wav2Vec2CTCTokenizer(str(path), **options)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("name", VOCABULARIES)
def test_texts_of_letters_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    tokenizer = saved(tmp_path, name)
    letters = read_letters(tmp_path, "wav2vec2")
    assert letters is not None
    assert letters.pad_token_id == tokenizer.pad_token_id
    generator = np.random.default_rng(0)
    for _ in range(40):
        # Few ids, so that equal ones meet; some beyond the vocabulary.
        ids = generator.choice(generator.integers(0, len(tokenizer) + 2, 4), 30).tolist()
        for options in ({}, {"skip_special_tokens": True}, {"group_tokens": False}):
            wanted = tokenizer.decode(ids, clean_up_tokenization_spaces=False, **options)
            assert letters.decode(ids, **options) == wanted, (ids, options)


def test_old_repositories_name_no_class(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, "english")
    settings = {"pad_token": "<pad>", "do_lower_case": False, "return_attention_mask": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = read_letters(tmp_path, "wav2vec2")
    ids = [5, 5, 0, 5, 4, 6, 6, 3]
    assert found is not None
    assert found.decode(ids) == tokenizer.decode(ids) == "AA B<unk>"
    assert read_letters(tmp_path, "bert") is None


def test_letters_of_many_languages_need_one(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"eng": {"<pad>": 0, "a": 1}, "deu": {}}))
    with pytest.raises(InputRefused, match="target_lang is None"):
        read_letters(tmp_path, "wav2vec2")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"target_lang": "eng"}))
    found = read_letters(tmp_path, "wav2vec2")
    assert found is not None
    assert found.decode([1, 0, 1, 1]) == "aa"


def test_equal_letters_are_joined_and_blanks_part_them() -> None:
    # By hand, from section 3.1 of Graves et al. 2006: B(a-ab-) = B(-aa--abb) = aab.
    assert collapsed([1, 0, 1, 2, 0], 0) == collapsed([0, 1, 1, 0, 0, 1, 2, 2], 0) == [1, 1, 2]
    logits = np.eye(3)[[[1, 0, 1, 2, 0, 2]]]
    assert letter_ids(logits, 0) == [[1, 1, 2, 2]]
    assert letter_ids(logits, 0, places=[3]) == [[1, 1]]


# From sounds to text: transformers' processors and models side by side.


def test_wav2vec2_reads_sounds_as_transformers_does(tmp_path: Path) -> None:
    import torch
    from transformers import Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC, Wav2Vec2Processor

    save_random({**MODELS["wav2vec2 stable"], "vocab_size": len(ENGLISH)}, tmp_path)
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    processor = Wav2Vec2Processor(extractor, saved(tmp_path, "english"))
    processor.save_pretrained(tmp_path)
    generator = np.random.default_rng(0)
    sounds = [generator.standard_normal(n).astype(np.float32) for n in (900, 411)]
    bundle = bridges.load(tmp_path, strict=True)
    assert isinstance(bundle.processor, JointProcessor)
    inputs = bundle.processor(sounds, sampling_rate=16_000)
    found = letter_texts(bundle, bundle(**inputs)["logits"], inputs["attention_mask"])
    model = Wav2Vec2ForCTC.from_pretrained(tmp_path).eval()
    for sound, text in zip(sounds, found, strict=True):
        one = processor(sound, sampling_rate=16_000, return_tensors="pt")
        with torch.no_grad():
            ids = model(one.input_values).logits.argmax(-1)
        assert text == processor.decode(ids[0])
        assert len(text) > 3
    bridges.export(bundle, tmp_path / "out")
    again = Wav2Vec2Processor.from_pretrained(tmp_path / "out")
    assert again.tokenizer.get_vocab() == processor.tokenizer.get_vocab()
    with pytest.raises(InputRefused, match=r"no vocab\.json of letters"):
        letter_texts(bundle.replace(processor=bundle.processor.sounds), np.zeros((1, 2, 14)))


def test_whisper_reads_sounds_as_transformers_does(whisper: Path, tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor

    # The tiny model hears 28 frames.
    extractor = WhisperFeatureExtractor(feature_size=10, chunk_length=7, hop_length=4000)
    for file in whisper.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    extractor.save_pretrained(tmp_path)
    bundle = bridges.load(with_config(tmp_path, MANY), strict=True)
    assert isinstance(bundle.processor, LogMel)
    sound = np.random.default_rng(0).standard_normal(90_000).astype(np.float32)
    ours = bundle.processor(sound, sampling_rate=16_000)
    wanted = extractor(sound, sampling_rate=16_000, return_tensors="np")
    features = wanted["input_features"]
    np.testing.assert_allclose(ours["input_features"], features, rtol=0, atol=3e-5)
    # No language is named: it is heard.
    found = bundle.generate(**ours, max_new_tokens=9)
    np.testing.assert_array_equal(found, theirs(tmp_path, features, {"max_new_tokens": 9}))
    bridges.export(bundle, tmp_path / "out")
    assert (
        WhisperFeatureExtractor.from_pretrained(tmp_path / "out").to_dict() == extractor.to_dict()
    )
