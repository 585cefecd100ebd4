"""What `dew launch` would start in every engine, and what it refuses; nothing is started here."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from dew.artifacts import failure
from dew.cli import leaving
from dew.cli.launch import run as launch_here
from dew.errors import InputRefused
from dew.launching import watching
from dew.launching.devices import kind, share
from dew.launching.environment import Place, place, slurm_allocation, slurm_step
from dew.launching.program import command

CHILD = str(Path(__file__).parent / "pool_child.py")
KUBERNETES = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1", "JAX_NUM_PROCESSES": "2"}
pytestmark = pytest.mark.usefixtures("no_engine")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Put a `ssh` and a `srun` on PATH that fail."""
    for name in ("ssh", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def printed(capsys, *argv: str) -> list[str]:
    assert launch_here([*argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_dry_run_prints_the_commands_and_starts_nothing(capsys):
    lines = printed(
        capsys,
        *("--processes", "2", "--devices-per-process", "3", "--coordinator", "127.0.0.1:4321"),
        *("--heartbeat", "9", "--dry-run", "--", "dew", "finetune", "--run_name", "a b"),
    )
    assert lines[0::2] == ["# rank 0", "# rank 1"]
    *variables, python, _, _, join, _, _, _, name, _, text = shlex.split(lines[3])
    assert dict(word.split("=", 1) for word in variables) == {
        "DEW_COORDINATOR": "127.0.0.1:4321",
        "DEW_NUM_PROCESSES": "2",
        "DEW_PROCESS_ID": "1",
        "DEW_HEARTBEAT_SECONDS": "9",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "3",
        "PYTHONUNBUFFERED": "1",
    }
    assert (python, join, name, text) == (sys.executable, "--join", "finetune", "a b")


@pytest.mark.usefixtures("tools")
def test_a_dry_run_prints_what_ssh_would_run_and_no_secret(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_b=2")
    hosts = ("--hosts", "me@one,two", "--processes", "4", "--coordinator", "one:99")
    lines = printed(capsys, *hosts, "--dry-run", "--", CHILD, "agree")
    assert lines[0::2] == ["# host me@one", "# host two"]
    assert "hf_secret" not in "".join(lines)
    *ssh, line = shlex.split(lines[3])
    assert ssh == ["ssh", "-o", "BatchMode=yes", "two"]
    assert line.startswith(f"cd {shlex.quote(os.getcwd())} && exec env DEW_LAUNCH_ORDERS=1 ")
    words = shlex.split(line)
    assert "XLA_FLAGS=--xla_a=1 --xla_b=2" in words
    launch = words[words.index("launch") :]
    told = dict(zip(launch[1::2], launch[2::2], strict=False))
    assert told["--first_process"] == "4"
    assert told["--total_processes"] == "8"
    assert told["--coordinator"] == "one:99"


@pytest.mark.usefixtures("tools")
def test_a_dry_run_in_slurm_prints_srun(capsys, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    _, line = printed(capsys, "--processes", "2", "--dry-run", "--", CHILD, "agree")
    words = shlex.split(line)
    assert words[1:6] == [
        *("srun", "--label", "--kill-on-bad-exit=1", "--ntasks=6", "--ntasks-per-node=2")
    ]
    assert words[-3:] == ["--", CHILD, "agree"]
    _, line = printed(capsys, "--dry-run", "--", CHILD, "agree")
    assert "ntasks" not in line


def test_a_dry_run_in_a_pod_prints_what_it_would_become(capsys, monkeypatch):
    for name, value in (KUBERNETES | {"JAX_PROCESS_ID": "1"}).items():
        monkeypatch.setenv(name, value)
    first, line = printed(capsys, "--dry-run", "--", CHILD, "agree")
    assert "kubernetes" in first
    assert shlex.split(line)[-4:] == ["--join", "--", CHILD, "agree"]
    with pytest.raises(InputRefused, match=r"processes is 4, but kubernetes .* one of 2"):
        launch_here(["--processes", "4", "--", CHILD, "agree"])
    monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    lines = printed(capsys, "--processes", "4", "--dry-run", "--", CHILD, "agree")
    assert lines[0::2] == [f"# rank {rank}" for rank in range(4)]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        (
            {"DEW_COORDINATOR": "a:1", "DEW_NUM_PROCESSES": "2", "DEW_PROCESS_ID": "1"},
            Place("dew", "a:1", 2, 1),
        ),
        (KUBERNETES | {"JAX_PROCESS_ID": "0"}, Place("kubernetes", "127.0.0.1:8476", 2, 0)),
        (
            KUBERNETES | {"JAX_PROCESS_ID": "0", "JAX_COORDINATOR_PORT": "7"},
            Place("kubernetes", "127.0.0.1:7", 2, 0),
        ),
        (
            {
                "SKYPILOT_NODE_RANK": "1",
                "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
                "SKYPILOT_NUM_NODES": "2",
            },
            Place("skypilot", "10.0.0.1:8476", 2, 1),
        ),
        (
            {
                "SLURM_JOB_ID": "1",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NODELIST": "n1",
                "SLURM_NTASKS": "3",
                "SLURM_PROCID": "2",
                "SLURM_LOCALID": "0",
            },
            Place("slurm", None, 3, 2),
        ),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", "SLURM_PROCID": "0"}, None),
        (KUBERNETES | {"JAX_PROCESS_ID": "0", "DEW_JOINED": "17"}, None),
    ],
)
def test_the_environment_names_the_pool(environ, expected):
    assert place(environ) == expected


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"DEW_PROCESS_ID": "1"}, "DEW_PROCESS_ID is set, but not DEW_COORDINATOR and DEW_NUM"),
        ({"DEW_COORDINATOR": "a:1", "DEW_NUM_PROCESSES": "2"}, "but not DEW_PROCESS_ID"),
        ({"JAX_NUM_PROCESSES": "2"}, "but not JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "but not JAX_NUM_PROCESSES and JAX_PROCESS_ID"),
        ({"SKYPILOT_NODE_RANK": "1"}, "but not SKYPILOT_NODE_IPS and SKYPILOT_NUM_NODES"),
        (KUBERNETES | {"JAX_PROCESS_ID": "2"}, "this is process 2 of 2"),
        (KUBERNETES | {"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID is '-1'; expected a whole"),
        (KUBERNETES | {"JAX_PROCESS_ID": "1", "JAX_COORDINATOR_PORT": "x"}, "expected host:port"),
    ],
)
def test_a_half_set_environment_is_refused_in_one_line(environ, said):
    with pytest.raises(InputRefused, match=re.escape(said)) as caught:
        place(environ)
    assert "\n" not in str(caught.value)


def test_slurm_counts_a_batch_script_and_a_shell_as_allocations():
    for step in ({}, {"SLURM_STEP_ID": "4294967290"}, {"SLURM_STEP_ID": "4294967291"}):
        assert slurm_allocation({"SLURM_JOB_ID": "1", **step})
    assert slurm_step({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"})
    assert not slurm_allocation({})


def test_gpus_are_shared_out_in_turn():
    environ = {"CUDA_VISIBLE_DEVICES": "3,GPU-a,5,6", "JAX_PLATFORMS": "cuda"}
    assert kind(environ) == "gpu"
    assert kind({"JAX_PLATFORMS": "tpu,cpu"}) == "other"
    assert kind({"JAX_PLATFORMS": "cpu"}) == "cpu"
    shares = [part["CUDA_VISIBLE_DEVICES"] for part in share("gpu", environ, 2, 2)]
    assert shares == ["3,GPU-a", "5,6"]
    with pytest.raises(InputRefused, match="need 6; this machine shows 4"):
        share("gpu", environ, 3, 2)
    assert share("other", {}, 1, 1) == [{}]
    with pytest.raises(InputRefused, match="start one process here"):
        share("other", {}, 2, 1)


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["dew", "finetune", "--x"], ["-m", "dew.cli.main", "finetune", "--x"]),
        (["python", CHILD, "a"], [CHILD, "a"]),
        (["python", "-X", "dev", "-m", "this"], ["-m", "this"]),
        ([CHILD], [CHILD]),
        (["-m", "this", "--", "b"], ["-m", "this", "--", "b"]),
    ],
)
def test_python_programs_run_in_the_runner(words, program):
    argv = list(command(words, join=True))
    at = argv.index("--")
    assert argv[at + 1 :] == program
    assert argv[at - 3 : at] == ["-m", "dew.cli.runner", "--join"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--proceses", "2", "--", CHILD], "did you mean '--processes'"),
        (["--processes", "2"], "the program has to stand after --"),
        (["--processes", "2", "--"], "what to start is missing"),
        (["--processes", "2", "--", "no-such-thing-here"], "is no program on PATH"),
        (["--processes", "2", "--", "nothing.py"], "there is no file"),
        (["--processes", "0", "--", CHILD], "processes is 0"),
        (["--", CHILD], "give --processes N"),
        (["--processes", "2", "--total_processes", "4", "--", CHILD], "coordinator is missing"),
        (["--processes", "2", "--first_process", "4", "--", CHILD], "give both"),
        (["--processes", "1", "--hosts=-oProxy=x", "--", CHILD], "no name of a host"),
        (["--processes", "2", "--coordinator", "here", "--", CHILD], None),
        (["--processes", "2", "--coordinator", "here:x", "--", CHILD], "expected host:port"),
    ],
)
@pytest.mark.usefixtures("tools")
def test_settings_that_do_not_fit_are_refused(argv, said, capsys):
    if said is None:
        assert launch_here(["--dry-run", *argv]) == 0
        assert "DEW_COORDINATOR=here:8476" in capsys.readouterr().out
        return
    with pytest.raises(InputRefused, match=re.escape(said)):
        launch_here(argv)


