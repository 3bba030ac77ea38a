"""Encodes a table part by part: checks rows, applies all transforms, and writes them to files."""

from __future__ import annotations

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.columns.column_types import id_types
from runner.data.columns.encode import encode_chunk, make_blank_rows
from runner.data.columns.vocabulary import map_values
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import MAX_EXAMPLES, SKIP_HINT, RowValidator
from runner.data.files.read_files import RowChunk, single_array, unpack_columns
from runner.data.prepare.part_folders import FACTS_FILE, complete_folder
from runner.data.prepare.progress import Advance
from runner.data.prepare.shuffle import BucketDraws, RowSpill, SpilledRows
from runner.data.tabular.fit_parts import PartTask, check_rows_before, count_train_rows
from runner.data.tabular.parts import iterate_part
from runner.errors import DataError

FITTED_NUMBERS = "fitted.json"


class MeanLengths:
    """Means over the train rows of the number of ids in every list column."""

    def __init__(self) -> None:
        self.num_values = Counter[str]()
        self.num_rows = 0

    def update(self, split: str, mask_R: np.ndarray, encoded: pa.Table) -> None:
        if split == "train":
            names = [field.name for field in encoded.schema if pa.types.is_list(field.type)]
            lengths = {n: pa.compute.list_value_length(encoded[n]).to_numpy() for n in names}
            counts = {n: int(lengths_R[mask_R].sum()) for n, lengths_R in lengths.items()}
            self.add(int(mask_R.sum()), counts)

    def add(self, num_rows: int, num_values: Mapping[str, int]) -> None:
        """Add the counts of another part."""
        self.num_rows += num_rows
        self.num_values.update(num_values)

    def compute(self) -> dict[str, float]:
        return {name: count / max(self.num_rows, 1) for name, count in self.num_values.items()}


@dataclass(frozen=True)
class EncodeTask(PartTask):
    """The task to encode one part; its folder gets the rows, and facts about them."""

    fitted: Path = Path()  # the folder that `save_for_parts` has written
    draws: BucketDraws | None = None  # the state of the draws at the part's first train row


def save_for_parts(fitted: FittedTransforms, folder: Path) -> None:
    """Write transforms so that workers map their vocabularies instead of copying them."""
    with complete_folder(folder) as temporary:
        for number, values in enumerate(fitted.vocabularies.values()):
            (temporary / str(number)).write_bytes(values.data)
        names = list(fitted.vocabularies)
        facts = {"values": vars(replace(fitted, vocabularies={})), "vocabularies": names}
        (temporary / FITTED_NUMBERS).write_text(json.dumps(facts))


@lru_cache(maxsize=1)
def load_for_parts(folder: Path) -> FittedTransforms:
    """Read transforms written by `save_for_parts`."""
    facts = json.loads((folder / FITTED_NUMBERS).read_text())
    names = facts["vocabularies"]
    vocabularies = {name: map_values(folder / str(number)) for number, name in enumerate(names)}
    return FittedTransforms(**{**facts["values"], "vocabularies": vocabularies})


class _TooManyError(Exception):
    """A part alone has more bad rows than are allowed."""


class _BadRowsOfPart:
    """The bad rows of each chunk, so that those of all parts can be counted in order."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self.found: list[tuple[int, list[str]]] = []

    def record(self, bad_R: np.ndarray, messages: list[str]) -> None:
        first, last = messages[:MAX_EXAMPLES], messages[MAX_EXAMPLES:][-1:]
        self.found.append((int(bad_R.sum()), first + last))
        if sum(count for count, _ in self.found) > self._max_rows:
            raise _TooManyError


def encode_part(task: EncodeTask, advance: Advance) -> None:
    """Encode the rows of a part, and write those of each split to a file.

    Raises:
        DataError: for the first bad row, unless bad rows are skipped, for an unreadable chunk
            before any readable one, and if an earlier pass has seen other rows.
    """
    table, part = task.table, task.part
    encoder = _PartEncoder(task)
    train_rows = num_rows = 0
    with complete_folder(task.folder) as folder:
        spills = _Spills(folder, copy.deepcopy(task.draws), task.task_bytes // 4)
        try:
            for chunk, masks in iterate_part(table, part, table.columns_read, task.split_starts):
                encoded, bad_R = encoder.encode_or_blank(chunk)
                encoder.count_in_no_split(chunk, masks)
                for split, mask_R in masks.items():
                    encoder.lengths.update(split, mask_R, encoded)
                    spills[split].write(encoded.filter(pa.array(mask_R)))
                if len(bad_R) > chunk.num_rows:  # a malformed line gets a blank row
                    spills[next(iter(masks))].write(encoded.slice(chunk.num_rows))
                train_rows += count_train_rows(masks, len(bad_R) - chunk.num_rows)
                num_rows += chunk.num_rows
                advance(chunk.num_rows)
            check_rows_before(task, num_rows)
        except _TooManyError:
            pass  # the process that combines the parts raises the error, with counts of other parts
        facts = {
            "splits": {split: spill.close().blocks for split, spill in spills.items()},
            "train_rows": train_rows,
            "lengths": [encoder.lengths.num_rows, encoder.lengths.num_values],
            "bad": encoder.bad.found,
            "in_no_split": encoder.in_no_split,
            "id_types": encoder.id_types,
        }
        (folder / FACTS_FILE).write_text(json.dumps(facts))


class _Spills(defaultdict[str, RowSpill]):
    def __init__(self, folder: Path, draws: BucketDraws | None, max_bytes: int) -> None:
        super().__init__()
        self._folder, self._draws, self._max_bytes = folder, draws, max_bytes

    def __missing__(self, split: str) -> RowSpill:
        draws = self._draws if split == "train" else None
        self[split] = RowSpill(split_path(self._folder, split), draws, self._max_bytes)
        return self[split]


def split_path(folder: Path, split: str) -> Path:
    """Return the file of a split's rows in the folder of a part."""
    return folder / f"{split}.arrow"


