"""The raw columns of a run's dataset, and the raw rows of its splits.

R rows of a chunk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared, IdSpec
from runner.data.columns.raw_ids import RawIds
from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.data.core.dataset import Dataset, unwrapped
from runner.data.core.fitted import FittedTransforms, with_fitted_transforms
from runner.data.files.read_files import RowChunk, decode_dictionaries
from runner.data.interactions.rewrite import iterate_raw_rows
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import prepare
from runner.data.read.parquet_dataset import ParquetDataset
from runner.data.sets.criteo import Criteo
from runner.data.tabular.fit import with_declared_sizes
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import UserError
from runner.serving.artifact.raw_rows import (
    REQUEST,
    EncodedRows,
    RequestRows,
    encode_chunk_features,
)
from runner.serving.rows.encode import Transforms, plain_transforms
from runner.serving.rows.selected_rows import rows_of_split
from runner.serving.rows.transforms import read_texts, with_id_types


class EventRows:
    """Rows of the splits, each made once and kept in a temporary file."""

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


CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class RunInputs:
    """The raw side of a run's dataset.

    If the dataset is a table of the user, rows come from its files; of a known data set, from the
    prepared files, whose columns count as raw. Rows of interactions are made of `events`.
    """

    raw: Transforms
    dataset: ParquetDataset
    table: TableRecipe | None
    events: EventRows | None = None

    def encoded_rows(self, split: str) -> Iterator[EncodedRows]:
        """Yield a split's rows in the order of evaluations, encoded from their raw columns.

        Bad rows that the dataset skips have weight 0 in evaluations, and harmless values here.
        """
        declared, fitted = self.raw.declared, self.raw.fitted
        skips = self.table is not None and self.table.skips_bad_rows
        for chunk in self._chunks(split):
            if chunk.table is None:  # it could not be read
                yield _blank_rows(declared, chunk.num_rows)
            else:
                yield encode_chunk_features(chunk, declared, fitted, skip_bad_rows=skips)

    def raw_rows(self, split: str, columns: Sequence[str], count: int) -> pa.Table:
        """Return the raw columns of the first rows of a split that could be read."""
        tables, num_rows = [], 0
        for chunk in self._chunks(split):
            if chunk.table is not None and num_rows < count:
                rows = decode_dictionaries(chunk.table.select(list(columns)))
                tables.append(rows.replace_schema_metadata(None))
                num_rows += tables[-1].num_rows
            if num_rows >= count:
                break
        return pa.concat_tables(tables).slice(0, count)

    def read_texts(self, spec: IdSpec) -> dict[int, str] | None:
        """Return the text of each hash in a column of ids; None if its ids are no texts."""
        return None if self.table is None else read_texts(self.table, self.raw.fitted, spec)

    def _chunks(self, split: str) -> Iterator[RowChunk]:
        if self.events is not None:
            yield from (_as_chunk(rows, 0) for rows in self.events.read(split))
            return
        if self.table is None:
            names = list(self.raw.declared.columns)
            total = self.dataset.num_rows[split]
            for start in range(0, total, CHUNK_ROWS):
                stop = min(start + CHUNK_ROWS, total)
                yield _as_chunk(self.dataset.read_columns(split, names, start, stop), start)
            return
        yield from rows_of_split(self.table, self.raw.fitted.times, split)


def _as_chunk(rows: pa.Table, first_row: int) -> RowChunk:
    return RequestRows(REQUEST, None, first_row, rows.num_rows, rows)


def find_run_inputs(config: Mapping[str, Any], dataset: Dataset, run_dir: Path) -> RunInputs:
    """Return the raw side of a run's dataset, with the transforms that were fitted for it.

    Raises:
        UserError: for a dataset whose raw rows are not known.
    """
    node = with_fitted_transforms(config["dataset"], run_dir / "data")
    dataset = unwrapped(dataset)
    recipe = build_recipe(node) or getattr(dataset, "own_table", None)
    if recipe is None or not isinstance(dataset, ParquetDataset):
        raise UserError(
            f"dataset {node['_target_']}: cannot be exported: it gives batches, and no raw columns "
            "that could be scored again; a table (dataset=parquet, csv, arrow) or a known data set "
            "can"
        )
    table = recipe if isinstance(recipe, TableRecipe) else None
    if isinstance(recipe, Criteo):
        table = recipe.as_table()
    if table is None:
        transforms = plain_transforms(dataset.columns)
    else:
        folder = Path(table.learnt) if table.learnt else prepare(recipe)[0]
        fitted = with_declared_sizes(FittedTransforms.load(folder), table.declared)
        transforms = Transforms(
            table.declared, with_id_types(fitted, table), table.text_format.decimal
        )
    events = None
    if table is not None and table.declared.interactions is not None:
        events = EventRows(table, transforms.fitted)
    return RunInputs(replace(transforms, declared=transforms.features), dataset, table, events)


def with_vocabularies(raw: Transforms, vocabularies: Mapping[str, np.ndarray]) -> Transforms:
    """Return transforms with a vocabulary in place of each growing table.

    Args:
        vocabularies: table -> the ids that have a row, ascending.
    """
    num_rows = {table: FIRST_VALUE_ID + len(ids) for table, ids in vocabularies.items()}
    declared, fitted = raw.declared, raw.fitted
    ids = tuple(
        replace(
            spec, encode="vocabulary", num_rows=num_rows[spec.table_name], min_count=1, evict=None
        )
        if spec.encode == "growing"
        else spec
        for spec in declared.ids
    )
    fitted = replace(
        fitted,
        vocabularies={**fitted.vocabularies, **vocabularies},
        num_rows={**fitted.num_rows, **num_rows},
    )
    return replace(raw, declared=replace(declared, ids=ids), fitted=fitted)


def _blank_rows(declared: Declared, num_rows: int) -> EncodedRows:
    """Make rows of zeros in place of rows that could not be read."""
    zeros, offsets = np.zeros(num_rows, np.int64), np.zeros(num_rows + 1, np.int64)
    empty, none = np.zeros(0, np.int64), np.zeros(0, bool)
    ids = {}
    for spec in declared.ids:
        single = RawIds(zeros, zeros > 0)
        weights = np.zeros(0, np.float32) if spec.weights else None
        ids[spec.name] = RawIds(empty, none, offsets, empty, weights) if spec.is_list else single
    dense = {spec.name: np.zeros(num_rows, np.float32) for spec in declared.numeric}
    return EncodedRows(num_rows, dense, ids, np.ones(num_rows, bool))
