"""The rows that a run on interactions has made of events, with raw columns and raw histories."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from runner.data.core.fitted import FittedTransforms
from runner.data.interactions.rewrite import iterate_raw_rows
from runner.data.tabular.table_recipe import TableRecipe


class EventRows:
    """Rows of the splits, each made once and kept in a temporary file.

    Args:
        table: of events.
        fitted: its transforms.
    """

    def __init__(self, table: TableRecipe, fitted: FittedTransforms) -> None:
        self._table, self._fitted = table, fitted
        self._folder = tempfile.TemporaryDirectory(prefix="events-")  # goes with this object

    def read(self, split: str) -> Iterator[pa.Table]:
        """Yield the rows of a split in the order of evaluations.

        Raises:
            DataError: for a bad row.
        """
        path = Path(self._folder.name) / f"{split}.arrow"
        if not path.exists():
            self._write(split, path)
        with pa.memory_map(str(path)) as file:
            for batch in pa.ipc.open_stream(file):
                yield pa.Table.from_batches([batch])

    def _write(self, split: str, path: Path) -> None:
        writer = None
        with pa.OSFile(str(path), "wb") as file, tempfile.TemporaryDirectory() as folder:
            for rows in iterate_raw_rows(self._table, self._fitted, split, Path(folder)):
                writer = writer or pa.ipc.new_stream(file, rows.schema)
                writer.write_table(rows)
            assert writer is not None, split  # an evaluation has rows
            writer.close()
