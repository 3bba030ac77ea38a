"""Encodes raw rows as inputs of a run's model, with the transforms of its training. No torch here.

R rows of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.columns.column_specs import Declared, IdSpec, LabelSpec, NumericSpec
from runner.data.columns.column_types import (
    check_column_types,
    id_types,
    numbers_in_texts,
    rewritten_columns,
)
from runner.data.columns.encode import encode_chunk, make_blank_rows
from runner.data.columns.hash_text import hash_texts
from runner.data.core.columns import GROUP_PREFIX, WEIGHT_COLUMN, Columns
from runner.data.core.fitted import FITTED_FILE, FittedTransforms
from runner.data.files.bad_rows import MAX_EXAMPLES, RowValidator
from runner.data.files.read_files import RowChunk, decode_dictionaries, read_uuids, restore_uuids
from runner.data.files.text_values import with_points
from runner.data.tabular.fit import with_declared_sizes
from runner.errors import DataError
from runner.serving.rows.input import MEMORY, InputPart

_UUID_TEXT, _UUID_LENGTH = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$", 36
# true and false as programs write them, the last ones Postgres
BOOLEAN_WORDS = (("true", "false"), ("True", "False"), ("TRUE", "FALSE"), ("t", "f"))


@dataclass(frozen=True)
class Transforms:
    """The columns that a run's training declared, and what it fitted to them."""

    declared: Declared  # all columns, labels included
    fitted: FittedTransforms  # vocabularies, statistics, sizes of tables, and the types of ids
    decimal: str = "."  # the decimal separator in the training's texts

    @property
    def features(self) -> Declared:
        """The columns that the model's inputs are made of."""
        return replace(self.declared.features, places={})

    @property
    def columns(self) -> Columns:
        """The columns of encoded rows. Every row has a weight, which is 0 if it is bad."""
        return rewritten_columns(self.declared, self.fitted, has_weights=True)


def load_transforms(declared: Declared, run: Path) -> Transforms:
    """Read the transforms that a run directory keeps.

    Raises:
        DataError: if they are damaged, or do not fit the declared columns.
    """
    folder = run / "data"
    fitted = FittedTransforms()
    if (folder / FITTED_FILE).exists():
        fitted = FittedTransforms.load(folder)
    fitted = with_declared_sizes(fitted, declared)
    missing = {s.table_name for s in declared.ids} - fitted.num_rows.keys()
    missing |= {s.name for s in declared.numeric if s.standardise} - fitted.moments.keys()
    if missing:
        raise DataError(
            f"{folder}: has no fitted transform of {', '.join(sorted(missing))}, which the run's "
            "schema declares: it was changed after the training; undo that, or train again"
        )
    return Transforms(declared, fitted)


def plain_transforms(columns: Columns) -> Transforms:
    """Return the transforms of prepared columns, whose ids are rows of tables already."""
    numeric = [
        NumericSpec(c.name, c.name, c.log1p, moved, (c.clip_min, c.clip_max), c.default)
        for c in columns.numeric
        for moved in [bool(c.mean) or c.std != 1]
    ]
    pooled = [
        IdSpec(
            c.name,
            c.name,
            c.encode,
            c.num_rows,
            c.salt,
            default=c.default,
            list=c.is_list,
            weights=c.weights or "",
            pooling=c.pooling,
            table=c.table,
        )
        for c in columns.categorical
    ]
    sequences = [
        IdSpec(c.name, c.name, num_rows=c.num_rows, table=c.table, max_length=c.max_length)
        for c in columns.sequences
    ]
    declared = Declared(
        labels=tuple(
            LabelSpec(
                c.name, c.name, c.kind, c.allowed, one_of=c.one_of, link=c.link, scale=c.scale
            )
            for c in columns.labels
        ),
        numeric=tuple(numeric),
        ids=(*pooled, *sequences),
        groups=tuple(name.removeprefix(GROUP_PREFIX) for name in columns.groups),
    )
    fitted = FittedTransforms(
        num_rows={spec.table_name: spec.num_rows or 0 for spec in declared.ids},
        mean_length={c.name: c.mean_length for c in columns.lists},
        moments={c.name: [c.mean, c.std] for c in columns.numeric},
        id_types={spec.column: "integer" for spec in declared.ids},
    )
    return Transforms(declared, fitted)


