"""Rows of bad inputs: the YAML that `dew train` reads, and the space that `dew sweep` walks."""

from __future__ import annotations

import bad_files as files
from bad_inputs import Case
from bad_texts import OBJECT, WRONG, laughs

SIZES = {"vocab_size": 4, "emb_features": 8, "num_layers": 1, "num_heads": 2}
MODEL = {"name": "causal_transformer", "kwargs": {**SIZES, "mlp_features": 8, "max_seq_len": 8}}
HEALTHY = {"train.yaml": {"model": MODEL}, "sweep.json": {"grid": {"optim.learning_rate": [1, 2]}}}
"""What the healthy folder holds for these actions."""


def row(name, file, content, *words, action="train"):
    """Return the row of one file; its refusal names the file."""
    return Case(name, lambda f: files.write(f, file, content), words, action=action, target=file)


WRONG_SECTIONS = (
    b'{"optim": {"learning_rate": NaN, "lerning_rate": 1}, "trainer": {"steps": "1e3"},'
    b' "model": {"name": "causal_transformr"}}'
)
PLACES = {"name": "../../evil", "directory": "/", "group": "a/../../b"}
GRID = {"grid": {f"p{i}": list(range(10)) for i in range(9)}}

ROWS = [
    row("BP086-train", "run.yaml", OBJECT, r"run\.yaml:1:", "tag"),
    Case("BP087-train", laughs, (r"run\.yaml:1:", "anchors"), action="train", target="run.yaml"),
    row("BP088-train", "run.json", PLACES, r"run\.json", "name: no such", "directory", "group"),
    row(
        "BP088-train-name",
        "run.json",
        {"model": MODEL, "trainer": {"name": "../../evil"}},
        r"run\.json",
        r"trainer\.name",
        "100 letters",
    ),
    row(
        "BP089-train", "run.json", WRONG, r"run\.json", "steps", "did you mean 'optim.learning_rate"
    ),
    row(
        "BP089-train-sections",
        "run.json",
        WRONG_SECTIONS,
        r"run\.json",
        r"optim\.learning_rate is nan; expected a finite number",
        r"optim\.lerning_rate: no such setting; did you mean 'learning_rate'",
        r"trainer\.steps is text '1e3'; expected a whole number",
        r"model\.name: .*did you mean 'causal_transformer'",
    ),
    row("BP090-sweep", "sweep.json", GRID, "1000000000 points", "--trials", action="sweep"),
]
