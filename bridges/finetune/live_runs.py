"""`dew runs --serve`: a server on this machine alone that shows runs while they train."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bridges.files.regular_file import contained
from bridges.finetune.live_page import live_page
from bridges.finetune.report import CURVES
from bridges.finetune.run_list import TIMED, Run, cells, runs_below
from dew.errors import InputRefused, shown

HOST = "127.0.0.1"
POINTS = 500
"""Points of a curve, at most; between them some are left out."""
DRAWN = frozenset(name for _, names, _ in CURVES for name in names)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-src 'self'; frame-ancestors 'none'"
)
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A folder may come from elsewhere: nothing in its report runs, nor asks for anything."""


class RunServer(ThreadingHTTPServer):
    """Answers with the runs below a folder; it writes nothing and reads nothing else.

    Args:
        folder: where the runs are.
        port: 0 for any that is free; `server_port` tells which.

    Raises:
        InputRefused: no such folder, or a port that is taken.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        if not folder.is_dir():
            raise InputRefused(f"{folder}: no such folder")
        self.folder = folder
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InputRefused(
                f"port {port} of {HOST}: {error.strerror or error}; give another --port, or 0 for "
                "any that is free"
            ) from None


class _Handler(BaseHTTPRequestHandler):
    server: RunServer

    def do_GET(self) -> None:
        # Another site's page could ask by a name of its own that leads here.
        if self.headers.get("Host") not in {
            f"{name}:{self.server.server_port}" for name in (HOST, "localhost")
        }:
            return self._answer(403, "text/plain", "ask by 127.0.0.1 or localhost")
        asked = urlsplit(self.path)
        run = parse_qs(asked.query).get("run", [""])[0]
        if asked.path == "/":
            return self._answer(200, "text/html", live_page(), PAGE_POLICY)
        if asked.path == "/runs.json":
            told = json.dumps(told_runs(self.server.folder, run))
            return self._answer(200, "application/json", told)
        if asked.path == "/report.html":
            page = report_of(self.server.folder, run)
            if page is not None:
                return self._answer(200, "text/html", page, REPORT_POLICY)
        return self._answer(404, "text/plain", "there is nothing here")

    def _answer(self, status: int, kind: str, text: str, policy: str = "") -> None:
        body = text.encode("utf-8", "replace")
        headers = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8"}
        headers |= {"Content-Length": str(len(body))}
        headers |= {"Content-Security-Policy": policy or "default-src 'none'"}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page that is open asks every few seconds."""


def told_runs(folder: Path, name: str) -> dict[str, Any]:
    """Return what the page shows of the runs below a folder, as JSON can hold it.

    Args:
        folder: where the runs are.
        name: of the run whose curves are wanted; of the latest where there is none of that name.
    """
    try:
        runs = runs_below(folder)
    except InputRefused as problem:
        return {"fault": str(problem), "runs": [], "run": None}
    listed = [{"name": _name(folder, run), "cells": cells(run, _name(folder, run))} for run in runs]
    chosen = _named(folder, runs, name) or runs[0]
    return {"fault": "", "runs": listed, "run": _told(folder, chosen)}


def report_of(folder: Path, name: str) -> str | None:
    """Return the report of a run by its name; None where there is none.

    Only the runs that are found below the folder have names, so none leads out of it.
    """
    try:
        run = _named(folder, runs_below(folder), name)
        page = None if run is None else contained(run.folder, "report.html")
        return page.read_text("utf-8", "replace") if page is not None and page.is_file() else None
    except InputRefused:
        return None


def _told(folder: Path, run: Run) -> dict[str, Any]:
    seconds = max(0, int(time.time() - run.touched))
    total = f" of {run.planned}" if run.planned else ""
    last: Mapping[str, Any] = run.records[-1] if run.records else {}
    return {
        "name": _name(folder, run),
        "status": f"{run.state}: {run.updates}{total} updates; last written {seconds} s ago",
        "curves": curves_of(run.records),
        "last": dict(last),
        "report": (run.folder / "report.html").is_file(),
    }


def curves_of(records: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return the points (update, value) of each number in a log, thinned to `POINTS` each.

    Args:
        records: of `log.jsonl`; of losses, rates, norms, rewards and scores curves are drawn.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in record.items():
            drawn = name in DRAWN or (name.startswith("eval_") and name not in TIMED)
            if drawn and isinstance(value, float) and isinstance(record.get("step"), int):
                found.setdefault(name, []).append((record["step"], value))
    return {name: _thinned(points) for name, points in found.items()}


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return every so many of the points, and the last."""
    stride = -(-len(points) // POINTS)
    kept = points[:: max(1, stride)]
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def _name(folder: Path, run: Run) -> str:
    """Return the path of a run below the folder, on one line."""
    return shown(run.folder.relative_to(folder).as_posix(), 1000)[1:-1]


def _named(folder: Path, runs: list[Run], name: str) -> Run | None:
    return next((run for run in runs if _name(folder, run) == name), None)
