"""transformers 4, in a process of its own: what it makes of a folder that dew exported."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("transformers==4.57.6", "tokenizers==0.22.2", "huggingface_hub==0.36.2")
"""transformers 4 and what it needs that 5 has in other versions; it shares the rest, torch too."""

PROGRAM = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
import inspect
import numpy as np
import torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

def flat(outputs, prefix=""):
    found = {}
    for name, value in outputs.items():
        if hasattr(value, "items"):
            found.update(flat(value, prefix + name + "."))
        elif getattr(value, "ndim", 0) and value.is_floating_point():
            found[prefix + name] = value.numpy()
    return found

def answer(folder):
    with open(folder + "/config.json") as file:
        named = json.load(file)["architectures"][0]
    kind = getattr(transformers, named, None)
    if kind is None:
        return {"absent": named}
    model, info = kind.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    known = inspect.signature(model.forward).parameters
    with np.load(folder + "/inputs.npz") as stored:
        inputs = {name: torch.tensor(stored[name]) for name in stored if name in known}
    if "use_cache" in known:
        inputs["use_cache"] = False
    with torch.no_grad():
        outputs = flat(model(**inputs))
    np.savez(folder + "/outputs.npz", **outputs)
    return {"info": {key: sorted(map(str, value)) for key, value in info.items()}}

sys.stdout, out = sys.stderr, sys.stdout
print("ready", file=out, flush=True)
for line in sys.stdin:
    try:
        found = answer(json.loads(line))
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found), file=out, flush=True)
"""


@dataclass(frozen=True)
class Reading:
    """What transformers 4 made of a folder.

    Args:
        absent: the class that it does not have, or nothing.
        info: the keys that it missed, did not expect or found misshapen, by kind; or its error.
        outputs: of the inputs that it was given, by name.
    """

    absent: str = ""
    info: Mapping[str, list[str]] | None = None
    outputs: Mapping[str, np.ndarray] | None = None


class TransformersFour:
    """A running transformers 4, to be closed after use.

    Args:
        packages: the folder that it is installed in.
    """

    def __init__(self, packages: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in `close`)
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(packages)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        self._answer()

    def read(self, folder: Path, inputs: Mapping[str, np.ndarray]) -> Reading:
        """Return what it makes of a folder, which it writes to.

        Args:
            folder: an export.
            inputs: for the model's forward, by name.

        Raises:
            RuntimeError: it ended.
        """
        wide: dict[str, Any] = {
            name: value.astype(np.int64) if value.dtype.kind == "i" else value
            for name, value in inputs.items()
        }
        np.savez(folder / "inputs.npz", **wide)
        assert self._process.stdin is not None
        print(json.dumps(str(folder)), file=self._process.stdin, flush=True)
        answer = json.loads(self._answer())
        if "error" in answer:
            return Reading(info={"error_msgs": [answer["error"]]})
        if "absent" in answer:
            return Reading(absent=answer["absent"])
        with np.load(folder / "outputs.npz") as stored:
            return Reading("", answer["info"], {name: stored[name] for name in stored})

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> TransformersFour:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"transformers 4 ended: {self._errors.read()[-2000:]}")
        return line


def install(folder: Path) -> Path:
    """Install transformers 4 into a folder by pip, where it is not there yet, and return that."""
    if not (folder / "transformers" / "__init__.py").is_file():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(folder), *PACKAGES], check=True)
    return folder
