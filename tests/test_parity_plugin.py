"""The pytest plugin: what `--dew-parity` runs, what its report holds, and that it costs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = "parity.pytest_plugin"
TESTS = """
import numpy as np

X = np.linspace(-1, 1, 7, dtype=np.float32)

def test_plain():
    assert True

def test_right(dew_parity):
    dew_parity.compare(np.tanh, np.tanh, X, name="tanh")

def test_wrong(dew_parity):
    dew_parity.compare(np.sin, np.tanh, X, name="sine")
"""


def session(folder: Path, *words: str, tests: str = TESTS) -> tuple[int, str]:
    """Run pytest in a project of its own, and return its exit status and what it says."""
    (folder / "test_port.py").write_text(tests)
    root = str(Path(__file__).parent.parent)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", str(folder), "-rs", *words],
        cwd=folder,
        # Installed, the plugin comes by itself, and twice is once too often.
        env={**os.environ, "PYTHONPATH": root, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_without_the_option_comparisons_are_skipped_and_told(tmp_path: Path) -> None:
    status, said = session(tmp_path)
    assert status == 0, said
    assert "1 passed, 2 skipped" in said
    assert "run pytest --dew-parity" in said


@pytest.mark.parametrize(
    "workers",
    [(), pytest.param(("-p", "xdist", "-n", "1"), marks=pytest.mark.slow)],
    ids=["alone", "xdist"],
)
def test_a_wrong_pair_fails_its_test_and_the_report_holds_both(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    status, said = session(tmp_path, "--dew-parity", "--dew-parity-report", "out", *workers)
    assert status == 1, said
    assert "1 failed, 2 passed" in said
    assert "DIFFERS" in said
    assert "not proven: sine" in said
    record = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert {verdict["name"]: verdict["passed"] for verdict in record["verdicts"]} == {
        "tanh": True,
        "sine": False,
    }
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.torch
def test_a_checkpoint_is_certified_and_its_certificate_held(tmp_path: Path) -> None:
    from helpers import write_llama

    folder = write_llama(tmp_path / "model", eos_token_id=None, bos_token_id=None)
    tests = f"""
import pytest

def test_model(dew_parity):
    dew_parity.certify({str(folder)!r}, checks=["weights"])

def test_certificate(dew_parity):
    with pytest.raises(AssertionError, match="there is no certificate.json"):
        dew_parity.verify({str(folder)!r})
"""
    status, said = session(tmp_path, "--dew-parity", tests=tests)
    assert status == 0, said
    assert "agrees  model" in said
    assert "proven: every check agrees" in said


def test_the_plugin_loads_no_library_before_it_is_used() -> None:
    """It is imported in every run of pytest where dew is installed."""
    program = (
        "import sys, parity.pytest_plugin; "
        "print([n for n in ('numpy', 'jax', 'torch', 'dew') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
