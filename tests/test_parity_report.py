"""Parity's rule, report and command: exit statuses, JSON, and what a log reads like."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest

from dew.errors import InputRefused, UnknownName
from parity import certify, run
from parity.__main__ import main
from parity.check import DRAWS, Finding, Verdict, judge
from parity.evidence import Certificate
from parity.packing import Documents, packed, single_rows, unpacked
from parity.report import Printer, line
from parity.rounding import ULP, deviation, judged
from parity.running import CHECKS, FULL, REPORT
from parity.writing import CERTIFICATE

ONE = np.ones(4)


def verdict(*, passed: bool = True) -> Verdict:
    """Return a verdict with figures of every kind."""
    figures = {"ours": 1.25e-7, "tensors": 3, "worst": "norm", "share": float("nan")}
    return Verdict(
        "logits", passed, figures, "a rule", "" if passed else "norm is off", 0.5, "tiny"
    )


def test_the_rule_allows_twice_torchs_error_and_one_ulp_of_scale() -> None:
    """Closed form: errors of 1e-3 and 2e-3 + ulp on a tensor of ones."""
    torch, ours = ONE + 1e-3, ONE + 2e-3 + 0.9 * ULP
    assert judged([deviation("t", ours, torch, ONE, scale=1.0)]).passed
    beyond = deviation("t", ONE + 2e-3 + 1.5 * ULP, torch, ONE, scale=1.0)
    finding = judged([beyond])
    assert not finding.passed
    assert finding.reason.startswith("1 of 1 differ: t is off by 2.00e-03")


def test_the_rule_fails_on_nan_and_on_an_error_where_torch_has_none() -> None:
    bad = ONE.copy()
    bad[2] = np.nan
    assert not judged([deviation("t", bad, ONE, ONE, scale=1.0)]).passed
    assert not judged([deviation("t", ONE + 1e-3, ONE, ONE, scale=0.0)]).passed
    assert judged([deviation("t", ONE, ONE, ONE, scale=0.0)]).passed


def test_the_largest_error_is_told_and_does_not_judge() -> None:
    """Closed form: one value of 10,000 off by 4e-3 where torch's are all off by 1e-3."""
    many = np.ones(10_000)
    ours = many.copy()
    ours[7] += 4e-3
    finding = judged([deviation("t", ours, many + 1e-3, many, scale=0.0)])
    assert finding.passed
    assert finding.figures["by_largest_error"] == pytest.approx(2.0)


class Drawn:
    """A check whose two sides are off by what is named, a draw each; torch is off by 1e-3."""

    name, tolerance, needs = "drawn", "a rule", ()

    def __init__(self, *errors: float) -> None:
        self.errors, self.asked = errors, []

    def inputs(self, subject: None, seed: int) -> float:
        self.asked.append(seed)
        return self.errors[min(seed, len(self.errors) - 1)]

    def ours(self, subject: None, inputs: float) -> np.ndarray:
        return ONE + inputs

    def reference(self, subject: None, inputs: float) -> np.ndarray:
        return ONE + 1e-3

    def compare(self, ours: np.ndarray, reference: np.ndarray) -> Finding:
        return judged([deviation("t", ours, reference, ONE, scale=0.0)])


def test_a_draw_that_fails_by_little_is_judged_with_others() -> None:
    """Closed form: root mean square errors of six draws, of which 2e-3 is allowed."""
    unlucky, wrong, far = Drawn(3e-3, 1e-3), Drawn(3e-3), Drawn(9e-3, 1e-3)
    verdict = judge(unlucky, None, seed=0)
    assert verdict.passed
    assert verdict.figures["ours"] == pytest.approx(1e-3 * np.sqrt(14 / 6))
    assert verdict.figures["draws"] == len(unlucky.asked) == DRAWS == 6
    verdict = judge(wrong, None, seed=0)
    assert not verdict.passed
    assert verdict.figures["ours"] == pytest.approx(3e-3)
    # No rounding is that far off: one draw tells.
    assert not judge(far, None, seed=0).passed
    assert far.asked == [0]


def test_shapes_that_differ_are_named() -> None:
    with pytest.raises(ValueError, match=r"t: dew gives shape \(3,\), torch \(4,\)"):
        deviation("t", ONE[:3], ONE, ONE, scale=1.0)


def test_unpacking_undoes_packing() -> None:
    parts = [np.arange(1, 4), np.arange(4, 9), np.arange(9, 11), np.arange(11, 13)]
    documents = Documents(tuple(parts), 7)
    batch = packed(documents)
    assert batch["segments"].tolist() == [[1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 2, 2, 0, 0, 0, 0]]
    back = unpacked(batch)
    assert [part.tolist() for part in back.sequences] == [part.tolist() for part in parts]
    rows = single_rows(back)
    assert rows.input_ids.shape == (4, 5)
    assert rows.attention_mask.sum(1).tolist() == [3, 5, 2, 2]


def test_a_log_gets_one_plain_line_a_verdict_and_the_reason_below() -> None:
    stream = io.StringIO()
    printer = Printer(stream)
    for found in (verdict(), verdict(passed=False)):
        printer.seen(found)
    printer.finish(Certificate((verdict(), verdict(passed=False))))
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    assert lines[0].startswith("agrees  tiny")
    assert lines[1].startswith("DIFFERS tiny")
    assert lines[2].strip() == "norm is off"
    assert lines[3].startswith("1 of 2 checks agree")
    assert lines[4] == "not proven: logits"


def test_a_check_that_could_not_run_is_no_difference() -> None:
    said = dataclasses.replace(verdict(passed=False), reason="not proven: dew raised OSError: disk")
    assert line(said).startswith("UNKNOWN tiny")


def test_an_unknown_check_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'logits'"):
        run(["logit"])


def test_list_names_every_check_with_its_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name:<20}" in out for name in CHECKS)


@pytest.mark.parametrize(
    "words", [[], ["prove"], ["certify"], ["run", "--seed", "x"], ["run", "--checks"]]
)
def test_wrong_use_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    capsys.readouterr()


def test_help_is_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "certify" in capsys.readouterr().out


@pytest.mark.torch
def test_a_folder_that_dew_refuses_is_status_2_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from helpers import write_llama

    folder = write_llama(tmp_path / "model", frobnicate_attention=True)
    assert main(["certify", str(folder)]) == 2
    assert "frobnicate_attention" in capsys.readouterr().err
    assert not (folder / REPORT).exists()
    with pytest.raises(InputRefused, match="frobnicate_attention"):
        certify(folder)


@pytest.mark.slow
@pytest.mark.torch
def test_certify_writes_its_figures_beside_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from helpers import write_llama

    folder = write_llama(tmp_path / "model", eos_token_id=None, bos_token_id=None)
    assert main(["certify", str(folder), "--write"]) == 0
    report = json.loads((folder / REPORT).read_text())
    assert report["passed"] is True
    asked = [name for name in CHECKS if name not in FULL]
    skipped = {check["name"] for check in report["skipped"]}
    assert [found["name"] for found in report["verdicts"]] == [
        name for name in asked if name not in skipped
    ]
    out = capsys.readouterr().out
    assert "proven: every check agrees" in out
    assert f"wrote {folder / CERTIFICATE}" in out
    assert main(["verify", str(folder)]) == 0
