"""Tiny Parquet tables for tests, split over files and row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.batch import Batch, DataPosition
from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn, NumericColumn
from runner.data.read.parquet_dataset import ParquetDataset

COLUMNS = Columns(
    labels=(LabelColumn("click"),),
    numeric=(NumericColumn("price", log1p=True, clip_min=0.0, default=0.0), NumericColumn("age")),
    categorical=(
        CategoricalColumn("tags", 50, is_list=True),
        CategoricalColumn("item", 1000),
        CategoricalColumn("shops", 30, is_list=True),
        CategoricalColumn("user", 100),
    ),
    weight="importance",
    groups=("user",),
)


def table(num_rows: int, seed: int = 0) -> pa.Table:
    """Return random rows, of which `item` is the row's number modulo 1000."""
    rng = np.random.default_rng(seed)

    def lists(num_ids: int) -> list[list[int]]:
        return [rng.integers(num_ids, size=rng.integers(4)).tolist() for _ in range(num_rows)]

    price = [None if r % 7 == 3 else float(rng.integers(-2, 50)) for r in range(num_rows)]
    return pa.table(
        {
            "click": pa.array(rng.integers(0, 2, num_rows), pa.int8()),
            "price": pa.array(price, pa.float64()),
            "age": pa.array(rng.normal(size=num_rows).astype(np.float32)),
            "tags": pa.array(lists(50), pa.list_(pa.int32())),
            "item": pa.array(np.arange(num_rows) % 1000, pa.int64()),
            "shops": pa.array(lists(30), pa.list_(pa.int64())),
            "user": pa.array(rng.integers(0, 100, num_rows), pa.int32()),
            "importance": pa.array(rng.uniform(0, 2, num_rows)),
        }
    )


def write(
    folder: Path, whole: pa.Table, *, block_rows: int = 16, file_rows: Sequence[int] = ()
) -> list[Path]:
    """Write `a.parquet`, `b.parquet` and so on with these numbers of rows, or one file with all."""
    folder.mkdir(exist_ok=True)
    paths, at = [], 0
    for number, rows in enumerate(file_rows or [whole.num_rows]):
        paths.append(folder / f"{chr(ord('a') + number)}.parquet")
        part = whole.slice(at, rows)
        pq.write_table(part, paths[-1], row_group_size=block_rows, write_page_checksum=True)
        at += rows
    return paths


def dataset(paths: Sequence[Path], columns: Columns = COLUMNS, **settings: Any) -> ParquetDataset:
    return ParquetDataset({"train": paths}, columns, **{"window_rows": 64, **settings})


def rows_of(batches: Iterator[Batch]) -> list[int]:
    return [row for batch in batches for row in batch.rows_B.tolist()]


def read(
    data: ParquetDataset, *, batch_size: int, seed: int | None = 0, at: tuple[int, int] = (0, 0)
) -> list[Batch]:
    return list(data.batches("train", batch_size=batch_size, seed=seed, start=DataPosition(*at)))


def by_key(batch: Batch) -> Mapping[str, list[list[int]]]:
    """Return for each feature the ids of every row, read one by one."""
    kjt = batch.sparse
    return {key: [ids.tolist() for ids in kjt[key].to_dense()] for key in list(kjt.keys())}
