"""The reference's process: what goes there and back, how it ends, and which answers are kept."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from far_calls import Doubled, Here, Killed, Lacking

from parity import metric_checks, pins
from parity.answer_cache import AnswerCache
from parity.check import judge
from parity.far_reference import FarReference
from parity.message import ARRAYS, TREE, message_digest, read_message, write_message
from parity.packing import Documents
from parity.torch_process import ReferenceFailed, TorchProcess


@pytest.fixture(scope="module")
def process() -> Iterator[TorchProcess]:
    with TorchProcess() as running:
        yield running


VALUES = {
    "plain": [None, True, 3, -0.5, "ü\n", float("inf"), b"\x00\xff", Path("a/b")],
    "nested": ({"a": [1, (2, 3)]}, {7: "seven"}),
    "arrays": {
        "float64": np.arange(6.0).reshape(2, 3).T,
        "int8": np.array([1, -1], np.int8),
        "bool": np.array([[True], [False]]),
        "empty": np.zeros((0, 4), np.float32),
        "number": np.float32(1.5),
        "text": np.array(["ab", "c"]),
        "bfloat16": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "no axis": np.array(2, np.int64),
    },
    "dataclass": Documents((np.arange(3), np.arange(2)), 7),
}


def same(one: object, other: object) -> bool:
    """Return whether two values are the same, kinds and dtypes included."""
    if isinstance(one, np.ndarray | np.generic):
        return (
            type(one) is type(other)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and bool(np.all(one == other))
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and same(vars(one), vars(other))
    return type(one) is type(other) and one == other


def test_a_message_brings_every_kind_of_value_back(tmp_path: Path) -> None:
    """Closed form: what is read is what was written."""
    write_message(tmp_path, VALUES)
    assert same(read_message(tmp_path), VALUES)


def test_values_go_to_the_other_process_and_come_back(process: TorchProcess) -> None:
    assert same(process.call("far_calls:given_back", VALUES), VALUES)
    assert process.call("far_calls:process_id") != os.getpid()


def test_an_array_of_a_message_may_be_written_to_and_outlives_its_file(tmp_path: Path) -> None:
    write_message(tmp_path, np.arange(4))
    found = read_message(tmp_path)
    for name in (TREE, ARRAYS):
        (tmp_path / name).unlink()
    found[0] = 9
    assert found.tolist() == [9, 1, 2, 3]


@pytest.mark.parametrize("kind", ["subprocess:Popen", "parity.check:judge", "os:system"])
def test_a_message_names_no_code_but_paritys_dataclasses(tmp_path: Path, kind: str) -> None:
    write_message(tmp_path, None)
    tree = {"dataclass": kind.split(":"), "fields": {}}
    (tmp_path / TREE).write_text(json.dumps(tree))
    with pytest.raises(TypeError, match="no dataclass of parity"):
        read_message(tmp_path)


def test_what_no_message_carries_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a builtins\.set goes to no other process"):
        write_message(tmp_path, {"a": [{1}]})
    with pytest.raises(TypeError, match="an array of object"):
        write_message(tmp_path, np.array([object()]))


def test_what_libraries_print_is_no_answer(process: TorchProcess) -> None:
    assert process.call("far_calls:printed") == "the answer"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("refused", "the reference raised ValueError: the answer is not to be had"),
        ("not_there", r"ModuleNotFoundError.*: pip install 'scikit-image>=0\.24'"),
        ("unanswerable", r"TypeError: a builtins\.object goes to no other process"),
        ("killed", r"ended with signal 9 \(SIGKILL, .*want of memory\)"),
        ("crashed", r"ended with signal 11 \(SIGSEGV\); its last words: the library's last words"),
        ("left", "ended with status 3"),
    ],
)
def test_a_call_that_fails_says_how_and_the_next_one_is_answered(
    process: TorchProcess, function: str, said: str
) -> None:
    with pytest.raises(ReferenceFailed, match=said):
        process.call(f"far_calls:{function}")
    assert process.call("far_calls:given_back", 1) == 1


def test_a_process_that_is_killed_while_it_waits_fails_one_call(process: TorchProcess) -> None:
    os.kill(process.call("far_calls:process_id"), signal.SIGKILL)
    time.sleep(0.1)
    with pytest.raises(ReferenceFailed, match="signal 9"):
        process.call("far_calls:given_back", 1)
    assert process.call("far_calls:given_back", 2) == 2


def test_a_call_whose_asker_failed_does_not_disturb_the_next(process: TorchProcess) -> None:
    process.begin("far_calls:given_back", "nobody waits for this")
    assert process.call("far_calls:given_back", "this one") == "this one"


def test_closing_leaves_neither_process_nor_files() -> None:
    with TorchProcess() as running:
        number = running.call("far_calls:process_id")
        folder = running.begin("far_calls:process_id").folder.parent
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def answer(folder: Path, size: int) -> Path:
    """Write an answer of some bytes."""
    write_message(folder, np.zeros(size, np.uint8))
    return folder


def test_a_kept_answer_is_found_by_its_key_alone(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "cache")
    kept = cache.keep("key", answer(tmp_path / "new", 100))
    assert cache.find("key") == kept
    assert message_digest(kept) == message_digest(tmp_path / "new")
    assert cache.find("other") is None


def test_old_answers_make_room_for_new_ones_and_large_ones_are_not_kept(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "cache", room=1000)
    for place, name in enumerate(("first", "second", "third")):
        kept = cache.keep(name, answer(tmp_path / name, 400))
        os.utime(kept, (place, place))
    cache.find("second")
    cache.keep("fourth", answer(tmp_path / "fourth", 400))
    assert [name for name in ("first", "second", "third", "fourth") if cache.find(name)] == [
        "second",
        "fourth",
    ]
    large = answer(tmp_path / "large", 2000)
    assert cache.keep("large", large) == large
    assert cache.find("large") is None


def far(process: TorchProcess, cache: Path | None = None) -> FarReference:
    """Return what begins references in a process."""
    return FarReference(process, None if cache is None else AnswerCache(cache))


def test_the_reference_runs_in_the_other_process_and_a_kill_fails_one_check(
    process: TorchProcess,
) -> None:
    begin = far(process)
    first = judge(Doubled(), None, seed=0, begin=begin)
    assert first.passed, first
    assert first.subject == "metrics"
    assert first.figures["process"] != os.getpid()
    second = judge(Killed(), None, seed=0, begin=begin)
    assert not second.passed
    assert second.reason.startswith("not proven: the reference ended with signal 9")
    assert judge(Doubled(), None, seed=0, begin=begin).passed
    assert judge(Here(), None, seed=0, begin=begin).figures["process"] == os.getpid()


def test_answers_are_kept_by_their_inputs(process: TorchProcess, tmp_path: Path) -> None:
    begin = far(process, tmp_path)
    judge(Doubled(), None, seed=0, begin=begin)
    with pytest.raises(ReferenceFailed):
        process.call("far_calls:killed")
    number = process.call("far_calls:process_id")
    again = judge(Doubled(), None, seed=0, begin=begin)
    assert again.passed, again
    assert again.figures["process"] != number, "the answer of the process that is gone"
    assert judge(Doubled(), None, seed=1, begin=begin).figures["process"] == number


def test_what_is_not_installed_as_needed_is_named_with_its_pin() -> None:
    verdict = judge(Lacking(), None, seed=0)
    assert not verdict.passed
    assert verdict.reason.startswith(
        "not proven: pytorch-fid-of-the-future is not installed; numpy "
    )
    assert verdict.reason.endswith("pip install 'pytorch-fid-of-the-future>=9' 'numpy<1'")


def test_pins_are_those_of_the_extra() -> None:
    assert pins.pin_of("pytorch_fid") == "pytorch-fid==0.3.0"
    assert pins.pin_of("skimage") == "scikit-image>=0.24"
    assert pins.pin_of("unheard_of") == ""
    assert pins.import_hint(ImportError("no", name="parity.nothing")) == ""


def test_every_metrics_check_is_to_be_found_and_says_so() -> None:
    from parity.running import load_check

    for name in metric_checks.METRICS:
        check = load_check(name)
        assert check.name == name
        assert getattr(check, "kind", "") == "metric"
