"""Evaluation: scores that do not depend on how a pass is cut, keys that repeat."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regression import Line, LinearRegression, NoisyRegression

from dew import metrics
from dew.artifacts import TextSamples, TokenScores
from dew.data import DataPartition
from dew.errors import InputRefused
from dew.evaluation import Evaluation, Perplexity, evaluate
from dew.objectives.base import Objective

KEY = jax.random.key(1)
VARIABLES = {"params": {"w": np.array([0.5, -1, 2], np.float32), "b": np.float32(0.25)}}


def batches(sizes=(4, 4), start=0):
    rows, out = start, []
    for size in sizes:
        out.append(Line().take(np.arange(rows, rows + size)))
        rows += size
    return out


def scored(sizes, **options) -> Evaluation:
    return evaluate(
        LinearRegression(), VARIABLES, batches(sizes), key=KEY, metrics=(Perplexity(),), **options
    )


def test_perplexity_is_exp_of_the_weighted_mean_loss():
    """Closed form, in float64 by hand."""
    event = scored((4, 4))
    rows = Line().take(np.arange(8))
    losses = (rows["x"].astype(np.float64) @ [0.5, -1, 2] + 0.25 - rows["y"]) ** 2
    mean = (rows["weight"] * losses).sum() / rows["weight"].sum()
    assert event.scores == {"val/perplexity": pytest.approx(math.exp(mean), rel=1e-5)}
    assert (event.coordinated_batches, event.records, event.uneven_shards) == (2, 8, False)
    assert event.elapsed_seconds > 0


@pytest.mark.parametrize("sizes", [(8,), (5, 3), (1,) * 8])
def test_the_score_does_not_depend_on_the_batches(sizes):
    """P056: oracle, the same rows cut otherwise."""
    whole = scored((4, 4)).scores["val/perplexity"]
    assert scored(sizes).scores["val/perplexity"] == pytest.approx(whole, rel=1e-6)


ROWS = st.lists(
    st.tuples(st.floats(0, 20, width=32), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=30
)


@settings(derandomize=True, deadline=None)
@given(ROWS, st.integers(0, 30))
def test_perplexity_sums_are_invariant_under_any_split(rows, cut):
    losses, weights = (np.array(column, np.float32)[None] for column in zip(*rows, strict=True))
    metric = Perplexity()
    whole = metric(TokenScores(losses, weights), {})
    left = metric(TokenScores(losses[:, :cut], weights[:, :cut]), {})
    right = metric(TokenScores(losses[:, cut:], weights[:, cut:]), {})
    both = metric.merge(left, right)
    assert both.tokens == whole.tokens
    assert both.nats == pytest.approx(whole.nats, rel=1e-12)


def test_what_lies_at_padding_does_no_harm():
    losses = np.array([[1.0, np.inf], [3.0, np.nan]], np.float32)
    weights = np.array([[1, 0], [1, 0]], np.float32)
    metric = Perplexity()
    assert metric.finalize(metric(TokenScores(losses, weights), {})) == math.exp(2.0)


def test_sums_are_float64():
    """A million losses of 1 + 2^-20 lose their tail in float32."""
    losses = np.full((1000, 1000), 1 + 2.0**-20, np.float32)
    sums = Perplexity()(TokenScores(losses, np.ones_like(losses)), {})
    assert sums.nats == 1e6 * (1 + 2.0**-20)


def test_no_counted_target_is_an_error_and_a_huge_loss_is_infinite():
    metric = Perplexity()
    nothing = metric(TokenScores(np.ones((1, 2)), np.zeros((1, 2))), {})
    with pytest.raises(ValueError, match="no target"):
        metric.finalize(nothing)
    huge = metric(TokenScores(np.full((1, 1), 1000.0), np.ones((1, 1))), {})
    assert metric.finalize(huge) == math.inf


def test_an_empty_pass_gives_no_scores_and_no_preview():
    event = evaluate(
        LinearRegression(), VARIABLES, [], key=KEY, metrics=(Perplexity(),), preview=True
    )
    assert (event.scores, event.previews, event.coordinated_batches) == ({}, (), 0)


def test_two_metrics_of_one_name_are_refused():
    with pytest.raises(InputRefused, match="perplexity"):
        evaluate(LinearRegression(), VARIABLES, [], key=KEY, metrics=(Perplexity(), Perplexity()))
    both = (Perplexity(), Perplexity(name="again"))
    event = evaluate(LinearRegression(), VARIABLES, batches(), key=KEY, metrics=both, split="test")
    assert set(event.scores) == {"test/perplexity", "test/again"}


def test_a_metric_that_reads_what_the_objective_does_not_give_is_refused():
    with pytest.raises(InputRefused, match=r"reads TextSamples; .* TokenScores"):
        evaluate(
            LinearRegression(),
            VARIABLES,
            batches(),
            key=KEY,
            metrics=(Perplexity(reads=TextSamples),),
        )


class Noting(NoisyRegression):
    """Scores a draw of the step's key; counts how often it was traced."""

    traced = 0

    def evaluate(self, variables, batch, step):
        self.traced += 1
        noise = jax.random.normal(step.key, batch["y"].shape)
        return TokenScores(noise[:, None] ** 2, batch["weight"][:, None])

    def preview(self, variables, batch, step, *, scored=None):
        return TextSamples(jax.random.randint(step.key, (1, 3), 0, 1000)), scored


