"""From Whisper's ids to text and times: held to transformers' own tokenizer and rule of times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from pipeline_pictures import assert_same
from pipeline_sounds import SPECIAL, TIMES, save_whisper

from bridges.text.processors import read_processor
from dew.inference.overlaps import merged
from dew.inference.spoken_text import Heard, Meanings, spoken_text
from dew.inference.spoken_words import words_of
from dew.sampling.times import Times, timed

pytestmark = pytest.mark.torch
STEP = 0.5


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Meanings, Any]:
    pytest.importorskip("torch")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    folder: Path = save_whisper(tmp_path_factory.mktemp("whisper") / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return Meanings(read_processor(folder, {"model_type": "whisper"})), tokenizer


def test_ids_mean_what_they_mean_there(both):
    ours, tokenizer = both
    assert ours.special == set(tokenizer.all_special_ids)
    assert ours.begin == tokenizer.convert_tokens_to_ids("<|0.00|>")
    named = {name: ours.language(tokenizer.convert_tokens_to_ids(name)) for name in SPECIAL}
    assert named.pop("<|en|>") == "english"
    assert named.pop("<|de|>") == "german"
    assert named.pop("<|zh|>") == "chinese"
    assert set(named.values()) == {None}


def written(generator: Any, ours: Meanings, tokenizer: Any, kind: int) -> list[int]:
    """Return ids as Whisper might write them, and as it should not."""
    word, time = generator.integers(3, 40, 60).tolist(), 0
    languages = [tokenizer.convert_tokens_to_ids(name) for name in SPECIAL[1:4]]
    ids = [languages[generator.integers(3)]] if kind % 3 == 0 else []
    for _ in range(generator.integers(0, 5)):
        time = int(generator.integers(0, TIMES)) if kind % 5 == 0 else min(time + 1, TIMES - 1)
        later = min(time + int(generator.integers(0, 4)), TIMES - 1)
        said = [word[at] for at in range(int(generator.integers(0, 6)))]
        marks = ([ours.begin + time], [ours.begin + later]) if kind % 4 else ([], [])
        ids += [*marks[0], *said, *(marks[1] if generator.uniform() < 0.8 else [])]
        time = later
        if generator.uniform() < 0.1:
            ids.append(languages[generator.integers(3)])
    return ids


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("timestamps", [None, True, "word"])
@pytest.mark.parametrize("languages", [None, True])
def test_texts_and_chunks_are_those_of_transformers(both, strided, timestamps, languages):
    ours, tokenizer = both
    generator = np.random.default_rng(7)
    texts = set()
    for kind in range(25):
        parts, outputs = [], []
        count = int(generator.integers(1, 4))
        for place in range(count):
            ids = written(generator, ours, tokenizer, kind)
            sides = (1.0 if place else 0.0, 1.5 if place < count - 1 else 0.0)
            stride = (6.0, *sides) if strided else None
            times = np.sort(generator.uniform(0, 6, len(ids) + 1)).astype(np.float32)
            parts.append(Heard(ids, stride, times.tolist()))
            output = {"tokens": np.array([ids], np.int64), "token_timestamps": times[None]}
            outputs.append({**output, "stride": stride} if strided else output)
        text, more = tokenizer._decode_asr(
            outputs, return_timestamps=timestamps, return_language=languages, time_precision=STEP
        )
        found = spoken_text(
            parts, ours, place_seconds=STEP, timestamps=timestamps, languages=languages
        )
        assert_same(found, {"text": text, **more})
        texts.add(text)
    assert len(texts) > 12


def test_overlaps_are_merged_as_transformers_merges_them():
    from transformers.models.whisper.tokenization_whisper import _find_longest_common_sequence

    generator = np.random.default_rng(1)
    for _ in range(60):
        whole = generator.integers(0, 5, 40).tolist()
        parts = [whole[at : at + 12] for at in range(0, 30, int(generator.integers(4, 12)))]
        for part in parts:
            if generator.uniform() < 0.5:
                part[generator.integers(len(part))] = 9
        times = [[(n / 4, n / 4 + 0.3) for n in range(len(part))] for part in parts]
        assert merged(parts)[0] == _find_longest_common_sequence(parts)
        assert merged(parts, times) == _find_longest_common_sequence(parts, times)


TEXTS = (
    ' He said: "well, (so) foul!" and -- went.',
    "no space, 'quoted' words... [and] {braces} ¿qué? 雷と稲妻。",
    "\U0001f451 king \U0001f9d9\u200d\u2640\ufe0f!",
    "",
    " ",
    ' "',
)


@pytest.mark.parametrize("language", [None, "german", "chinese"])
def test_words_are_those_of_transformers(both, language):
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    ours, tokenizer = both
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        words, _, places = _combine_tokens_into_words(tokenizer, ids, language)
        found = words_of(ids, ours.text, language=language, first_special=ours.end)
        assert [word.text for word in found] == words
        assert [list(word.places) for word in found] == places


@pytest.mark.parametrize("latest", [None, 3])
def test_the_rule_of_times_is_that_of_transformers(latest):
    import torch
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    end, off, vocabulary, width = 20, 24, 40, 3
    config: Any = GenerationConfig(eos_token_id=end, no_timestamps_token_id=off)
    if latest is not None:
        config.max_initial_timestamp_index = latest
    rule: Any = WhisperTimeStampLogitsProcessor(config, begin_index=width)
    generator = np.random.default_rng(0)
    times = Times(off + 1, end, off, latest)
    for length in (width, width + 1, width + 2, width + 8):
        ids = generator.integers(0, vocabulary, (12, length))
        timely = generator.uniform(size=ids.shape) < 0.5
        ids = np.where(timely, generator.integers(off + 1, vocabulary, ids.shape), ids)
        logits = 3 * generator.standard_normal((12, vocabulary)).astype(np.float32)
        wanted = rule(torch.tensor(ids), torch.tensor(logits)).numpy()
        room = np.pad(ids, ((0, 0), (0, 16 - length)), constant_values=-1).astype(np.int32)
        found = timed(
            jnp.asarray(logits), jnp.asarray(room), jnp.int32(length), jnp.int32(width), times
        )
        np.testing.assert_array_equal(np.asarray(found), wanted)
