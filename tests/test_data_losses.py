"""What the loss makes of rows: the same sum however they are laid out and batched."""

import jax
import numpy as np
import pytest
from helpers import SENTENCES, write_tokenizer

from bridges.data.tokenizing import tokenized
from bridges.text.processors import read_processor
from dew.data import Documents, TokenRows, finite_batches, packed_rows, separate_rows
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective

SEQ_LEN = 63


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> Documents:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    processor = read_processor(folder, {})
    texts = [sentence[: 4 + 7 * n] for n, sentence in enumerate(SENTENCES * 2)]
    return tokenized(texts, processor)


@pytest.fixture(scope="module")
def total():
    """Sum of losses in nats and number of targets over a finite pass in batches of a size."""
    model = CausalTransformer(
        vocab_size=320,
        emb_features=16,
        num_layers=1,
        num_heads=2,
        mlp_features=32,
        max_seq_len=64,
    )
    objective = LMObjective(model, SEQ_LEN)
    variables = jax.jit(objective.init)(jax.random.key(0))
    step = Step(np.int32(0), jax.random.key(1), None)
    loss = jax.jit(objective.loss)

    def over(rows: TokenRows, batch: int) -> tuple[float, float]:
        sums = [loss(variables, fields, step) for fields in finite_batches(rows, batch=batch)]
        return sum(float(s.total) for s in sums), sum(float(s.mass) for s in sums)

    return over


def test_packed_and_separate_rows_have_the_same_loss(documents, total):
    # No attention, no position and no loss crosses a document's end, so packing changes nothing.
    apart, targets = total(separate_rows(documents, seq_len=SEQ_LEN), 4)
    packed = packed_rows(documents, seq_len=SEQ_LEN)
    assert len(packed) < len(documents)
    assert targets == len(documents.tokens) - len(documents)
    np.testing.assert_allclose(total(packed, 4), (apart, targets), rtol=1e-5)


def test_the_loss_of_a_pass_does_not_depend_on_the_batch(documents, total):
    # P056, P099: ten rows in batches of three and four, the last ones filled up by two.
    rows = separate_rows(documents, seq_len=SEQ_LEN)
    assert total(rows, 3)[1] == len(documents.tokens) - len(documents)
    np.testing.assert_allclose(total(rows, 3), total(rows, 4), rtol=1e-5)
