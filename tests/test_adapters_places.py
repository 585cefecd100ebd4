"""Where adapters sit in native models: at the linear maps of transformers' classes, by name."""

from __future__ import annotations

import json

import pytest

import bridges
from bridges.adapter_places import lora_of, places
from bridges.adapter_settings import AdapterSettings
from dew.errors import InputRefused
from parity import tiny

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Linear maps of transformers that the native models compute in another way, or not with a Dense.
ELSEWHERE = ("embed", "lm_head", "gate", "router", "experts", "relative", "logit", "sr", "linear_c")
FAMILIES = """
gpt_neox phi3 mixtral qwen3 gemma2 opt t5 bart marian whisper wav2vec2 bert mpnet deberta-v2 vit
dinov2 clip siglip swin segformer convnext
"""


@pytest.mark.parametrize("name", FAMILIES.split())
def test_places_are_linear_maps_of_transformers_class(name, tmp_path):
    import transformers
    from torch import nn

    folder = tiny.write(name, tmp_path, seed=0)
    config = json.loads((folder / "config.json").read_text())
    model = getattr(transformers, config["architectures"][0]).from_pretrained(folder)
    linear = {n for n, part in model.named_modules() if isinstance(part, nn.Linear)}
    bundle = bridges.load(folder)
    found = {module for place in places(bundle) for module in place.names}
    assert found <= linear, sorted(found - linear)
    missed = {n for n in linear - found if not any(part in n for part in ELSEWHERE)}
    assert len(missed) <= len(linear) // 3, sorted(missed)
    lora = lora_of(bundle, AdapterSettings(2, 4.0))
    assert set(lora.targets) <= {target for place in places(bundle) for target in place.ours}


def test_a_family_without_linear_maps_is_refused_by_name(tmp_path):
    bundle = bridges.load(tiny.write("resnet", tmp_path, seed=0))
    with pytest.raises(InputRefused, match=r"native resnet has no place(?s:.*)traced=.always"):
        lora_of(bundle, AdapterSettings(2, 4.0))
