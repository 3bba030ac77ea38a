"""Reads a file of hard negatives: raw ids of items for each value of a feature, such as a user.

K rows of the table of the key, V negatives of all keys. Imports no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared, IdSpec
from runner.data.columns.encode import encode_chunk
from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.data.core.columns import is_list
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import RowValidator
from runner.data.files.file_list import SUFFIXES, DataFile, find_files
from runner.data.files.read_files import RowChunk, single_array
from runner.data.tabular.table_files import TableFiles
from runner.errors import DataError, nearest_hint

NEGATIVES = "negatives"  # the column of the items


@dataclass(frozen=True)
class NegativeLists:
    """The negatives of each key, as rows of the item's table, in the order of the file.

    Args:
        key: the feature whose ids have negatives, such as the user.
        offsets_K1: int64; those of key k are `items_V[offsets_K1[k] : offsets_K1[k + 1]]`.
        items_V: int64.
    """

    key: str
    offsets_K1: np.ndarray
    items_V: np.ndarray

    def digest(self) -> str:
        """Return a hash of the content, the same for any file or format that it is read from."""
        hasher = hashlib.sha256(self.key.encode())
        for values in (self.offsets_K1, self.items_V):
            hasher.update(np.ascontiguousarray(values).data)
        return hasher.hexdigest()


@dataclass(frozen=True)
class _NegativesFile(TableFiles):
    ids: tuple[IdSpec, ...] = field(default=())

    @cached_property
    def declared(self) -> Declared:
        return Declared(labels=(), ids=self.ids)

    @cached_property
    def files(self) -> dict[str, list[DataFile]]:
        return {"train": find_files(self.path, self.format, key="")}  # not a setting of the dataset


def read_negatives(
    path: str, specs: Sequence[IdSpec], fitted: FittedTransforms, item: str
) -> NegativeLists:
    """Read the column `negatives` for each value of one other column: a list or one item per row.

    Args:
        path: a file, a folder or a glob, of any format that a table may have.
        specs: the id columns of the dataset; the other column is one of them.
        item: name of the feature whose ids are items.

    Raises:
        DataError: for a file without these columns or without rows, and for the first id, with
            file, row and column, that the training does not know.
    """
    of_item = next(spec for spec in specs if spec.name == item)
    format_ = next(
        (f for f, endings in SUFFIXES.items() if path.lower().endswith(endings)), "parquet"
    )
    source = _NegativesFile(format=format_, path=path, schema=None)
    first, types = next(iter(source.schemas.items()))
    key = _find_key(first, types.names, [s for s in specs if not s.is_list and not s.cross])
    has_lists = is_list(types.field(NEGATIVES).type)
    negatives = replace(
        of_item, name=NEGATIVES, column=NEGATIVES, table=of_item.table_name, list=has_lists
    )
    if type_ := fitted.id_types.get(of_item.column):
        fitted = replace(fitted, id_types=fitted.id_types | {NEGATIVES: type_})
    source = _NegativesFile(format=format_, path=path, schema=None, ids=(key, negatives))
    encoded = [
        _encode(chunk, key, negatives, fitted)
        for file in source.files["train"]
        for chunk in source.read_chunks(file, source.columns_read)
    ]
    if not encoded:
        raise DataError(f"{path}: has no rows")
    keys_V, items_V = (np.concatenate(arrays) for arrays in zip(*encoded))
    counts_K = np.bincount(keys_V, minlength=fitted.num_rows[key.table_name])
    offsets_K1 = np.concatenate([[0], np.cumsum(counts_K)])
    order = np.argsort(keys_V, kind="stable")
    return NegativeLists(key.name, offsets_K1, items_V[order])


def _find_key(file: str, columns: Sequence[str], specs: Sequence[IdSpec]) -> IdSpec:
    if NEGATIVES not in columns:
        raise DataError(
            f"{file}: has no column {NEGATIVES!r} with the items"
            f"{nearest_hint(NEGATIVES, columns)}; it has {', '.join(columns)}"
        )
    key_columns = [name for name in columns if name != NEGATIVES]
    matching = [spec for spec in specs if spec.column in key_columns]
    if len({spec.column for spec in matching}) != 1:
        known = sorted({spec.column for spec in specs})
        hint = nearest_hint(key_columns[0], known) if key_columns and not matching else ""
        raise DataError(
            f"{file}: needs, besides {NEGATIVES!r}, exactly one of the columns "
            f"{', '.join(known)}, for whose ids these negatives are; it has "
            f"{', '.join(key_columns) or 'none'}{hint}"
        )
    if matching[0].growth:
        raise DataError(
            f"{file}: {matching[0].column} is `encode: growing`, so its ids get their rows "
            "only in the training; use negatives for each item, or `encode: vocabulary`"
        )
    return matching[0]


def _encode(
    chunk: RowChunk, key: IdSpec, negatives: IdSpec, fitted: FittedTransforms
) -> tuple[np.ndarray, np.ndarray]:
    """Return the key and the item of each negative of a chunk."""
    validator = RowValidator.for_chunk(chunk, skip_bad_rows=False)
    ids = encode_chunk(chunk, Declared(labels=(), ids=(key, negatives)), fitted, validator)
    keys_R, column = ids[key.name].to_numpy(), ids[NEGATIVES].combine_chunks()
    assert chunk.table is not None
    raw = single_array(chunk.table, NEGATIVES)
    if negatives.is_list:
        rows_V = np.repeat(np.arange(len(keys_R)), np.diff(column.offsets))
        items_V, raw = column.flatten().to_numpy(), raw.flatten()
    else:
        rows_V, items_V = np.arange(len(keys_R)), column.to_numpy()
    for spec, rows, texts, at in (
        (key, keys_R, single_array(chunk.table, key.column), None),
        (negatives, items_V, raw, rows_V),
    ):
        if spec.encode == "vocabulary":
            unknown = partial(_describe_unknown, texts)
            validator.reject(spec.column, rows < FIRST_VALUE_ID, unknown, at)
    return keys_R[rows_V].astype(np.int64), items_V.astype(np.int64)


def _describe_unknown(values: pa.Array, at: int) -> str:
    return (
        f"value {values[at].as_py()!r}: has no row of its own, as no train row, or too few, have it"
    )
