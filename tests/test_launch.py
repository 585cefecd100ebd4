"""`dew launch`: real ranks that agree, fail, die and hang; and what it starts in every engine."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dew.artifacts import failure
from dew.cli.launch import COMMAND
from dew.cli.launch import run as launch_here
from dew.launching import watching
from dew.launching.plan import free_port

CHILD = str(Path(__file__).parent / "pool_child.py")
LAUNCH = (sys.executable, "-m", "dew.cli.main", "launch")
TEXT = "the text of the failure"
LONG = 300
"""Seconds that a launch may take on a busy machine; each takes a few when it is alone."""

pytestmark = pytest.mark.usefixtures("no_engine")


def launched(*words: str, processes: int = 2, grace: float = 3, settings=(), **environ: str):
    """Run `pool_child.py` with `words` on ranks, and return how it ended."""
    argv = [*LAUNCH, "--processes", str(processes), "--grace", str(grace), *settings]
    return subprocess.run(
        [*argv, "--", CHILD, *words],
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, **environ},
    )


def last_words(ended) -> tuple[str, list[str]]:
    """Return who the launcher says failed first, and the lines it shows after that."""
    *_, report = re.split(r"(?m)^dew launch: (?=rank \d+ \(\S+\) \w+(?: \w+)? first)", ended.stderr)
    first, *lines = report.splitlines()
    return first, lines


def assert_cause(ended, who: int, status: int, said: str | None) -> None:
    first, lines = last_words(ended)
    host = re.escape(socket.gethostname())
    assert re.match(rf"rank {who} \({host}:\d+\) failed first, with status {status}\b", first)
    assert ended.returncode == status, ended.stderr
    if said is None:
        assert lines == []
    else:
        assert said in "\n".join(lines)
        pid = re.search(r":(\d+)\)", first).group(1)
        assert re.match(rf"\[rank{who}\]: {host}:{pid} \(rank {who}\) ends: ", lines[-1])


def test_ranks_agree_and_meet_in_a_collective():
    ended = launched("agree")
    assert ended.returncode == 0, ended.stderr
    for rank in (0, 1):
        assert f"[rank{rank}]: rank {rank} of 2 has {{'from': 0, 'word': 'even'}} and 3" in (
            ended.stdout
        )


FAULTS = {
    "raises before an agreement": (("raise_before_agreement", "1"), 1, 1, f"ValueError: {TEXT}"),
    "rank 0 raises before an agreement": (("raise_before_agreement", "0"), 0, 1, TEXT),
    "raises between steps": (("raise_between_steps", "1"), 1, 1, f"ValueError: {TEXT}"),
    "leaves by sys.exit(3)": (("exit_three", "1"), 1, 3, "dew: no such thing"),
    "is killed": (("killed", "1"), 1, 137, None),
    "rank 0 is killed": (("killed", "0"), 0, 137, None),
    "never reaches its backend": (("backend_fails", "1"), 1, 1, "nonsense"),
}
SLOW_FAULTS = {
    "rank 0 raises between steps": (("raise_between_steps", "0"), 0, 1, f"ValueError: {TEXT}"),
    "raises and is waited for on the host": (("raise_alone", "1"), 1, 1, f"ValueError: {TEXT}"),
    "rank 0 raises and is waited for": (("raise_alone", "0"), 0, 1, f"ValueError: {TEXT}"),
    "rank 0 leaves by sys.exit(3)": (("exit_three", "0"), 0, 3, "dew: no such thing"),
    "rank 0 never reaches its backend": (("backend_fails", "0"), 0, 1, "nonsense"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_failure_ends_all_and_stands_last_on_the_screen(fault):
    words, who, status, said = FAULTS[fault]
    assert_cause(launched(*words, grace=1), who, status, said)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", [*FAULTS, *SLOW_FAULTS])
def test_no_failure_is_missed_in_twenty(fault):
    words, who, status, said = (FAULTS | SLOW_FAULTS)[fault]
    for _ in range(20):
        began = time.monotonic()
        assert_cause(launched(*words, grace=3), who, status, said)
        assert time.monotonic() - began < failure.FAILURE_GRACE_SECONDS


def test_a_rank_with_two_devices_that_is_killed_is_heard_by_the_heartbeat():
    settings = ("--devices_per_process", "2", "--heartbeat", "4")
    ended = launched("killed", "1", grace=60, settings=settings)
    assert_cause(ended, 1, 137, None)
    assert "rank 0 (" in ended.stderr  # it ended by itself, within the grace
    assert "still there" not in ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("who", ["0", "1"])
def test_a_killed_rank_with_two_devices_is_heard_in_twenty(who):
    settings = ("--devices_per_process", "2", "--heartbeat", "6")
    for _ in range(20):
        assert_cause(launched("killed", who, grace=60, settings=settings), int(who), 137, None)


def stopped(who: str, heartbeat: int) -> None:
    began = time.monotonic()
    settings = ("--heartbeat", str(heartbeat))
    ended = launched("killed", who, "SIGSTOP", grace=0, settings=settings)
    assert_cause(ended, int(who), 128 + signal.SIGSTOP, None)
    assert re.search(rf"rank {who} \(\S+:\d+\) is stopped \(SIGSTOP\)", ended.stderr)
    assert time.monotonic() - began < failure.FAILURE_GRACE_SECONDS


@pytest.mark.parametrize("who", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_a_stopped_rank_is_named_once_its_heartbeat_is_missed(who):
    """Rank 0 holds the service: its peers miss its answers, as it would miss their heartbeats."""
    stopped(who, heartbeat=4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("who", ["0", "1"])
def test_a_stopped_rank_is_named_in_twenty(who):
    for _ in range(20):
        stopped(who, heartbeat=6)


def started(*words: str, settings=()) -> subprocess.Popen:
    """Start ranks in the background and return when both have said that they step."""
    ranks = subprocess.Popen(
        [*LAUNCH, "--processes", "2", "--grace", "60", *settings, "--", CHILD, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ranks.pids = []
    said = 0
    while said < 2:
        line = ranks.stdout.readline()
        assert line, ranks.stderr.read()
        said += "past three" in line
        ranks.pids += [int(found) for found in re.findall(r"\]: pid (\d+)", line)]
    return ranks


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_ranks_end_when_the_launcher_is_killed():
    ranks = started("run_on")
    ranks.kill()
    ranks.wait()
    assert len(ranks.pids) == 2
    deadline = time.monotonic() + 30
    while not all(gone(pid) for pid in ranks.pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(gone(pid) for pid in ranks.pids)
    ranks.communicate()


def test_sigterm_of_the_launcher_lets_all_ranks_save_at_one_step_and_is_its_status():
    ranks = started("stop_politely")
    ranks.send_signal(signal.SIGTERM)
    out, err = ranks.communicate(timeout=LONG)
    assert ranks.returncode == 143, err
    assert len(set(re.findall(r"saved at (\d+)", out))) == 1
    assert out.count("saved at") == 2


@pytest.mark.slow
def test_sigint_of_the_launcher_reaches_all_ranks_and_is_its_status():
    ranks = started("run_on")
    ranks.send_signal(signal.SIGINT)
    err = ranks.communicate(timeout=LONG)[1]
    assert ranks.returncode == 130, err
    assert "failed first" not in err


@pytest.mark.slow
def test_a_third_signal_does_not_wait():
    ranks = started("stop_politely")
    for _ in range(3):
        ranks.send_signal(signal.SIGINT)  # the child hears SIGTERM only
        time.sleep(0.5)
    err = ranks.communicate(timeout=LONG)[1]
    assert ranks.returncode == 130
    assert "still there; killed" in err


def test_a_taken_port_is_replaced_by_another(monkeypatch, capfd):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        ports = iter([taken, free_port()])
        monkeypatch.setattr("dew.cli.launch.free_port", lambda: next(ports))
        assert launch_here(["--processes", "2", "--grace", "60", "--", CHILD, "agree"]) == 0
    told = capfd.readouterr()
    assert told.out.count("'word': 'even'") == 2
    assert "the port was taken; starting again on another" in told.err


def test_a_taken_port_that_was_asked_for_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = launched("agree", settings=("--coordinator", f"127.0.0.1:{port}"))
    assert ended.returncode == watching.PORT_TAKEN_STATUS
    assert f"port {port} of 127.0.0.1 is taken by another program" in last_words(ended)[1][-1]


def test_a_program_that_is_no_python_runs_as_it_is():
    ended = subprocess.run(
        [*LAUNCH, "--processes", "2", "--", "sh", "-c", "echo is $DEW_PROCESS_ID; exit 5"],
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert sorted(ended.stdout.splitlines()) == ["[rank0]: is 0", "[rank1]: is 1"]
    assert ended.returncode == 5


def test_one_process_is_no_pool_and_loads_no_jax():
    ended = launched("no_pool", "a b", processes=1)
    assert ended.stdout == "[rank0]: alone False ['a b']\n"
    assert ended.returncode == 0


@pytest.mark.slow
def test_what_a_rank_starts_itself_joins_nothing():
    code = "from dew.training.runtime import join_pool; print('joined', join_pool())"
    ended = launched("start_another", code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("joined False") == 2


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Put a `ssh` and a `srun` on PATH that start everything on this machine."""
    ssh = '#!/bin/sh\n[ "$1 $2" = "-o BatchMode=yes" ] || exit 9\nexec sh -c "$4"\n'
    (tmp_path / "ssh").write_text(ssh)
    (tmp_path / "srun").write_text(f"#!{sys.executable}\n{FAKE_SRUN}")
    for name in ("ssh", "srun"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


FAKE_SRUN = r"""
import os, subprocess, sys, threading

words = sys.argv[1:]
flags = dict(word.partition("=")[::2] for word in words if word.startswith("--ntasks"))
program = words[next(i for i, word in enumerate(words) if not word.startswith("--")):]
count = int(flags.get("--ntasks", 2))


def task(rank, statuses):
    place = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": str(count)}
    place |= {"SLURM_STEP_NUM_TASKS": str(count), "SLURM_PROCID": str(rank)}
    run = subprocess.Popen(
        program,
        env={**os.environ, **place, "SLURM_LOCALID": str(rank)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    for line in run.stdout:
        sink = sys.stdout if line.startswith(b"rank ") else sys.stderr
        print(f"{rank}: {line.decode()}", end="", file=sink, flush=True)
    if run.wait():
        said = f"srun: error: node1: task {rank}: Exited with exit code {run.returncode}"
        print(said, file=sys.stderr, flush=True)
        statuses.append(run.returncode)


statuses = []
tasks = [threading.Thread(target=task, args=(rank, statuses)) for rank in range(count)]
[thread.start() for thread in tasks]
[thread.join() for thread in tasks]
sys.exit(max(statuses, default=0) % 256)
"""


@pytest.mark.usefixtures("tools")
def test_hosts_form_one_pool_over_ssh():
    argv = [*LAUNCH, "--hosts", "127.0.0.1,other", "--processes", "1"]
    argv += ["--devices_per_process", "2", "--", CHILD, "agree"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=LONG)
    assert ended.returncode == 0, ended.stderr
    assert "[rank1]: rank 1 of 2 has {'from': 0, 'word': 'even'} and 6" in ended.stdout


@pytest.mark.usefixtures("tools")
def test_a_failure_on_one_host_ends_the_others():
    argv = [*LAUNCH, "--hosts", "127.0.0.1,other", "--processes", "1", "--grace", "1"]
    argv += ["--", CHILD, "raise_between_steps"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=LONG)
    assert_cause(ended, 1, 1, f"ValueError: {TEXT}")


@pytest.mark.usefixtures("tools")
def test_an_allocation_without_a_step_runs_srun(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    ended = launched("agree")
    assert ended.returncode == 0, ended.stderr
    assert "[rank1]: rank 1 of 2 has {'from': 0, 'word': 'even'} and 3" in ended.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_a_task_of_srun_that_fails_is_shown_last(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    ended = launched("raise_alone", "0")
    first, lines = last_words(ended)
    assert first.startswith("rank 0 (node1) failed first, with status 1")
    assert f"ValueError: {TEXT}" in "\n".join(lines)
    assert ended.returncode == 1


KUBERNETES = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1", "JAX_NUM_PROCESSES": "2"}


def test_pods_of_a_kubernetes_job_become_the_program():
    pods = []
    port = str(free_port())
    for rank in ("0", "1"):
        told = {**KUBERNETES, "JAX_COORDINATOR_PORT": port, "JAX_PROCESS_ID": rank}
        argv = [*LAUNCH, "--", CHILD, "agree"]
        pods.append(
            subprocess.Popen(
                argv, env={**os.environ, **told}, stdout=subprocess.PIPE, text=True, stderr=-1
            )
        )
    for rank, pod in enumerate(pods):
        out, err = pod.communicate(timeout=LONG)
        assert pod.returncode == 0, err
        assert f"rank {rank} of 2 has {{'from': 0, 'word': 'even'}} and 3" in out


def test_join_pool_refuses_half_an_environment_and_is_nothing_without_one():
    code = "from dew.training.runtime import join_pool; print(join_pool())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout == "False\n", ended.stderr
    ended = subprocess.run(
        [sys.executable, "-m", "dew.cli.runner", "--join", "--", CHILD, "say", "x"],
        capture_output=True,
        text=True,
        env={**os.environ, "DEW_PROCESS_ID": "1"},
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("dew: DEW_PROCESS_ID is set, but not ")
    assert ended.stderr.count("\n") == 1


def test_wrong_use_exits_2_and_help_shows_the_settings(capsys):
    ended = subprocess.run([*LAUNCH, "--proceses", "2"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert launch_here(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{option.name}" in text for option in COMMAND.options)
