"""Finding answers: windows and places as run_qa's, SQuAD's scores, torch's loss."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import SENTENCES
from task_proof import hold_to_torch, learnt, loss_and_gradients, write_bert

from dew.artifacts import Predictions
from dew.cli.main import main
from dew.errors import InputRefused
from dew.evaluation.answer_scores import AnswerScore, Reading, f1

pytestmark = pytest.mark.torch
CONTEXTS = (
    " ".join(SENTENCES[:3]),
    "  " + SENTENCES[3] + " " + SENTENCES[4] + " " + SENTENCES[0],
    SENTENCES[1],
)
ASKED = (
    ("When shall we meet?", 0, "in thunder, lightning"),
    ("What is foul?", 0, "foul is fair"),
    ("  What have I not seen?", 1, "foul and fair a day"),
    ("Which pace creeps?", 1, "petty pace"),
    ("When is the battle lost and won?", 2, "When the hurlyburly's done"),
)
FLAGS = ("--max_length", 28, "--doc_stride", 6)


def rows(*, without: bool = False) -> list[dict]:
    found = [
        {
            "id": str(number),
            "question": question,
            "context": CONTEXTS[context],
            "answers": {"text": [text], "answer_start": [CONTEXTS[context].index(text)]},
        }
        for number, (question, context, text) in enumerate(ASKED)
    ]
    if without:
        found[2]["answers"] = {"text": [], "answer_start": []}
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("reader"), "BertForQuestionAnswering")


def written(tmp_path, found) -> object:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(found))
    return path


def run_qa_places(tokenizer, row) -> list[tuple[int, int]]:
    """Return the places that the loop of run_qa.py finds, a pair a window."""
    told = tokenizer(
        row["question"].lstrip(),
        row["context"],
        truncation="only_second",
        max_length=28,
        stride=6,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    places = []
    for window, offsets in enumerate(told["offset_mapping"]):
        ids, sides = told["input_ids"][window], told.sequence_ids(window)
        cls = ids.index(tokenizer.cls_token_id)
        start, end = cls, cls
        if row["answers"]["text"]:
            first = row["answers"]["answer_start"][0]
            last = first + len(row["answers"]["text"][0])
            low = sides.index(1)
            high = len(sides) - 1 - sides[::-1].index(1)
            if offsets[low][0] <= first and offsets[high][1] >= last:
                while low < len(offsets) and offsets[low][0] <= first and sides[low] == 1:
                    low += 1
                while offsets[high][1] >= last:
                    high -= 1
                start, end = low - 1, high + 1
        places.append((start, end))
    return places


@pytest.mark.parametrize("without", [False, True])
def test_windows_and_places_are_those_of_run_qa(model, tmp_path, without):
    from transformers import AutoTokenizer

    data = rows(without=without)
    made = learnt("question-answering", model, written(tmp_path, data), *FLAGS)
    tokenizer = AutoTokenizer.from_pretrained(model)
    wanted = [place for row in data for place in run_qa_places(tokenizer, row)]
    whole = made.data.rows.whole
    found = zip(whole["start_positions"].tolist(), whole["end_positions"].tolist(), strict=True)
    assert list(found) == wanted
    assert len(wanted) > len(data)  # some contexts took several windows
    assert sum(place != (0, 0) for place in wanted) >= 3


@pytest.mark.slow
def test_the_first_loss_and_its_gradient_are_transformers(model, tmp_path):
    made = learnt("question-answering", model, written(tmp_path, rows()), *FLAGS)
    full = np.flatnonzero(made.data.rows.lengths == 28)  # transformers' loss counts padding
    batch = made.batch(full)
    assert len(full) >= 3
    hold_to_torch(made, model, batch, lambda model, given, dtype: model(**given).loss)


@pytest.mark.slow
def test_the_loss_and_its_gradient_do_not_depend_on_the_padding(model, tmp_path):
    made = learnt("question-answering", model, written(tmp_path, rows()), *FLAGS)
    whole = np.arange(len(made.data.rows))
    narrow = loss_and_gradients(made, made.data.rows.take(whole, 28))
    wide = loss_and_gradients(made, made.data.rows.take(whole, 40))
    np.testing.assert_allclose(wide[0], narrow[0], rtol=1e-6)
    for name, gradient in narrow[1].items():
        np.testing.assert_allclose(wide[1][name], gradient, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("without", [False, True])
def test_scores_are_squads_whatever_the_batches(model, tmp_path, without):
    """Logits are drawn; the answers follow by the steps of utils_qa.py, written out here."""
    squad = pytest.importorskip("torchmetrics.text.squad")
    data = rows(without=without)
    made = learnt("question-answering", model, written(tmp_path, data), *FLAGS)
    metrics = made.task.metrics(made.learner, made.examples.train)
    reading = metrics[1].reading
    draws = np.random.default_rng(4)
    count, width = len(reading.examples), 28
    starts, ends = draws.standard_normal((2, count, width)).astype(np.float32) * 3
    for window, place in enumerate(made.data.rows.whole["start_positions"]):
        if window % 2:  # so that some are right
            starts[window, place] += 12
            ends[window, made.data.rows.whole["end_positions"][window]] += 12
    answers = [_best(reading, number, starts, ends) for number in range(len(data))]
    for metric in metrics[1:]:
        total = None
        for part in np.array_split(draws.permutation(count), 4):
            outputs = {"start_logits": starts[part], "end_logits": ends[part]}
            scored = metric(Predictions(outputs, np.ones((len(part), 2))), {"record": part})
            total = scored if total is None else metric.merge(total, scored)
        value = metric.finalize(total)
        if without:
            right = [row["answers"]["text"] or [""] for row in data]
            score = {"exact_match": lambda a, b: float(a == b), "f1": f1}[metric.kind]
            wanted = 100 * np.mean([score(a, r[0]) for a, r in zip(answers, right, strict=True)])
        else:
            told = squad.SQuAD()(
                [{"prediction_text": a, "id": str(n)} for n, a in enumerate(answers)],
                [{"answers": row["answers"], "id": row["id"]} for row in data],
            )
            wanted = float(told[metric.kind])
        np.testing.assert_allclose(value, wanted, rtol=1e-6, err_msg=metric.kind)
        assert 0 < value < 100


def _best(reading: Reading, example: int, starts, ends) -> str:
    """Return the answer by brute force over all spans of all windows."""
    spans, nothing = [], []
    for window in np.flatnonzero(np.array(reading.examples) == example):
        offsets = reading.offsets[window]
        nothing.append(starts[window, 0] + ends[window, 0])
        best = [np.argsort(-side[window, : len(offsets)])[:20] for side in (starts, ends)]
        for s in best[0]:
            for e in best[1]:
                if offsets[s][0] >= 0 and offsets[e][0] >= 0 and s <= e < s + 30:
                    score = starts[window, s] + ends[window, e]
                    spans.append((score, offsets[s][0], offsets[e][1]))
    score, first, last = max(spans)
    if reading.may_be_nothing and min(nothing) > score:
        return ""
    return reading.contexts[example][first:last]


def test_a_filler_row_does_not_count():
    offsets = [np.array([[-1, -1], [0, 2], [3, 5]])]
    reading = Reading(["ab cd"], [["cd"]], [0], offsets, [0])
    score = AnswerScore("exact_match", reading)
    logits = np.array([[0.0, 1, 9], [0, 99, 1]], np.float32)
    batch = {"record": np.array([0, 0]), "weights": np.array([1.0, 0])}
    outputs = {"start_logits": logits, "end_logits": logits}
    assert score.finalize(score(Predictions(outputs, np.ones((2, 2))), batch)) == 100.0


@pytest.mark.slow
def test_a_run_learns_answers_by_heart(model, tmp_path):
    data, out = written(tmp_path, rows()), tmp_path / "out"
    words = ["finetune", model, "--data", data, "--output_dir", out, "--steps", 150, "--lr", 3e-3]
    words += [*FLAGS, "--eval_data", data, "--no_certify", "--quiet"]
    assert main([str(word) for word in words]) == 0
    scores = json.loads((out / "eval_results.json").read_text())
    assert scores["eval_exact_match"] >= 80
    assert scores["eval_f1"] >= 80


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"text": ["thunder"], "answer_start": [3]}, "'thunder' at 3, where there is"),
        ({"text": ["thunder"], "answer_start": []}, "1 texts and 0 places"),
        ("thunder", "expected text and answer_start"),
        ({"text": [], "answer_start": []}, "no row has an answer"),
    ],
)
def test_an_answer_that_is_not_in_its_context_is_refused(model, tmp_path, answers, message):
    data = [{"question": "What?", "context": CONTEXTS[0], "answers": answers}]
    with pytest.raises(InputRefused, match=message):
        learnt("question-answering", model, written(tmp_path, data), *FLAGS)


def test_a_question_without_room_for_its_context_is_refused(model, tmp_path):
    data = [{**rows()[0], "question": "Why? " * 40}]
    with pytest.raises(InputRefused, match="leaves no room for its context"):
        learnt("question-answering", model, written(tmp_path, data), *FLAGS)