def test_statuses_are_the_same_everywhere():
    from dew.training import runtime

    assert failure.UNHEARD_STATUS == watching.UNHEARD_STATUS == leaving.UNHEARD_STATUS
    assert runtime.PORT_TAKEN_STATUS == watching.PORT_TAKEN_STATUS


def test_executions_are_bounded_on_gpus_alone_and_never_over_the_users_flags(monkeypatch):
    from dew.training import runtime

    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_x=1")
    runtime._bound_executions()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_x=1"
    monkeypatch.setattr(runtime, "_on_gpu", lambda: True)
    runtime._bound_executions()
    mine = f"--xla_gpu_execution_terminate_timeout={runtime.EXECUTION_TIMEOUT}s"
    assert os.environ["XLA_FLAGS"] == f"--xla_cpu_x=1 {mine}"
    theirs = "--xla_gpu_execution_terminate_timeout=5s"
    monkeypatch.setenv("XLA_FLAGS", theirs)
    runtime._bound_executions()
    assert os.environ["XLA_FLAGS"] == theirs


def test_this_xla_knows_the_flag_and_not_every_flag():
    from dew.training import runtime

    assert runtime._known("xla_gpu_execution_terminate_timeout")
    assert not runtime._known("xla_gpu_no_such_flag_at_all")


def test_a_ray_worker_takes_its_place_from_ray(monkeypatch):
    from types import ModuleType, SimpleNamespace

    from dew.training import runtime

    train = ModuleType("ray.train")
    train.get_context = lambda: SimpleNamespace(get_world_size=lambda: 3, get_world_rank=lambda: 0)
    collective = ModuleType("ray.train.collective")
    told = []
    collective.broadcast_from_rank_zero = lambda value: told.append(value) or value
    util = ModuleType("ray.util")
    util.get_node_ip_address = lambda: "10.1.2.3"
    ray = ModuleType("ray")
    ray.train, ray.util, train.collective = train, util, collective
    for module in (ray, train, collective, util):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = runtime._ray_place()
    assert (found.source, found.processes, found.process) == ("ray", 3, 0)
    assert told == [found.coordinator]
    assert found.coordinator.startswith("10.1.2.3:")
