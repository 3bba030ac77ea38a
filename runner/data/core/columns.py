"""The declared columns of a table: what is read, how it is transformed, what is allowed in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.types as pt

from runner.errors import DataError, nearest_hint

# Columns of a prepared file that a user's table need not have: the space in these names keeps them
# apart from the user's own.
WEIGHT_COLUMN = "row weight"
GROUP_PREFIX = "group "  # begins the name of a group column
CARRIED_PREFIX = "carried "  # begins the name of a column that is carried along unread


@dataclass(frozen=True)
class NumericColumn:
    """A dense feature: missing -> `default`, then clip, log1p and (x - mean) / deviation; the
    result must be finite."""

    name: str
    log1p: bool = False
    clip_min: float | None = None  # clipped to, before log1p
    clip_max: float | None = None
    default: float | None = None  # of a missing value, before clip and log1p; None: an error
    mean: float = 0.0  # after log1p
    std: float = 1.0

    @property
    def clips(self) -> bool:
        return self.clip_min is not None or self.clip_max is not None

    @property
    def is_identity(self) -> bool:
        """Whether a value that is there stays what it is."""
        return not (self.clips or self.log1p or self.mean or self.std != 1)

    @property
    def preserves_finite(self) -> bool:
        """Whether every finite value stays one, whatever the transforms."""
        return not self.log1p or (self.clip_min is not None and self.clip_min > -1)


@dataclass(frozen=True)
class CategoricalColumn:
    """Ids of a pooled look-up: one a row, or a list of any length.

    `as_is` takes integers in [0, num_rows) and refuses all others; `hash` spreads any integers over
    num_rows. A vocabulary is applied when the data is prepared, and is `as_is` from then on.
    """

    name: str
    num_rows: int
    encode: Literal["as_is", "hash"] = "as_is"
    salt: int = 0  # of the hash
    default: int | None = None  # id of a missing value; None: an error
    is_list: bool = False  # a missing list is an empty one
    weights: str | None = None  # of a list: the column with a list of weights as long
    mean_length: float = 1.0
    pooling: Literal["sum", "mean"] = "sum"
    table: str = ""  # features of the same table share its rows


@dataclass(frozen=True)
class SequenceColumn:
    """Ids in time order, a list column; a missing list is an empty one. Taken as they are."""

    name: str
    num_rows: int
    max_length: int
    table: str = ""

    encode = "as_is"
    default = None


@dataclass(frozen=True)
class LabelColumn:
    """A target. Binary ones are 0 or 1, others any finite number unless `allowed` says more."""

    name: str
    kind: Literal["binary", "regression"] = "binary"
    allowed: tuple[float, ...] | None = None

    @property
    def allowed_values(self) -> tuple[float, ...] | None:
        return (0.0, 1.0) if self.allowed is None and self.kind == "binary" else self.allowed


@dataclass(frozen=True)
class Columns:
    """All declared columns. Feature order in a batch: as declared, lists after single ids."""

    labels: tuple[LabelColumn, ...]
    numeric: tuple[NumericColumn, ...] = ()
    categorical: tuple[CategoricalColumn, ...] = ()
    sequences: tuple[SequenceColumn, ...] = ()
    weight: str | None = None  # a row's weight, finite and not negative
    groups: tuple[str, ...] = ()  # integer ids for grouped metrics
    carried: tuple[str, ...] = ()  # not read for batches; `ParquetDataset.carried` has them
    singles: tuple[CategoricalColumn, ...] = field(init=False)
    lists: tuple[CategoricalColumn, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.labels:
            raise DataError("no label column is declared")
        declared = [
            *(c.name for c in self.labels),
            *(c.name for c in self.numeric),
            *(c.name for c in self.categorical),
            *(c.name for c in self.sequences),
        ]
        for name, count in Counter(declared).items():
            if count > 1:
                raise DataError(f"column {name!r} is declared {count} times")
        sizes: dict[str, int] = {}
        with_tables: list[CategoricalColumn | SequenceColumn] = [*self.categorical, *self.sequences]
        for c in with_tables:
            if c.num_rows < 1:
                raise DataError(f"column {c.name!r}: its table has {c.num_rows} rows, at least 1")
            if c.default is not None and not 0 <= c.default < c.num_rows:
                raise DataError(f"column {c.name!r}: default {c.default} is not in its table")
            if sizes.setdefault(c.table or c.name, c.num_rows) != c.num_rows:
                raise DataError(f"table {c.table!r}: its columns declare different sizes")
        object.__setattr__(self, "singles", tuple(c for c in self.categorical if not c.is_list))
        object.__setattr__(self, "lists", tuple(c for c in self.categorical if c.is_list))

    @property
    def names(self) -> tuple[str, ...]:
        """What is read from the files for batches, each name once."""
        names = [c.name for c in self.labels] + [c.name for c in self.numeric]
        names += [c.name for c in self.categorical] + [c.name for c in self.sequences]
        names += [c.weights for c in self.lists if c.weights]
        names += [self.weight] if self.weight else []
        return tuple(dict.fromkeys([*names, *self.groups]))


def check_columns(columns: Columns, file_schema: pa.Schema, path: str) -> None:
    """Every declared column is there, with a type that its role can take without loss.

    Raises: DataError naming file, column, and the nearest name or the type that is needed.
    """
    for name in columns.names:
        count = len(file_schema.get_all_field_indices(name))
        if count == 0:
            raise DataError(f"{path}: no column {name!r}{nearest_hint(name, file_schema.names, 3)}")
        if count > 1:
            raise DataError(f"{path}: {count} columns are called {name!r}")
    numbers = [c.name for c in columns.labels] + [c.name for c in columns.numeric]
    for name in numbers + ([columns.weight] if columns.weight else []):
        if not _is_number(file_schema.field(name).type):
            raise DataError(f"{path}: {_wrong_type(file_schema, name)}, needed is a number")
    for name in [*(c.name for c in columns.singles), *columns.groups]:
        if not pt.is_integer(file_schema.field(name).type):
            raise DataError(f"{path}: {_wrong_type(file_schema, name)}, needed is an integer")
    for name in [c.name for c in columns.lists] + [c.name for c in columns.sequences]:
        type_ = file_schema.field(name).type
        if not (_is_list(type_) and pt.is_integer(type_.value_type)):
            raise DataError(
                f"{path}: {_wrong_type(file_schema, name)}, needed is a list of integers"
            )


def _wrong_type(found: pa.Schema, name: str) -> str:
    return f"column {name!r} has type {found.field(name).type}"


def _is_number(type_: pa.DataType) -> bool:
    return pt.is_integer(type_) or pt.is_floating(type_) or pt.is_boolean(type_)


def _is_list(type_: pa.DataType) -> bool:
    return pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_)
