"""Generation gives transformers' tokens, ends where it must, and depends on nothing else."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused, UnknownName
from dew.inference.bundle import Bundle
from dew.inference.cache import bucket, left_padded
from dew.inference.weights import decode_weights
from dew.nn.backbones.causal_transformer import CausalTransformer

VOCABULARY = 61
PROMPTS = np.asarray([[5, 6, 7, 8, 9, 10], [0, 0, 0, 11, 12, 13], [0, 0, 0, 0, 0, 14]])
MASK = (PROMPTS != 0).astype(np.int64)


def llama(**changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes | changes))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


FAMILIES = {
    "llama": llama,
    "llama untied, biased": lambda: llama(
        tie_word_embeddings=False, attention_bias=True, mlp_bias=True
    ),
    "gpt2": gpt2,
}


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """A tiny random transformers model and the bundle loaded from its own folder."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import bridges

    torch.manual_seed(0)
    theirs = FAMILIES[request.param]().eval()
    folder = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return theirs, bridges.load(folder)


def reference(theirs, ids, mask, **options) -> np.ndarray:
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = theirs.generate(
            torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False, **options
        )
    return made.numpy()


@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        {"max_length": 66},
        {
            "max_new_tokens": 60,
            "repetition_penalty": 1.4,
            "eos_token_id": [20, 33, 41, 50],
            "pad_token_id": 2,
            "min_new_tokens": 12,
        },
    ],
    ids=["plain", "with every rule"],
)
def test_greedy_tokens_of_an_uneven_batch_equal_transformers(pair, options):
    theirs, bundle = pair
    got = bundle.generate(PROMPTS, MASK, **options)
    expected = reference(theirs, PROMPTS, MASK, **options)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, expected)


@pytest.mark.torch
def test_logits_of_a_padded_batch_equal_transformers(pair):
    # GPT-2 in transformers needs the positions passed to it; generate counts them so.
    import torch

    theirs, bundle = pair
    positions = np.clip(np.cumsum(MASK, axis=1) - 1, 0, None)
    with torch.no_grad():
        expected = theirs(
            torch.tensor(PROMPTS),
            attention_mask=torch.tensor(MASK),
            position_ids=torch.tensor(positions),
        ).logits.numpy()
    got = np.asarray(bundle(input_ids=PROMPTS, attention_mask=MASK)["logits"])
    np.testing.assert_allclose(got[MASK == 1], expected[MASK == 1], atol=2e-5)


@pytest.mark.torch
def test_decoding_gives_the_whole_sequences_argmaxes(pair):
    # The cache's right values are those of a run without one.
    _, bundle = pair
    made = bundle.generate(PROMPTS, MASK, max_new_tokens=20)
    mask = np.concatenate([MASK, np.ones((3, 20), np.int64)], axis=1)
    logits = np.asarray(bundle(input_ids=made, attention_mask=mask)["logits"])
    np.testing.assert_array_equal(made[:, 6:], logits[:, 5:-1].argmax(-1))


SIZES = {"vocab_size": 40, "emb_features": 16, "num_layers": 2, "num_heads": 2, "mlp_features": 24}


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    model = CausalTransformer(**SIZES, max_seq_len=64)
    variables = jax.jit(model.init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))
    return Bundle(model, jax.tree.map(lambda x: 6 * x, variables))


@pytest.fixture(scope="module")
def greedy(bundle) -> list[int]:
    return bundle.generate([[3, 4, 5]], max_new_tokens=20)[0, 3:].tolist()


def test_padding_on_either_side_or_within_changes_no_new_token(bundle, greedy):
    for ids, mask in (
        ([[0, 0, 3, 4, 5]], [[0, 0, 1, 1, 1]]),
        ([[3, 4, 5, 0, 0]], [[1, 1, 1, 0, 0]]),
        ([[3, 0, 4, 0, 5]], [[1, 0, 1, 0, 1]]),
    ):
        assert bundle.generate(ids, mask, max_new_tokens=20)[0, 5:].tolist() == greedy


def test_an_end_comes_once_and_then_padding(bundle, greedy):
    # P046: the row's own third token is made the end; another row goes on.
    end = greedy[2]
    first = greedy.index(end)
    made = bundle.generate(
        [[3, 4, 5], [7, 8, 9]], max_new_tokens=12, eos_token_id=end, pad_token_id=1
    )
    assert made[0, 3 : 4 + first].tolist() == greedy[: first + 1]
    assert set(made[0, 4 + first :].tolist()) <= {1}


