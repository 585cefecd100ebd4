"""`parity verify`: a certificate holds for the bytes it was made of, and for no others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dew.errors import InputRefused
from parity import verified
from parity.__main__ import main
from parity.check import Verdict
from parity.checkpoint_files import file_digests
from parity.evidence import certificate_of
from parity.writing import CERTIFICATE, write_certificate

GOOD = Verdict("logits", True, {}, "a rule", "", 0.1, "m")
BAD = Verdict("greedy", False, {}, "a rule", "off", 0.1, "m")
FILES = {
    "model.safetensors": b"weights",
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "merges.txt": b"a b",
}
OTHERS = ("README.md", "trainer_state.json", "training_args.bin", "optimizer.pt", "log.jsonl")


def certified(folder: Path, *verdicts: Verdict) -> Path:
    """Write a checkpoint's files, those that tell about it, and a certificate of verdicts."""
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    for name in OTHERS:
        (folder / name).write_text("told")
    found = certificate_of(verdicts, seed=0, files=file_digests(folder))
    write_certificate(found, folder, name="m")
    return folder


def test_the_files_of_a_checkpoint_are_known_by_their_sha256(tmp_path: Path) -> None:
    """hashlib of the bytes is the reference."""
    digests = file_digests(certified(tmp_path / "m", GOOD))
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
    alone = file_digests(tmp_path / "m" / "model.safetensors")
    assert list(alone) == ["model.safetensors"]


def test_untouched_files_hold_and_those_that_only_tell_may_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = certified(tmp_path / "m", GOOD)
    for name in OTHERS:
        (folder / name).write_text("told anew")
    assert main(["verify", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("proven: certificate.json of 2")


@pytest.mark.parametrize("name", FILES)
def test_every_file_that_changes_is_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = certified(tmp_path / "m", GOOD)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("not proven: certificate.json of 2")
    assert f"{name} has other bytes" in out
    (folder / name).write_bytes(data)
    assert main(["verify", str(folder)]) == 0


def test_a_file_that_is_gone_or_new_is_named(tmp_path: Path) -> None:
    folder = certified(tmp_path / "m", GOOD)
    (folder / "merges.txt").unlink()
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"more")
    said = verified(folder)
    assert not said.holds
    assert said.lines[1:3] == (
        "  merges.txt is gone",
        "  model-00002-of-00002.safetensors is new",
    )


def test_a_failed_certificate_proves_nothing_though_the_bytes_are_the_same(
    tmp_path: Path,
) -> None:
    said = verified(certified(tmp_path / "m", GOOD, BAD))
    assert not said.holds
    assert "checks that did not agree when it was made: greedy" in said.lines[1]


def test_a_certificate_edited_to_pass_does_not(tmp_path: Path) -> None:
    folder = certified(tmp_path / "m", GOOD, BAD)
    record = json.loads((folder / CERTIFICATE).read_text())
    (folder / CERTIFICATE).write_text(json.dumps({**record, "passed": True}))
    assert not verified(folder).holds
    (folder / CERTIFICATE).write_text(json.dumps({**record, "passed": True, "verdicts": []}))
    assert not verified(folder).holds


def test_other_versions_are_told_and_change_nothing(tmp_path: Path) -> None:
    folder = certified(tmp_path / "m", GOOD)
    record = json.loads((folder / CERTIFICATE).read_text())
    record["versions"]["numpy"] = "1.0"
    (folder / CERTIFICATE).write_text(json.dumps(record))
    said = verified(folder)
    assert said.holds
    assert said.lines[1].startswith("  numpy was 1.0, is ")


def test_no_certificate_is_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "there is no certificate.json; run: python -m parity certify" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "lacks passed, files, versions, verdicts"),
        ('{"passed": true, "files": {}, "versions": {}}', "lacks verdicts"),
        ('{"passed": true, "files": {}, "versions": {}, "verdicts": [1]}', "a verdict's fields"),
    ],
)
def test_a_certificate_that_cannot_be_read_is_refused(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / CERTIFICATE).write_text(text)
    with pytest.raises(InputRefused, match=said):
        verified(tmp_path)
    assert main(["verify", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_path_that_is_not_there_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
