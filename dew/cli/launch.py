"""`dew launch`: a program as the processes of one pool, here or on several machines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from dew.cli.command import Command, Option, Settings
from dew.errors import InputRefused
from dew.launching.environment import (
    COORDINATOR_PORT,
    JOINED,
    Place,
    in_ray_worker,
    place,
    slurm_allocation,
    slurm_step,
    with_port,
)
from dew.launching.plan import (
    ORDERS,
    Numbers,
    Start,
    free_port,
    host_starts,
    rank_starts,
    srun_start,
)
from dew.launching.watching import GRACE_SECONDS, Outcome, Watch

_ATTEMPTS = 3

OPTIONS = (
    Option(
        "processes",
        "integer",
        None,
        "processes on this machine, or on each of --hosts; default: one for each GPU",
        ("nproc_per_node",),
        low=1,
        high=4096,
    ),
    Option("devices_per_process", "integer", 1, "devices of each", low=1, high=4096),
    Option("hosts", "texts", (), "machines to start on over ssh, comma-separated, rank 0 first"),
    Option("coordinator", "text", None, "host:port where rank 0 listens; default: a free port"),
    Option(
        "grace",
        "number",
        GRACE_SECONDS,
        "seconds that the others have after the first failure, and all have after a signal",
        low=0,
    ),
    Option("heartbeat", "integer", None, "seconds after which a silent rank is dead", low=2),
    Option("join", "switch", True, "form the pool before the program starts"),
    Option("dry_run", "switch", False, "print what would be started, and start nothing"),
    Option(
        "first_process",
        "integer",
        0,
        "the lowest rank of this machine, where each has a launcher of its own",
        low=0,
        section="one launcher a machine",
    ),
    Option(
        "total_processes",
        "integer",
        None,
        "ranks on all machines together; needs --coordinator",
        low=1,
        section="one launcher a machine",
    ),
)

COMMAND = Command(
    "launch",
    "start a program as several processes: dew launch --processes 2 -- dew finetune ...",
    OPTIONS,
    run="dew.cli.launch:run",
    raw=True,
)


def run(argv: list[str]) -> int:
    """Start what stands after `--` and return its exit status: the first that is not 0.

    Raises:
        InputRefused: settings that do not fit each other, the machine or the environment.
    """
    from dew.cli.options import parse

    at = argv.index("--") if "--" in argv else len(argv)
    own, words = argv[:at], argv[at + 1 :]
    for index, word in enumerate(own):
        if word.partition("=")[0] in ("--help", "-h"):
            from dew.cli.help import command_help

            following = own[index + 1] if index + 1 < len(own) else ""
            print(command_help(COMMAND, word.partition("=")[2] or following.strip("-")))
            return 0
    if at == len(argv) and own and not own[-1].startswith("--"):
        raise InputRefused(
            "the program has to stand after --, as in dew launch --processes 2 -- dew finetune "
            "--config run.yaml"
        )
    settings = parse(COMMAND, own)
    became = _inside(settings, words, os.environ)
    return _start(settings, words, os.environ) if became is None else became


def _inside(settings: Settings, words: list[str], environ: Mapping[str, str]) -> int | None:
    """Become the program where an engine started this process as a rank; else return None."""
    from dew.launching.program import command

    found = place(environ)
    engine = in_ray_worker() or slurm_step(environ)
    if found is None and (not engine or JOINED in environ):
        return None
    if found is not None and found.processes == 1 and settings["processes"] is not None:
        return None  # the engine gave one machine, to share out as on any other
    where = found.source if found else "ray" if in_ray_worker() else "slurm"
    _refuse_inside(settings, found, where)
    alone = where != "ray" and (found is None or found.processes < 2)
    argv = command(words, join=settings["join"] and not alone)
    if settings["dry_run"]:
        print(f"# {where} started this process as a rank; it would become:")
        print(Start("rank", where, argv, {}))
        return 0
    if where == "ray":
        return _in_this_process(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(argv[0], argv)


def _refuse_inside(settings: Settings, found: Place | None, where: str) -> None:
    """Refuse settings that ask for another pool than the one this process is in."""
    wanted, there = settings["processes"], found.processes if found else 1
    if settings["hosts"]:
        raise InputRefused(f"hosts: {where} started this process already; leave --hosts out")
    if wanted is not None and where != "ray" and wanted != there:
        raise InputRefused(
            f"processes is {wanted}, but {where} started this process as one of {there}; "
            f"leave --processes out, or ask {where} for {wanted}"
        )


def _in_this_process(argv: tuple[str, ...]) -> int:
    """Run the program in a Ray worker, which has to go on living when it is done."""
    import runpy

    if "--join" in argv:
        from dew.training.runtime import join_pool

        join_pool()
    words = list(argv[argv.index("--") + 1 :])
    before = sys.argv
    sys.argv = words[1:] if words[0] == "-m" else words
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before
    return 0


def _start(settings: Settings, words: list[str], environ: Mapping[str, str]) -> int:
    own_port = settings["coordinator"] is None
    for attempt in range(_ATTEMPTS):
        starts = _starts(settings, words, environ)
        if settings["dry_run"]:
            for start in starts:
                print(f"# {start.name}\n{start}")
            return 0
        outcome = Watch(starts, settings["grace"], 0 if environ.get(ORDERS) else None).run()
        if not (own_port and outcome.port_taken and attempt + 1 < _ATTEMPTS):
            break
        print("dew launch: the port was taken; starting again on another", file=sys.stderr)
    return _finish(outcome, bool(environ.get(ORDERS)))


def _finish(outcome: Outcome, ordered: bool) -> int:
    if outcome.cause is not None and not ordered:
        print(outcome.cause, file=sys.stderr, flush=True)
    return outcome.status


def _starts(settings: Settings, words: list[str], environ: Mapping[str, str]) -> list[Start]:
    from dew.launching.program import command

    if settings["hosts"]:
        return _on_hosts(settings, words, environ)
    if slurm_allocation(environ) and settings["total_processes"] is None:
        if shutil.which("srun"):
            argv = command(words, join=settings["join"])
            return [srun_start(argv, settings["processes"], _slurm_devices(settings), environ)]
        print(
            "dew launch: this is a Slurm allocation, but srun is not on PATH; starting on this "
            "machine alone",
            file=sys.stderr,
        )
    return _here(settings, words, environ)


def _here(settings: Settings, words: list[str], environ: Mapping[str, str]) -> list[Start]:
    from dew.launching.devices import gpus, kind, share
    from dew.launching.program import command

    each, what = settings["devices_per_process"], kind(environ)
    processes = settings["processes"]
    if processes is None and what == "gpu":
        processes = len(gpus(environ)) // each
    if not processes:
        raise InputRefused(
            f"processes is missing, and this machine has no {each} GPU(s) to give a process; "
            "give --processes N"
        )
    numbers = _numbers(settings, processes)
    argv = command(words, join=settings["join"] and numbers.total > 1)
    return rank_starts(argv, numbers, share(what, environ, processes, each), environ)


def _numbers(settings: Settings, processes: int) -> Numbers:
    """Return which ranks this launcher starts, and where rank 0 listens."""
    first, total = settings["first_process"], settings["total_processes"]
    coordinator: Any = settings["coordinator"]
    if total is None and first:
        raise InputRefused("first_process is given without total_processes; give both")
    total = processes if total is None else total
    if first + processes > total:
        raise InputRefused(
            f"ranks {first} to {first + processes - 1} do not fit into {total} processes"
        )
    if coordinator is None and total > processes:
        raise InputRefused(
            f"coordinator is missing: {processes} of {total} processes start here, and all have "
            f"to know where rank 0 listens; give --coordinator host:{COORDINATOR_PORT}"
        )
    if total == 1:
        return Numbers(1, 0, 1, None)
    if coordinator is None:
        coordinator = f"127.0.0.1:{free_port()}"
    address = with_port(coordinator, "", "coordinator")
    return Numbers(processes, first, total, address, settings["heartbeat"])


def _on_hosts(settings: Settings, words: list[str], environ: Mapping[str, str]) -> list[Start]:
    from dew.launching.program import command

    each, hosts = settings["processes"], settings["hosts"]
    if each is None:
        raise InputRefused("processes is missing: with --hosts give --processes N, N on each")
    if settings["total_processes"] is not None or settings["first_process"]:
        raise InputRefused("--hosts numbers the processes itself; leave out --first_process")
    if shutil.which("ssh") is None:
        raise InputRefused("--hosts needs ssh, which is not on PATH")
    command(words, join=True)  # refused here, rather than once on every host
    # Its port is free here, so likely there too; if not, rank 0 says so and another one is tried.
    first = hosts[0].rpartition("@")[2]
    coordinator = settings["coordinator"] or f"{first}:{free_port()}"
    flags = ["--devices_per_process", str(settings["devices_per_process"])]
    flags += ["--grace", f"{settings['grace']:g}", "--join", str(settings["join"]).lower()]
    if settings["heartbeat"] is not None:
        flags += ["--heartbeat", str(settings["heartbeat"])]
    address = with_port(coordinator, "", "coordinator")
    return host_starts(words, hosts, flags, each, address, os.getcwd(), environ)


def _slurm_devices(settings: Settings) -> dict[str, str]:
    """Return what tells tasks on CPUs how many devices to show; Slurm shares GPUs out itself."""
    if not settings.given("devices_per_process"):
        return {}
    return {"JAX_NUM_CPU_DEVICES": str(settings["devices_per_process"])}
