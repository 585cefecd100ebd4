"""Is the CLIP score the one of torchmetrics?"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.check import METRIC, Finding
from parity.image_cases import KINDS, number, picture, png, written
from parity.scores import compare_scores

ABSOLUTE = 1e-4
SIZES = ((32, 32), (50, 70), (36, 120))
CAPTIONS = ("a photo of a cat", "A  Café & bar\n", "it's a red, RED house", "two dogs", "x " * 80)
LONGEST = 77
BATCH = 2


class ClipScore:
    """A tiny seeded CLIPModel; captions in several languages' letters, one past 77 tokens.

    torchmetrics cuts the mean of a call off at 0, dew each pair as the paper does, so that
    torchmetrics is asked pair by pair. It does not shorten captions; its processor is told to.
    """

    name = "clip score"
    kind = METRIC
    needs = ("torchmetrics>=1.5", "transformers>=5.0", "torch>=2.6")
    tolerance = f"difference <= {ABSOLUTE:g} of 100"

    def inputs(self, subject: None, seed: int) -> dict[str, Any]:
        """Return the model's files, and the pictures of each case."""
        draw = np.random.default_rng(seed)
        counts = {"grey, RGBA, palette, 16-bit and mixed sizes": 7, "one picture": 1}
        counts["no picture"] = 0
        cases = {
            name: {
                f"{i}.png": png(picture(draw, *SIZES[i % len(SIZES)]), KINDS[i % len(KINDS)])
                for i in range(count)
            }
            for name, count in counts.items()
        }
        return {"model": _model(seed), "cases": cases}

    def ours(self, subject: None, inputs: dict[str, Any]) -> dict[str, float | str]:
        """Return the metric of each case, picture by picture."""
        from bridges.encoders.clip import load_clip
        from dew.artifacts import ImageGrid
        from dew.data.images import read_image
        from dew.evaluation.clip_score import ClipScore as Metric
        from dew.evaluation.image_mean import ImageSum

        with written(inputs["model"]) as (folder,):
            metric = Metric(load_clip(folder))

        def score(folder: Path) -> float:
            total = ImageSum(0.0, 0)
            for path, caption in _captioned(folder):
                levels = read_image(path)[None]
                grid = ImageGrid((levels / 127.5 - 1).astype(np.float32), (caption,))
                total = metric.merge(total, metric(grid, {}))
            return metric.finalize(total)

        return _scores(inputs["cases"], score, ValueError)

    def reference(self, subject: None, inputs: dict[str, Any]) -> dict[str, float | str]:
        """Return the mean of torchmetrics' score of each pair."""
        import torch
        from PIL import Image
        from torchmetrics.functional.multimodal import clip_score

        with written(inputs["model"]) as (folder,):
            loaded = _as_torchmetrics_takes_it(folder)

        def pair(path: Path, caption: str) -> float:
            levels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)
            return float(clip_score(levels, caption, model_name_or_path=lambda: loaded))

        def score(folder: Path) -> float:
            return float(np.mean([pair(*captioned) for captioned in _captioned(folder)]))

        return _scores(inputs["cases"], score, Exception)

    def compare(self, ours: dict[str, Any], reference: dict[str, Any]) -> Finding:
        """Ask for torchmetrics' scores."""
        return compare_scores(ours, reference, relative=ABSOLUTE / 100, absolute=ABSOLUTE)


def _captioned(folder: Path) -> list[tuple[Path, str]]:
    return [(path, CAPTIONS[i % len(CAPTIONS)]) for i, path in enumerate(sorted(folder.iterdir()))]


def _scores(
    cases: Mapping[str, Mapping[str, bytes]], score: Any, refusals: type[Exception]
) -> dict[str, float | str]:
    scores = {}
    for name, files in cases.items():
        with written(files) as (folder,):
            scores[name] = number(partial(score, folder), refusals=refusals)
    return scores


def _as_torchmetrics_takes_it(folder: Path) -> tuple[Any, Any]:
    """Return the model and the processor of a folder."""
    import torch
    from transformers import CLIPModel, CLIPProcessor

    class Tensors(torch.nn.Module):
        # transformers 5 wraps its features, which torchmetrics 1.9 does not unwrap.
        def __init__(self) -> None:
            super().__init__()
            self.model: Any = CLIPModel.from_pretrained(folder).eval()
            self.config = self.model.config

        def get_image_features(self, *inputs: Any) -> Any:
            with torch.no_grad():
                return self.model.get_image_features(*inputs).pooler_output

        def get_text_features(self, *inputs: Any) -> Any:
            with torch.no_grad():
                return self.model.get_text_features(*inputs).pooler_output

    processor: Any = CLIPProcessor.from_pretrained(folder)
    return Tensors(), partial(processor, truncation=True, max_length=LONGEST)


def _model(seed: int) -> dict[str, bytes]:
    """Return the files of a tiny CLIPModel with its processor, as transformers saves them."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        size = _vocabulary(folder)
        towers = {"intermediate_size": 64, "num_attention_heads": 4, "projection_dim": 16}
        ends = {"bos_token_id": size - 2, "eos_token_id": size - 1, "vocab_size": size}
        sight = {"hidden_size": 48, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8}
        config = CLIPConfig(
            text_config={**towers, **ends, "hidden_size": 32, "num_hidden_layers": 2},
            vision_config={**towers, **sight},
            projection_dim=16,
        )
        images = CLIPImageProcessor(
            size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}
        )
        tokenizer = CLIPTokenizer.from_pretrained(folder)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            CLIPModel(config).save_pretrained(folder)
        CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def _vocabulary(folder: Path) -> int:
    """Write a CLIP vocabulary of single characters and a few merges; return its size."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    merges = [("a", "t</w>"), ("c", "at</w>"), ("p", "h"), ("ph", "o"), ("t", "o</w>")]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(m) for m in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": LONGEST}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(tokens)