def test_padding_is_the_first_end_where_none_is_named(bundle, greedy):
    # P047: a list of ends, no pad token.
    ends = [greedy[3], greedy[6]]
    made = bundle.generate([[3, 4, 5], [7, 8, 9]], max_new_tokens=12, eos_token_id=ends)
    first = min(greedy.index(end) for end in ends)
    assert set(made[0, 4 + first :].tolist()) <= {ends[0]}


def test_the_checkpoints_generation_config_is_honoured_and_overridden(bundle, greedy):
    configured = bundle.replace(
        generation_config={"eos_token_id": [greedy[1]], "max_new_tokens": 7, "bos_token_id": 1}
    )
    short = configured.generate([[3, 4, 5]])
    assert short.shape[1] == 3 + greedy.index(greedy[1]) + 1
    assert configured.generate([[3, 4, 5]], eos_token_id=None).shape[1] == 3 + 7
    assert configured.generate([[3, 4, 5]], eos_token_id=None, max_new_tokens=9).shape[1] == 3 + 9


def test_lengths(bundle):
    # P045, documented: nothing new is asked for with 0, and max_length counts the prompt.
    prompt = [[3, 4, 5, 6, 7]]
    np.testing.assert_array_equal(bundle.generate(prompt, max_new_tokens=0), prompt)
    assert bundle.generate(prompt, max_length=6).shape == (1, 6)
    assert bundle.generate(prompt).shape == (1, 25)  # transformers' 20
    for length in (5, 3):
        with pytest.raises(InputRefused, match=f"max_length is {length} and the prompt has 5"):
            bundle.generate(prompt, max_length=length)
    with pytest.raises(InputRefused, match=r"5 prompt tokens and 60 new ones make 65, .* has 64"):
        bundle.generate(prompt, max_new_tokens=60)


def test_without_a_length_the_context_bounds_it(bundle):
    assert bundle.generate([[1] * 60]).shape == (1, 64)


def test_min_new_tokens_holds_the_end_back(bundle, greedy):
    end = greedy[0]
    made = bundle.generate([[3, 4, 5]], max_new_tokens=12, min_new_tokens=5, eos_token_id=end)
    assert end not in made[0, 3:8].tolist()


def test_the_same_seed_draws_the_same_and_another_does_not(bundle):
    options = {"max_new_tokens": 20, "do_sample": True, "temperature": 2.0}
    one = bundle.generate([[3, 4, 5]], seed=1, **options)
    np.testing.assert_array_equal(one, bundle.generate([[3, 4, 5]], seed=1, **options))
    assert (one != bundle.generate([[3, 4, 5]], seed=2, **options)).any()


def test_a_rows_draws_do_not_depend_on_its_mates(bundle):
    options = {"max_new_tokens": 20, "do_sample": True, "temperature": 2.0}
    alone = bundle.generate([[3, 4, 5]], **options)
    mates = bundle.generate([[3, 4, 5], [9, 8, 7], [3, 4, 5]], **options)
    np.testing.assert_array_equal(mates[0], alone[0])
    assert (mates[2] != alone[0]).any()


def test_sampled_first_tokens_follow_the_models_softmax(bundle):
    # Closed form: Pearson's chi-square; the bound is its mean plus five standard deviations.
    count = 2048
    made = bundle.generate(
        [[3, 4, 5]], max_new_tokens=1, do_sample=True, top_k=8, num_return_sequences=count
    )
    logits = np.asarray(bundle(input_ids=[[3, 4, 5]])["logits"], np.float64)[0, -1]
    kept = np.argsort(logits)[-8:]
    shares = np.exp(logits[kept] - logits.max())
    expected = count * shares / shares.sum()
    seen = np.bincount(made[:, 3], minlength=40)
    assert seen.sum() == seen[kept].sum() == count
    assert ((seen[kept] - expected) ** 2 / expected).sum() <= 7 + 5 * np.sqrt(14)


def test_a_streamer_is_told_the_prompt_and_then_each_step(bundle, greedy):
    class Heard:
        values: list
        ended = 0

        def put(self, value):
            self.values.append(value.tolist())

        def end(self):
            self.ended += 1

    heard = Heard()
    heard.values = []
    bundle.generate([[3, 4, 5]], max_new_tokens=20, streamer=heard)
    assert heard.values == [[[3, 4, 5]], *([token] for token in greedy)]
    assert heard.ended == 1


