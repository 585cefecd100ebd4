"""A language model's previews: what it writes after each prompt, and only when asked."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew import Dataset, EMASpec, InputRefused, LocalTracker, Trainer, evaluate, metrics
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective
from dew.objectives.samples import Samples
from dew.training.progress import Silent

MODEL = CausalTransformer(
    vocab_size=11,
    emb_features=16,
    num_layers=2,
    num_heads=2,
    mlp_features=32,
    max_seq_len=16,
    dtype="float32",
    attention_impl="xla",
)
ROWS = np.tile(np.arange(9, dtype=np.int32), (4, 1))
PROMPTS = ((3, 1, 4, 1), (5,))
VARIABLES = MODEL.init(jax.random.key(5), jnp.zeros((1, 1), jnp.int32))
KEY = jax.random.key(0)


def shown(samples, variables=VARIABLES, **options):
    objective = LMObjective(MODEL, 8, samples=samples)
    batches = [{"text": ROWS}]
    return evaluate(objective, variables, batches, key=KEY, preview=True, **options).previews


@jax.jit
def forward(variables, tokens):
    return MODEL.apply(variables, tokens)


def likeliest(variables, prompt, count) -> list[int]:
    """Whole forward passes, one a token, nothing cached; what follows a token cannot change it."""
    tokens = list(prompt)
    for _ in range(count):
        whole = np.zeros((1, 16), np.int32)
        whole[0, : len(tokens)] = tokens
        tokens.append(int(jnp.argmax(forward(variables, whole)[0, len(tokens) - 1])))
    return tokens[len(prompt) :]


def test_a_preview_writes_what_the_model_finds_likeliest_after_each_prompt():
    """Oracle: whole forward passes; the prompts are of unlike lengths."""
    first, second = shown(Samples(PROMPTS, max_new_tokens=6, temperature=0))
    for preview, prompt in ((first, PROMPTS[0]), (second, PROMPTS[1])):
        assert isinstance(preview.tokens, np.ndarray)
        assert preview.tokens.tolist() == [likeliest(VARIABLES, prompt, 6)]
        assert (preview.prompt, preview.texts) == ("", ())


def test_rows_are_decoded_up_to_their_end():
    end = likeliest(VARIABLES, PROMPTS[0], 3)[2]
    samples = Samples(
        PROMPTS[:1],
        max_new_tokens=6,
        temperature=0,
        ends=(end,),
        decode=lambda ids: "".join(chr(97 + token) for token in ids),
    )
    (preview,) = shown(samples)
    written = likeliest(VARIABLES, PROMPTS[0], 6)
    written = written[: written.index(end) + 1]
    assert preview.prompt == "dbeb"
    assert preview.texts == ("".join(chr(97 + token) for token in written),)


def test_draws_repeat_with_the_event_and_differ_between_rows_and_events():
    samples = Samples(PROMPTS, max_new_tokens=8, count=3, temperature=2.0)
    once, again, later = shown(samples), shown(samples), shown(samples, step=1)
    assert [len(preview.tokens) for preview in once] == [3, 3]
    for a, b, c in zip(once, again, later, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        assert (a.tokens != c.tokens).any()
        assert len({tuple(row) for row in a.tokens}) == 3


def test_the_averaged_weights_write_where_a_run_keeps_them():
    other = MODEL.init(jax.random.key(6), jnp.zeros((1, 1), jnp.int32))
    samples = Samples(PROMPTS[:1], max_new_tokens=6, temperature=0)
    (preview,) = shown(samples, averaged=other)
    assert preview.tokens.tolist() == [likeliest(other, PROMPTS[0], 6)]


def test_without_samples_nothing_is_previewed():
    assert shown(None, metrics=(metrics.perplexity(),)) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompts": ()}, "one prompt or more"),
        ({"prompts": ((1,), ())}, "one token or more"),
        ({"prompts": PROMPTS, "max_new_tokens": 0}, "max_new_tokens=0"),
        ({"prompts": PROMPTS, "temperature": -1}, "temperature=-1"),
        ({"prompts": PROMPTS, "max_new_tokens": 13}, "needs 17 positions and the model has 16"),
    ],
)
def test_samples_that_do_not_fit_are_refused_before_a_run(options, words):
    with pytest.raises(InputRefused, match=words):
        LMObjective(MODEL, 8, samples=Samples(**options))


@pytest.mark.slow
def test_a_run_writes_its_previews_beside_its_journal(tmp_path):
    samples = Samples(
        PROMPTS, max_new_tokens=6, temperature=0, decode=lambda ids: " ".join(map(str, ids))
    )
    objective = LMObjective(MODEL, 8, samples=samples, ema=EMASpec(lambda updates: 0.5))
    data = Dataset(
        train=lambda share: itertools.repeat({"text": ROWS}),
        val=lambda share: iter([{"text": ROWS}]),
        records=4,
        batch=4,
    )
    with LocalTracker(tmp_path) as tracker:
        trainer = Trainer(objective, optax.adam(0.01), key=KEY, tracker=tracker)
        trainer.fit(data, steps=2, eval_every=1, preview=True, progress=Silent())
    names = sorted(path.name for path in (tmp_path / "previews").iterdir())
    assert names == ["text-1-1.txt", "text-1.txt", "text-2-1.txt", "text-2.txt"]
    text = (tmp_path / "previews" / "text-2.txt").read_text()
    assert text.startswith("prompt: 3 1 4 1\n\n")
    assert len(text.splitlines()[2].split()) == 6