def test_an_event_repeats_and_a_preview_does_not_move_the_scores():
    """The draws come from key, step and batch index alone."""
    objective = Noting()

    def event(step=0, preview=False, sizes=(4, 4)):
        return evaluate(
            objective,
            VARIABLES,
            batches(sizes),
            key=KEY,
            step=step,
            metrics=(Perplexity(),),
            preview=preview,
        )

    first, again, drawn = event(), event(), event(preview=True)
    assert first.scores == again.scores == drawn.scores
    assert event(step=1).scores != first.scores
    assert len(drawn.previews) == 2
    assert isinstance(drawn.previews[0].tokens, np.ndarray)
    np.testing.assert_array_equal(drawn.previews[0].tokens, event(preview=True).previews[0].tokens)
    assert isinstance(drawn.previews[1], TokenScores)
    expected = jax.random.key_data(jax.random.fold_in(KEY, 1))
    np.testing.assert_array_equal(jax.random.key_data(event(step=1).event_key), expected)
    assert objective.traced == 1, "one compilation serves all events of equal shapes"


def test_without_metrics_nothing_is_scored():
    class Unscored(LinearRegression):
        def evaluate(self, variables, batch, step):
            raise AssertionError("not to be called")

    event = evaluate(Unscored(), VARIABLES, batches(), key=KEY)
    assert (event.coordinated_batches, event.records) == (2, 8)


def test_what_is_opened_for_a_partition_is_closed_even_after_a_failure():
    closed = []

    class Stream:
        def __init__(self, fail):
            self.left, self.fail = batches(), fail

        def __iter__(self):
            return self

        def __next__(self):
            if self.fail:
                raise OSError("gone")
            if not self.left:
                raise StopIteration
            return self.left.pop()

        def close(self):
            closed.append(self.fail)

    def opened(fail):
        def open_share(partition):
            assert partition == DataPartition()
            return Stream(fail)

        return open_share

    evaluate(LinearRegression(), VARIABLES, opened(False), key=KEY)
    with pytest.raises(OSError, match="gone"):
        evaluate(LinearRegression(), VARIABLES, opened(True), key=KEY)
    assert closed == [False, True]


def test_the_averaged_variables_reach_the_objective():
    class Averaged(LinearRegression):
        def evaluate(self, variables, batch, step):
            return super().evaluate(step.ema, batch, step)

    other = {"params": {"w": np.zeros(3, np.float32), "b": np.float32(0)}}
    by_average = evaluate(
        Averaged(), VARIABLES, batches(), key=KEY, metrics=(Perplexity(),), averaged=other
    )
    plain = evaluate(LinearRegression(), other, batches(), key=KEY, metrics=(Perplexity(),))
    assert by_average.scores == plain.scores


def test_an_objective_without_evaluate_gives_nothing_to_read():
    class Bare(Objective):
        pass

    with pytest.raises(InputRefused, match="evaluates to nothing"):
        evaluate(Bare(), VARIABLES, batches(), key=KEY, metrics=(Perplexity(),))


def test_the_registry_builds_the_metric():
    assert metrics.perplexity() == metrics["perplexity"]() == Perplexity()
