"""Traced models continue prompts as transformers' `generate` does; the right ids are its own."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import transformers

import bridges
from bridges.torch import decoding
from dew.errors import InputRefused, UnknownName

pytestmark = pytest.mark.torch

VOCABULARY = 61
PROMPTS = np.asarray([[5, 6, 7, 8, 9, 10, 11], [0, 0, 0, 12, 13, 14, 15]])
MASK = (PROMPTS != 0).astype(np.int64)
SOURCES, SOURCE_MASK = PROMPTS[:, ::-1].copy(), MASK[:, ::-1].copy()
PLAIN = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0, "num_beams": 1}
RULES = {**PLAIN, "repetition_penalty": 1.3, "pad_token_id": 2}

AGAIN = """
import sys, warnings
sys.modules["torch"] = None
sys.modules["transformers"] = None
warnings.simplefilter("ignore")
import numpy as np, bridges
ids, mask = np.load(sys.argv[2])
bundle = bridges.load(sys.argv[1], traced="always")
np.save(sys.argv[3], bundle.generate(ids, mask, max_new_tokens=30, pad_token_id=0))
"""

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "decoder_start_token_id": 3,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
LAYERS = ["sliding_attention", "full_attention"]

KINDS = {
    "llama": ("Llama", "ForCausalLM", {**SIZES, "num_hidden_layers": 1}),
    "llama of two layers": ("Llama", "ForCausalLM", SIZES),
    "phi": ("Phi", "ForCausalLM", {**SIZES, "num_key_value_heads": 4}),
    "stablelm": ("StableLm", "ForCausalLM", SIZES),
    "gptj": ("GPTJ", "ForCausalLM", {**GPT, **NO_ENDS, "rotary_dim": 4}),
    "gpt_neo": (
        "GPTNeo",
        "ForCausalLM",
        {
            **NO_ENDS,
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 5,
            "max_position_embeddings": 128,
        },
    ),
    "bloom": (
        "Bloom",
        "ForCausalLM",
        {**NO_ENDS, "vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "falcon": ("Falcon", "ForCausalLM", {**SIZES, "multi_query": True}),
    "gemma3_text": (
        "Gemma3",
        "ForCausalLM",
        {**SIZES, "head_dim": 8, "sliding_window": 5, "layer_types": LAYERS},
    ),
    "qwen2_moe": ("Qwen2Moe", "ForCausalLM", {**SIZES, **EXPERTS}),
    "mamba": (
        "Mamba",
        "ForCausalLM",
        {
            **NO_ENDS,
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
        },
    ),
    "openai-gpt": ("OpenAIGPT", "LMHeadModel", {**GPT, **NO_ENDS}),
    "t5": (
        "T5",
        "ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "eos_token_id": None,
        },
    ),
    "bart": ("Bart", "ForConditionalGeneration", BART),
    "marian": ("Marian", "MTModel", {**BART, "decoder_vocab_size": VOCABULARY, "eos_token_id": 1}),
    "pegasus": ("Pegasus", "ForConditionalGeneration", {**BART, "eos_token_id": 1}),
}
CONFIGS = {"gemma3_text": "Gemma3TextConfig"}
WAYS = {"gpt_neo": "rolling"}
APART = ("llama", "t5", "openai-gpt")


def made(kind: str, folder):
    """A tiny model whose weights are moved from their first values, and its traced bundle."""
    prefix, head, sizes = KINDS[kind]
    config = getattr(transformers, CONFIGS.get(kind, f"{prefix}Config"))(**sizes)
    torch.manual_seed(0)
    theirs = getattr(transformers, prefix + head)(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))
    theirs.save_pretrained(folder)
    # Tables that a class computes itself are not stored, and so not moved.
    theirs = type(theirs).from_pretrained(folder).eval()
    return theirs, folder, bridges.load(folder, traced="always")


def reference(theirs, **options) -> np.ndarray:
    """What transformers writes after the prompts, or after an encoder's sources."""
    source = theirs.config.is_encoder_decoder
    ids, mask = (SOURCES, SOURCE_MASK) if source else (PROMPTS, MASK)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = theirs.generate(torch.tensor(ids), attention_mask=torch.tensor(mask), **options)
    return out.numpy()


