"""Where batches come from: token rows, windows, packing, and streams that resume exactly."""

from dew.data.dataset import DataPartition, Dataset
from dew.data.documents import Documents
from dew.data.packing import packed_rows, separate_rows
from dew.data.rows import Rows, TokenRows
from dew.data.stream import RowStream, finite_batches
from dew.data.windows import TokenWindows, WindowRows

__all__ = [
    "DataPartition",
    "Dataset",
    "Documents",
    "RowStream",
    "Rows",
    "TokenRows",
    "TokenWindows",
    "WindowRows",
    "finite_batches",
    "packed_rows",
    "separate_rows",
]
