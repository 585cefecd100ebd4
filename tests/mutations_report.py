"""Every deliberate fault put into a right port, one at a time, and what the checks said of it.

`python tests/mutations_report.py docs/mutations.json` goes on where an earlier run ended.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers import write_tokenizer
from mutations import every_fault, found
from tiny_subjects import TinySubjects

from dew.config.durable import write_json
from parity import random_models, tiny
from parity.check import judge
from parity.subject import Subject, load_subject

SPOKEN = "llama spoken"
BOS = "<|endoftext|>"
VOCABULARY = 320


class Subjects(TinySubjects):
    """Tiny subjects, and one with a tokenizer that begins every text."""

    def __missing__(self, name: str) -> Subject | None:
        """Return the subject of a name; a metric's check has none."""
        if not name:
            return None
        if name != SPOKEN:
            return super().__missing__(name)
        config = {**tiny.NATIVE["llama"], "vocab_size": VOCABULARY}
        folder = random_models.save_random(config, self.folder / "spoken", seed=0)
        write_tokenizer(folder, VOCABULARY)
        begin_with_bos(folder)
        self[name] = load_subject(folder, name=name)
        return self[name]


def begin_with_bos(folder: Path) -> None:
    """Let the tokenizer of a folder put its first token before each text."""
    from tokenizers import Tokenizer, processors

    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    tokenizer.save(str(path))


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many faults there are, how many failed a check, and how many were placed."""
    placed = [record for record in records if record["expected"]]
    return {
        "faults": len(records),
        "caught": sum(record["check"] is not None for record in records),
        "in_a_layer": len(placed),
        "layer_named": sum(bool(record["named"]) for record in placed),
    }


def main(path: Path) -> int:
    """Write what is found of each fault that the file does not tell of yet."""
    records = json.loads(path.read_text())["mutations"] if path.is_file() else []
    known = {(record["fault"], record["subject"]) for record in records}
    with tempfile.TemporaryDirectory() as folder:
        subjects = Subjects(Path(folder))
        for fault in every_fault():
            if (fault.name, fault.subject) in known:
                continue
            records.append(found(fault, subjects[fault.subject], judge))
            write_json(path, {**summary(records), "mutations": records})
            print(json.dumps(records[-1]), flush=True)
    print(summary(records))
    return int(summary(records)["caught"] < len(records))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
