"""dataset=parquet whose train rows come in file order: the reference of loop=online."""

from __future__ import annotations

from typing import Any

from runner.data.core.dataset import InFileOrder
from runner.data.tabular.table import table


def in_order(**settings: Any) -> InFileOrder:
    return InFileOrder(table(**settings))
