"""Rewrites a user's table into the cache: fits transforms, then encodes every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from runner.data.core.fitted import FittedTransforms
from runner.data.prepare.recipe import SPLITS
from runner.data.prepare.shards import ShardWriter
from runner.data.prepare.shuffle import ShuffleWriter
from runner.data.tabular.bad_rows import BadRows, RowValidator
from runner.data.tabular.column_specs import Declared
from runner.data.tabular.column_types import id_types
from runner.data.tabular.encode import encode_chunk, make_blank_rows
from runner.data.tabular.file_list import DataFile
from runner.data.tabular.fit import TransformFitter, needs_fitting, with_declared_sizes
from runner.data.tabular.read_files import RowChunk
from runner.data.tabular.splits import Split, SplitAssigner, TimeSample, read_seconds
from runner.errors import DataError


class RewritableTable(Protocol):
    """What `rewrite_table` needs of a table; see `TableRecipe`."""

    @property
    def declared(self) -> Declared: ...
    @property
    def learnt(self) -> str | None: ...  # a folder with transforms that were fitted elsewhere
    @property
    def split_seed(self) -> int: ...
    @property
    def max_bad_rows(self) -> int: ...
    @property
    def mix(self) -> bool: ...
    @property
    def files(self) -> Mapping[str, Sequence[DataFile]]: ...
    @property
    def row_split(self) -> Split: ...
    @property
    def skips_bad_rows(self) -> bool: ...
    @property
    def columns_read(self) -> list[str]: ...
    def read_chunks(self, file: DataFile, columns: list[str]) -> Iterator[RowChunk]: ...
    def num_progress_units(self) -> int: ...


def rewrite_table(
    table: RewritableTable, folder: Path, advance: Callable[[int], None]
) -> tuple[dict[str, list[str]], FittedTransforms, BadRows]:
    """Write the rows of all splits, and the fitted transforms, into a folder.

    Args:
        folder: an empty folder.
        advance: is called with numbers of rows as they are done, in both passes.

    Returns:
        The names of every split's files, the fitted transforms, and the skipped bad rows.

    Raises:
        DataError: for the first bad row, or too many skipped ones, and for a split without a row.
    """
    if table.learnt:
        fitted = with_declared_sizes(FittedTransforms.load(Path(table.learnt)), table.declared)
    else:
        split_starts = find_split_starts(table)
        fitted = _fit_transforms(table, split_starts, advance)
    bad = BadRows(table.max_bad_rows if table.skips_bad_rows else 0)
    used = {*table.row_split.splits, *table.files}
    writers = {split: _open_writer(table, folder, split) for split in SPLITS if split in used}
    lengths = MeanLengths()
    for chunk, masks in iterate_split_chunks(table, table.columns_read, fitted.times):
        if chunk.table is not None and not fitted.id_types and not table.learnt:
            fitted.id_types = id_types(table.declared, chunk.table.schema)
        encoded, bad_R = _encode_or_blank(table, chunk, fitted, bad, lengths)
        for split, mask_R in masks.items():
            lengths.update(split, mask_R, encoded)
            writers[split].write(encoded.filter(pa.array(mask_R)))
        if len(bad_R) > chunk.num_rows:  # a malformed line gets a blank row
            writers[next(iter(masks))].write(encoded.slice(chunk.num_rows))
        advance(chunk.num_rows)
    names = {split: writer.close() for split, writer in writers.items()}
    for split, files in names.items():
        if not files:
            raise DataError(f"the {split} split has no rows{_explain_empty_split(table, split)}")
    fitted.mean_length = lengths.compute()
    fitted.save(folder)
    return names, fitted, bad


def _fit_transforms(
    table: RewritableTable, split_starts: dict[str, float], advance: Callable[[int], None]
) -> FittedTransforms:
    fitter = TransformFitter(
        table.declared, split_seed=table.split_seed, skip_bad_rows=table.skips_bad_rows
    )
    problem = ""
    if needs_fitting(table.declared):
        for chunk, masks in iterate_split_chunks(table, fitter.columns_to_read(), split_starts):
            if chunk.table is not None:
                fitter.update(chunk, masks)
            problem = problem or chunk.problem
            advance(chunk.num_rows)
    try:
        fitted = fitter.compute()
    except DataError as error:
        if not problem:
            raise
        raise DataError(f"{error}; {problem}") from error
    fitted.times = split_starts
    return fitted


def _encode_or_blank(
    table: RewritableTable,
    chunk: RowChunk,
    fitted: FittedTransforms,
    bad: BadRows,
    lengths: MeanLengths,
) -> tuple[pa.Table, np.ndarray]:
    """Encode a chunk, with a blank row at its end for each malformed line, and flag bad rows.

    Raises:
        DataError: for the first bad row, or too many skipped ones, and for an unreadable chunk
            before any readable one.
    """
    validator = RowValidator.for_chunk(chunk, table.skips_bad_rows)
    if chunk.table is None:
        if lengths.schema is None:
            raise DataError(f"{chunk.problem}; no row before it could be read")
        bad.record(np.ones(chunk.num_rows, bool), [chunk.problem])
        return make_blank_rows(chunk.num_rows, lengths.schema), np.ones(chunk.num_rows, bool)
    encoded = encode_chunk(chunk, table.declared, fitted, validator)
    lengths.schema = encoded.schema
    bad_R, messages = validator.bad_R, list(validator.messages)
    if chunk.malformed_lines:
        blank = make_blank_rows(len(chunk.malformed_lines), encoded.schema)
        encoded = pa.concat_tables([encoded, blank])
        messages += [f"{chunk.file}: line {n or '?'}: {text}" for n, text in chunk.malformed_lines]
        bad_R = np.concatenate([bad_R, np.ones(blank.num_rows, bool)])
    if bad_R.any():
        bad.record(bad_R, messages)
    return encoded, bad_R


def iterate_split_chunks(
    table: RewritableTable, columns: list[str], split_starts: dict[str, float]
) -> Iterator[tuple[RowChunk, dict[str, np.ndarray]]]:
    """Yield all rows, with a mask of rows for each split."""
    assigner = SplitAssigner(table.row_split, table.split_seed, split_starts)
    split_column = [table.row_split.column] if table.row_split.column else []
    for split, files in table.files.items():
        to_read = list(dict.fromkeys([*columns, *(split_column if split == "train" else [])]))
        for number, file in enumerate(files):
            assigner.start_file(number)
            for chunk in table.read_chunks(file, to_read):
                if split == "train":
                    masks = assigner.assign(chunk)
                else:
                    masks = {split: np.ones(chunk.num_rows, bool)}
                yield chunk, _extend_masks(masks, chunk)


def _extend_masks(masks: dict[str, np.ndarray], chunk: RowChunk) -> dict[str, np.ndarray]:
    """Malformed lines at the end belong to no split."""
    if not chunk.malformed_lines:
        return masks
    none = np.zeros(len(chunk.malformed_lines), bool)
    return {split: np.concatenate([mask_R, none]) for split, mask_R in masks.items()}


def find_split_starts(table: RewritableTable) -> dict[str, float]:
    """Return split -> its first time in seconds; empty where rows are not split by time."""
    split = table.row_split
    if split.kind != "time":
        return {}
    sample = TimeSample(table.split_seed)
    for file in table.files["train"]:
        for chunk in table.read_chunks(file, [str(split.column)]):
            if chunk.table is not None:
                sample.add(read_seconds(chunk.table, split))
    return sample.split_starts(split)


def _open_writer(table: RewritableTable, folder: Path, split: str) -> ShuffleWriter | ShardWriter:
    if split == "train" and table.mix:
        num_rows = table.num_progress_units() // (1 if table.learnt else 2)
        return ShuffleWriter(folder, split, num_rows=num_rows, seed=table.split_seed)
    return ShardWriter(folder, split)


def _explain_empty_split(table: RewritableTable, split: str) -> str:
    files = table.files.get(split)
    return (
        f": {files[0]}" if files else f" (split {table.row_split.kind}: {dict(table.row_split.of)})"
    )


class MeanLengths:
    """Means over the train rows of the number of ids in every list column."""

    def __init__(self) -> None:
        self._num_values: dict[str, int] = {}
        self._num_rows = 0
        self.schema: pa.Schema | None = None  # of encoded rows, once there are any

    def update(self, split: str, mask_R: np.ndarray, encoded: pa.Table) -> None:
        if split != "train":
            return
        self._num_rows += int(mask_R.sum())
        for field in encoded.schema:
            if pa.types.is_list(field.type):
                lengths_R = pa.compute.list_value_length(encoded[field.name]).to_numpy()
                total = int(lengths_R[mask_R].sum())
                self._num_values[field.name] = self._num_values.get(field.name, 0) + total

    def compute(self) -> dict[str, float]:
        return {name: count / max(self._num_rows, 1) for name, count in self._num_values.items()}
