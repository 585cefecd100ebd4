"""Does dew give the reference's number? Checks against torch and transformers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.check import Verdict
    from parity.comparing import compare
    from parity.running import certify, run
    from parity.verifying import verified

_HOMES = {
    "Verdict": "parity.check",
    "certify": "parity.running",
    "compare": "parity.comparing",
    "run": "parity.running",
    "verified": "parity.verifying",
}

__all__ = ["Verdict", "certify", "compare", "run", "verified"]


def __getattr__(name: str) -> Any:
    """Return a public name, importing its module now: the pytest plugin costs no test run time."""
    if name not in _HOMES:
        raise AttributeError(f"module 'parity' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