def ours(bundle, **options) -> np.ndarray:
    source = bundle.config.get("is_encoder_decoder")
    ids, mask = (SOURCES, SOURCE_MASK) if source else (PROMPTS, MASK)
    return bundle.generate(ids, mask, **options)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("DEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    patch.undo()


@pytest.fixture(scope="module")
def llama(cache, tmp_path_factory):
    return made("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def t5(cache, tmp_path_factory):
    return made("t5", tmp_path_factory.mktemp("t5"))


def test_greedy_ids_of_a_padded_batch_are_transformers(llama):
    theirs, _, bundle = llama
    got = ours(bundle, **PLAIN)
    assert got.dtype == np.int32
    assert len(np.unique(got)) > 5
    np.testing.assert_array_equal(got, reference(theirs, **PLAIN))
    assert bundle.model.decoder.about["way"] == "slots"


def ending(theirs) -> dict:
    """Options with end ids that come up in the middle of each row."""
    free = reference(theirs, **RULES)
    ends = {int(free[0, -20]), int(free[1, -12])}
    return {**RULES, "eos_token_id": sorted(ends), "min_new_tokens": 5}


def test_rows_end_at_an_end_id_and_every_rule_is_transformers(llama):
    theirs, _, bundle = llama
    options = ending(theirs)
    got = ours(bundle, **options)
    assert got.shape[1] < PROMPTS.shape[1] + options["max_new_tokens"]
    np.testing.assert_array_equal(got, reference(theirs, **options))


def test_right_padding_is_moved_to_the_left(llama):
    _, _, bundle = llama
    width = PROMPTS.shape[1]
    right = bundle.generate(SOURCES, SOURCE_MASK, **PLAIN)
    np.testing.assert_array_equal(right[:, :width], SOURCES)
    left = np.where(MASK, SOURCES[:, [4, 5, 6, 0, 1, 2, 3]], 0)
    left[0] = SOURCES[0]
    moved = bundle.generate(left, MASK, **PLAIN)
    np.testing.assert_array_equal(right[:, width:], moved[:, width:])


def test_drawn_ids_are_those_of_the_native_engine(llama):
    _, folder, bundle = llama
    native = bridges.load(folder, traced="never")
    options = {"max_new_tokens": 20, "do_sample": True, "top_k": 20, "seed": 7}
    options |= {"temperature": 0.9}
    got = ours(bundle, **options)
    np.testing.assert_array_equal(got, ours(native, **options))
    assert not np.array_equal(got, ours(bundle, **{**options, "seed": 8}))


def test_one_step_is_compiled_and_serves_every_length(llama, monkeypatch):
    _, _, bundle = llama
    ours(bundle, **PLAIN)  # traced from torch, and compiled for two rows
    traced, step = [], decoding.CachedEngine.step

    def counted(*args, **row):
        traced.append(row["tokens"].shape)
        return step(*args, **row)

    monkeypatch.setattr(decoding.CachedEngine, "step", counted)
    rows = np.repeat(PROMPTS[:1], 3, axis=0)
    for count in (20, 44, 33):
        out = bundle.generate(rows, **{**PLAIN, "max_new_tokens": count})
        assert out.shape == (3, 7 + count)
    assert traced == [(3,)]


def test_a_streamer_is_told_of_the_prompts_and_of_each_step(llama):
    _, _, bundle = llama
    told = []

    class Streamer:
        def put(self, value):
            told.append(np.asarray(value))

        def end(self):
            told.append(None)

    out = ours(bundle, **PLAIN, streamer=Streamer())
    assert told[-1] is None
    np.testing.assert_array_equal(told[0], PROMPTS)
    np.testing.assert_array_equal(np.stack(told[1:-1], axis=1), out[:, PROMPTS.shape[1] :])


@pytest.mark.parametrize("kind", ["llama", pytest.param("t5", marks=pytest.mark.slow)])
def test_a_second_start_generates_without_torch(kind, request, tmp_path):
    theirs, folder, bundle = request.getfixturevalue(kind)
    wanted = ours(bundle, **PLAIN)
    pair = (SOURCES, SOURCE_MASK) if theirs.config.is_encoder_decoder else (PROMPTS, MASK)
    np.save(tmp_path / "ids.npy", np.stack(pair))
    files = [str(tmp_path / "ids.npy"), str(tmp_path / "out.npy")]
    subprocess.run([sys.executable, "-c", AGAIN, str(folder), *files], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)


@pytest.mark.slow
def test_an_encoders_answer_begins_with_the_start_id(t5):
    theirs, _, bundle = t5
    options = {**RULES, "repetition_penalty": 2.0}
    got = ours(bundle, **options)
    assert len(np.unique(got)) > 5
    assert (got[:, 0] == 0).all()
    np.testing.assert_array_equal(got, reference(theirs, **options))
    other = {**options, "decoder_start_token_id": 9}
    np.testing.assert_array_equal(ours(bundle, **other), reference(theirs, **other))


@pytest.mark.slow
def test_forced_ids_stand_first_and_last(t5):
    theirs, _, bundle = t5
    forced = {**PLAIN, "max_new_tokens": 12, "forced_bos_token_id": 17, "forced_eos_token_id": 23}
    got = ours(bundle, **forced)
    assert (got[:, 1] == 17).all()
    assert (got[:, -1] == 23).all()
    np.testing.assert_array_equal(got, reference(theirs, **forced))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"input_ids": [[5, VOCABULARY]]}, InputRefused, r"input_ids holds 61, outside \[0, 61\)"),
        ({"input_ids": [5, 6]}, InputRefused, r"expected \[N, L\]"),
        ({"input_ids": [[5, 6]], "num_beam_groups": 4}, InputRefused, "num_beam_groups is 4: not"),
        ({"input_ids": [[5, 6]], "max_tokens": 4}, UnknownName, "unknown generation option"),
        ({"input_ids": [[5, 6]], "max_new_tokens": 127}, InputRefused, "has 128 positions"),
        ({"input_ids": [[5, 6]], "forced_bos_token_id": 99}, InputRefused, "forced_bos_token_id"),
    ],
)
def test_bad_inputs_are_refused_as_everywhere(llama, options, error, message):
    with pytest.raises(error, match=message):
        llama[2].generate(**options)


