"""What `certify --write` leaves beside a checkpoint."""

from __future__ import annotations

from pathlib import Path

from dew.config.durable import write_atomic, write_json
from parity.badge import badge_svg
from parity.card import card_text
from parity.evidence import Certificate
from parity.page import GENERATOR, page_html

CERTIFICATE, BADGE, CARD = "certificate.json", "badge.svg", "certificate.md"
PAGE, OTHER_PAGE = "report.html", "parity.html"
"""Where the page goes, and where it goes if a page of another program is there."""
BEGINNING = 1000


def write_certificate(found: Certificate, folder: Path, *, name: str) -> list[Path]:
    """Write a certificate, its page, its badge and its Markdown, and return where they are.

    Args:
        found: what the checks gave.
        folder: of the checkpoint.
        name: of the checkpoint.
    """
    page = folder / (PAGE if _free(folder / PAGE) else OTHER_PAGE)
    write_json(folder / CERTIFICATE, found.to_dict())
    write_atomic(page, page_html(found, name))
    write_atomic(folder / BADGE, badge_svg(found))
    write_atomic(folder / CARD, card_text(found, name))
    return [folder / CERTIFICATE, page, folder / BADGE, folder / CARD]


def _free(path: Path) -> bool:
    """Return whether parity may write there: `dew finetune` has a report of that name."""
    if not path.exists():
        return True
    return GENERATOR in path.read_text(encoding="utf-8", errors="replace")[:BEGINNING]