def spilled_rows(folder: Path, facts: Mapping[str, Any], split: str) -> SpilledRows:
    """Return the encoded rows of a split in a part."""
    blocks = facts["splits"].get(split, ())
    return SpilledRows(split_path(folder, split), tuple((bucket, rows) for bucket, rows in blocks))


class _PartEncoder:
    """Encodes the chunks of one part."""

    def __init__(self, task: EncodeTask) -> None:
        self._table, self._part = task.table, task.part
        self._fitted = replace(load_for_parts(task.fitted))
        self._schema: pa.Schema | None = None  # the schema of encoded rows, once there are any
        self.id_types: dict[str, str] = {}
        self.lengths = MeanLengths()
        self.bad = _BadRowsOfPart(task.table.max_bad_rows if task.table.skips_bad_rows else 0)
        self.in_no_split: tuple[int, list[str]] = (0, [])  # rows, and their first values

    def count_in_no_split(self, chunk: RowChunk, masks: Mapping[str, np.ndarray]) -> None:
        """Count the rows whose value in the split column belongs to no split."""
        split = self._table.row_split
        if split.kind != "column" or self._part.split != "train" or chunk.table is None:
            return
        none_R = ~np.logical_or.reduce(list(masks.values()))[: chunk.num_rows]
        if none_R.any():
            values = single_array(chunk.table, str(split.column)).filter(pa.array(none_R))
            count, known = self.in_no_split
            new = dict.fromkeys([*known, *map(str, values.unique()[:MAX_EXAMPLES].to_pylist())])
            self.in_no_split = (count + int(none_R.sum()), list(new)[:MAX_EXAMPLES])

    def encode_or_blank(self, chunk: RowChunk) -> tuple[pa.Table, np.ndarray]:
        """Encode a chunk, with a blank row at its end for each malformed line, and flag bad rows.

        Raises:
            DataError: for the first bad row, unless bad rows are skipped, and for an unreadable
                chunk before any readable one.
        """
        validator = RowValidator.for_chunk(chunk, self._table.skips_bad_rows, SKIP_HINT)
        if chunk.table is None:
            if self._schema is None and not self._part.number:
                raise DataError(f"{chunk.problem}; no row before it could be read")
            self.bad.record(np.ones(chunk.num_rows, bool), [chunk.problem])
            blank = make_blank_rows(chunk.num_rows, self._schema or self._schema_of_no_rows())
            return blank, np.ones(chunk.num_rows, bool)
        if not self.id_types and not self._table.learnt:
            self.id_types = id_types(self._table.declared, chunk.table.schema)
            self._fitted.id_types = self._fitted.id_types or self.id_types
        encoded = encode_chunk(chunk, self._table.declared, self._fitted, validator)
        self._schema = encoded.schema
        bad_R, messages = validator.bad_R, list(validator.messages)
        if chunk.malformed_lines:
            blank = make_blank_rows(len(chunk.malformed_lines), encoded.schema)
            encoded = pa.concat_tables([encoded, blank])
            messages += chunk.line_problems
            bad_R = np.concatenate([bad_R, np.ones(blank.num_rows, bool)])
        if bad_R.any():
            self.bad.record(bad_R, messages)
        return encoded, bad_R

    def _schema_of_no_rows(self) -> pa.Schema:
        """Return the schema of encoded rows for a part without any readable row so far."""
        types = self._table.schemas[str(self._part.file)]
        fields = [types.field(name) for name in self._table.columns_read]
        rows = unpack_columns(pa.schema(fields).empty_table())
        chunk = RowChunk(self._part.file, None, 0, 0, rows)
        validator = RowValidator.for_chunk(chunk, self._table.skips_bad_rows, SKIP_HINT)
        return encode_chunk(chunk, self._table.declared, self._fitted, validator).schema
