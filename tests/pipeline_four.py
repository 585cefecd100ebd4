"""The pipelines that transformers 5 dropped, run by transformers 4 in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
import torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

def plain(value):
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value.tolist() if torch.is_tensor(value) else value

wanted, kept, found = json.load(sys.stdin), {}, []
for task, folder, inputs, options in wanted:
    try:
        if (task, folder) not in kept:
            kept[task, folder] = transformers.pipeline(task, model=folder, device="cpu")
        found.append(plain(kept[task, folder](inputs, **options)))
    except Exception as error:
        found.append({"error": f"{type(error).__name__}: {error}"})
print("found", json.dumps(found))
"""
Call = tuple[str, str, Any, dict[str, Any]]
"""A task, a folder, the inputs and the options of a call."""


def answers(packages: Path, calls: Sequence[Call]) -> list[Any]:
    """Return what transformers 4 makes of each call; tensors as lists, errors as dicts.

    Args:
        packages: the folder that `parity.four.install` filled.
        calls: any number; a pipeline is made once for each task and folder.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(packages)],
        input=json.dumps(list(calls)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    assert lines, done.stderr[-2000:]
    return json.loads(lines[-1].removeprefix("found "))