def test_a_model_without_a_language_head_is_refused_by_name(cache, tmp_path):
    config = transformers.LlamaConfig(**SIZES)
    transformers.LlamaModel(config).save_pretrained(tmp_path)
    bundle = bridges.load(tmp_path, traced="always")
    with pytest.raises(InputRefused, match="LlamaModel has no language-model head"):
        bundle.generate(PROMPTS)


def test_a_model_that_begins_with_sound_is_refused_by_name():
    from bridges.torch.decode_check import examined

    sizes = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 61}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.WhisperConfig(**sizes, **tokens, decoder_start_token_id=1)
    about = examined(transformers.WhisperForConditionalGeneration(config).eval())
    assert about["way"] == "refused"
    assert "WhisperForConditionalGeneration begins with input_features" in about["reason"]


@pytest.mark.slow
def test_a_model_without_a_cache_runs_whole_and_says_so(cache, tmp_path):
    theirs, _, bundle = made("openai-gpt", tmp_path)
    with pytest.warns(UserWarning, match="runs the whole model again for every token"):
        got = ours(bundle, **PLAIN)
    assert len(np.unique(got)) > 5
    np.testing.assert_array_equal(got, reference(theirs, **PLAIN))
    options = ending(theirs)
    np.testing.assert_array_equal(ours(bundle, **options), reference(theirs, **options))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in APART])
def test_other_types_write_what_transformers_writes(kind, cache, tmp_path):
    theirs, _, bundle = made(kind, tmp_path)
    got = ours(bundle, **PLAIN)
    assert len(np.unique(got)) > 3
    np.testing.assert_array_equal(got, reference(theirs, **PLAIN))
    assert bundle.model.decoder.about["way"] == WAYS.get(kind, "slots")
    options = ending(theirs)
    np.testing.assert_array_equal(ours(bundle, **options), reference(theirs, **options))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:generate runs the whole model")
@pytest.mark.parametrize("kind", ["t5", "bart", "openai-gpt", "gpt_neo"])
def test_beams_are_transformers(kind, request, cache, tmp_path):
    made_here = request.getfixturevalue("t5") if kind == "t5" else made(kind, tmp_path)
    theirs, _, bundle = made_here
    options = {**PLAIN, "num_beams": 3, "max_new_tokens": 14, "num_return_sequences": 2}
    free = reference(theirs, **options)
    ended = {**options, "eos_token_id": [int(free[0, -5]), int(free[3, -9])], "pad_token_id": 2}
    for wanted in (options, ended):
        np.testing.assert_array_equal(ours(bundle, **wanted), reference(theirs, **wanted))


@pytest.mark.slow
def test_a_new_length_compiles_nothing_where_positions_cannot_be_padded(cache, tmp_path):
    """Bloom counts positions from the first slot: what passes a common width is read on."""
    theirs, _, bundle = made("bloom", tmp_path)
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (2, 23))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    counts = []
    for length in (21, 22, 23):
        right = theirs.generate(torch.tensor(ids[:, :length]), **options).numpy()
        np.testing.assert_array_equal(bundle.generate(ids[:, :length], **options), right)
        counts.append((decoding._prompts_read._cache_size(), decoding._read_on._cache_size()))
    assert counts[1:] == counts[:1] * 2
