"""Files of a stream for tests, with rows of a table that arrive one file after another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA: dict[str, Any] = {
    "labels": {"click": {}},
    "numeric": {"price": {"log1p": True, "clip": [0, None], "default": 0.0}, "age": {}},
    "categorical": {
        "item": {"num_rows": 1000},
        "user": {"encode": "hash", "num_rows": 100},
        "tags": {"list": True, "num_rows": 50},
    },
}


def rows(num_rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 300, num_rows)
    return pa.table(
        {
            "click": pa.array((rng.random(num_rows) < 0.2 + 0.5 * (user % 2)).astype(np.int8)),
            "price": pa.array(rng.gamma(2, 9, num_rows)),
            "age": pa.array(rng.normal(size=num_rows)),
            "item": pa.array(np.arange(num_rows) % 1000),
            "user": pa.array(user),
            "tags": pa.array(
                [rng.integers(50, size=rng.integers(4)).tolist() for _ in range(num_rows)],
                pa.list_(pa.int64()),
            ),
        }
    )


def arrive(folder: Path, name: str, table: pa.Table, *, group_rows: int = 100) -> Path:
    """Write a file under another name, then rename it into place."""
    temporary = folder / f".{name}"
    pq.write_table(table, temporary, row_group_size=group_rows)
    os.rename(temporary, folder / name)
    return folder / name
