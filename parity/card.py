"""A certificate in Markdown, for a model card."""

from __future__ import annotations

from parity.check import Verdict
from parity.evidence import Certificate
from parity.report import conclusion, difference, figures, mark

SHOWN_VERSIONS = ("dew", "jax", "torch", "transformers")


def card_text(found: Certificate, name: str) -> str:
    """Return the section that a model card may hold.

    Args:
        found: what the checks gave.
        name: of the checkpoint.
    """
    agreed = len(found.verdicts) - len(found.failed)
    versions = ", ".join(f"{n} {found.versions[n]}" for n in SHOWN_VERSIONS if n in found.versions)
    rows = [_row(verdict) for verdict in found.verdicts]
    rows += [f"| {check.name} | not asked | {check.reason} | |" for check in found.skipped]
    return "\n".join(
        [
            "## Parity with PyTorch",
            "",
            "![parity](badge.svg)",
            "",
            f"`{name}` on JAX against transformers on torch: {agreed} of {len(found.verdicts)} "
            f"checks agree; {conclusion(found)}.",
            "",
            "| check | | figures | rule |",
            "|---|---|---|---|",
            *rows,
            "",
            f"{versions}; seed {found.seed}; {found.made}. The figures, and the sha256 of every "
            "file that they are about, are in `certificate.json`. Do they hold for your copy?",
            "",
            "```bash",
            "python -m parity verify PATH",
            "```",
            "",
        ]
    )


def _row(verdict: Verdict) -> str:
    told = figures(verdict) if verdict.passed else "; ".join(difference(verdict))
    cells = (verdict.name, mark(verdict), told, verdict.tolerance)
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"
