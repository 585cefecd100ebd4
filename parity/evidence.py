"""All that a run of checks found: what reports and certificates are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from parity.check import Skipped, Verdict

PACKAGES = (
    *("dew", "jax", "jaxlib", "flax", "optax", "numpy", "safetensors", "tokenizers"),
    *("torch", "transformers"),
)
MACHINE = ("Platform", "Python", "Devices", "CPU cores", "Memory")
"""What of `dew env` a certificate tells."""


@dataclass(frozen=True)
class Certificate:
    """The answer about a checkpoint, or about dew itself, with its evidence.

    Args:
        verdicts: of the checks that were asked.
        skipped: what was not asked, and why.
        seed: of every input.
        files: sha256 by name of the checkpoint's files; none where tiny models were asked.
        versions: of what took part, by the package's name.
        machine: what it ran on, by the name of the figure.
        made: when, in UTC as ISO 8601 writes it.
    """

    verdicts: tuple[Verdict, ...]
    skipped: tuple[Skipped, ...] = ()
    seed: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    made: str = ""

    @property
    def passed(self) -> bool:
        """Whether there were checks and all of them agreed."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """The verdicts that did not pass."""
        return tuple(verdict for verdict in self.verdicts if not verdict.passed)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "passed": self.passed,
            "made": self.made,
            "seed": self.seed,
            "versions": dict(self.versions),
            "machine": dict(self.machine),
            "files": dict(self.files),
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "skipped": [asdict(check) for check in self.skipped],
        }


def certificate_of(
    verdicts: Sequence[Verdict],
    skipped: Sequence[Skipped] = (),
    *,
    seed: int,
    files: Mapping[str, str] | None = None,
) -> Certificate:
    """Return the certificate of verdicts that were found here and now.

    Args:
        verdicts: of the checks that were asked.
        skipped: what was not asked, and why.
        seed: of every input.
        files: sha256 by name of the checkpoint's files, or None where there is none.
    """
    from dew.cli.env import environment

    told = dict(environment())
    return Certificate(
        tuple(verdicts),
        tuple(skipped),
        seed,
        files or {},
        installed(),
        {name: told[name] for name in MACHINE},
        datetime.now(UTC).isoformat(timespec="seconds"),
    )


def installed() -> dict[str, str]:
    """Return the versions of what takes part in a comparison; what is absent is left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
