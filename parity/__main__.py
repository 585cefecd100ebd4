"""`python -m parity [list | run | certify PATH | support]`: 0 well, 1 one failed, 2 wrong use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

FINE, FAILED, WRONG_USE = 0, 1, 2
NEEDED = ("torch", "transformers")


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
    if options.action == "list":
        return _list()
    absent = [name for name in NEEDED if find_spec(name) is None]
    if absent:
        print(
            f"parity: not proven, {' and '.join(absent)} not installed: pip install 'dew[torch]'",
            file=sys.stderr,
        )
        return FAILED
    try:
        return _support(options) if options.action == "support" else _run(options)
    except InputRefused as error:
        print(f"parity: {error}", file=sys.stderr)
        return WRONG_USE


def _run(options: argparse.Namespace) -> int:
    from parity import report, running

    printer = report.Printer(sys.stdout)
    if options.action == "certify":
        verdicts = running.certify(
            options.path, seed=options.seed, seen=printer.seen, skipped=printer.skipped
        )
        folder = options.path if options.path.is_dir() else options.path.parent
        written: Path | None = folder / running.REPORT
    else:
        verdicts = running.run(
            options.check,
            model=options.model,
            report=options.report,
            seed=options.seed,
            seen=printer.seen,
            skipped=printer.skipped,
        )
        written = options.report
    printer.finish(verdicts, written)
    return FINE if verdicts and all(verdict.passed for verdict in verdicts) else FAILED


def _support(options: argparse.Namespace) -> int:
    from bridges.assets import cache_directory
    from dew.errors import InputRefused, nearest, shown
    from parity import report, support, tiny

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


def _list() -> int:
    from parity import running

    for name in running.CHECKS:
        print(f"{name:<20}{running.load_check(name).tolerance}")
    return FINE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parity", description="Does dew give the number that torch and transformers give?"
    )
    actions = parser.add_subparsers(dest="action", metavar="list | run | certify")
    actions.add_parser("list", help="name the checks and their tolerances")
    run = actions.add_parser("run", help="check tiny random models, or one checkpoint")
    run.add_argument("--check", action="append", metavar="NAME", help="only this one (repeatable)")
    run.add_argument("--model", type=Path, metavar="PATH", help="a folder or a GGUF file")
    run.add_argument("--report", type=Path, metavar="FILE", help="write the figures as JSON")
    certify = actions.add_parser(
        "certify", help="check one checkpoint and write parity.json beside its weights"
    )
    certify.add_argument("path", type=Path, metavar="PATH", help="a folder or a GGUF file")
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
    for action in (run, certify):
        action.add_argument("--seed", type=int, default=0, help="of every input")
    return parser


if __name__ == "__main__":
    sys.exit(main())
