"""Bad inputs are refused in one clear message, or accepted as stated; nothing runs or is lost.

Each case is a row of `bad_weights` or `bad_texts`: what it writes, what is done with it, and the
verdict. `bad_inputs.Oracle` checks what must hold of every one of them; a new row is all that a
new case needs.
"""

from __future__ import annotations

import bad_files as files
import bad_images
import bad_runs
import bad_texts
import bad_weights
import pytest
from bad_inputs import Case, Oracle

CASES = [*bad_weights.ROWS, *bad_texts.ROWS, *bad_runs.ROWS, *bad_images.ROWS]


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """The server that runs the cases, and the healthy folder it compares with."""
    healthy = tmp_path_factory.mktemp("bad_inputs") / "healthy"
    healthy.mkdir()
    files.gpt2(healthy)
    files.write(healthy, "tokenizer.json", files.tokenizer())
    files.write(healthy, "tokenizer_config.json", {"chat_template": "{{ messages[0]['content'] }}"})
    files.write(healthy, "run.yaml", {"max_steps": 3})
    for name, content in bad_runs.HEALTHY.items():
        files.write(healthy, name, content)
    bad_images.healthy(healthy)
    server = Oracle(healthy)
    yield server
    server.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_bad_input_ends_as_stated_and_harms_nothing(case, oracle, tmp_path):
    oracle.judge(case, tmp_path)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("traceback", "status 1"),
        ("abort", "status -6"),
        ("long message", "long: refused"),
        ("escape", "unprintable"),
        ("silence", "status 0"),
        ("system", "files beside or in the input changed"),
        ("socket", "forbidden.*socket.connect"),
        ("open", "forbidden.*open /etc/passwd"),
        ("memory", "peak of"),
        ("state", "another result"),
    ],
)
def test_the_oracle_complains_of(fault, complaint, oracle, tmp_path):
    # Each fault is one thing that a refusal must not do; a check that missed it would be no check.
    case = Case(fault, lambda folder: None, ("refused",), action="misbehave", payload=fault)
    with pytest.raises(AssertionError, match=f"(?s){complaint}"):
        oracle.judge(case, tmp_path)


def test_the_oracle_ends_what_hangs(oracle, tmp_path):
    report = oracle.run("misbehave", tmp_path, tmp_path, "hang", 0.5)
    assert report.status is None
    assert oracle.run("misbehave", tmp_path, tmp_path, None, 5.0).status == 0
