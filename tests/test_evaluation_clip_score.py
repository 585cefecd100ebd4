"""CLIP score: torchmetrics' values on equal weights, and what becomes of long captions."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from image_networks import as_floats, pictures

from bridges.encoders.clip import load_clip
from dew import metrics
from dew.artifacts import ImageGrid
from dew.errors import InputRefused, WeightMismatch
from dew.evaluation.clip_score import ClipScore
from dew.nn.bicubic import resize_bicubic

pytestmark = pytest.mark.torch
TOLERANCE = 1e-4
CAPTIONS = ("a photo of a cat", "A  Café &amp; bar\n", "it's a red, RED house of 1999", "two dogs")
LONG = " ".join(f"word {number}" for number in range(60))


def tiny_tokenizer(folder):
    """Write a CLIP vocabulary of single characters and a few merges into a folder."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    merges = [("a", "t</w>"), ("c", "at</w>"), ("p", "h"), ("ph", "o"), ("t", "o</w>")]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(m) for m in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A seeded CLIPModel with its processor, as transformers saves them."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    path = tmp_path_factory.mktemp("clip")
    size = tiny_tokenizer(path / "old")
    towers = {"intermediate_size": 64, "num_attention_heads": 4, "projection_dim": 16}
    config = CLIPConfig(
        text_config=towers
        | {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "vocab_size": size,
            "bos_token_id": size - 2,
            "eos_token_id": size - 1,
        },
        vision_config=towers
        | {"hidden_size": 48, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    torch.manual_seed(0)
    images = CLIPImageProcessor(
        size={"shortest_edge": 36},
        crop_size={"height": 32, "width": 32},
        image_mean=[0.4, 0.5, 0.6],
    )
    tokenizer = CLIPTokenizer.from_pretrained(path / "old")
    CLIPModel(config).save_pretrained(path)
    CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reference(folder):
    """transformers' model and processor; the model gives tensors, as torchmetrics expects."""
    import torch
    from transformers import CLIPModel, CLIPProcessor

    class Tensors(torch.nn.Module):
        # transformers 5 wraps its features, which torchmetrics 1.9 does not unwrap.
        def __init__(self):
            super().__init__()
            self.model = CLIPModel.from_pretrained(folder).eval()
            self.config = self.model.config

        def get_image_features(self, *inputs):
            with torch.no_grad():
                return self.model.get_image_features(*inputs).pooler_output

        def get_text_features(self, *inputs):
            with torch.no_grad():
                return self.model.get_text_features(*inputs).pooler_output

    return Tensors(), CLIPProcessor.from_pretrained(folder)


@pytest.fixture(scope="module")
def encoder(folder):
    return load_clip(folder)


def torchmetrics_score(levels, captions, model, processor):
    """Return the mean of torchmetrics' score of each pair alone: it cuts at 0 after its mean."""
    import torch
    from torchmetrics.functional.multimodal import clip_score

    scores = [
        float(
            clip_score(
                torch.from_numpy(picture).permute(2, 0, 1),
                caption,
                model_name_or_path=lambda: (model, processor),
            )
        )
        for picture, caption in zip(levels, captions, strict=True)
    ]
    return np.mean(scores)


def score(metric, levels, captions=(), batch=None):
    return metric.finalize(metric(ImageGrid(as_floats(levels), tuple(captions)), batch or {}))


@pytest.mark.parametrize("size", [(32, 32), (50, 70), (36, 300), (90, 41)])
def test_the_score_is_that_of_torchmetrics(encoder, reference, size):
    levels = pictures(4, *size)
    for captions in (CAPTIONS, CAPTIONS[::-1]):
        expected = torchmetrics_score(levels, captions, *reference)
        ours = score(metrics.clip(encoder), levels, captions)
        assert ours == pytest.approx(expected, abs=TOLERANCE)
    assert expected > 0, "a comparison of zeros shows nothing"


def test_captions_over_77_tokens_keep_their_end_token(encoder, reference):
    """P083, P084: oracle, torchmetrics with transformers' own truncation."""
    model, processor = reference
    levels, captions = pictures(3, 32, 32), (LONG, CAPTIONS[0], "x " * 80)
    cutting = partial(processor, truncation=True, max_length=77)
    expected = torchmetrics_score(levels, captions, model, cutting)
    with pytest.warns(UserWarning, match="2 of 3 captions have more than 77 tokens"):
        ours = score(metrics.clip(encoder), levels, captions)
    assert ours == pytest.approx(expected, abs=TOLERANCE)


def test_captions_over_77_tokens_can_be_cut_as_torchmetrics_cuts_them(encoder, reference):
    """P083: its cut drops the end token, and with it all that the caption said."""
    levels, captions = pictures(2, 32, 32), (LONG, "x " * 80)
    cut = metrics.clip(replace(encoder, overlong="cut"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torchmetrics_score(levels, captions, *reference)
        assert score(cut, levels, captions) == pytest.approx(expected, abs=TOLERANCE)
        blind = [score(cut, levels[:1], [caption]) for caption in captions]
    assert blind[0] == pytest.approx(blind[1], abs=1e-6), "the caption is not read"
    with pytest.raises(InputRefused, match="overlong is 'drop'"):
        replace(encoder, overlong="drop")


def test_there_is_no_cliff_where_a_caption_reaches_the_limit(encoder):
    """P084: 76, 77 and 78 tokens of the same word; no value far from its neighbour's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vectors = encoder.encode_texts(["x " * count for count in (73, 74, 75, 76)])
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (directions[1:] * directions[:-1]).sum(1).min() > 0.9


def test_ids_are_those_of_transformers_from_either_kind_of_file(encoder, folder, tmp_path):
    """P089: case, spaces and punctuation as the reference takes them."""
    from transformers import CLIPTokenizer

    theirs = CLIPTokenizer.from_pretrained(folder)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((folder / "old" / name).read_bytes())
    older = load_clip(tmp_path)
    for text in (*CAPTIONS, "", "  ", "日本 — naïve", "a<|endoftext|>b", "Cat\tcat\u00a0CAT"):
        expected = theirs(text)["input_ids"]
        assert encoder.tokenizer.encode(text) == expected
        assert older.tokenizer.encode(text) == expected


def test_features_do_not_depend_on_what_follows_the_end_token(encoder):
    """P085, P090: the first end token is where a caption is read, whatever pads it."""
    row = encoder.tokenizer.encode(CAPTIONS[0])
    expected = encoder.encode_tokens([row])
    for padding in ([0] * 5, [encoder.end_token] * 9, [encoder.spec.vocab_size - 1] * 90):
        np.testing.assert_array_equal(encoder.encode_tokens([row + padding]), expected)
    with pytest.raises(InputRefused, match="token ids from 0 to 99999"):
        encoder.encode_tokens([[99999, encoder.end_token]])


def test_captions_come_from_the_artifact_or_from_a_field_of_the_batch(encoder):
    levels = pictures(4, 32, 32)
    metric = metrics.clip(encoder)
    expected = score(metric, levels, CAPTIONS)
    assert score(metric, levels, batch={"text": np.array(CAPTIONS)}) == expected
    ids = np.zeros((4, 60), np.int32)
    for row, caption in zip(ids, CAPTIONS, strict=True):
        tokens = encoder.tokenizer.encode(caption)
        row[: len(tokens)] = tokens
    named = metrics.clip(encoder, captions="ids")
    assert score(named, levels, batch={"ids": ids}) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(InputRefused, match="4 images and 3 captions"):
        score(metric, levels, CAPTIONS[:3])
    with pytest.raises(InputRefused, match=r"batch holds ids; name the field"):
        score(metric, levels, batch={"ids": ids})
    with pytest.raises(InputRefused, match="float64 of shape"):
        score(named, levels, batch={"ids": np.zeros((4, 2))})
    with pytest.raises(InputRefused, match=r"load_clip\(FOLDER\)"):
        score(metrics.clip(), levels, CAPTIONS)


def test_each_pair_is_cut_at_zero_and_both_scales_are_named(encoder):
    """P086, P087: closed form from the vectors; the scale is in the docstring and the name."""
    levels = pictures(4, 32, 32)
    images, texts = encoder.encode_images(levels), encoder.encode_texts(CAPTIONS)
    cosines = (images * texts).sum(1) / np.linalg.norm(images, axis=1)
    cosines = cosines / np.linalg.norm(texts, axis=1)
    flipped = replace(encoder, variables=negated(encoder.variables))
    for used, signed in ((encoder, cosines), (flipped, -cosines)):
        expected = 100 * np.maximum(signed, 0).mean()
        assert score(metrics.clip(used), levels, CAPTIONS) == pytest.approx(expected, abs=1e-4)
    paper = ClipScore.as_published(encoder)
    assert (paper.name, metrics.clip(encoder).name) == ("clip_2.5", "clip")
    prefixed = score(metrics.clip(encoder), levels, [f"A photo depicts {c}" for c in CAPTIONS])
    assert score(paper, levels, CAPTIONS) == pytest.approx(prefixed / 40, rel=1e-6)


def negated(variables):
    """Return the variables of an encoder whose captions point the other way."""
    params = dict(variables["params"])
    text = dict(params["text"])
    text["projection"] = {"kernel": -np.asarray(text["projection"]["kernel"])}
    return {"params": params | {"text": text}}


def test_a_picture_scores_alike_however_its_levels_were_written(encoder):
    """P088: nothing is rescaled twice; the range of an artifact is [-1, 1] and said so."""
    levels = pictures(4, 32, 32)
    unit = levels.astype(np.float32) / 255
    metric = metrics.clip(encoder)
    given = [as_floats(levels), 2 * unit - 1, (2 * unit - 1).astype(np.float16)]
    scores = [metric.finalize(metric(ImageGrid(images, CAPTIONS), {})) for images in given]
    assert scores == [scores[0]] * 3


def test_one_bad_image_makes_the_score_nan(encoder):
    images = as_floats(pictures(4, 32, 32))
    images[1, 5, 5] = np.nan
    metric = metrics.clip(encoder)
    assert math.isnan(metric.finalize(metric(ImageGrid(images, CAPTIONS), {})))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [((64, 48), (32, 40)), ((20, 31), (64, 64)), ((300, 400), (224, 298)), ((3, 2), (9, 9))],
)
def test_a_resize_of_bytes_is_torchvisions_level_for_level(given, wanted):
    """P088 rests on it; oracle, torchvision on uint8 tensors."""
    import torch
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    levels = np.random.default_rng(0).integers(0, 256, (2, *given, 3), dtype=np.uint8)
    tensor = torch.from_numpy(levels).permute(0, 3, 1, 2).contiguous()
    expected = resize(tensor, list(wanted), InterpolationMode.BICUBIC, antialias=True)
    np.testing.assert_array_equal(resize_bicubic(levels, *wanted), expected.permute(0, 2, 3, 1))


def test_a_strip_is_refused_before_it_is_stretched(encoder):
    """BP066: 1 x 60,000 pixels would become 36 x 2,160,000."""
    strip = np.zeros((1, 60_000, 1, 3), np.uint8)
    with pytest.raises(InputRefused, match=r"60000 x 1.*2160000 pixels, more than 50000"):
        encoder.encode_images(strip)


CONFIG_CHANGES = {
    "model_type": ({"model_type": "siglip"}, "model_type is 'siglip'"),
    "channels": ({"vision_config": {"num_channels": 4}}, "num_channels is 4"),
    "heads": ({"text_config": {"num_attention_heads": 5}}, "not divisible"),
    "activation": ({"text_config": {"hidden_act": "quick_gelo"}}, "quick_gelu"),
}


@pytest.mark.parametrize("change", CONFIG_CHANGES)
def test_a_config_that_asks_for_something_else_is_refused(folder, tmp_path, change):
    changes, words = CONFIG_CHANGES[change]
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    for path in folder.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputRefused, match=words):
        load_clip(tmp_path)


def test_the_activation_of_the_config_decides(folder, encoder, tmp_path):
    """P029: equal weights under gelu and quick_gelu give unlike vectors, each transformers' own."""
    import torch
    from transformers import CLIPModel

    for path in folder.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    for tower in ("text_config", "vision_config"):
        config[tower]["hidden_act"] = "gelu"
    (tmp_path / "config.json").write_text(json.dumps(config))
    levels = pictures(2, 32, 32)
    exact = load_clip(tmp_path)
    pixels = torch.from_numpy(exact.image_input(levels)).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = CLIPModel.from_pretrained(tmp_path).get_image_features(pixels).pooler_output
    np.testing.assert_allclose(exact.encode_images(levels), expected, atol=1e-5)
    assert np.abs(encoder.encode_images(levels) - expected.numpy()).max() > 1e-3


def test_weights_that_do_not_fit_are_listed(folder, tmp_path):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["logit_scale"]
    tensors["stray"] = np.zeros(2, np.float32)
    # What older versions of transformers saved beside the weights.
    tensors["text_model.embeddings.position_ids"] = np.arange(77)[None]
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightMismatch, match=r"(?s)2 tensors.*missing +logit_scale.*stray"):
        load_clip(tmp_path)
