"""What tests call in the reference's process, and checks whose reference runs there."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

from parity.check import Finding


def given_back(value: Any) -> Any:
    return value


def process_id() -> int:
    return os.getpid()


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashed() -> None:
    print("the library's last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def left() -> None:
    os._exit(3)


def printed() -> str:
    os.write(1, b"a library prints this past Python\n")
    print("a library prints this")
    return "the answer"


def refused() -> None:
    raise ValueError("the answer is not to be had")


def not_there() -> None:
    import skimage.no_such_part  # noqa: F401  (its distribution has another name)


def unanswerable() -> object:
    return object()


class Doubled:
    """A check whose reference tells which process it ran in."""

    name = "doubled"
    tolerance = "equal"
    kind = "metric"
    needs = ("numpy>=1",)

    def inputs(self, subject: None, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).random(3)

    def ours(self, subject: None, inputs: np.ndarray) -> np.ndarray:
        return 2 * inputs

    def reference(self, subject: None, inputs: np.ndarray) -> tuple[np.ndarray, int]:
        return inputs + inputs, os.getpid()

    def compare(self, ours: np.ndarray, reference: tuple[np.ndarray, int]) -> Finding:
        return Finding(bool((ours == reference[0]).all()), {"process": reference[1]})


class Here(Doubled):
    """The same, in this process."""

    apart = False


class Killed(Doubled):
    """One whose reference is killed, as Linux does for want of memory."""

    def reference(self, subject: None, inputs: np.ndarray) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Lacking(Doubled):
    """One that needs what is not there."""

    needs = ("pytorch-fid-of-the-future>=9", "numpy<1")
