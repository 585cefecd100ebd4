"""Tensors by the names of the weight table, whatever the checkpoint calls them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bridges.family import Family
from bridges.table import LAYER, Row, Tensors, name_pattern
from dew.errors import shown

PADDING_MULTIPLE = 64
LARGEST_PADDING = 1024
COMPARED_BYTES = 8 << 20
TIED_HEADS = ("masked", "causal", "speech")
"""The kinds of `Family.heads` that end in the embedding's table, or one of its shape."""


@dataclass(frozen=True)
class StoredLayout:
    """What an export must know of its source to give the same tensors back.

    Attributes:
        bare: the names lacked the base model's prefix.
        tied_copy: the head was stored too, although it equals the embedding.
        dtypes: the stored dtype of each tensor, by its name in the weight table.
        spelled: the source's name of each tensor that it spells in its own way, prefix and all.
    """

    bare: bool = False
    tied_copy: bool = False
    dtypes: Mapping[str, np.dtype] = field(default_factory=dict)
    spelled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableTensors:
    """A checkpoint's tensors by the table's names.

    Attributes:
        inner: the open checkpoint.
        stored: the table's name to the checkpoint's.
        cut: rows to keep of the tensors whose vocabulary is padded, by the table's name.
    """

    inner: Tensors
    stored: Mapping[str, str]
    cut: Mapping[str, int] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return the table's names."""
        return list(self.stored)

    def info(self, name: str) -> Any:
        """Return what has `shape` and `dtype`."""
        info = self.inner.info(self.stored[name])
        if name not in self.cut:
            return info
        return _Info((self.cut[name], *info.shape[1:]), info.dtype)

    def read(self, name: str) -> np.ndarray:
        """Return one tensor, its padding cut off."""
        value = self.inner.read(self.stored[name])
        return value[: self.cut[name]] if name in self.cut else value

    def release(self, name: str) -> None:
        """Take back the memory behind a tensor."""
        self.inner.release(self.stored[name])

    def without(self, name: str) -> TableTensors:
        """Return the tensors but one."""
        stored = {key: value for key, value in self.stored.items() if key != name}
        return TableTensors(self.inner, stored, self.cut)


@dataclass(frozen=True)
class _Info:
    shape: tuple[int, ...]
    dtype: np.dtype


def table_tensors(family: Family, tensors: Tensors) -> tuple[TableTensors, bool]:
    """Return the tensors by the table's names, and whether the checkpoint is of the bare model."""
    names = tensors.names()
    prefix = family.base_prefix
    bare = bool(prefix) and family.embedding.removeprefix(prefix) in names
    ignored = [re.compile(pattern) for pattern in family.ignored]
    heads = [re.compile(pattern) for pattern in (re.escape(family.head), *family.head_names)]
    stored = {}
    for name in names:
        new = name
        for old, now in (*family.old_names.items(), *family.spellings.items()):
            new = re.sub(old, now, new)
        full = prefix + new if bare and not _matches(new, heads) else new
        if not _matches(full, ignored):
            stored[full] = name
    return TableTensors(tensors, stored), bare


def spelled_otherwise(family: Family, tensors: TableTensors, bare: bool) -> dict[str, str]:
    """Return the source's name, with the base's prefix, of each tensor that it spells otherwise.

    Args:
        family: whose `spellings` there may be.
        tensors: what the checkpoint holds.
        bare: whether the source's names lack the prefix.
    """
    prefix = family.base_prefix if bare else ""
    return {
        name: prefix + stored
        for name, stored in tensors.stored.items()
        if any(re.search(pattern, stored) for pattern in family.spellings)
    }