def with_types_of_roles(transforms: Transforms, table: pa.Table) -> pa.Table:
    """Convert columns whose type differs from that of the training although their values may not.

    A column without values, of Arrow's type null or NaN in pandas, gets the type of its role.
    Booleans and UUIDs that were texts in training, such as `True` in CSV, become the texts of its
    vocabulary. Texts of UUIDs become bytes if it has these, and texts of several numbers get
    decimal points if the training's had commas.

    Args:
        table: the columns; only inputs of the model change.
    """
    features = transforms.features
    numbers = {spec.column for spec in features.numbers}
    texts = {name for spec in features.ids if spec.separator for name in spec.columns}
    texts |= {spec.column for spec in features.numbers if spec.separator}
    texts |= {name for name, type_ in transforms.fitted.id_types.items() if type_ == "string"}
    lists = {c for s in features.ids if s.is_list and not s.separator for c in s.columns}
    lists |= {spec.column for spec in features.numbers if spec.size and not spec.separator}
    for index, (name, type_) in enumerate(zip(table.schema.names, table.schema.types)):
        plain = pa.float64() if name in numbers else pa.int64()
        if pt.is_floating(type_) and name in texts | lists:
            are_missing = pc.all(pc.is_null(table.column(index), nan_is_null=True))
            if are_missing.as_py() and table.num_rows:
                type_ = pa.null()
                table = table.set_column(index, name, pa.nulls(table.num_rows))
        if pt.is_list(type_) and pt.is_null(type_.value_type):
            target = pa.list_(plain)
        elif pt.is_null(type_):
            target = pa.string() if name in texts else pa.list_(plain) if name in lists else plain
        elif pt.is_boolean(type_) and name in texts and (words := _known_words(transforms, name)):
            texts_R = pc.if_else(table.column(name), *words)
            table = table.set_column(index, name, texts_R)
            continue
        elif name in texts and (uuids := read_uuids(table, name)) is not None:
            texts_R = pa.array([value and str(value) for value in uuids], pa.string())
            # UUIDs of files with a type for them are learnt as bytes
            if _knows(transforms, name, texts_R):
                table = table.set_column(index, name, texts_R)
            continue
        elif name in texts and (pt.is_string(type_) or pt.is_large_string(type_)):
            bytes_R = _uuids_as_bytes(table.column(index))
            if bytes_R is not None and _knows(transforms, name, bytes_R):
                table = table.set_column(index, name, bytes_R)
            continue
        else:
            continue
        if name in features.columns:
            table = table.set_column(index, name, table.column(index).cast(target))
    return with_points(table, numbers_in_texts(features)) if transforms.decimal == "," else table


def _known_words(transforms: Transforms, column: str) -> tuple[str, str] | None:
    """Return the words for true and false in the vocabulary of a column of ids, or None.

    If it has several pairs of words, the result is None, since any of them may be meant.
    """
    pairs = [words for words in BOOLEAN_WORDS if _knows(transforms, column, pa.array(words))]
    return pairs[0] if len(pairs) == 1 else None


def _uuids_as_bytes(texts: pa.ChunkedArray) -> pa.Array | None:
    """Return texts with UUIDs as sixteen bytes, as Parquet has them; None without any UUID."""
    # most ids are too short, which is found much faster than by the expression
    if (pc.max(pc.binary_length(texts)).as_py() or 0) < _UUID_LENGTH:
        return None
    are_uuids = pc.match_substring_regex(texts, _UUID_TEXT)
    if not pc.any(are_uuids).as_py():
        return None
    pairs = zip(texts.to_pylist(), are_uuids.to_pylist())
    values = [UUID(text).bytes if is_uuid else text and text.encode() for text, is_uuid in pairs]
    return pa.array(values, pa.binary())


def _knows(transforms: Transforms, column: str, texts: pa.Array) -> bool:
    """Tell whether any of the texts is in a vocabulary of a column of ids."""
    hashes = hash_texts(texts.drop_null())
    return any(
        bool(np.isin(hashes, transforms.fitted.vocabularies[spec.table_name]).any())
        for spec in transforms.features.ids
        if spec.column == column and spec.encode == "vocabulary" and not spec.is_list
    )


def check_input_types(
    transforms: Transforms, input_schema: pa.Schema, path: str, *, same_format: bool
) -> None:
    """Check that the columns of an input can be read as in training.

    Args:
        input_schema: the types of the columns as read.
        path: of the input, for messages.
        same_format: whether the input has the format of the run's data.

    Raises:
        DataError: for a type that an input of the model cannot have, and for a column whose ids
            may have been texts or numbers in training.
    """
    features, known = transforms.features, transforms.fitted.id_types
    check_column_types(features, input_schema, path, is_input=True)
    for spec in features.ids:
        is_fixed = spec.encode == "as_is" or spec.input != "auto"
        if same_format or (is_fixed and not spec.cross):
            continue
        for column in id_types(replace(features, ids=(spec,)), input_schema):
            if column not in known:
                type_ = input_schema.field(column).type
                raise DataError(
                    f"{path}: column {column!r} has type {type_}, and the files of the training, "
                    "which tell whether its ids were texts or numbers, are not there any more; an "
                    "input of the training's own format is taken to have its types"
                )


@dataclass(frozen=True)
class EncodedPart:
    """An encoded part; bad rows have harmless values and weight 0."""

    number: int
    first_row: int
    rows: pa.Table  # of the columns of `Transforms.columns`
    kept: pa.Table  # the columns that are carried into the output
    bad_R: np.ndarray
    messages: tuple[str, ...]  # about the first bad rows


