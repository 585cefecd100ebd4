"""Rows of parquet and arrow files and of the `datasets` library's own objects, through pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bridges.data.row_problems import refuse_pointer
from bridges.data.tables import FileState, hashed_file, hashed_rows
from bridges.files.regular_file import open_regular, shown_path
from dew.errors import InputRefused, shown

MEDIA = {"image": "image", "audio": "audio"}
SOUND_MARKS = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"FORM", b"\xff\xfb")
IMAGE_MARKS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*")
SNIFFED_ROWS = 8
# Bytes that are no text, a date past Python's, a type that it has none for.
DAMAGED = (ValueError, OverflowError, OSError, NotImplementedError)
LARGE = 1 << 26
"""From how many bytes on an arrow file is mapped, and not read into memory."""


@dataclass(frozen=True)
class Features:
    """What the `datasets` library says about columns beyond their arrow types.

    Args:
        media: the columns of images and sounds, as `image` or `audio`.
        labels: the class names of the columns that hold their numbers.
    """

    media: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, described: Any) -> Features:
        """Return the features of a description in JSON, or of a dataset's `features`."""
        media, labels = {}, {}
        for name, about in (described or {}).items() if isinstance(described, Mapping) else ():
            plain = isinstance(about, Mapping)
            kind = str(about.get("_type") if plain else type(about).__name__)
            names = about.get("names") if plain else getattr(about, "names", None)
            if kind.lower() in MEDIA:
                media[name] = MEDIA[kind.lower()]
            if kind == "ClassLabel" and isinstance(names, Sequence):
                labels[name] = tuple(str(label) for label in names)
        return cls(media, labels)

    @classmethod
    def of_schema(cls, schema: Any) -> Features:
        """Return what a schema's metadata holds of them."""
        try:
            about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
            return cls.of(about["info"]["features"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls()


@dataclass(frozen=True)
class ArrowTable:
    """Rows in arrow's columns.

    Args:
        batches: record batches of one schema, in order.
        features: what is known about their columns.
        where: what they come from, for messages.
        columns: the kind of each column.
        state: the file that they come from, as it was when it was opened; or None.
        on_disk: whether the batches still lie in that file, and are read when asked for.
    """

    batches: Sequence[Any]
    features: Features
    where: str
    columns: Mapping[str, str]
    state: FileState | None = None
    on_disk: bool = False

    def __post_init__(self) -> None:
        ends = np.cumsum([0, *(len(batch) for batch in self.batches)])
        object.__setattr__(self, "_starts", ends)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._starts[-1])  # type: ignore[attr-defined]

    def take(self, indices: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, each with those columns."""
        import pyarrow as arrow

        if self.state is not None and self.on_disk and len(indices):
            self.state.check(f"row {int(indices[0]) + 1}")
        wanted = np.asarray(indices, np.int64)
        starts = self._starts  # type: ignore[attr-defined]
        homes = np.searchsorted(starts, wanted, side="right") - 1
        rows: list[dict[str, Any]] = [{}] * len(wanted)
        for home in np.unique(homes):
            places = np.flatnonzero(homes == home)
            batch = self.batches[home].select(list(columns))
            part = batch.take(arrow.array(wanted[places] - starts[home]))
            for place, row in zip(places.tolist(), self._rows(part), strict=True):
                rows[place] = row
        return rows

    def place(self, index: int) -> str:
        """Return the number of a row, from 1."""
        return f"{self.where}: row {index + 1}"

    def labels(self, name: str) -> tuple[str, ...] | None:
        """Return the names of a column's classes, if the file has them."""
        return self.features.labels.get(name)

    def digest(self) -> str:
        """Return the hash of the file; of batches without one, of their rows."""
        if self.state is not None:
            self.state.check("its hashing")
            return hashed_file(self.state.path)
        return hashed_rows(row for batch in self.batches for row in self._rows(batch))

    def _rows(self, batch: Any) -> list[dict[str, Any]]:
        folder = None if self.state is None else self.state.path.parent
        return rows_of(batch, self.columns, folder, self.where)


def rows_of(
    batch: Any, columns: Mapping[str, str], folder: Path | None, where: str
) -> list[dict[str, Any]]:
    """Return the rows of a record batch as Python values.

    Whole numbers keep their 64 bits; times and durations are Python's objects for them. An image
    or a sound is the bytes of its file, or the path of one that lies in `folder`.

    Raises:
        InputRefused: the path of an image or a sound leads out of the folder of its data file, or
            a damaged value.
    """
    values = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            cells = column.to_pylist()
        except DAMAGED as error:
            raise InputRefused(
                f"{where}: column {shown(name, 60)} holds what cannot be read: "
                f"{shown(str(error))}. Get or write the file again."
            ) from None
        if columns[name] in MEDIA:
            cells = [_media(value, folder, where) for value in cells]
        values.append(cells)
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def parquet_table(path: Path) -> ArrowTable:
    """Return the rows of a parquet file, read into memory once.

    Raises:
        InputRefused: pyarrow is not installed, or the file is damaged.
    """
    from_parquet = _pyarrow(path, "parquet")
    with open_regular(path) as file, _readable(path, "parquet"):
        refuse_pointer(file.read(64), path)
        state = FileState.of(path)
        table = from_parquet.ParquetFile(file).read()
    return _table(table, Features.of_schema(table.schema), shown_path(path), state)


def arrow_table(path: Path, described: Any = None) -> ArrowTable:
    """Return the rows of an arrow file or stream, whose pages stay on disk until they are read.

    Args:
        path: what `datasets` writes as `.arrow`, or pyarrow as a file or a stream.
        described: the features that a description beside the file gives, if it has none itself.

    Raises:
        InputRefused: pyarrow is not installed, or the file is damaged.
    """
    ipc = _pyarrow(path, "arrow files")
    import pyarrow as arrow

    with open_regular(path) as file:
        head = file.read(64)
    refuse_pointer(head, path)
    state = FileState.of(path)
    with _readable(path, "arrow"):
        # Large files are looked into where they lie; small ones cannot change under the reader.
        on_disk = state.state[0] >= LARGE
        source = arrow.memory_map(str(path)) if on_disk else path.read_bytes()
        opened = ipc.open_file if head.startswith(b"ARROW1") else ipc.open_stream
        table = opened(source).read_all()
        table.validate(full=not on_disk)
    features = Features.of_schema(table.schema)
    if not (features.media or features.labels):
        features = Features.of(described)
    return _table(table, features, shown_path(path), state, on_disk=on_disk)


def batches_of(path: Path) -> Iterator[Any]:
    """Give the record batches of a parquet or an arrow file, one at a time.

    Raises:
        InputRefused: as for `parquet_table` and `arrow_table`.
    """
    if path.suffix.lower() == ".parquet":
        parquet = _pyarrow(path, "parquet")
        with open_regular(path) as file, _readable(path, "parquet"):
            yield from parquet.ParquetFile(file).iter_batches(1024)
        return
    ipc = _pyarrow(path, "arrow files")
    with open_regular(path) as file, _readable(path, "arrow"):
        head = file.read(8)
        file.seek(0)
        if head.startswith(b"ARROW1"):
            reader = ipc.open_file(file)
            yield from (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            yield from ipc.open_stream(file)


def dataset_table(dataset: Any, where: str) -> ArrowTable:
    """Return the rows of a `datasets.Dataset`, images and sounds undecoded."""
    plain = dataset.with_format("arrow")
    table = plain[:]
    return _table(table, Features.of(dataset.features), where, None)


def kinds_of(
    schema: Any, features: Features, first: Any = None, *, where: str = "the data"
) -> dict[str, str]:
    """Return the kind of each column of a schema.

    Args:
        schema: of arrow.
        features: what is known beyond it.
        first: a record batch whose first rows tell images and sounds from other bytes, or None.
        where: what it comes from, for messages.
    """
    kinds = {}
    for name in schema.names:
        kinds[name] = features.media.get(name) or _kind(schema.field(name).type)
        if kinds[name] == "object" and first is not None:
            head = first.slice(0, SNIFFED_ROWS).select([name])
            cells = [row[name] for row in rows_of(head, {name: "object"}, None, where)]
            kinds[name] = _sniffed(cells) or "object"
    return kinds


def _table(
    table: Any,
    features: Features,
    where: str,
    state: FileState | None,
    *,
    on_disk: bool = False,
) -> ArrowTable:
    if len(set(table.schema.names)) != len(table.schema.names):
        raise InputRefused(f"{where}: columns of one name: {shown(table.schema.names)}. Rename.")
    batches = table.to_batches()
    kinds = kinds_of(table.schema, features, batches[0] if batches else None, where=where)
    return ArrowTable(batches, features, where, kinds, state, on_disk)


def _kind(stored: Any) -> str:
    from pyarrow import types

    if types.is_dictionary(stored):
        return _kind(stored.value_type)
    named = {
        "text": (types.is_string, types.is_large_string, types.is_string_view),
        "integer": (types.is_integer,),
        "number": (types.is_floating, types.is_decimal),
        "flag": (types.is_boolean,),
        "list": (types.is_list, types.is_large_list, types.is_fixed_size_list),
        "null": (types.is_null,),
    }
    for kind, tests in named.items():
        if any(test(stored) for test in tests):
            return kind
    if hasattr(stored, "storage_type"):
        return _kind(stored.storage_type)
    return "object"


def _sniffed(cells: Sequence[Any]) -> str | None:
    """Return `image` or `audio` if the first value there is says so by its bytes."""
    for value in cells:
        if isinstance(value, Mapping):
            value = value.get("bytes") if set(value) == {"bytes", "path"} else None
        if isinstance(value, bytes) and value:
            if value.startswith(IMAGE_MARKS) or value[8:12] == b"WEBP":
                return "image"
            return "audio" if value.startswith(SOUND_MARKS) else None
    return None


def _media(value: Any, folder: Path | None, where: str) -> Any:
    """Return the bytes of an image or a sound, or its path."""
    if isinstance(value, Mapping):
        if value.get("bytes") is not None:
            return value["bytes"]
        value = value.get("path")
    if not isinstance(value, str):
        return value
    if folder is None:
        return Path(value)
    path = folder / value
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputRefused(
            f"{where}: names the file {shown(value)}, which lies outside its folder. Expected the "
            "file's bytes in the row, or a file beside it."
        )
    return path


def _pyarrow(path: Path, what: str) -> Any:
    """Return pyarrow's module for parquet or for arrow's own files."""
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise InputRefused(
            f"{shown_path(path)}: {what} needs pyarrow, which is not installed. "
            "Run `pip install 'dew[data]'`."
        ) from None
    return pyarrow.parquet if what == "parquet" else pyarrow.ipc


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    """Say of a damaged file which one it is."""
    import pyarrow as arrow

    try:
        yield
    except InputRefused:
        raise
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise InputRefused(
            f"{shown_path(path)}: cannot be read as {kind}: {shown(str(error))}. Get or write the "
            "file again."
        ) from None