def test_adapters_decode_as_the_model_computes_them():
    model = CausalTransformer(**SIZES, max_seq_len=64, adapter_scale=0.5)
    variables = jax.jit(model.init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))
    variables = jax.tree.map(lambda x: 6 * x, variables)
    generator = np.random.default_rng(0)

    def low(kernel, inputs):
        shape, layers = kernel.shape, kernel.shape[0]
        return {
            "a": generator.normal(0, 0.3, (layers, *shape[1 : 1 + inputs], 2)).astype(np.float32),
            "b": generator.normal(0, 0.3, (layers, 2, *shape[1 + inputs :])).astype(np.float32),
        }

    layers = variables["params"]["layers"]
    adapters = {
        "attention": {
            "query": low(layers["attention"]["query"]["kernel"], 1),
            "out": low(layers["attention"]["out"]["kernel"], 2),
        },
        "mlp": {"down": low(layers["mlp"]["down"]["kernel"], 1)},
    }
    tuned = Bundle(model, {**variables, "lora": {"layers": adapters}})
    made = tuned.generate([[3, 4, 5]], max_new_tokens=20)
    logits = np.asarray(tuned(input_ids=made)["logits"])
    assert made[0, 3:].tolist() == logits[0, 2:-1].argmax(-1).tolist()
    assert made.tolist() != Bundle(model, variables).generate([[3, 4, 5]]).tolist()


def test_the_weights_are_laid_out_once_and_anew_when_an_array_changes(bundle):
    first = decode_weights(bundle)
    assert decode_weights(bundle) is first
    params = dict(bundle.variables["params"])
    other = Bundle(bundle.model, {"params": params})
    before = decode_weights(other)
    params["embed"] = {"table": params["embed"]["table"] * 2}
    assert decode_weights(other) is not before


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"temperature": 0}, "temperature is 0, expected a number above 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0, expected a number in (0, 1]"),
        ({"top_p": 1.5}, "(0, 1]"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"min_p": 2}, "min_p is 2, expected a number in [0, 1]"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0"),
        ({"do_sample": 1}, "do_sample is 1"),
        ({"eos_token_id": 40}, "eos_token_id is 40, outside the vocabulary [0, 40)"),
        ({"eos_token_id": [1, "a"]}, "eos_token_id is 'a'"),
        ({"stop_strings": [""]}, "stop_strings is ['']"),
        ({"stop_strings": ["a"]}, "tokenizer"),
        ({"num_beam_groups": 4}, "num_beam_groups is 4: not computed here; pass num_beam_groups=1"),
        ({"seed": -1}, "seed is -1"),
    ],
    ids=str,
)
def test_options_out_of_range_are_named(bundle, options, part):
    with pytest.raises(InputRefused) as refused:
        bundle.generate([[1, 2]], **options)
    assert part in str(refused.value), str(refused.value)


def test_an_unknown_option_offers_the_nearest(bundle):
    with pytest.raises(UnknownName, match="did you mean 'temperature'"):
        bundle.generate([[1, 2]], temprature=0.5)


@pytest.mark.parametrize(
    ("asked", "off"),
    [({"num_beam_groups": 4}, {"num_beam_groups": 1}), ({"force_words_ids": [[5]]}, None)],
)
def test_a_checkpoint_that_asks_for_what_is_not_computed_is_refused_until_told_otherwise(
    bundle, asked, off
):
    asking = bundle.replace(generation_config=asked)
    off = off or dict.fromkeys(asked)
    with pytest.raises(InputRefused, match=f"pass {next(iter(off))}={next(iter(off.values()))}"):
        asking.generate([[1, 2]])
    assert asking.generate([[1, 2]], **off, max_new_tokens=1).shape == (1, 3)


def test_unread_keys_of_a_generation_config_are_named_in_a_warning(bundle):
    odd = bundle.replace(generation_config={"frobnicate": 1, "transformers_version": "5.24.0"})
    with pytest.warns(UserWarning, match="'frobnicate'"):
        odd.generate([[1, 2]], max_new_tokens=1)


def test_buckets_are_few_and_never_short():
    sizes = {bucket(length) for length in range(1, 2049)}
    assert all(bucket(length) >= length for length in range(1, 2049))
    assert sorted(sizes) == [16, 32, 64, 128, *range(256, 2049, 256)]


def test_left_padding_moves_real_tokens_to_the_right_end():
    tokens, mask = left_padded(np.asarray([[1, 9, 2, 9]]), np.asarray([[1, 0, 1, 0]]), 5)
    assert tokens.tolist() == [[0, 0, 0, 1, 2]]
    assert mask.tolist() == [[0, 0, 0, 1, 1]]
