"""Finds the deleted and the new rows of stacked tables between two versions of a model.

R rows of stacked tables, I ids of a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.errors import UserError
from runner.serving.artifact.folder import EXPORT_WHOLE, GraphSpec
from runner.serving.rows.encode import Transforms

_TABLE_PARTS = ("weight", "codes", "scale_low")  # of `Rows` and `IntegerRows`


@dataclass(frozen=True)
class RowMove:
    """Deleted rows, numbered in the base, and new rows, in the result; others keep their order."""

    deleted: np.ndarray
    inserted: np.ndarray
    starts_changed: bool  # whether the first row of a table in its stack has changed

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest of a delta."""
        counts = {"deleted": len(self.deleted), "inserted": len(self.inserted)}
        return {**counts, "starts_changed": self.starts_changed}


def is_table_weight(key: str) -> bool:
    """Return whether `<graph>/<weight>` holds rows of tables."""
    name = key.partition("/")[2]
    return name.startswith("lookup.") and name.rpartition(".")[2] in _TABLE_PARTS


def find_moves(
    base: Mapping[str, np.ndarray],
    new: Mapping[str, np.ndarray],
    graphs: Sequence[GraphSpec],
    base_raw: Transforms,
    new_raw: Transforms,
) -> dict[str, RowMove]:
    """Return table -> deleted and new rows, for the tables that have any.

    In a table with a vocabulary rows are identified by their value, in others by their number.

    Args:
        base: `<graph>/<weight>` -> values; some are missing in ONNX.
        new: as `base`, complete.

    Raises:
        UserError: for tables that are stacked in another way than in the base.
    """
    moves = {}
    for spec in graphs:
        for stack, first, features in iterate_stacks(spec):
            starts = new[first].tolist() if first in new else [0]
            names = {at: _table(new_raw, name) for at, name in zip(starts, features)}
            names = dict(sorted(names.items()))
            for key in (f"{stack}.{part}" for part in _TABLE_PARTS if f"{stack}.{part}" in new):
                if key not in base:
                    continue  # which `find_difference` refuses
                after = np.diff([*names, len(new[key])])
                if first in base:
                    before = np.diff([*sorted(set(base[first].tolist())), len(base[key])])
                elif first in new:
                    before = np.array([base_raw.fitted.num_rows[n] for n in names.values()])
                else:
                    before = np.array([len(base[key])])
                if len(before) != len(after) or before.sum() != len(base[key]):
                    raise UserError(f"{key}: has other tables than the base: {EXPORT_WHOLE}")
                ids = [
                    [raw.fitted.vocabularies.get(name) for raw in (base_raw, new_raw)]
                    for name in names.values()
                ]
                move = _find_move(before, after, ids)
                if move is not None:
                    moves[key] = move
    return moves


def iterate_stacks(spec: GraphSpec) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield for each stack the names of its rows and of its tables' offsets, and its features."""
    for n, group in enumerate(spec.groups):
        for kind in ("pooled", "linear"):
            name = f"{spec.name}/lookup.{kind}.{n}"
            yield f"{name}.rows", f"{name}.first_F", group.features
    for n, sequence in enumerate(spec.sequences):
        yield f"{spec.name}/lookup.sequence_rows.{n}", "", (sequence.name,)


def _table(raw: Transforms, feature: str) -> str:
    [name] = [spec.table_name for spec in raw.declared.ids if spec.name == feature]
    return name


def _find_move(
    before: np.ndarray, after: np.ndarray, ids: Sequence[Sequence[np.ndarray | None]]
) -> RowMove | None:
    """Compare the tables of a stack; return None if no row was deleted or added.

    Args:
        before: rows of each table.
        after: as `before`.
        ids: for each table the values of its vocabulary, sorted, before and after.
    """
    kept_rows = [_kept_rows(*sizes, *id_pair) for *sizes, id_pair in zip(before, after, ids)]
    was_kept_R, is_kept_R = (np.concatenate(part) for part in zip(*kept_rows))
    if was_kept_R.all() and is_kept_R.all():
        return None
    starts_changed = bool((before[:-1] != after[:-1]).any())
    return RowMove(np.flatnonzero(~was_kept_R), np.flatnonzero(~is_kept_R), starts_changed)


def _kept_rows(
    before: int, after: int, old_I: np.ndarray | None, new_I: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the rows of a table that stay, in the base and in the new version."""
    was_kept_R, is_kept_R = np.zeros(before, bool), np.zeros(after, bool)
    sizes = [FIRST_VALUE_ID + len(ids) for ids in (old_I, new_I) if ids is not None]
    if old_I is None or new_I is None or sizes != [before, after]:
        both = min(before, after)
        was_kept_R[:both] = is_kept_R[:both] = True
        return was_kept_R, is_kept_R
    was_kept_R[:FIRST_VALUE_ID] = is_kept_R[:FIRST_VALUE_ID] = True
    was_kept_R[FIRST_VALUE_ID:] = np.isin(old_I, new_I, assume_unique=True)
    is_kept_R[FIRST_VALUE_ID:] = np.isin(new_I, old_I, assume_unique=True)
    return was_kept_R, is_kept_R
