"""Texts from parquet files, through pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridges.data.row_problems import RowProblems, absent_field, text_problem
from bridges.files.regular_file import open_regular, shown_path
from dew.errors import InputRefused, shown

BATCH_ROWS = 1024
EXPECTED = "Expected a text in each; fill or remove these:"


def parquet_texts(path: Path, *, text_field: str) -> Iterator[str]:
    """Give the text of each row, in order, reading that one column batch by batch.

    Args:
        path: a parquet file.
        text_field: a column of strings.

    Raises:
        InputRefused: pyarrow is not installed, the file is no parquet or is damaged, the column is
            absent or of another type, or rows (counted from 1) hold null.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise InputRefused(
            f"{shown_path(path)}: parquet needs pyarrow, which is not installed. "
            "Run `pip install 'dew[data]'`."
        ) from None
    problems = RowProblems(path, EXPECTED)
    number = 0
    with open_regular(path) as file:
        try:
            table = parquet.ParquetFile(file)
            _check_column(table.schema_arrow, path, text_field)
            for batch in table.iter_batches(BATCH_ROWS, columns=[text_field]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    problem = text_problem(value)
                    if problem is None:
                        yield value
                    else:
                        problems.add(f"row {number}", problem)
        except InputRefused:
            raise
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise InputRefused(
                f"{shown_path(path)}: cannot be read as parquet after row {number}: "
                f"{shown(str(error))}. Get or write the file again."
            ) from None
    problems.refuse()


def _check_column(schema: Any, path: Path, text_field: str) -> None:
    """Refuse a table without exactly one such column of strings."""
    from pyarrow import types

    if text_field not in schema.names:
        raise InputRefused(f"{shown_path(path)}: {absent_field(text_field, schema.names)}")
    kind = schema.field(text_field).type
    stored = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(stored) or types.is_large_string(stored)):
        raise InputRefused(
            f"{shown_path(path)}: field {shown(text_field, 60)} holds {shown(str(kind), 60)}, "
            "not text. Expected a column of strings; name another with the text field option."
        )
