"""Who is told how a run of checks goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parity.check import Skipped, Verdict


@dataclass(frozen=True)
class Watcher:
    """What is told of a run while it goes on.

    Args:
        begun: called before each check with its name, its subject's, and the share done so far.
        seen: called with each verdict as it comes.
        skipped: called with each check that a subject cannot be asked, and why.
    """

    begun: Callable[[str, str, float], None] | None = None
    seen: Callable[[Verdict], None] | None = None
    skipped: Callable[[Skipped], None] | None = None
