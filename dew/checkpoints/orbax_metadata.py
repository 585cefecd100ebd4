"""The files that let orbax read a checkpoint's arrays, as a tree of its own.

`dew/tree` is to orbax's `load_checkpointables` what it would have saved itself: two trees,
`state` and `data`; and its `PyTreeCheckpointHandler` reads either folder. A typed PRNG key is the
integers that `jax.random.key_data` gives.

Source: what orbax-checkpoint 0.12.8 writes and reads; `tests/test_checkpoints_orbax.py` holds
the files to that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dew.checkpoints.leaves import Node
from dew.checkpoints.tree import DATA, FOLDER, STATE, spelling

_SEQUENCE_KEY, _DICT_KEY = 1, 2
_HANDLER = "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler"


def describe_for_orbax(folder: Path, state: Iterable[Node], rows: Iterable[str]) -> None:
    """Write what orbax wants to find beside the arrays of a checkpoint of all processes.

    Args:
        folder: the checkpoint on its way in.
        state: every leaf and every empty node of the state.
        rows: the names of the data rows.
    """
    _write(folder / STATE / "_METADATA", _tree(state))
    _write(folder / DATA / "_METADATA", _tree([Node((name,), (False,)) for name in rows]))
    now = time.time_ns()
    whole = {
        "item_handlers": {"state": _HANDLER, "data": _HANDLER},
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": now,
        "commit_timestamp_nsecs": now,
        "custom_metadata": {},
    }
    _write(folder / FOLDER / "_CHECKPOINT_METADATA", whole)
    (folder / FOLDER / "orbax.checkpoint").touch()


def _tree(nodes: Iterable[Node]) -> dict[str, Any]:
    described = list(nodes)
    spelled = spelling(node.path for node in described if node.empty is None)
    entries = {}
    for node in described:
        path = spelled(node.path)
        kinds = [_SEQUENCE_KEY if numbered else _DICT_KEY for numbered in node.numbered]
        keys = zip(path, kinds, strict=True)
        entries[str(path)] = {
            "key_metadata": [{"key": part, "key_type": kind} for part, kind in keys],
            "value_metadata": {
                # As NumPy arrays they come back on any machine when the reader names no devices.
                "value_type": node.empty or "np.ndarray",
                "skip_deserialize": node.empty is not None,
            },
        }
    return {
        "tree_metadata": entries,
        "use_ocdbt": True,
        "use_zarr3": True,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record), encoding="utf-8")
