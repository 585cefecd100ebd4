"""A config's meaning: what is computed, what is refused, rope in every spelling."""

from __future__ import annotations

import sys
import warnings

import pytest
from helpers import LLAMA3_ROPE, llama_config

from bridges.config import Keys
from bridges.loading import read_model
from bridges.rope import read_rope, rope_entries
from dew.errors import InputRefused, UnknownName
from dew.nn.rotary import Rope


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "32"}, "hidden_size is '32': expected a whole number, found str"),
        ({"num_attention_heads": 2.5}, "num_attention_heads is 2.5"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5': expected a number"),
        ({"attention_bias": 1}, "attention_bias is 1: expected true or false, found int"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1: expected a whole number from 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"head_dim": None, "num_attention_heads": 3}, "not divisible by num_attention_heads 3"),
        ({"num_key_value_heads": 3}, "does not divide num_attention_heads 4"),
        ({"head_dim": 7}, "even head size, found 7"),
        ({"hidden_act": "__import__('os')"}, "unknown activation"),
        ({"hidden_act": "sillu"}, "did you mean 'silu'"),
        ({"pretraining_tp": 2}, "pretraining_tp is 2: dew computes only 1"),
        ({"rope_interleaved": True}, "rope_interleaved is True"),
        ({"sliding_window": 16}, "sliding_window is 16"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_scaling": {"type": "mrope"}}, "the rope type is 'mrope'"),
        ({"rope_scaling": {"type": "linear"}}, "needs a factor"),
        ({"rope_scaling": [1]}, "expected an object, found list"),
        ({"rope_parameters": {"rope_theta": 5e5}}, "two spellings must agree"),
        ({"max_position_embeddings": 2**60}, "max_position_embeddings is"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is True"),
    ],
)
def test_a_config_value_that_cannot_be_followed_is_refused(changes, message):
    with pytest.raises(InputRefused) as refusal:
        read_model(llama_config(**changes))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_value_that_cannot_be_followed_is_named_at_once():
    rope = {"rope_type": "linear", "factor": "2", "rope_theta": True}
    with pytest.raises(InputRefused) as refusal:
        read_model(
            llama_config(hidden_size="32", hidden_act="sillu", pretraining_tp=2, rope_scaling=rope)
        )
    heading, *lines = str(refusal.value).splitlines()
    assert heading == "config.json: 5 values that dew cannot follow:"
    found = sorted(line.split()[0] for line in lines)
    # Nothing is said of sizes that no longer fit once a wrong one is left out.
    assert found == [
        *("hidden_act", "hidden_size", "pretraining_tp"),
        *("rope_scaling.factor", "rope_scaling.rope_theta"),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"scale_attn_by_inverse_layer_idx": True},
        {"reorder_and_upcast_attn": True},
        {"scale_attn_weights": False},
        {"add_cross_attention": True},
        {"n_head": 5},
    ],
)
def test_gpt2_options_that_are_not_computed_are_refused(changes):
    config = {"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 32}
    with pytest.raises(InputRefused, match=next(iter(changes)) + "|n_embd is 8: not divisible"):
        read_model(config | changes)


def test_an_unknown_model_type_names_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'llama'"):
        read_model(llama_config(model_type="lama"))


@pytest.mark.parametrize("name", ["../../os", "os", "bridges.families.llama", "", 7, None])
def test_a_model_type_is_never_imported(name):
    # BAD-INPUTS BP030.
    before = set(sys.modules)
    with pytest.raises(InputRefused, match="model_type"):
        read_model(llama_config(model_type=name))
    assert set(sys.modules) == before


def test_remote_code_is_refused():
    # BAD-INPUTS BP029.
    config = llama_config(model_type="evil", auto_map={"AutoConfig": "evil.C"})
    with pytest.raises(InputRefused, match="remote code, which dew never runs"):
        read_model(config)


def test_unknown_keys_are_one_warning_and_refused_under_strict():
    config = llama_config(new_trick=True, other={"x": 1}, absent=None)
    with pytest.warns(UserWarning, match="(?s)does not know.*new_trick.*other") as warned:
        read_model(config)
    assert len(warned) == 1
    assert "absent" not in str(warned[0].message)
    with pytest.raises(InputRefused, match="new_trick"):
        read_model(config, strict=True)


def test_keys_that_change_nothing_are_silent():
    harmless = {"use_cache": False, "attention_dropout": 0.1, "initializer_range": 0.02}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_model(llama_config(**harmless, transformers_version="4.40.0"), strict=True)


def test_head_size_is_the_configs_own():
    # CASES P020 and P025: hidden 16, two heads of 12.
    model = read_model(
        llama_config(hidden_size=16, num_attention_heads=2, head_dim=12, num_key_value_heads=1)
    )
    shapes = model.parameter_shapes()["layers"]["attention"]
    assert shapes["query"]["kernel"].shape == (2, 16, 2, 12)
    assert shapes["out"]["kernel"].shape == (2, 2, 12, 16)
    assert shapes["key"]["kernel"].shape == (2, 16, 1, 12)


# Rope, in every spelling (CASES P036).

FIELDS = {k: v for k, v in LLAMA3_ROPE.items() if k != "rope_type"}
SPELLINGS = {
    "parameters": {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 5e5}},
    "parameters, theta outside": {"rope_parameters": LLAMA3_ROPE, "rope_theta": 5e5},
    "scaling by rope_type": {"rope_scaling": LLAMA3_ROPE, "rope_theta": 500000},
    "scaling by type": {"rope_scaling": {"type": "llama3", **FIELDS}, "rope_theta": 5e5},
    "both types": {"rope_scaling": {"type": "llama3", **LLAMA3_ROPE}, "rope_theta": 5e5},
    "both objects": {
        "rope_scaling": LLAMA3_ROPE,
        "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 5e5},
        "rope_theta": 5e5,
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_rope_is_the_same(spelling):
    wanted = Rope(
        kind="llama3",
        theta=5e5,
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    )
    assert read_rope(Keys(SPELLINGS[spelling])) == wanted


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_exported_rope_reads_the_same_on_both_readers(spelling):
    # CASES P111: a transformers 4 reader looks for rope_theta and rope_scaling alone.
    entries = rope_entries(SPELLINGS[spelling])
    wanted = read_rope(Keys(SPELLINGS[spelling]))
    assert entries["rope_theta"] == 5e5
    old = {name: entries[name] for name in ("rope_theta", "rope_scaling")}
    assert read_rope(Keys(old)) == wanted
    assert read_rope(Keys({"rope_parameters": entries["rope_parameters"]})) == wanted
    assert read_rope(Keys(entries)) == wanted


def test_plain_rope_is_written_without_scaling():
    assert rope_entries({"rope_theta": 7.0}) == {
        "rope_theta": 7.0,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": 7.0, "rope_type": "default"},
    }