class PartEncoder:
    """Encodes parts.

    Args:
        empty_rows: the columns that are read, without a row.
        skip_bad_rows: whether bad rows are marked; otherwise the first is an error.
        with_labels: whether rows have labels, which are checked as in training and kept as
            `label_TASK`, and so is the `weight`, if the training has declared one.
    """

    def __init__(
        self,
        transforms: Transforms,
        keep: Sequence[str],
        empty_rows: pa.Table,
        *,
        skip_bad_rows: bool,
        with_labels: bool = False,
    ) -> None:
        self._transforms, self._fitted = transforms, transforms.fitted
        self._with_labels = with_labels
        self._features = transforms.features
        if with_labels:
            self._features = replace(transforms.declared, carried=())
        self._declared, self._keep = transforms.declared, list(keep)
        self._skip_bad_rows = skip_bad_rows
        nothing = RowChunk(MEMORY, None, 0, 0, with_types_of_roles(transforms, empty_rows))
        validator = RowValidator.for_chunk(nothing, skip_bad_rows)
        self._schema = encode_chunk(nothing, self._features, self._fitted, validator).schema
        self.kept_schema = _plain_columns(empty_rows, self._keep).schema

    def encode(self, part: InputPart) -> EncodedPart:
        """Encode the rows of a part.

        Raises:
            DataError: for the first bad row, unless bad rows are skipped.
        """
        rows, kept, bad, messages = [], [], [], []
        if (encoded := self._encode_whole(part)) is not None:
            return encoded
        for piece in part.pieces:
            if piece.table is None:  # could not be read, and bad rows are skipped
                rows.append(make_blank_rows(piece.num_rows, self._schema))
                nulls = [pa.nulls(piece.num_rows, column.type) for column in self.kept_schema]
                kept.append(pa.table(nulls, schema=self.kept_schema))
                bad.append(np.ones(piece.num_rows, bool))
                messages.append(piece.problem)
                continue
            validator = RowValidator.for_chunk(piece, self._skip_bad_rows)
            typed = replace(piece, table=with_types_of_roles(self._transforms, piece.table))
            rows.append(encode_chunk(typed, self._features, self._fitted, validator))
            kept.append(_plain_columns(piece.table, self._keep))
            bad.append(validator.bad_R)
            messages += validator.messages
        return self._make_part(
            part, pa.concat_tables(rows), pa.concat_tables(kept), np.concatenate(bad), messages
        )

    def _encode_whole(self, part: InputPart) -> EncodedPart | None:
        """Encode all pieces at once, which is much faster for small ones; None if a row is bad.

        Encoding them one by one then reports the bad row with its place in its file.
        """
        tables = [piece.table for piece in part.pieces if piece.table is not None]
        invalid = any(piece.invalid_values for piece in part.pieces)
        if len(tables) == 1 or len(tables) < len(part.pieces) or invalid:
            return None
        table = pa.concat_tables(tables).combine_chunks()
        typed = with_types_of_roles(self._transforms, table)
        chunk = RowChunk(MEMORY, None, part.first_row, table.num_rows, typed)
        validator = RowValidator.for_chunk(chunk, self._skip_bad_rows)
        try:
            rows = encode_chunk(chunk, self._features, self._fitted, validator)
        except DataError:
            return None
        if validator.bad_R.any():
            return None
        return self._make_part(part, rows, _plain_columns(table, self._keep), validator.bad_R, [])

    def _make_part(
        self,
        part: InputPart,
        rows: pa.Table,
        kept: pa.Table,
        bad_R: np.ndarray,
        messages: Sequence[str],
    ) -> EncodedPart:
        rows = self._with_unread_columns(rows, bad_R)
        shown = tuple(messages[:MAX_EXAMPLES])
        if self._with_labels:
            columns = {name: kept[name] for name in kept.column_names}
            for label in self._declared.labels:
                columns[f"label_{label.name}"] = pa.array(rows[label.name].to_numpy(), mask=bad_R)
            if self._declared.weight:
                columns["weight"] = rows[WEIGHT_COLUMN]
            kept = pa.table(columns)
        return EncodedPart(part.number, part.first_row, rows, kept, bad_R, shown)

    def _with_unread_columns(self, rows: pa.Table, bad_R: np.ndarray) -> pa.Table:
        """Add the columns of a batch that a prediction does not read: labels and groups."""
        zeros_R = pa.array(np.zeros(len(bad_R), np.int8))
        labels = [label.name for label in self._declared.labels]
        for name in [*labels, *(GROUP_PREFIX + name for name in self._declared.groups)]:
            if name not in rows.column_names:
                rows = rows.append_column(name, zeros_R)
        if WEIGHT_COLUMN in rows.column_names:
            return rows
        return rows.append_column(WEIGHT_COLUMN, pa.array((~bad_R).astype(np.float32)))


def _plain_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    return restore_uuids(decode_dictionaries(table.select(names))).replace_schema_metadata(None)