def settle_heads(
    family: Family,
    rows: Sequence[Row],
    tensors: TableTensors,
    *,
    fresh: bool,
    other: Sequence[str] = (),
) -> tuple[TableTensors, tuple[Row, ...]]:
    """Return the tensors without those of heads that are not asked for, and the rows to draw anew.

    Args:
        family: whose `head_names` say which tensors belong to heads.
        rows: the weight table of the model that is loaded.
        tensors: what the checkpoint holds.
        fresh: whether a head may be drawn anew, because a task asked for it.
        other: tensors that are not of the model's shape: a head's, made for other labels.
    """
    heads = [re.compile(pattern) for pattern in family.head_names]
    own = [name_pattern(row) for row in rows]
    outgrown = {name for name in other if fresh and _matches(name, heads)}
    unused = [
        n for n in tensors.stored if n in outgrown or (_matches(n, heads) and not _matches(n, own))
    ]
    if unused:
        warnings.warn(
            f"not used, since the model was loaded without their head: {', '.join(unused)}",
            stacklevel=4,
        )
    kept = {name: value for name, value in tensors.stored.items() if name not in unused}
    alone = [row for row in rows if LAYER not in row.theirs and _matches(row.theirs, heads)]
    new = tuple(row for row in alone if row.theirs not in kept)
    if new and fresh:
        warnings.warn(
            f"not in the checkpoint, drawn anew for training: {', '.join(r.theirs for r in new)}",
            stacklevel=4,
        )
    return TableTensors(tensors.inner, kept, tensors.cut), new if fresh else ()


def _matches(name: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def settle_head(
    family: Family, model: Any, tensors: TableTensors
) -> tuple[Any, TableTensors, bool]:
    """Decide whether the head is the embedding, from the config and from what is stored.

    A head that is stored and differs from the embedding wins over a config that ties them.

    A model that is loaded without such a head, or without a part that the checkpoint lacks, is
    settled as well.

    Returns:
        The model, the tensors without a head that is a mere copy, and whether there was one.
    """
    embedding, head = family.embedding, family.head
    for name, pattern in family.spare.items():
        model = model.clone(**{name: any(re.fullmatch(pattern, held) for held in tensors.stored)})
    if family.heads:
        model = _without_parts(family, model, tensors)
        if model.head not in TIED_HEADS:
            return model, tensors, False
    if not head or not model.tied_head or head not in tensors.stored:
        return model, tensors, False
    if embedding not in tensors.stored:
        stored = {embedding if k == head else k: v for k, v in tensors.stored.items()}
        return model, TableTensors(tensors.inner, stored, tensors.cut), False
    if _equal(tensors, embedding, head):
        return model, tensors.without(head), True
    warnings.warn(
        f"{head} differs from {embedding} although tie_word_embeddings is true: the head is kept "
        "on its own, as transformers 5 does",
        stacklevel=4,
    )
    return model.clone(tied_head=False), tensors, False


def _without_parts(family: Family, model: Any, tensors: TableTensors) -> Any:
    """Return the model without those of its parts that the checkpoint holds no tensor of."""
    if model.head:
        return model
    for name, pattern in family.parts.items():
        held = any(re.fullmatch(pattern, tensor) for tensor in tensors.stored)
        if getattr(model, name) and not held:
            warnings.warn(
                f"the checkpoint holds no {name}: the model is loaded without it", stacklevel=5
            )
            model = model.clone(**{name: False})
    return model


def cut_padding(family: Family, model: Any, tensors: TableTensors) -> TableTensors:
    """Return the tensors without the rows that pad the vocabulary for the hardware.

    Only embedding and head count, and only where both of them, if stored, have the same number of
    rows: a multiple of 64, less than 1,024 above `vocab_size`. Anything else is left for the
    weight table to refuse.
    """
    if not hasattr(model, "vocab_size"):
        return tensors
    stored = [name for name in (family.embedding, family.head) if name in tensors.stored]
    rows = {tuple(tensors.info(name).shape)[:1] for name in stored}
    if len(rows) != 1:
        return tensors
    (found,) = next(iter(rows)) or (0,)
    padded = 0 < found - model.vocab_size < LARGEST_PADDING and found % PADDING_MULTIPLE == 0
    if not padded:
        return tensors
    warnings.warn(
        f"{' and '.join(stored)} hold {found} rows for vocab_size {shown(model.vocab_size)}: the "
        "rows beyond it are padding and are left out, here and in an export",
        stacklevel=4,
    )
    return TableTensors(tensors.inner, tensors.stored, {n: model.vocab_size for n in stored})


def _equal(tensors: TableTensors, one: str, two: str) -> bool:
    """Say whether two tensors are equal byte for byte, a piece at a time."""
    a, b = tensors.read(one), tensors.read(two)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
    pieces = range(0, a.size, COMPARED_BYTES)
    equal = all(
        np.array_equal(a[i : i + COMPARED_BYTES], b[i : i + COMPARED_BYTES]) for i in pieces
    )
    tensors.release(one)
    tensors.release(two)
    return equal
