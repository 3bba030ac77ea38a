"""The raw columns of a run's dataset, and the raw rows of its splits.

R rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner.data.core.columns import Columns, NumericColumn
from runner.data.core.dataset import Dataset
from runner.data.core.fitted import FittedTransforms, with_fitted_transforms
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import Recipe, prepare
from runner.data.read.parquet_dataset import ParquetDataset
from runner.data.sets.criteo import Criteo
from runner.data.tabular.raw_ids import RawIds
from runner.data.tabular.read_files import RowChunk
from runner.data.tabular.rewrite import iterate_split_chunks
from runner.data.tabular.schema_file import Declared, IdSpec, NumericSpec
from runner.data.tabular.table import TableRecipe
from runner.errors import UserError
from runner.serving.artifact import RawInputs
from runner.serving.raw_rows import REQUEST, EncodedRows, RequestRows, encode_chunk_features

CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class RunInputs:
    """The raw side of a run's dataset.

    Rows come from the user's own files where the dataset is a table of theirs, and from the
    prepared files of a known data set, whose columns are then the raw ones.
    """

    raw: RawInputs
    dataset: ParquetDataset
    table: TableRecipe | None

    def encoded_rows(self, split: str) -> Iterator[EncodedRows]:
        """Yield a split's rows in the order of evaluations, encoded from their raw columns.

        Bad rows that the dataset skips have weight 0 in evaluations; they come out harmless.
        """
        declared, fitted = self.raw.declared, self.raw.fitted
        for chunk, is_wanted_R in self._chunks(split):
            if chunk.table is None:  # it could not be read
                encoded = _blank_rows(declared, chunk.num_rows)
            else:
                skips = self.table is not None and self.table.skips_bad_rows
                encoded = encode_chunk_features(chunk, declared, fitted, skip_bad_rows=skips)
            yield select_rows(encoded, is_wanted_R)

    def _chunks(self, split: str) -> Iterator[tuple[RowChunk, np.ndarray]]:
        if self.table is None:
            names = list(self.raw.declared.columns)
            total = self.dataset.num_rows[split]
            for start in range(0, total, CHUNK_ROWS):
                stop = min(start + CHUNK_ROWS, total)
                rows = self.dataset.read_columns(split, names, start, stop)
                request = RequestRows(REQUEST, None, start, stop - start, rows)
                yield request, np.ones(stop - start, bool)
            return
        columns, times = self.table.columns_read, self.raw.fitted.times
        for chunk, masks in iterate_split_chunks(self.table, columns, times):
            mask_R = masks.get(split, np.zeros(chunk.num_rows, bool))
            if chunk.malformed_lines:  # the first split of the chunk gets a blank row for each
                blank = len(chunk.malformed_lines) if next(iter(masks)) == split else 0
                yield chunk, mask_R[: chunk.num_rows]
                empty = RowChunk(chunk.file, None, 0, blank, None)
                yield empty, np.ones(blank, bool)
            else:
                yield chunk, mask_R


def find_run_inputs(config: Mapping[str, Any], dataset: Dataset, run_dir: Path) -> RunInputs:
    """Return the raw side of a run's dataset, with the transforms that were fitted for it.

    Raises:
        UserError: for a dataset whose raw rows are not known.
    """
    node = with_fitted_transforms(config["dataset"], run_dir / "data")
    recipe = build_recipe(node)
    if recipe is None or not isinstance(dataset, ParquetDataset):
        raise UserError(
            f"dataset {node['_target_']}: cannot be exported: it gives batches, and no raw columns "
            "that could be scored again; a table (dataset=parquet, csv, tsv) or a known data set "
            "can"
        )
    table = recipe if isinstance(recipe, TableRecipe) else None
    if isinstance(recipe, Criteo):
        table = recipe.as_table()
    if table is None:
        raw = _inputs_of_columns(dataset.columns)
    else:
        raw = RawInputs(table.declared, _fitted(recipe, table, dataset.columns))
    declared = replace(raw.declared, labels=(), weight=None, groups=(), carried=(), places={})
    return RunInputs(RawInputs(declared, raw.fitted), dataset, table)


def _fitted(recipe: Recipe, table: TableRecipe, columns: Columns) -> FittedTransforms:
    if table.learnt:
        fitted = FittedTransforms.load(Path(table.learnt))
    else:
        fitted = FittedTransforms.load(prepare(recipe)[0])
    # files that are read as they are have no fitted values, but their tables have sizes
    sizes = {c.table or c.name: c.num_rows for c in columns.categorical}
    sizes |= {c.table or c.name: c.num_rows for c in columns.sequences}
    return replace(fitted, num_rows={**sizes, **fitted.num_rows})


def _inputs_of_columns(columns: Columns) -> RawInputs:
    """Declare prepared columns as raw ones."""
    ids = [
        IdSpec(
            name=c.name,
            column=c.name,
            encode=c.encode,
            num_rows=c.num_rows,
            salt=c.salt,
            default=c.default,
            list=c.is_list,
            weights=c.weights or "",
            pooling=c.pooling,
            table=c.table,
        )
        for c in columns.categorical
    ]
    ids += [
        IdSpec(c.name, c.name, num_rows=c.num_rows, table=c.table, max_length=c.max_length)
        for c in columns.sequences
    ]
    fitted = FittedTransforms(
        num_rows={spec.table or spec.name: spec.num_rows or 0 for spec in ids},
        moments={c.name: [c.mean, c.std] for c in columns.numeric},
    )
    numeric = tuple(_numeric_spec(c) for c in columns.numeric)
    return RawInputs(Declared(labels=(), numeric=numeric, ids=tuple(ids)), fitted)


def _numeric_spec(c: NumericColumn) -> NumericSpec:
    standardise = bool(c.mean) or c.std != 1
    return NumericSpec(c.name, c.name, c.log1p, standardise, (c.clip_min, c.clip_max), c.default)


def _blank_rows(declared: Declared, num_rows: int) -> EncodedRows:
    """Make rows of zeros that stand for rows which could not be read."""
    zeros, offsets = np.zeros(num_rows, np.int64), np.zeros(num_rows + 1, np.int64)
    nothing, none = np.zeros(0, np.int64), np.zeros(0, bool)
    ids = {}
    for spec in declared.ids:
        single = RawIds(zeros, zeros > 0)
        weights = np.zeros(0, np.float32) if spec.weights else None
        ids[spec.name] = (
            RawIds(nothing, none, offsets, nothing, weights) if spec.is_list else single
        )
    dense = {spec.name: np.zeros(num_rows, np.float32) for spec in declared.numeric}
    return EncodedRows(num_rows, dense, ids, np.ones(num_rows, bool))


def select_rows(rows: EncodedRows, wanted_R: np.ndarray) -> EncodedRows:
    """Return some of the rows, in their order."""
    if wanted_R.all():
        return rows
    ids = {}
    for name, found in rows.ids.items():
        if found.offsets_R1 is None:
            ids[name] = replace(
                found, values=found.values[wanted_R], missing=found.missing[wanted_R]
            )
            continue
        lengths_R = np.diff(found.offsets_R1)
        kept = np.repeat(wanted_R, lengths_R)
        lengths = lengths_R[wanted_R]
        ids[name] = replace(
            found,
            values=found.values[kept],
            missing=found.missing[kept],
            offsets_R1=np.concatenate([[0], np.cumsum(lengths)]),
            row_of_value=np.repeat(np.arange(len(lengths)), lengths),
            weights=None if found.weights is None else found.weights[kept],
        )
    dense = {name: x_R[wanted_R] for name, x_R in rows.dense.items()}
    return EncodedRows(int(wanted_R.sum()), dense, ids, rows.bad_R[wanted_R])
