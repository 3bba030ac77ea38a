"""A table with every kind of column, and servers of it in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from runner.batch import Batch
from runner.data.core.columns import (
    CategoricalColumn,
    Columns,
    LabelColumn,
    NumericColumn,
    SequenceColumn,
)
from runner.data.flight.dataset import FlightDataset, open_flight
from runner.data.flight.server import DataServer
from runner.data.flight.settings import FlightRecipe
from runner.data.read.parquet_dataset import ParquetDataset
from tests.data.tables import table, write

COLUMNS = Columns(
    labels=(LabelColumn("click"), LabelColumn("age", "regression")),
    numeric=(NumericColumn("price", log1p=True, clip_min=0.0, default=0.0),),
    categorical=(
        CategoricalColumn("tags", 50, is_list=True, weights="tag weights"),
        CategoricalColumn("item", 1000, encode="hash", salt=3),
        CategoricalColumn("shops", 30, is_list=True, pooling="mean"),
        CategoricalColumn("user", 100),
    ),
    sequences=(SequenceColumn("history", 30, 4), SequenceColumn("past", 30, 4, "history")),
    weight="importance",
    groups=("user",),
)
FINGERPRINT = "0123456789abcdef"


def open_files(folder: Path, num_rows: int = 500, **settings: Any) -> ParquetDataset:
    """Write rows and open them from their files."""
    rows = table(num_rows)
    lengths = pa.compute.list_value_length(rows["tags"]).to_pylist()
    rng = np.random.default_rng(1)
    weights = [rng.uniform(size=n).astype(np.float32).tolist() for n in lengths]
    rows = rows.append_column("tag weights", pa.array(weights, pa.list_(pa.float32())))
    rows = rows.append_column("history", rows["shops"]).append_column("past", rows["shops"])
    paths = write(folder, rows, file_rows=(304, num_rows - 304))
    files = {"train": paths, "validation": paths[:1]}
    return ParquetDataset(files, COLUMNS, **{"window_rows": 64, **settings})


class StrangeServer(DataServer):
    """A server that stalls or breaks off on demand, and counts what it was asked."""

    stall_s = 0.0
    fails_after: int | None = None  # messages of a window
    num_tickets = 0

    def _messages(self, *args: Any) -> Iterator[Any]:
        self.num_tickets += 1
        time.sleep(self.stall_s)
        for number, message in enumerate(super()._messages(*args)):
            if self.fails_after is not None and number >= self.fails_after:
                raise pa.flight.FlightUnavailableError("cut off")
            yield message


def serve(dataset: ParquetDataset, port: int = 0, **settings: Any) -> StrangeServer:
    return StrangeServer(dataset, FINGERPRINT, {}, f"grpc://127.0.0.1:{port}", **settings)


def location(server: DataServer, scheme: str = "grpc") -> str:
    return f"{scheme}://localhost:{server.port}"


def connect(*servers: DataServer, workers: int = 2, **settings: Any) -> FlightDataset:
    recipe = FlightRecipe([location(server) for server in servers], **settings)
    return open_flight(recipe, workers=workers)


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    """Compare every array of every batch, bit for bit."""
    assert [b.cursor for b in found] == [b.cursor for b in expected]
    for ours, theirs in zip(found, expected):
        for name in ("dense_BD", "labels_BT", "weights_B", "rows_B", "groups_BG"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
        for name in ("sparse", "sequences"):
            one, other = getattr(ours, name), getattr(theirs, name)
            if one is None and other is None:
                continue
            assert one.keys() == other.keys()
            assert torch.equal(one.values(), other.values())
            assert torch.equal(one.lengths(), other.lengths())
            assert torch.equal(one.offsets(), other.offsets())
            assert (one.weights_or_none() is None) == (other.weights_or_none() is None)
            if one.weights_or_none() is not None:
                assert torch.equal(one.weights(), other.weights())
