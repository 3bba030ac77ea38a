"""The source of a warm start: a checkpoint, and the vocabularies that give its rows a meaning."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.data.core.fitted import FITTED_FILE, SCHEMA_FILE, FittedTransforms
from runner.data.growing.settings import NO_ID
from runner.distributed.shards import set_rows
from runner.errors import ConfigError
from runner.models.layers.embedding import LINEAR_SUFFIX
from runner.rundir.checkpoint import Checkpoint, load_tensors, read_tensors, tensor_shapes
from runner.rundir.find_checkpoint import find_checkpoint
from runner.rundir.regular_files import check_run_files
from runner.training.job import Job
from runner.training.state import GROWING_PREFIX
from runner.training.update.growing_ids import GrowingIds
from runner.training.warm_start.id_forms import read_id_forms
from runner.training.warm_start.other_columns import describe_refitted

TABLES_PREFIX, DENSE_PREFIX = "tables/", "dense/"  # before the names of weights in a checkpoint


@dataclass(frozen=True)
class RowMap:
    """Rows of a table of this run, and the rows of a table of the source for the same values."""

    ours: np.ndarray
    theirs: np.ndarray
    num_left_out: int = 0  # values of the source that have no row in the table of this run


@dataclass(frozen=True)
class ValueRows:
    """The values that belong to the rows of a table."""

    values: np.ndarray  # sorted
    rows: np.ndarray  # of each value


@dataclass(frozen=True)
class WarmStartSource:
    """A checkpoint, with the values of the rows of its tables and of ours, by table."""

    saved: Checkpoint
    shapes: Mapping[str, tuple[int, ...]]
    own_values: Mapping[str, ValueRows]  # without growing tables
    source_values: Mapping[str, ValueRows]
    growing: GrowingIds | None  # ours
    schema_file: Path  # of the source, if it has one
    # of ids, see `read_id_forms`
    own_forms: Mapping[str, set[str]] = field(default_factory=dict)
    source_forms: Mapping[str, set[str]] = field(default_factory=dict)
    refitted: tuple[str, ...] = ()  # see `describe_refitted`

    @classmethod
    def open(cls, job: Job, path: Path) -> WarmStartSource:
        """Open a run directory or a checkpoint folder."""
        saved = find_checkpoint(path, warn=job.view.warn)
        run = path if (path / "checkpoints").is_dir() else saved.path.parent.parent
        check_run_files(run)
        with tempfile.TemporaryDirectory() as folder:
            job.dataset.save_fitted_transforms(Path(folder))
            fitted = _load_transforms(Path(folder))
            schema = job.config.get("dataset", {}).get("schema")
            own_forms = read_id_forms(schema, Path(folder))
        shapes = tensor_shapes(saved)
        fitted_there = _load_transforms(run / "data")
        refitted = tuple(describe_refitted(fitted, fitted_there))
        ours = _vocabularies(fitted)
        theirs = _vocabularies(fitted_there) | _growing_values(saved, shapes)
        file = run / "data" / SCHEMA_FILE
        forms = read_id_forms(file, run / "data")
        growing = job.context.growing
        return cls(saved, shapes, ours, theirs, growing, file, own_forms, forms, refitted)

    def map_rows(self, name: str, other: str, num_ours: int, num_theirs: int) -> RowMap | None:
        """Return for each row of our table the row of the source that it takes; None: the same row.

        Args:
            name: of our table's weight, as in a checkpoint.
            other: of the weight in the source.

        Raises:
            ConfigError: if only one of the two tables has known values of rows, or an id has
                another row there.
        """
        table, other_table = (n.split("/")[1].removesuffix(LINEAR_SUFFIX) for n in (name, other))
        theirs = self.source_values.get(other_table)
        is_growing = self.growing is not None and table in self.growing.maps
        has_ours = is_growing or table in self.own_values
        if has_ours != (theirs is not None):
            without = "there" if has_ours else "here"
            raise ConfigError(
                f"table {table!r} has no vocabulary {without}, so rows cannot be matched; the same "
                "`encode` in both schemas makes them match"
            )
        here, there = self.own_forms.get(table), self.source_forms.get(other_table)
        if here and there and here.isdisjoint(there):
            raise ConfigError(
                f"ids of table {table!r} are {_join(here)} here and {_join(there)} there, which "
                "have other rows; the same `input` (integer, string), `salt` and `num_rows` in "
                "both schemas make them match, or columns of the same type"
            )
        ours = self._own_values(table, theirs)  # this changes a growing table
        if ours is None or theirs is None:
            return None
        if num_ours == num_theirs and _are_equal(ours, theirs):
            return None
        _, ours_at, theirs_at = np.intersect1d(
            ours.values, theirs.values, assume_unique=True, return_indices=True
        )
        special = np.arange(min(FIRST_VALUE_ID, num_ours, num_theirs))  # unknown and missing values
        return RowMap(
            np.concatenate([special, ours.rows[ours_at]]),
            np.concatenate([special, theirs.rows[theirs_at]]),
            len(theirs.values) - len(theirs_at),
        )

    def _own_values(self, table: str, theirs: ValueRows | None) -> ValueRows | None:
        """Return the values of our rows; an empty growing table takes the ids of the source."""
        if self.growing is None or table not in self.growing.maps:
            return self.own_values.get(table)
        if theirs is not None:
            self.growing.adopt(table, theirs.values[np.argsort(theirs.rows)])
        return _values_of_rows(self.growing.maps[table].state["ids"])


def _join(forms: set[str]) -> str:
    return " or ".join(sorted(forms))


def _are_equal(ours: ValueRows, theirs: ValueRows) -> bool:
    return np.array_equal(ours.values, theirs.values) and np.array_equal(ours.rows, theirs.rows)


def copy_matched_tensors(
    source: WarmStartSource,
    matched: Mapping[str, tuple[Tensor, str]],
    row_maps: Mapping[str, RowMap],
) -> None:
    """Copy tensors of the source into tensors of this run, in place.

    Args:
        source: the checkpoint that they are read from.
        matched: our name -> (our live tensor, the name in the source).
        row_maps: our name -> the map of a tensor whose rows change places; such tensors are read
            whole, one at a time.
    """
    tensors_of_source: dict[str, Tensor] = {}
    for name, (tensor, other) in matched.items():
        if name not in row_maps:
            if other in tensors_of_source:  # two of our tensors start from the same one
                load_tensors(source.saved, {other: tensor}, partial=True, convert=True)
            tensors_of_source.setdefault(other, tensor)
    # rows of tables may have 16 bits
    load_tensors(source.saved, tensors_of_source, partial=True, convert=True)
    for name, (tensor, other) in matched.items():
        if name not in row_maps:
            continue
        rows = row_maps[name]
        theirs = read_tensors(source.saved, [other])[other]
        set_rows(tensor, torch.from_numpy(rows.ours), theirs[torch.from_numpy(rows.theirs)])


def is_table_weight(name: str) -> bool:
    """Return whether a name in a checkpoint is that of a table's weight."""
    return name.startswith(TABLES_PREFIX) and name.endswith("/weight")


def _load_transforms(folder: Path) -> FittedTransforms:
    if not (folder / FITTED_FILE).exists():
        return FittedTransforms()
    return FittedTransforms.load(folder)


def _vocabularies(fitted: FittedTransforms) -> dict[str, ValueRows]:
    return {
        table: ValueRows(values, FIRST_VALUE_ID + np.arange(len(values)))
        for table, values in fitted.vocabularies.items()
    }


def _growing_values(saved: Checkpoint, names: Iterable[str]) -> dict[str, ValueRows]:
    """Return the values of the rows of a checkpoint's growing tables."""
    maps = [n for n in names if n.startswith(GROWING_PREFIX) and n.endswith("/ids")]
    return {
        name.removeprefix(GROWING_PREFIX).removesuffix("/ids"): _values_of_rows(ids.numpy())
        for name, ids in (read_tensors(saved, maps) if maps else {}).items()
    }


def _values_of_rows(ids: np.ndarray) -> ValueRows:
    rows = np.flatnonzero(ids != NO_ID)
    rows = rows[np.argsort(ids[rows])]
    return ValueRows(ids[rows], rows)
