"""Perplexity: every target scored once, starts and padding as they are, two means by name."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import SENTENCES, write_lines, write_llama
from hypothesis import given, settings
from hypothesis import strategies as st

import bridges
from bridges.data import tokenizing
from bridges.finetune.scores import scored
from bridges.text.processors import TextProcessor, read_processor
from dew import metrics
from dew.artifacts import TokenScores
from dew.cli.main import main
from dew.data import DataPartition, TokenRows, TokenWindows, WindowRows, finite_batches
from dew.errors import InputRefused
from dew.evaluation import Perplexity, evaluate
from dew.evaluation.mean_loss import MeanLoss
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective

START = "<|im_start|>"
LENGTH = 7
"""Predicted positions of most rows here: one compilation serves them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def bundle(folder):
    return bridges.load(folder)


@pytest.fixture(scope="module")
def starting(folder, tmp_path_factory) -> Path:
    """A tokenizer that starts every text by itself, as Gemma's does."""
    from tokenizers import Tokenizer, processors

    copy = tmp_path_factory.mktemp("starting")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    number = tokenizer.token_to_id(START)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[START, "$A"], special_tokens=[(START, number)]
    )
    tokenizer.save(str(copy / "tokenizer.json"))
    return with_settings(folder, copy, bos_token=START)


@pytest.fixture(scope="module")
def startless(folder, tmp_path_factory) -> Path:
    """A tokenizer without a start token, as Qwen's."""
    copy = tmp_path_factory.mktemp("startless")
    shutil.copy(folder / "tokenizer.json", copy)
    return with_settings(folder, copy, bos_token=None)


def with_settings(source: Path, copy: Path, **changes) -> Path:
    kept = json.loads((source / "tokenizer_config.json").read_text()) | changes
    (copy / "tokenizer_config.json").write_text(json.dumps(kept))
    return copy


@pytest.fixture(scope="module")
def reference(folder):
    """Each token's -log p given all before it, float64 [T - 1], by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def nats(ids) -> np.ndarray:
        tokens = torch.tensor(np.asarray(ids, np.int64))[None]
        with torch.no_grad():
            log_probs = model(tokens).logits.double().log_softmax(-1)[0, :-1]
        return -log_probs.gather(1, tokens[0, 1:, None])[:, 0].numpy()

    return nats


@pytest.fixture(scope="module")
def perplexity(bundle):
    """The perplexity of rows of `LENGTH` predictions, in batches of a size."""
    objective = LMObjective(bundle.model, LENGTH)

    def of(rows, batch: int = 2) -> float:
        batches = finite_batches(rows, batch=batch)
        found = scored(
            objective,
            bundle.variables,
            batches,
            metrics=(Perplexity(),),
            results=dict,
        )
        return found["val/perplexity"]

    return of


def tokenizer_of(folder: Path) -> TextProcessor:
    processor = read_processor(folder, {})
    assert processor is not None
    return processor


def opened(texts, tokenizer: Path, where: Path, **options):
    """Return the dataset of texts, one a row, without end tokens unless they are asked for."""
    options = {"seq_len": LENGTH, "add_eos": False, "pack": False, **options}
    path = write_lines(where / "texts.jsonl", texts)
    return bridges.dataset(path, tokenizer_of(tokenizer), batch=2, **options)


def token_scores(rows) -> TokenScores:
    """Return ragged rows of losses as scores; what is missing has weight 0 and loss NaN."""
    width = max(map(len, rows))
    losses = np.full((len(rows), width), np.nan, np.float32)
    for row, values in zip(losses, rows, strict=True):
        row[: len(values)] = values
    return TokenScores(np.asarray(losses), np.isfinite(losses).astype(np.float32))


@pytest.mark.torch
def test_without_a_start_token_scoring_starts_at_the_second_and_the_report_says_so(
    startless, perplexity, reference, tmp_path
):
    """P091: oracle, transformers' losses of the text's own tokens."""
    data = opened(["Fair is foul"], startless, tmp_path)
    ids = tokenizer_of(startless).encode("Fair is foul", add_special_tokens=False)
    assert data.rows.take(np.array([0]))["text"][0, : len(ids)].tolist() == ids
    assert data.report.targets == len(ids) - 1
    assert data.report.start_share == 0
    assert "start tokens  none; a document is scored from its second token on" in str(data.report)
    assert perplexity(data.rows) == pytest.approx(math.exp(reference(ids).mean()), rel=1e-5)


@pytest.mark.torch
def test_a_tokenizer_that_starts_texts_by_itself_has_its_start_token_seen_once(
    starting, folder, perplexity, reference, tmp_path
):
    """P098: oracle, transformers' tokenizer and losses; without the start token it is another."""
    from transformers import AutoTokenizer

    data = opened(["Fair is foul"], starting, tmp_path)
    ids = AutoTokenizer.from_pretrained(starting)("Fair is foul").input_ids
    assert data.rows.take(np.array([0]))["text"][0, : len(ids)].tolist() == ids
    assert data.report.targets == len(ids) - 1
    assert "start tokens  first token of 100.0% of the rows" in str(data.report)
    found = perplexity(data.rows)
    assert found == pytest.approx(math.exp(reference(ids).mean()), rel=1e-5)
    bare = perplexity(opened(["Fair is foul"], folder, tmp_path).rows)
    assert bare != pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("long", [False, True])
