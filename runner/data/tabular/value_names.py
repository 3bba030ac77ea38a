"""Names the values of a table's columns of ids and groups, for metrics of each value."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.column_specs import IdSpec
from runner.data.columns.hash_text import hash_texts
from runner.data.columns.times import TIME_PARTS
from runner.data.columns.vocabulary import FIRST_VALUE_ID, MISSING_ID, UNKNOWN_ID
from runner.data.core.fitted import FittedTransforms
from runner.data.files.read_files import as_texts, is_text, single_array, unpacked_type
from runner.data.tabular.parts import iterate_split_chunks
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import UserError

UNKNOWN, MISSING = "unknown", "missing"


@dataclass(frozen=True)
class ValueNames:
    """Names values of a table's columns; see `Dataset.name_values`.

    Batches hold hashes of texts, so the files are read until all requested texts are found.

    Args:
        folder: with the fitted transforms.
    """

    table: TableRecipe
    folder: Path
    _texts: dict[str, dict[int, str]] = field(default_factory=dict)  # column -> hash -> text

    @cached_property
    def _fitted(self) -> FittedTransforms:
        return FittedTransforms.load(self.folder)

    def __call__(self, column: str, values: Sequence[int]) -> dict[int, str]:
        """Return the names of values, in the order in which they are shown."""
        declared = self.table.declared
        if column in declared.groups:
            return self._name_raw(column, {value: value for value in values})
        spec = next((s for s in declared.ids if s.name == column and not s.is_list), None)
        if spec is None or not values:
            return {}
        if spec.encode == "vocabulary":
            return self._name_vocabulary(spec, values)
        if spec.encode == "bucketise":
            return name_buckets(self._fitted.boundaries[spec.name], values)
        if spec.encode in TIME_PARTS:
            return {v: MISSING for v in values if v >= TIME_PARTS[spec.encode]}
        return {}

    def _name_vocabulary(self, spec: IdSpec, values: Sequence[int]) -> dict[int, str]:
        special = {UNKNOWN_ID: UNKNOWN, MISSING_ID: MISSING}
        vocabulary = self._fitted.vocabularies[spec.table_name]
        stop = FIRST_VALUE_ID + len(vocabulary)
        raw = {v: int(vocabulary[v - FIRST_VALUE_ID]) for v in values if FIRST_VALUE_ID <= v < stop}
        special |= dict.fromkeys((v for v in values if v >= stop), MISSING)  # the default
        return special | self._name_raw(spec.column, raw, spec.input)

    def _name_raw(
        self, column: str, raw: Mapping[int, int], input_: str = "auto"
    ) -> dict[int, str]:
        """Return the names of raw ids, integers or hashes of texts, in the order of the ids.

        Args:
            raw: value -> raw id.
            input_: how the ids are read, as `IdSpec.input`.
        """
        kind = "string" if input_ == "string" else self._kind(column, input_)
        if kind == "unsigned":
            return {value: str(id_ % 2**64) for value, id_ in raw.items()}
        if kind != "string":
            return {value: str(id_) for value, id_ in raw.items()}
        texts = self._find_texts(column, set(raw.values()))
        names = {v: _quote(texts[h]) if h in texts else str(h) for v, h in raw.items()}
        return dict(sorted(names.items(), key=lambda item: item[1]))

    def _kind(self, column: str, input_: str) -> str:
        """Return the type of a column of ids: `integer`, `unsigned` or `string`."""
        if (kind := self._fitted.id_types.get(column)) is not None:
            return kind
        type_ = unpacked_type(next(iter(self.table.schemas.values())).field(column).type)
        if is_text(type_) and input_ != "integer":
            return "string"
        return "unsigned" if pt.is_uint64(type_) else "integer"

    def _find_texts(self, column: str, hashes: set[int]) -> dict[int, str]:
        """Return hash -> text, without those whose files are missing."""
        known = self._texts.setdefault(column, {})
        missing = hashes - known.keys()
        try:
            found = iterate_texts(self.table, self._fitted, column) if missing else ()
            for text_hashes, texts in found:
                places = np.flatnonzero(np.isin(text_hashes, list(missing)))
                known |= {int(text_hashes[place]): texts[int(place)].as_py() for place in places}
                missing -= known.keys()
                if not missing:
                    break
        except (UserError, OSError, pa.ArrowException) as error:
            logging.getLogger("runner").warning(
                f"{column}: its texts cannot be read, so that their hashes name them: {error}"
            )
        return known


def iterate_texts(
    table: TableRecipe, fitted: FittedTransforms, column: str
) -> Iterator[tuple[np.ndarray, pa.Array]]:
    """Yield some hashes and their texts, until all files of a table have been read.

    Args:
        column: ids or groups that are texts, or are read as texts.
    """
    for chunk, _ in iterate_split_chunks(table, [column], fitted.times):
        if chunk.table is not None and column in chunk.table.column_names:
            values = single_array(chunk.table, column).drop_null().unique()
            texts = as_texts(values)
            yield hash_texts(values if is_text(values.type) else texts), texts


def name_buckets(boundaries: Sequence[float], values: Sequence[int]) -> dict[int, str]:
    """Return the names of buckets, such as 10..20 of the numbers from 10 to below 20.

    Args:
        boundaries: between the buckets, ascending.
        values: numbers of buckets; those after the last are of missing values.
    """
    ends = ["", *(repr(float(b)).removesuffix(".0") for b in boundaries), ""]
    names = {bucket: f"{low}..{high}" for bucket, (low, high) in enumerate(pairwise(ends))}
    return {value: names.get(value, MISSING) for value in values}


def _quote(text: str) -> str:
    """Put a text that could be taken for another name in quotes."""
    return f"'{text}'" if text in ("", UNKNOWN, MISSING) or text.startswith("'") else text
