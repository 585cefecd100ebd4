"""`report.html`: a certificate's verdicts, figures and pictures, in one file without others."""

from __future__ import annotations

from bridges.finetune.report import STYLE
from parity.drawing import pictures
from parity.evidence import Certificate
from parity.report import conclusion, difference, figures, mark

GENERATOR = '<meta name="generator" content="dew parity">'
"""How a page that parity wrote is told from another."""
PAGE = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ name }}: parity with torch</title>
"""
    + GENERATOR
    + """
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
"""
    + STYLE
    + """
 .agrees { color: #1a7f37 } .DIFFERS, .UNKNOWN { color: #b42318; font-weight: 600 }
 .said { font-size: 1.2rem } code { overflow-wrap: anywhere } table { font-size: .9rem }
 thead { display: table-header-group } tr { break-inside: avoid } h2 { break-after: avoid }
 @media (prefers-color-scheme: dark) {
  .agrees { color: #3fb950 } .DIFFERS, .UNKNOWN { color: #ff7b72 } }
 @media print { body { font-size: 10pt; color: #000; background: #fff } a { color: inherit } }
</style></head><body>
<h1>{{ name }}: parity with torch</h1>
<p class="said"><span class="{{ 'agrees' if passed else 'DIFFERS' }}">{{ conclusion }}</span></p>
<p>{{ agreed }} of {{ verdicts|length }} checks agree. Both sides got the same files and the same
inputs, drawn from seed {{ seed }}; where rounding is judged, torch in float64 is the measure and
its own float32 error the yardstick. Made {{ made }}.</p>
<h2>Checks</h2>
<table><thead><tr><th></th>{% if several %}<th>subject</th>{% endif %}<th>check</th><th>figures</th>
<th>rule</th><th>seconds</th></tr></thead><tbody>
{% for row in verdicts %}<tr><td class="{{ row.mark }}">{{ row.mark }}</td>
{% if several %}<td>{{ row.subject }}</td>{% endif %}
<td>{{ row.name }}</td><td>{% for line in row.told %}{{ line }}<br>{% endfor %}</td>
<td>{{ row.rule }}</td><td class="n">{{ row.seconds }}</td></tr>
{% endfor %}
{% for check in skipped %}<tr><td>not asked</td>
{% if several %}<td>{{ check.subject }}</td>{% endif %}<td>{{ check.name }}</td>
<td>{{ check.reason }}</td><td></td><td></td></tr>
{% endfor %}</tbody></table>
{% if pictures %}<h2>Errors and curves</h2>
{% for picture in pictures %}<figure>{{ picture|safe }}</figure>
{% endfor %}{% endif %}
{% if files %}<h2>Files</h2>
<table><thead><tr><th>file</th><th>sha256</th></tr></thead><tbody>
{% for file, digest in files.items() %}<tr><td>{{ file }}</td>
<td><code>{{ digest }}</code></td></tr>
{% endfor %}</tbody></table>
<p>Do they hold for your copy? <code>python -m parity verify PATH</code></p>{% endif %}
<h2>Made with</h2>
<table>{% for name, value in made_with %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}</table>
</body></html>
"""
)


def page_html(found: Certificate, name: str) -> str:
    """Return the page of a certificate.

    Args:
        found: what the checks gave.
        name: of the checkpoint.
    """
    from jinja2 import Environment

    page = Environment(autoescape=True, trim_blocks=True).from_string(PAGE)
    several = len({verdict.subject for verdict in found.verdicts}) > 1
    verdicts = [
        {
            "mark": mark(verdict),
            "subject": verdict.subject,
            "name": verdict.name,
            "told": [figures(verdict), *difference(verdict)],
            "rule": verdict.tolerance,
            "seconds": f"{verdict.seconds:.1f}",
        }
        for verdict in found.verdicts
    ]
    drawn = []
    for verdict in found.verdicts:
        title = f"{verdict.subject}, {verdict.name}" if several else verdict.name
        drawn += pictures(title, verdict.plots)
    return page.render(
        name=name,
        passed=found.passed,
        conclusion=conclusion(found),
        agreed=len(found.verdicts) - len(found.failed),
        verdicts=verdicts,
        several=several,
        skipped=found.skipped,
        seed=found.seed,
        made=found.made,
        pictures=drawn,
        files=found.files,
        made_with=[*found.versions.items(), *found.machine.items()],
    )
