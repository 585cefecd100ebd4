"""`dew runs` and report.html: what finished folders say, side by side and for reading."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import SENTENCES, write_lines, write_llama

from bridges.finetune.report import write_report
from bridges.finetune.run_list import read_run, runs_below
from bridges.finetune.samples import Sample
from dew.cli.main import main
from dew.errors import InputRefused

FLAGS = ("--max_length", "32", "--per_device_train_batch_size", "2", "--no_certify", "--quiet")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two runs that differ in their rate, the first with samples in its report."""
    root = tmp_path_factory.mktemp("runs")
    model, data = write_llama(root / ".model"), write_lines(root / "train.jsonl", SENTENCES * 3)
    for name, rate, samples in (("slow", 1e-4, 2), ("fast", 1e-2, 0)):
        words = ["--model", model, "--data", data, "--output", root / name, "--steps", 3]
        words += ["--learning_rate", rate, "--eval_split", 0.3, "--report_samples", samples]
        words += ["--logging_steps", 1, "--eval_on_start"]
        assert main(["finetune", *map(str, words), *FLAGS]) == 0
    return root


def run_command(capsys, *words) -> str:
    capsys.readouterr()
    assert main(["runs", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_every_run_is_a_line_with_its_log_s_last_values(runs, capsys):
    lines = run_command(capsys, runs).splitlines()
    assert len(lines) == 3
    for name in ("slow", "fast"):
        (line,) = [line for line in lines if f"/{name} " in line]
        log = (runs / name / "log.jsonl").read_text().splitlines()
        losses = [json.loads(text).get("loss") for text in log]
        assert f"{[v for v in losses if v][-1]:.4g}" in line
        assert re.search(r"causal-lm +\.model +3/3 +finished", line)


def test_a_comparison_shows_what_differs_alone(runs, capsys):
    told = run_command(capsys, "--compare", f"{runs / 'slow'},{runs / 'fast'}")
    assert re.search(r"learning_rate +0\.0001 +0\.01", told)
    assert "max_length" not in told
    assert "eval_perplexity" in told


def test_a_run_that_was_killed_is_told_as_stopped(runs, tmp_path):
    for name in ("config.yaml", "log.jsonl"):
        (tmp_path / name).write_bytes((runs / "slow" / name).read_bytes())
    assert not read_run(tmp_path).finished
    assert read_run(runs / "slow").finished


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(InputRefused, match="no run in it"):
        runs_below(tmp_path)
    with pytest.raises(InputRefused, match="no such folder"):
        runs_below(tmp_path / "absent")
    with pytest.raises(InputRefused, match="no run: expected"):
        read_run(tmp_path)


def test_the_report_holds_scores_curves_and_samples(runs):
    page = (runs / "slow" / "report.html").read_text()
    results = json.loads((runs / "slow" / "eval_results.json").read_text())
    assert f"{results['eval_perplexity']:.6g}" in page
    assert page.count("<svg") >= 3
    assert "Before and after" in page
    assert "learning_rate: 0.0001" in page
    assert not re.search(r'(?:src|href)="?http', page)
    assert "Before and after" not in (runs / "fast" / "report.html").read_text()


def test_a_report_shows_a_matrix_and_escapes_what_the_data_holds(tmp_path):
    counts = np.array([[8, 2], [1, 9]])
    write_report(
        tmp_path / "report.html",
        name="mails",
        task="text-classification",
        source="somewhere",
        updates=1,
        rows=2,
        settings="",
        data="",
        history=[],
        before={},
        results={"eval_accuracy": 0.85},
        samples=[Sample("<script>alert(1)</script>", "ham", "spam", "ham")],
        matrix=(["ham", "spam"], counts),
    )
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    cells = [int(cell) for cell in re.findall(r"rgba[^>]*>\s*(\d+)</td>", page)]
    assert cells == counts.ravel().tolist()
