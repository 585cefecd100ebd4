"""The checks find deliberate faults, say where they are, and let the right port pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mutations import Fault, every_fault, found
from mutations_report import Subjects, summary

from parity import reference, tiny
from parity.check import judge
from parity.running import load_check

pytestmark = pytest.mark.torch

RESULTS = Path(__file__).parents[1] / "docs" / "mutations.json"
FAULTS = {f"{fault.name}, {fault.subject}": fault for fault in every_fault()}
QUICK = ("GPT-2's output map transposed, gpt2", "exact GELU for the tanh one, gpt2")
LEAST_CAUGHT, LEAST_NAMED = 58, 45
FAMILIES, SEEDS = ("llama", "gpt2", "bert", "t5", "vit labels"), 40
LOOKED = ("weights", "logits", "hidden states", "padding", "loss and gradient")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    """Right ports, written when they are first wanted."""
    return Subjects(tmp_path_factory.mktemp("right"))


# torch and transformers are the reference of every case below.


@pytest.mark.parametrize("name", [QUICK[0], pytest.param(QUICK[1], marks=pytest.mark.slow)])
def test_a_fault_is_caught_placed_and_its_cause_proven(subjects: Subjects, name: str) -> None:
    fault = FAULTS[name]
    said = found(fault, subjects[fault.subject], judge)
    assert said["check"] in ("weights", "logits"), said
    assert said["named"], said
    assert said["causes"][0].startswith("proven: "), said


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_caught(subjects: Subjects, fault: Fault) -> None:
    said = found(fault, subjects[fault.subject], judge)
    assert said["check"] is not None, said


def test_the_table_is_the_sum_of_its_rows() -> None:
    table = json.loads(RESULTS.read_text(encoding="utf-8"))
    records = table.pop("mutations")
    assert table == summary(records)
    names = [f"{record['fault']}, {record['subject']}" for record in records]
    assert len(set(names)) == len(names)
    assert set(names) <= set(FAULTS)
    # Of every 60 faults 58 are caught, and the layer is named of three in four.
    assert LEAST_CAUGHT * table["faults"] <= 60 * table["caught"]
    assert LEAST_NAMED * table["in_a_layer"] <= 60 * table["layer_named"]


@pytest.mark.slow
def test_the_table_tells_of_every_fault() -> None:
    table = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert table["faults"] == len(FAULTS)
    assert table["caught"] >= LEAST_CAUGHT
    assert table["layer_named"] >= LEAST_NAMED


def test_every_fault_is_another() -> None:
    assert len(FAULTS) == len(every_fault()) >= 60
    kinds = [fault.kind for fault in FAULTS.values()]
    asked = ("transpose", "epsilon", "rotary", "GELU form", "off-by-one mask", "dropped bias")
    asked += ("float16 sums", "unweighted average", "antialias", "BOS")
    assert all(kinds.count(kind) >= 2 for kind in asked), sorted(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_right_port_of_any_seed_passes(name: str, tmp_path: Path) -> None:
    reference.run_alone()
    alarms = []
    for seed in range(SEEDS):
        subject = tiny.subject(name, tmp_path / str(seed), seed=seed)
        for check in LOOKED:
            if not subject.why_not(check):
                verdict = judge(load_check(check), subject, seed=seed)
                alarms += [] if verdict.passed else [(seed, check, verdict.reason)]
        subject.checkpoint.release()
    assert not alarms
