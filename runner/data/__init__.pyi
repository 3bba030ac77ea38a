from .core.dataset import START_POSITION, Dataset, EndOfStream, FileOrderDataset
from .prepare.fingerprint import fingerprint
from .read.parquet_dataset import ParquetDataset
from .streaming.dataset import StreamDataset
from .tabular.own_rows import table_of_rows

__all__ = [
    "START_POSITION",
    "Dataset",
    "EndOfStream",
    "FileOrderDataset",
    "ParquetDataset",
    "StreamDataset",
    "fingerprint",
    "table_of_rows",
]
