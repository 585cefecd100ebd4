"""Runs of `dew finetune` that benchmarks measure: a model, data and flags each, in a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WORDS = (
    *("fair", "foul", "thunder", "lightning", "rain", "battle", "lost"),
    *("won", "fog", "filthy", "air", "heath", "day", "hurly"),
)
Words = list[Any]
"""What is typed behind `dew finetune`."""


def tiny_llama(folder: Path) -> Words:
    """Return a run of five million weights on ids: 32 rows of 256 tokens."""
    from shapes import SHAPES, torch_model

    shape = SHAPES["llama-5m"]
    torch_model(shape).save_pretrained(folder / "model")
    ids = np.random.default_rng(0).integers(0, shape.vocabulary, 200_000)
    np.save(folder / "train.npy", ids.astype(np.uint16))
    flags = ["--max_length", 257, "--per_device_train_batch_size", 32]
    return [folder / "model", "--data", folder / "train.npy", *flags]


def smollm2(folder: Path) -> Words:
    """Return a run of all of SmolLM2's weights on Shakespeare: 4 rows of 128 tokens."""
    from bridges.assets import fetch

    data = fetch("shakespeare") / "train"
    return [fetch("smollm2"), "--data", data, "--max_length", 129, *rows(4)]


def smollm2_lora(folder: Path) -> Words:
    """Return a run of an adapter of rank 16 beside SmolLM2."""
    return [*smollm2(folder), "--lora_rank", 16, "--lora_dropout", 0]


def minilm(folder: Path) -> Words:
    """Return a run of MiniLM on two classes of texts: 16 rows of at most 64 tokens."""
    from bridges.assets import fetch

    draw = np.random.default_rng(0)
    lines = []
    for number in range(4000):
        text = " ".join(draw.choice(WORDS, int(draw.integers(20, 80))))
        lines.append(json.dumps({"text": text, "label": ("fair", "foul")[number % 2]}))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    flags = ["--task", "text-classification", "--max_length", 64]
    return [fetch("minilm"), "--data", folder / "rows.jsonl", *flags, *rows(16)]


def mobilenet(folder: Path) -> Words:
    """Return a run of MobileNetV2 on two classes of images: 16 of 224 x 224."""
    from PIL import Image
    from transformers import (
        MobileNetV2Config,
        MobileNetV2ForImageClassification,
        MobileNetV2ImageProcessor,
    )

    MobileNetV2ForImageClassification(MobileNetV2Config()).save_pretrained(folder / "model")
    MobileNetV2ImageProcessor().save_pretrained(folder / "model")
    draw = np.random.default_rng(0)
    for label in ("fair", "foul"):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(32):
            pixels = draw.integers(0, 256, (224, 224, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")
    return [folder / "model", "--data", folder / "images", *rows(16)]


def t5(folder: Path) -> Words:
    """Return a run of a T5 of eight narrow layers a side: 16 rows of 128 tokens to 64."""
    from transformers import T5Config, T5ForConditionalGeneration

    from bridges.assets import fetch

    config = T5Config(
        vocab_size=30522,
        d_model=256,
        d_kv=32,
        d_ff=1024,
        num_layers=8,
        num_heads=8,
        dropout_rate=0.0,
        eos_token_id=102,
        decoder_start_token_id=0,
    )
    model: Any = T5ForConditionalGeneration(config)
    model.save_pretrained(folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(fetch("minilm") / name, folder / "model")
    draw = np.random.default_rng(0)
    lines = []
    for _ in range(200):
        texts = [" ".join(draw.choice(WORDS, 120)) for _ in range(2)]
        lines.append(json.dumps({"input": texts[0], "target": texts[1]}))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    flags = ["--task", "seq2seq", "--max_length", 128, "--max_target_length", 64]
    return [folder / "model", "--data", folder / "rows.jsonl", *flags, *rows(16)]


def rows(count: int) -> Words:
    """Return the flag of so many rows a batch."""
    return ["--per_device_train_batch_size", count]


RUNS: dict[str, Callable[[Path], Words]] = {
    "llama-5m": tiny_llama,
    "SmolLM2": smollm2,
    "SmolLM2 LoRA": smollm2_lora,
    "MiniLM classes": minilm,
    "MobileNetV2 images": mobilenet,
    "T5": t5,
}
"""Name to what writes a run's files into a folder and returns its words."""
