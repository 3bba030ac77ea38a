"""Measures how near the shuffle comes to a full one, and what a seek costs.

    python -m bench.order [--rows 4000000]

The order is a pure function, so that its distance is measured on row numbers alone; the seek is
timed on files, in processor time up to the first batch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np

from bench.memory import BLOCK_ROWS, write_rows
from bench.paired import table

BATCH_SIZE, WINDOW_ROWS = 4096, 131_072


def blocks_of(num_rows: int):
    from runner.data.read.index import BlockIndex

    count = num_rows // BLOCK_ROWS
    rows_N = np.full(count, BLOCK_ROWS)
    zeros = np.zeros(count, np.int64)
    return BlockIndex((), zeros, np.arange(count), np.cumsum(rows_N) - rows_N, rows_N)


def ours(num_rows: int, window_rows: int = WINDOW_ROWS) -> np.ndarray:
    """Return the row number at every position of an epoch."""
    from runner.data.read.order import plan_epoch

    index = blocks_of(num_rows)
    plan_ = plan_epoch(index, seed=0, epoch=0, window_rows=window_rows)
    parts = []
    for window in range(plan_.num_windows):
        starts = index.start_N[plan_.blocks(window)]
        rows = (starts[:, None] + np.arange(BLOCK_ROWS)).ravel()
        parts.append(rows[plan_.row_order(window)])
    return np.concatenate(parts)


def distances(order: np.ndarray) -> list[str]:
    """Return the distances of an order of rows that lie sorted in the files, such as by time."""
    num_rows = len(order)
    moved = np.abs(order - np.arange(num_rows)).mean() / num_rows
    neighbours = (order[1:] // BLOCK_ROWS == order[:-1] // BLOCK_ROWS).mean()
    batches = np.sort(order[: num_rows // BATCH_SIZE * BATCH_SIZE].reshape(-1, BATCH_SIZE), axis=1)
    uniform = (np.arange(BATCH_SIZE) + 0.5) / BATCH_SIZE
    apart = np.abs(batches / num_rows - uniform).max(axis=1)  # Kolmogorov and Smirnov's distance
    return [f"{moved:.4f}", f"{neighbours:.4f}", f"{apart.mean():.4f}", f"{apart.max():.4f}"]


def seeks(num_rows: int) -> list[list[str]]:
    from runner.batch import DataPosition
    from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn, NumericColumn
    from runner.data.read.parquet_dataset import ParquetDataset

    columns = Columns(
        labels=(LabelColumn("label"),),
        numeric=tuple(NumericColumn(f"I{n}") for n in range(13)),
        categorical=tuple(CategoricalColumn(f"C{n}", 1000) for n in range(26)),
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = ParquetDataset({"train": write_rows(Path(folder), num_rows)}, columns)
        total = data.num_rows["train"]
        for share in (0, 0.25, 0.5, 0.75, 0.999):
            took = []
            for epoch in range(7):
                began = time.process_time()
                start = DataPosition(epoch, int(share * total))
                next(data.batches("train", batch_size=BATCH_SIZE, seed=0, start=start))
                took.append(time.process_time() - began)
            rows.append([f"{share:.1%} of {total:,} rows", f"{1000 * np.median(took):.0f} ms"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    num_rows = parser.parse_args().rows // BLOCK_ROWS * BLOCK_ROWS
    rng = np.random.default_rng(0)
    whole = rng.permutation(num_rows)
    blocks = rng.permutation(num_rows // BLOCK_ROWS)
    orders = {
        "as the files have them": np.arange(num_rows),
        "blocks only": (blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).ravel(),
        "blocks, then rows in windows": ours(num_rows),
        "the same, on rows stored mixed": whole[ours(num_rows)],
        "full shuffle": rng.permutation(num_rows),
    }
    header = ("order", "moved", "same block", "batch to uniform", "worst batch")
    print(f"{num_rows:,} rows, windows of {WINDOW_ROWS:,}, batches of {BATCH_SIZE:,}")
    print(table(header, [[name, *distances(order)] for name, order in orders.items()]))
    print(table(("seek to", "first batch after"), seeks(num_rows)))


if __name__ == "__main__":
    main()
