"""A badge for a page or a model card: whether a checkpoint is proven."""

from __future__ import annotations

from parity.evidence import Certificate

LEFT = "parity with torch"
GREEN, RED = "#1a7f37", "#b42318"
LETTER = 6.7
"""Room for one letter, in pixels."""


def badge_svg(found: Certificate) -> str:
    """Return the badge of a certificate as SVG: proven with the count, or not proven."""
    agreed = len(found.verdicts) - len(found.failed)
    counts = f"{agreed} of {len(found.verdicts)}"
    right = f"proven, {counts}" if found.passed else f"not proven, {counts}"
    first, second = (round(LETTER * len(text) + 14) for text in (LEFT, right))
    colour = GREEN if found.passed else RED
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{first + second}" height="20" \
role="img" aria-label="{LEFT}: {right}">
<title>{LEFT}: {right}</title>
<clipPath id="round"><rect width="{first + second}" height="20" rx="3"/></clipPath>
<g clip-path="url(#round)">
<rect width="{first}" height="20" fill="#3d444d"/>
<rect x="{first}" width="{second}" height="20" fill="{colour}"/>
</g>
<g fill="#fff" text-anchor="middle" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">
<text x="{first / 2}" y="14">{LEFT}</text>
<text x="{first + second / 2}" y="14">{right}</text>
</g>
</svg>
"""
