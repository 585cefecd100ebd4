"""Sounds of every kind that a pipeline takes, and tiny speech models beside transformers' own."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from helpers import write_tokenizer
from tiny_speech import save_random

from parity.tiny.speech import MODELS, STABLE, WAV2VEC2

RATE = 16_000
LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMN'"]
WINDOW, HOP, BANDS = 7, 4000, 10
"""Seconds that the tiny Whisper hears at a time, samples from one of its 28 frames to the next, and
its mel bands."""
SPECIAL = (
    *("<|startoftranscript|>", "<|en|>", "<|de|>", "<|zh|>", "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
TIMES = 16


def drawn(seconds: float, seed: int = 0) -> np.ndarray:
    """Return a sound that changes from moment to moment: tones of random heights and loudness."""
    generator = np.random.default_rng(seed)
    count = int(seconds * RATE)
    heights = np.repeat(generator.uniform(80, 3000, count // 900 + 1), 900)[:count]
    loudness = np.repeat(generator.uniform(0.05, 0.8, count // 700 + 1), 700)[:count]
    tone = loudness * np.sin(2 * np.pi * np.cumsum(heights) / RATE)
    return (tone + 0.05 * generator.standard_normal(count)).astype(np.float32)


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    """Return the bytes of a WAV file of floats, so that nothing is rounded."""
    import soundfile

    found = io.BytesIO()
    soundfile.write(found, samples, rate, format="WAV", subtype="FLOAT")
    return found.getvalue()


def save_letters(folder: Path, *, stable: bool) -> Path:
    """Write a tiny random wav2vec 2.0 with its letters, and return the folder."""
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

    folder.mkdir()
    sizes = {**(STABLE if stable else WAV2VEC2), "architectures": ["Wav2Vec2ForCTC"]}
    save_random({**sizes, "vocab_size": len(LETTERS)}, folder)
    path = folder.parent / f"{folder.name}.json"
    path.write_text(json.dumps({letter: at for at, letter in enumerate(LETTERS)}))
    Wav2Vec2CTCTokenizer(str(path)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=stable).save_pretrained(folder)
    return folder


def save_whisper(folder: Path, **generation: Any) -> Path:
    """Write a tiny random Whisper with a tokenizer of its own form, and return the folder.

    Args:
        folder: to be made.
        **generation: more of its generation config.
    """
    from transformers import AddedToken, WhisperFeatureExtractor, WhisperTokenizer

    write_tokenizer(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    # Whisper's special tokens come behind all others, the end of a text first.
    vocabulary = {token: at - 3 for token, at in model["vocab"].items() if at >= 3}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in model["merges"]])
    tokenizer.add_special_tokens({"extra_special_tokens": list(SPECIAL)})
    spelled = [AddedToken(f"<|{place * 0.02:.2f}|>", special=False) for place in range(TIMES)]
    tokenizer.add_tokens(spelled)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(
        feature_size=BANDS, chunk_length=WINDOW, hop_length=HOP
    ).save_pretrained(folder)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    end = tokenizer.eos_token_id
    common = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    common |= {"decoder_start_token_id": ids[SPECIAL[0]], "begin_suppress_tokens": [end]}
    sizes = {**MODELS["whisper"], **common, "vocab_size": len(tokenizer), "median_filter_width": 3}
    save_random(sizes, folder)
    stored = {
        **common,
        "is_multilingual": True,
        "lang_to_id": {name: ids[name] for name in SPECIAL[1:4]},
        "task_to_id": {"translate": ids[SPECIAL[4]], "transcribe": ids[SPECIAL[5]]},
        "no_timestamps_token_id": ids[SPECIAL[8]],
        "prev_sot_token_id": ids[SPECIAL[6]],
        "suppress_tokens": [number for name, number in ids.items() if name != SPECIAL[8]],
        "max_initial_timestamp_index": 3,
        "alignment_heads": [[1, 0], [2, 1]],
        "return_timestamps": False,
        **generation,
    }
    (folder / "generation_config.json").write_text(json.dumps(stored))
    return folder


def theirs(folder: Path) -> Any:
    """Return transformers' pipeline."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    return transformers.pipeline("automatic-speech-recognition", model=str(folder), device="cpu")
