"""A bundle answers to Hugging Face's names, counts positions from the mask, refuses the rest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused, UnknownName
from dew.inference.bundle import Bundle
from dew.nn.backbones.causal_transformer import CausalTransformer

SIZES = {"vocab_size": 29, "emb_features": 16, "num_layers": 2, "num_heads": 2, "mlp_features": 24}


def make(**changes) -> Bundle:
    model = CausalTransformer(**SIZES, max_seq_len=12, **changes)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return Bundle(model, jax.tree.map(lambda x: 5 * x, variables))


@pytest.fixture(scope="module", params=["rotary", "learned"])
def bundle(request) -> Bundle:
    return make(positions=request.param)


def test_a_left_padded_row_gives_the_single_runs_logits(bundle):
    # P044's input. The right value is the unpadded run's.
    alone = bundle(input_ids=[[5, 6, 7]])["logits"]
    padded = bundle(input_ids=[[0, 0, 0, 5, 6, 7]], attention_mask=[[0, 0, 0, 1, 1, 1]])["logits"]
    np.testing.assert_allclose(padded[:, 3:], alone, atol=1e-5)


def test_explicit_positions_win_over_the_mask():
    bundle = make(positions="learned")
    moved = bundle(input_ids=[[5, 6]], attention_mask=[[1, 1]], position_ids=[[3, 4]])["logits"]
    counted = bundle(input_ids=[[5, 6]], attention_mask=[[1, 1]])["logits"]
    expected = bundle.model.apply(
        bundle.variables, jnp.asarray([[5, 6]]), positions=jnp.asarray([[3, 4]])
    )
    np.testing.assert_allclose(moved, expected, atol=1e-5)
    assert np.abs(moved - counted).max() > 1e-3


def test_apply_is_pure_jittable_and_differentiable(bundle):
    ids = np.asarray([[1, 2, 3]])

    def loss(variables, ids):
        return bundle.apply(variables, input_ids=ids)["logits"].var()

    value, gradient = jax.jit(jax.value_and_grad(loss))(bundle.variables, ids)
    np.testing.assert_allclose(value, bundle(input_ids=ids)["logits"].var(), rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_two_bundles_of_one_model_compile_once(bundle):
    bundle(input_ids=[[1, 2, 3, 4, 5]])
    other = bundle.replace(variables=jax.tree.map(lambda x: 2 * x, bundle.variables))
    with jax.log_compiles(False), _count_compiles() as compiled:
        other(input_ids=[[5, 4, 3, 2, 1]])
    assert not [name for name in compiled if "forward" in name]


class _count_compiles:
    """Collect the names that JAX logs when it compiles."""

    def __enter__(self):
        import logging

        self.names: list[str] = []
        self.handler = logging.Handler()
        self.handler.emit = lambda record: self.names.append(record.getMessage())
        self.logger = logging.getLogger("jax")
        self.level, self.logger.level = self.logger.level, logging.DEBUG
        self.logger.addHandler(self.handler)
        return self.names

    def __exit__(self, *_):
        self.logger.removeHandler(self.handler)
        self.logger.level = self.level


@pytest.mark.parametrize(
    ("inputs", "parts"),
    [
        ({"input_ids": [[29]]}, ["29", "[0, 29)", "vocab_size"]),
        ({"input_ids": [[-1]]}, ["-1", "[0, 29)"]),
        ({"input_ids": [[2**40]]}, [str(2**40)]),
        ({"input_ids": [[1] * 13]}, ["13", "12", "max_seq_len"]),
        ({"input_ids": [[1, 2]], "position_ids": [[0, 12]]}, ["12", "position_ids"]),
        ({"input_ids": [[]]}, ["(1, 0)", "empty prompt"]),
        ({"input_ids": [1, 2]}, ["(2,)", "[N, L]"]),
        ({"input_ids": [[1, 2], [1]]}, ["rectangular", "attention_mask"]),
        ({"input_ids": [[1.0]]}, ["float64", "integers"]),
        ({"input_ids": [["a"]]}, ["integers"]),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, ["(1, 1)", "(1, 2)"]),
        ({"input_ids": [[1, 2]], "attention_mask": [[0, 0]]}, ["row 0", "empty prompt"]),
        ({"input_ids": [[1, 2]], "attention_mask": [[2, 1]]}, ["0 (padding)"]),
        ({"attention_mask": [[1]]}, ["input_ids is missing"]),
    ],
    ids=str,
)
def test_unusable_inputs_are_named(bundle, inputs, parts):
    with pytest.raises(InputRefused) as refused:
        bundle(**inputs)
    assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_an_unknown_input_name_offers_the_nearest(bundle):
    with pytest.raises(UnknownName, match="did you mean 'input_ids'"):
        bundle(inputs_ids=[[1]])
