"""`dew runs --serve`: what the page is told, what it refuses, and that it writes nothing.

Right values: the log's own records; the policies are those of the Fetch and CSP standards.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridges.finetune.live_runs import POINTS, RunServer, curves_of, told_runs
from bridges.finetune.run_folder import is_running, locked
from dew.cli.main import main
from dew.errors import InputRefused


def write_run(folder: Path, steps: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("model_name_or_path: tiny\nmax_steps: 40\ntask: chat\n")
    records = [{"step": n, "epoch": 0.1 * n, "loss": 1 / n} for n in range(1, steps + 1)]
    records.append({"step": steps, "eval_perplexity": 3.5, "eval_runtime": 0.25})
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Path, int]]:
    """Two runs below a folder, one with a report, and a file beside them."""
    root = tmp_path_factory.mktemp("served") / "runs"
    write_run(root / "one", 4)
    (root / "one" / "report.html").write_text("<script>alert(1)</script>")
    write_run(root / "deep" / "two", 7)
    os.utime(root / "one" / "log.jsonl", (1, 1))
    (root.parent / "secret").mkdir()
    (root.parent / "secret" / "report.html").write_text("secret")
    with RunServer(root, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield root, server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[Any, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as line:
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        return answer, answer.read().decode()


def test_the_page_needs_no_other_host_and_may_ask_none(served):
    answer, page = ask(served[1], "/")
    assert answer.status == 200
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    for word in ("__CURVES__", "innerHTML", "document.write"):
        assert word not in page


def test_runs_and_the_curves_of_the_one_that_is_asked_for_are_told(served):
    root, port = served
    told = json.loads(ask(port, "/runs.json?run=one")[1])
    assert [run["name"] for run in told["runs"]] == ["deep/two", "one"]
    assert told["runs"][1]["cells"][:6] == ["one", "chat", "tiny", "4/40", "stopped", "0.25"]
    assert told["run"]["curves"]["loss"] == [[1, 1.0], [2, 0.5], [3, 1 / 3], [4, 0.25]]
    assert told["run"]["curves"]["eval_perplexity"] == [[4, 3.5]]
    assert "eval_runtime" not in told["run"]["curves"]
    assert told["run"]["status"].startswith("stopped: 4 of 40 updates")
    # A line more is told the next time; without a name it is the latest run.
    with (root / "deep" / "two" / "log.jsonl").open("a") as log:
        log.write('{"step": 8, "loss": 0.125}\n{"step": 9, "lo')
    found = json.loads(ask(port, "/runs.json")[1])["run"]
    assert found["name"] == "deep/two"
    assert found["curves"]["loss"][-1] == [8, 0.125]


def test_a_report_can_run_nothing_and_no_name_leads_out_of_the_folder(served):
    root, port = served
    answer, page = ask(port, "/report.html?run=one")
    assert page == "<script>alert(1)</script>"
    assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    (root / "deep" / "two" / "report.html").symlink_to(root.parent / "secret" / "report.html")
    for path in (
        "/report.html?run=../secret",
        "/report.html?run=" + str(root.parent / "secret"),
        "/report.html?run=deep/two",
        "/report.html",
        "/one/log.jsonl",
        "/../secret/report.html",
    ):
        answer, page = ask(port, path)
        assert answer.status == 404
        assert "secret" not in page


def test_only_this_machine_asks_and_nothing_is_changed(served):
    root, port = served
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    assert ask(port, "/", Host="example.org")[0].status == 403
    assert ask(port, "/", Host=f"localhost:{port}")[0].status == 200
    for method in ("POST", "PUT", "DELETE"):
        assert ask(port, "/runs.json", method)[0].status == 501
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_run_is_running_while_a_living_process_holds_it(tmp_path):
    folder = write_run(tmp_path / "run", 2)
    assert not is_running(folder)
    with locked(folder, "run"):
        assert is_running(folder)
        assert told_runs(tmp_path, "")["runs"][0]["cells"][4] == "running"
    assert not is_running(folder)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    left = {"pid": int(gone.stdout), "host": socket.gethostname(), "run": "run", "since": 0}
    (folder / ".dew" / "lock").write_text(json.dumps(left))
    assert not is_running(folder)
    (folder / ".dew" / "lock").write_text("[]")
    assert not is_running(folder)


def test_long_logs_are_thinned_to_their_shape_and_their_end():
    records = [{"step": step, "loss": float(step)} for step in range(1, 12_346)]
    points = curves_of(records)["loss"]
    assert len(points) <= POINTS + 1
    assert points[0] == (1, 1.0)
    assert points[-1] == (12_345, 12_345.0)


def test_folders_and_ports_that_cannot_be_served_are_refused(tmp_path, served, capsys):
    assert told_runs(tmp_path, "")["fault"].endswith("no folder with a config.yaml and a log.jsonl")
    with pytest.raises(InputRefused, match="no such folder"):
        RunServer(tmp_path / "absent", 0)
    assert main(["runs", str(tmp_path), "--serve", "--port", str(served[1])]) == 2
    assert "give another --port" in capsys.readouterr().err
