"""`python -m parity [list | run | certify PATH | verify PATH | support]`.

The exit status is 0 where all was proven, 1 where something was not, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

FINE, FAILED, WRONG_USE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv`, or the process's own arguments, and return its exit status.

    Returns:
        0 where every check passed, 1 where one did not or could not run, 2 for wrong use or a
        checkpoint that dew refuses.
    """
    from dew.errors import InputRefused

    parser = _parser()
    try:
        options = parser.parse_args(None if argv is None else list(argv))
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else WRONG_USE
    if options.action is None:
        parser.print_help()
        return WRONG_USE
    try:
        return ACTIONS[options.action](options)
    except InputRefused as error:
        print(f"parity: {error}", file=sys.stderr)
        return WRONG_USE
    except ImportError as error:
        from parity.check import NOT_PROVEN
        from parity.pins import import_hint

        if not import_hint(error):
            raise
        print(f"parity: {NOT_PROVEN}{error}{import_hint(error)}", file=sys.stderr)
        return FAILED


def _run(options: argparse.Namespace) -> int:
    from dew.config.durable import write_json
    from parity import report, running

    with report.Printer(sys.stdout) as printer:
        found = running.examined(
            options.check, model=options.model, watcher=printer.watcher, **_asked(options)
        )
        written = [] if options.report is None else [options.report]
        for path in written:
            write_json(path, found.to_dict())
        printer.finish(found, written)
    return FINE if found.passed else FAILED


def _certify(options: argparse.Namespace) -> int:
    from dew.config.durable import write_json
    from parity import report, running
    from parity.writing import write_certificate

    folder = options.path if options.path.is_dir() else options.path.parent
    with report.Printer(sys.stdout) as printer:
        found = running.examined(
            None, model=options.path, watcher=printer.watcher, **_asked(options)
        )
        written = [folder / running.REPORT]
        write_json(written[0], found.to_dict())
        if options.write:
            written += write_certificate(found, folder, name=options.path.resolve().name)
        printer.finish(found, written)
    return FINE if found.passed else FAILED


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    return {"seed": options.seed, "full": options.full, "cache": options.cache}


def _verify(options: argparse.Namespace) -> int:
    from parity.verifying import verified

    held = verified(options.path)
    print("\n".join(held.lines))
    return FINE if held.holds else FAILED


def _support(options: argparse.Namespace) -> int:
    from bridges.assets import cache_directory
    from dew.errors import InputRefused, nearest, shown
    from parity import report, support, tiny
    from parity.check import NOT_PROVEN, TORCH
    from parity.pins import unmet

    lacking = unmet(TORCH)
    if lacking:
        print(f"parity: {NOT_PROVEN}{lacking}", file=sys.stderr)
        return FAILED
    for name in options.only or ():
        if name not in tiny.MODELS:
            raise InputRefused(f"no tiny model is called {shown(name)}{nearest(name, tiny.MODELS)}")
    names = options.only or list(tiny.MODELS)
    if options.again:
        support.forget(options.results, names)
    with report.Bar(sys.stdout, len(tiny.MODELS), "models") as bar:
        record = support.measure(options.results, names, told=bar.advanced, cache=cache_directory())
    wrong = support.failures(record)
    for text in wrong:
        print(text)
    if options.write is not None:
        support.write_section(options.write, record)
        print(f"wrote {options.write}")
    absent = set(tiny.MODELS) - set(record["models"])
    print(f"{len(record['models'])} of {len(tiny.MODELS)} models asked, {len(wrong)} cells differ")
    return FAILED if wrong or absent else FINE


def _list(options: argparse.Namespace) -> int:
    from parity import running

    for name in (*running.CHECKS, *running.metric_checks()):
        print(f"{name:<20}{running.load_check(name).tolerance}")
    return FINE


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "run": _run,
    "certify": _certify,
    "verify": _verify,
    "support": _support,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parity", description="Does dew give the number that torch and transformers give?"
    )
    actions = parser.add_subparsers(dest="action", metavar=" | ".join(ACTIONS))
    actions.add_parser("list", help="name the checks and their tolerances")
    run = actions.add_parser("run", help="check tiny random models and metrics, or one checkpoint")
    run.add_argument("--check", action="append", metavar="NAME", help="only this one (repeatable)")
    run.add_argument("--model", type=Path, metavar="PATH", help="a folder or a GGUF file")
    run.add_argument("--report", type=Path, metavar="FILE", help="write the figures as JSON")
    certify = actions.add_parser(
        "certify", help="check one checkpoint and write parity.json beside its weights"
    )
    certify.add_argument("path", type=Path, metavar="PATH", help="a folder or a GGUF file")
    certify.add_argument(
        "--write",
        action="store_true",
        help="also write certificate.json, report.html, badge.svg and certificate.md there",
    )
    for action in (run, certify):
        _add_asking(action)
    verify = actions.add_parser(
        "verify", help="does the certificate of a checkpoint hold for the bytes that are there?"
    )
    verify.add_argument("path", type=Path, metavar="PATH", help="a folder or a GGUF file")
    _add_support(actions)
    return parser


def _add_asking(action: argparse.ArgumentParser) -> None:
    action.add_argument("--seed", type=int, default=0, help="of every input")
    action.add_argument("--full", action="store_true", help="also the checks that take minutes")
    action.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="neither keep the reference's answers nor use kept ones",
    )


def _add_support(actions: Any) -> None:
    support = actions.add_parser(
        "support", help="run the contract over all tiny models, and write the table of results"
    )
    support.add_argument(
        "--results",
        type=Path,
        default=Path("docs/support.json"),
        metavar="FILE",
        help="where results are kept; those that are there are not measured again",
    )
    support.add_argument("--write", type=Path, metavar="FILE", help="put the table in this README")
    support.add_argument("--only", action="append", metavar="NAME", help="only this tiny model")
    support.add_argument("--again", action="store_true", help="forget the earlier results")


if __name__ == "__main__":
    sys.exit(main())
