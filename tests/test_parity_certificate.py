"""What a certificate holds and how it is shown: JSON, a page, a badge, Markdown, a terminal."""

from __future__ import annotations

import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import write_llama

from parity.badge import badge_svg
from parity.card import card_text
from parity.check import Skipped, Verdict
from parity.drawing import pictures
from parity.evidence import Certificate, certificate_of
from parity.page import page_html
from parity.plot import BARS, Plot
from parity.report import Printer
from parity.writing import write_certificate

ERRORS = Plot(
    "errors",
    "tensor",
    "root mean square error",
    {"dew": [1e-7, 2e-7, 0.0], "torch": [1e-7, 1e-7, 0.0], "allowed": [4e-7, 3e-7, 0.0]},
    ["embed", "norm <1>", "head"],
    BARS,
    True,
)
LOSSES = Plot("loss", "updates", "nats", {"dew": [3.0, 2.0], "torch": [3.0, math.nan]})
AGREES = Verdict("logits", True, {"ours": 1.25e-7}, "a rule", "", 0.5, "tiny", plots=(ERRORS,))
DIFFERS = Verdict(
    "loss",
    False,
    {"share": float("inf")},
    "a rule | of two",
    "norm <b>is</b> off",
    1.5,
    "tiny",
    "layers.3.norm",
    ("the norm's epsilon", "a dropped bias"),
    (LOSSES,),
)
SKIPPED = Skipped("tokenizer", "tiny", "the checkpoint has no tokenizer")


def found(*verdicts: Verdict) -> Certificate:
    """Return a certificate of verdicts."""
    return certificate_of(verdicts, [SKIPPED], seed=7, files={"model.safetensors": "ab" * 32})


@pytest.fixture(scope="module")
def proven() -> Certificate:
    return found(AGREES)


@pytest.fixture(scope="module")
def unproven() -> Certificate:
    return found(AGREES, DIFFERS)


def test_the_certificate_tells_versions_machine_seed_files_and_every_number(
    unproven: Certificate,
) -> None:
    text = json.dumps(unproven.to_dict(), allow_nan=False)
    told = json.loads(text)
    assert told["passed"] is False
    assert told["seed"] == 7
    assert {"dew", "jax", "numpy"} <= set(told["versions"])
    assert set(told["machine"]) == {"Platform", "Python", "Devices", "CPU cores", "Memory"}
    assert told["files"] == {"model.safetensors": "ab" * 32}
    assert told["made"].endswith("+00:00")
    first, second = told["verdicts"]
    assert first["figures"] == {"ours": 1.25e-7}
    assert first["tolerance"] == "a rule"
    assert first["plots"][0]["lines"]["dew"] == [1e-7, 2e-7, 0.0]
    assert second["plots"][0]["lines"]["torch"] == [3.0, None]
    assert (second["place"], second["causes"]) == ("layers.3.norm", list(DIFFERS.causes))
    assert told["skipped"] == [vars(SKIPPED)]


def test_a_verdict_comes_back_from_json() -> None:
    """Closed form: what `to_dict` gives is the same the second time."""
    for verdict in (AGREES, DIFFERS):
        told = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
        assert Verdict.from_dict(told).to_dict() == verdict.to_dict()


def test_nothing_asked_is_nothing_proven() -> None:
    assert not Certificate(()).passed


class Page(HTMLParser):
    """The elements of a page, its text, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.fetched: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.fetched.append(value)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_is_whole_in_itself_and_says_what_failed_where(unproven: Certificate) -> None:
    text = page_html(unproven, "my <model>")
    page = Page(text)
    assert page.fetched == []
    assert not re.search(r"url\((?!#)|@import", text)
    assert "script" not in page.seen
    assert page.seen.count("svg") == 3, "errors, how they spread, losses"
    for words in ("not proven: loss", "1 of 2 checks agree", "norm <b>is</b> off", "my <model>"):
        assert words in page.words
    assert "first at layers.3.norm" in page.words
    assert "likely: the norm's epsilon; a dropped bias" in page.words
    assert "ab" * 32 in page.words
    assert "not asked" in page.words
    assert "@media print" in text


def test_the_same_certificate_gives_the_same_page(proven: Certificate) -> None:
    assert page_html(proven, "m") == page_html(proven, "m")


def test_a_plot_of_nothing_and_one_of_many_places_are_drawn() -> None:
    many = {name: [1e-7] * 300 for name in ("dew", "torch", "allowed")}
    names = [f"tensor {place}" for place in range(300)]
    drawn = pictures("many", [Plot("errors", "tensor", "", many, names, BARS, True)])
    assert len(drawn) == 2
    assert len(pictures("none", [Plot("loss", "updates", "nats", {"dew": []})])) == 1


@pytest.mark.parametrize(("words", "wanted"), [("proven", True), ("unproven", False)])
def test_the_badge_is_an_svg_that_says_it(
    words: str, wanted: bool, request: pytest.FixtureRequest
) -> None:
    svg = ElementTree.fromstring(badge_svg(request.getfixturevalue(words)))
    title = svg.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    said = "proven, 1 of 1" if wanted else "not proven, 1 of 2"
    assert title.text == f"parity with torch: {said}"


def test_the_card_is_a_table_in_markdown(unproven: Certificate) -> None:
    lines = card_text(unproven, "model").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert all(line.count("|") == 5 for line in rows)
    assert rows[2].startswith("| loss | DIFFERS | norm <b>is</b> off; first at layers.3.norm")
    assert rows[3] == "| tokenizer | not asked | the checkpoint has no tokenizer | |"
    assert "not proven: loss" in "\n".join(lines)


def test_a_report_of_another_program_is_left_alone(tmp_path: Path, proven: Certificate) -> None:
    """`dew finetune` leaves a report.html of its own in the same folder."""
    (tmp_path / "report.html").write_text("<!doctype html><title>a run</title>")
    for _ in range(2):
        written = write_certificate(proven, tmp_path, name="m")
        assert [path.name for path in written] == [
            "certificate.json",
            "parity.html",
            "badge.svg",
            "certificate.md",
        ]
    assert "a run" in (tmp_path / "report.html").read_text()
    other = tmp_path / "other"
    other.mkdir()
    for _ in range(2):
        assert write_certificate(proven, other, name="m")[1].name == "report.html"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_table(
    unproven: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with Printer(stream) as printer:
        printer.begun("logits", "tiny", 0.0)
        printer.seen(AGREES)
        printer.begun("loss", "tiny", 0.5)
        printer.seen(DIFFERS)
        printer.finish(unproven)
    text = stream.getvalue()
    assert "tiny: loss" in text
    assert "━" in text
    assert "DIFFERS" in text
    assert "norm <b>is</b> off" in text
    assert text.rstrip().endswith("not proven: loss")


@pytest.mark.torch
def test_a_run_writes_each_check_with_the_files_it_is_about(tmp_path: Path) -> None:
    from parity.__main__ import main
    from parity.checkpoint_files import file_digests

    folder = write_llama(tmp_path / "model", eos_token_id=None, bos_token_id=None)
    report = tmp_path / "report.json"
    words = ["run", "--model", str(folder), "--check", "weights", "--check", "export"]
    assert main([*words, "--report", str(report), "--no-cache"]) == 0
    told = json.loads(report.read_text())
    assert [verdict["name"] for verdict in told["verdicts"]] == ["weights", "export"]
    assert told["files"] == file_digests(folder)
    assert "config.json" in told["files"]