def test_a_text_that_brings_its_start_token_does_not_get_another(starting, long, monkeypatch):
    """P097: also where a very long text is tokenized in pieces; oracle, the same text without."""
    if long:
        monkeypatch.setattr(tokenizing, "PIECE_CHARACTERS", 400)
    processor = tokenizer_of(starting)
    lines = [sentence.rstrip(".?") for sentence in SENTENCES]  # pieces end at a letter
    text = "\n".join(lines * (8 if long else 1))
    once, brought = (tokenizing.tokenized([t], processor) for t in (text, START + text))
    assert once.tokens[0] == processor.bos_token_id
    assert (once.tokens == processor.bos_token_id).sum() == 1
    np.testing.assert_array_equal(brought.tokens, once.tokens)


@pytest.mark.torch
def test_a_text_is_cut_at_the_models_positions_and_not_at_a_default_of_generation(
    reference, tmp_path
):
    """P092: 60 tokens, 64 positions, max_length 20 of generation; oracle, transformers' loss."""
    folder = write_llama(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"max_length": 20}))
    processor = tokenizer_of(folder)
    text = processor.decode(processor.encode(" ".join(SENTENCES * 2))[:60])
    ids = [*processor.encode(text), processor.eos_token_ids[0]]
    assert len(ids) == 61
    source, out = write_lines(tmp_path / "texts.jsonl", [text]), tmp_path / "out"
    words = ("--model", folder, "--data", source, "--output_dir", out, "--use_cpu")
    assert main(["evaluate", *map(str, words)]) == 0
    found = json.loads((out / "eval_results.json").read_text())
    assert found["eval_loss"] == pytest.approx(reference(ids).mean(), rel=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("starts", [False, True])
def test_texts_with_nothing_to_predict_are_left_out_and_counted(
    starts, pack, folder, starting, perplexity, reference, tmp_path
):
    """P093: '', 'a' and 'a b'; oracle, transformers' losses of what has two tokens or more."""
    tokenizer = starting if starts else folder
    data = opened(["", "a", "a b"], tokenizer, tmp_path, pack=pack)
    ids = tokenizer_of(tokenizer).encode_batch(["", "a", "a b"])
    assert data.report.documents == 3
    assert data.report.dropped == sum(len(each) < 2 for each in ids) == (1 if starts else 2)
    nats = np.concatenate([reference(each) for each in ids if len(each) > 1])
    assert data.report.targets == len(nats)
    assert perplexity(data.rows) == pytest.approx(math.exp(nats.mean()), rel=1e-5)


def test_texts_of_one_token_alone_are_refused(folder, tmp_path):
    """P093."""
    with pytest.raises(InputRefused, match="no trainable token"):
        opened(["", "a"], folder, tmp_path)


def targets_of(rows: WindowRows) -> list[tuple[int, int]]:
    """Return (target, first token of its context) for all that a pass counts; ids are places."""
    batch = rows.take(np.arange(len(rows)))
    counted = TokenRows(batch["text"], batch.get("segments"), batch.get("weights")).targets
    return [
        (int(batch["text"][row, place]), int(batch["text"][row, 0]))
        for row, place in np.argwhere(counted)
    ]


def expected_targets(length: int, seq_len: int, stride: int) -> list[tuple[int, int]]:
    """Return each target with the start of the first window that holds it, by going through."""
    starts = [*range(0, length, stride)]
    return [
        (target, next(s for s in starts if s < target <= s + seq_len))
        for target in range(1, length)
    ]


@given(st.integers(2, 60), st.integers(1, 20), st.data())
@settings(deadline=None, derandomize=True)
def test_strided_windows_score_each_target_once_in_the_first_window_that_holds_it(
    length, seq_len, data
):
    """P094, P096: oracle, going through the windows one by one."""
    stride = data.draw(st.integers(1, seq_len))
    rows = WindowRows(np.arange(length), seq_len, stride)
    assert targets_of(rows) == expected_targets(length, seq_len, stride)


@pytest.mark.parametrize(
    ("tokens", "window", "stride", "counts"),
    [(20, 10, 5, [9, 5, 5]), (13, 8, 4, [7, 4, 1])],
)
def test_a_model_without_context_has_the_sum_of_losses_of_no_windows(
    tokens, window, stride, counts
):
    """P094, P096: windows of so many tokens; oracle, the sum over the stream."""
    stream = np.random.default_rng(0).integers(0, 8, tokens)
    table = np.random.default_rng(1).gamma(2, 1, 8)
    rows = WindowRows(stream, window - 1, stride)
    batch = rows.take(np.arange(len(rows)))
    weights = batch["weights"] * batch.get("segments", 1)
    assert weights[:, 1:].sum(axis=1).tolist() == counts
    assert sum(counts) == tokens - 1
    sums = Perplexity()(TokenScores(table[batch["text"]][:, 1:], weights[:, 1:]), {})
    assert sums.tokens == tokens - 1
    assert sums.nats == pytest.approx(table[stream[1:]].sum(), rel=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(("tokens", "stride"), [(20, 5), (13, 4), (20, 7), (6, 3)])
def test_a_strided_pass_scores_each_target_given_its_windows_context(
    tokens, stride, perplexity, reference
):
    """P094, P096: oracle, transformers' loss of each target after its context alone."""
    stream = np.random.default_rng(2).integers(3, 300, tokens)
    nats = [
        reference(stream[start : target + 1])[-1]
        for target, start in expected_targets(tokens, LENGTH, stride)
    ]
    found = perplexity(WindowRows(stream, LENGTH, stride))
    assert found == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)


def test_token_windows_stride_the_validation_stream_only():
    """P094."""
    stream = np.arange(1, 21)
    data = TokenWindows(seq_len=9, stride=5).dataset(stream, batch=3, val=stream)
    assert data.records == 3
    assert "weights" not in WindowRows(stream, 9).take(np.array([0]))
    assert data.val is not None
    (batch,) = data.val(DataPartition())
    assert batch["weights"][:, 1:].sum(axis=1).tolist() == [9, 5, 5]
    with pytest.raises(InputRefused, match="val is missing"):
        TokenWindows(seq_len=9, stride=5).dataset(stream, batch=3)


@pytest.mark.parametrize("stride", [0, -1, 10])
def test_a_stride_that_repeats_or_skips_targets_is_refused(stride):
    with pytest.raises(InputRefused, match="stride"):
        WindowRows(np.arange(20), 9, stride)


def test_windows_of_another_stride_have_another_fingerprint():
    stream = np.arange(20)
    prints = [WindowRows(stream, 9, stride).fingerprint for stride in (None, 9, 5, 4)]
    assert prints[0] == prints[1]
    assert len({*prints}) == 3


def test_windows_of_unequal_counts_weigh_by_their_counts():
    """P095: oracle, the closed form over all 17 losses; the mean of the means is another."""
    windows = [[1.0] * 10, [2.0] * 5, [4.0] * 2]
    metric = Perplexity()
    whole = metric(token_scores(windows), {})
    one, two, three = (metric(token_scores([window]), {}) for window in windows)
    for total in (whole, metric.merge(metric.merge(one, two), three)):
        assert total.tokens == 17
        assert metric.finalize(total) == pytest.approx(math.exp(28 / 17), rel=1e-12)
    assert math.exp(28 / 17) != pytest.approx(math.exp(7 / 3), rel=0.1)


def test_the_mean_over_tokens_and_the_mean_over_texts_are_two_metrics():
    """P102: oracle, the closed form of both; three ignored tokens leave the count."""
    scores = token_scores([[0.1, 0.2, 0.1], [0.3, 0.5, 0.1, 0.4, 0.2]])
    over_tokens, over_texts = metrics.perplexity(), metrics.text_perplexity()
    assert (over_tokens.name, over_texts.name) == ("perplexity", "text_perplexity")
    micro = over_tokens.finalize(over_tokens(scores, {}))
    macro = over_texts.finalize(over_texts(scores, {}))
    assert micro == pytest.approx(math.exp(1.9 / 8), rel=1e-6)
    assert macro == pytest.approx((math.exp(0.4 / 3) + math.exp(1.5 / 5)) / 2, rel=1e-6)


def test_a_text_without_a_counted_token_leaves_the_mean_over_texts():
    """P093, P102."""
    metric = metrics.text_perplexity()
    total = metric(token_scores([[1.0, 3.0], [], [2.0]]), {})
    assert total.texts == 2
    assert metric.finalize(total) == pytest.approx(math.exp(2), rel=1e-12)
    huge = metric(token_scores([[1000.0], [0.0]]), {})
    assert metric.finalize(huge) == math.inf


@pytest.mark.torch
def test_left_and_right_padding_have_the_same_perplexity(bundle, perplexity, reference):
    """P099, P100: lengths 3 and 5, alone and together; oracle, transformers' losses unpadded."""
    texts = [np.array([17, 60, 211]), np.array([5, 90, 33, 120, 8])]
    nats = np.concatenate([reference(text) for text in texts])
    for side in ("left", "right"):
        tokens, segments = (np.zeros((2, LENGTH + 1), np.int32) for _ in range(2))
        for row, text in enumerate(texts):
            real = slice(-len(text), None) if side == "left" else slice(0, len(text))
            tokens[row, real], segments[row, real] = text, 1
        rows = TokenRows(tokens, segments)
        for batch in (1, 2):
            assert perplexity(rows, batch) == pytest.approx(math.exp(nats.mean()), rel=1e-5)


def test_uniform_logits_over_eight_tokens_have_perplexity_eight():
    """P101: oracle, the closed form; all weights are 0."""
    model = CausalTransformer(
        vocab_size=8, emb_features=8, num_layers=1, num_heads=2, mlp_features=8, max_seq_len=8
    )
    objective = LMObjective(model, LENGTH)
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    variables = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    rows = TokenRows(np.arange(16, dtype=np.int32).reshape(2, 8) % 8)
    both = (metrics.perplexity(), metrics.text_perplexity())
    batches = finite_batches(rows, batch=2)
    event = evaluate(objective, variables, batches, key=jax.random.key(0), metrics=both)
    assert event.scores == {
        "val/perplexity": pytest.approx(8.0, rel=1e-6),
        "val/text_perplexity": pytest.approx(8.0, rel=1e-6),
    }


@pytest.mark.parametrize("name", ["perplexity", "text_perplexity"])
def test_a_negative_loss_is_no_log_probability_and_is_refused(name):
    """P101: log p in place of -log p; a rounding below 0 and what does not count are none."""
    metric = metrics[name]()
    with pytest.raises(InputRefused, match=rf"{name}: 2 counted losses .* row 1, target 0"):
        metric(token_scores([[0.5, 0.1], [-0.7, -2.0]]), {})
    rounded = metric(token_scores([[-1e-6, 0.0]]), {})
    assert metric.finalize(rounded) == pytest.approx(1.0, abs=1e-5)
    ignored = TokenScores(np.array([[1.0, -5.0]]), np.array([[1.0, 0.0]]))
    assert metric.finalize(metric(ignored, {})) == pytest.approx(math.e)


def test_a_mean_loss_may_be_negative():
    metric = MeanLoss()
    assert metric.finalize(metric(token_scores([[-1.0, -2.0]]), {})) == -1.5
