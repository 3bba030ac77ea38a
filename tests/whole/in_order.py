"""dataset=parquet whose train rows come in file order: the reference of loop=online."""

from __future__ import annotations

from typing import Any

from runner import dataset_option
from runner.data.core.dataset import FileOrderDataset
from runner.data.tabular.table import table


@dataset_option
def in_order(**settings: Any) -> FileOrderDataset:
    return FileOrderDataset(table(**settings))
