"""Comparing a finished run with transformers, where torch and the certifier are there."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from importlib.util import find_spec

from bridges.finetune.parts import Parts
from dew.artifacts.coordination import pooled
from dew.config.durable import write_json

GROUP = "dew.certify"


def certified(parts: Parts) -> int:
    """Write parity.json where the entry-point group `dew.certify` offers a certifier.

    It is a function of the folder that returns `{"passed": bool, ...}`. bridges may not import
    parity, hence the entry point.

    Returns:
        0 where everything agreed or nothing could be compared, 1 where something differed.
    """
    folder = parts.folder / "merged" if parts.method.adapter else parts.folder
    if pooled():
        # Its evaluation would wait for the other processes.
        print(f"parity.json: not written by a pool; run: python -m parity certify {folder}")
        return 0
    if not (folder / "config.json").exists():
        print("parity.json: not written, there is no whole model to compare", flush=True)
        return 0
    found = list(entry_points(group=GROUP))
    if not found or find_spec("torch") is None or find_spec("transformers") is None:
        print("parity.json: not written, torch and transformers are not installed", flush=True)
        return 0
    try:
        certify = found[0].load()
    except ImportError as error:
        print(f"parity.json: not written, {error}", file=sys.stderr)
        return 0
    report = certify(folder)
    write_json(parts.folder / "parity.json", report)
    passed = bool(report["passed"])
    print(f"parity.json: {'equal to transformers' if passed else 'DIFFERS from transformers'}")
    return 0 if passed else 1
