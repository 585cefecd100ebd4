"""`dew parity`, as the `dew` program finds it: the same words as `python -m parity`."""

from __future__ import annotations

from dew.cli.command import Command

COMMAND = Command(
    name="parity",
    summary="compare dew with torch and transformers: list, run, certify PATH, support",
    run="parity.__main__:main",
    raw=True,
)
