from .core.dataset import START_POSITION as START_POSITION
from .core.dataset import Dataset as Dataset
from .core.dataset import EndOfStream as EndOfStream
from .core.dataset import FileOrderDataset as FileOrderDataset
from .prepare.fingerprint import fingerprint as fingerprint
from .read.parquet_dataset import ParquetDataset as ParquetDataset
from .streaming.dataset import StreamDataset as StreamDataset
from .tabular.own_rows import table_of_rows as table_of_rows
