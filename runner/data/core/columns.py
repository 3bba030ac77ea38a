"""The declared columns of a table: names, transforms, and allowed values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.growing.settings import Growth
from runner.errors import DataError, nearest_hint

# Names of columns that only prepared files have: the space in them keeps them apart from a user's.
WEIGHT_COLUMN = "row weight"
GROUP_PREFIX = "group "  # prefix of a group column
CARRIED_PREFIX = "carried "  # prefix of a column that is not in batches; see `Columns.carried`


Encode = Literal["as_is", "hash", "growing"]


@dataclass(frozen=True)
class NumericColumn:
    """A dense feature and its transforms, whose result must be finite.

    In this order: `default` for a missing value, clip, log1p, (x - mean) / std.
    """

    name: str
    log1p: bool = False
    clip_min: float | None = None
    clip_max: float | None = None
    default: float | None = None  # None: a missing value is an error
    mean: float = 0.0
    std: float = 1.0

    @property
    def clips(self) -> bool:
        return self.clip_min is not None or self.clip_max is not None

    @property
    def finite_rule(self) -> str:
        """The rule that a value breaks if its result is not finite, for messages."""
        rule = "; log1p takes numbers above -1, which `clip: [0, null]` makes of others"
        return f"not finite after its transforms{'' if self.preserves_finite else rule}"

    @property
    def is_identity(self) -> bool:
        """Whether values that are not missing stay unchanged."""
        return not (self.clips or self.log1p or self.mean or self.std != 1)

    @property
    def preserves_finite(self) -> bool:
        """Whether the transforms keep every finite value finite."""
        return not self.log1p or (self.clip_min is not None and self.clip_min > -1)


@dataclass(frozen=True)
class CategoricalColumn:
    """Ids of a pooled look-up: one a row, or a list of any length.

    `as_is` takes integers in [0, num_rows) and refuses others; `hash` maps any integers to that
    range. A vocabulary is applied while the data is prepared; its column is `as_is` afterwards.
    `growing` takes any 64-bit integers, which stay unchanged in batches of the dataset: training
    assigns their rows (`runner.data.growing`).
    """

    name: str
    num_rows: int
    encode: Encode = "as_is"
    salt: int = 0  # of the hash
    default: int | None = None  # id of a missing value; None: a missing value is an error
    is_list: bool = False  # a missing list counts as an empty one
    weights: str | None = None  # for a list: the column with weights, in lists of the same lengths
    mean_length: float = 1.0
    pooling: Literal["sum", "mean"] = "sum"
    table: str = ""  # features with the same table share its rows; "": a table of its own
    growth: Growth | None = None  # of `growing`
    num_special: int = 0  # the first rows of its table, for unknown and missing values

    @property
    def table_name(self) -> str:
        return self.table or self.name


@dataclass(frozen=True)
class SequenceColumn:
    """Ids in time order: a list column; a missing list counts as an empty one."""

    name: str
    num_rows: int
    max_length: int
    table: str = ""
    encode: Literal["as_is", "growing"] = "as_is"
    growth: Growth | None = None
    overlaps: bool = False  # see `runner.batch.SequenceFeature`

    default = None

    @property
    def table_name(self) -> str:
        return self.table or self.name


@dataclass(frozen=True)
class LabelColumn:
    """A target: 0 or 1 if it is binary, else any finite number; `allowed` restricts it further.

    With a log link it is 0 or more.
    """

    name: str
    kind: Literal["binary", "regression"] = "binary"
    allowed: tuple[float, ...] | None = None
    one_of: str = ""  # the label of whose classes it is one, see `runner.batch.TaskSpec`
    link: Literal["", "log"] = ""  # see there
    scale: float = 1.0  # of a label with a log link

    @property
    def allowed_values(self) -> tuple[float, ...] | None:
        return (0.0, 1.0) if self.allowed is None and self.kind == "binary" else self.allowed


@dataclass(frozen=True)
class Columns:
    """All declared columns; features keep this order in a batch, with lists after single ids."""

    labels: tuple[LabelColumn, ...]
    numeric: tuple[NumericColumn, ...] = ()
    categorical: tuple[CategoricalColumn, ...] = ()
    sequences: tuple[SequenceColumn, ...] = ()
    weight: str | None = None  # a row's weight, finite and not negative
    groups: tuple[str, ...] = ()  # integer ids for grouped metrics
    carried: tuple[str, ...] = ()  # not in batches; see `ParquetDataset.read_carried_columns`
    singles: tuple[CategoricalColumn, ...] = field(init=False)
    lists: tuple[CategoricalColumn, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.labels:
            raise DataError("no label column is declared; `labels` in the schema names them")
        for name, count in Counter(self._declared_names).items():
            if count > 1:
                raise DataError(f"column {name!r} is declared {count} times")
        sizes: dict[str, int] = {}
        growths: dict[str, Growth | None] = {}
        with_tables: list[CategoricalColumn | SequenceColumn] = [*self.categorical, *self.sequences]
        for c in with_tables:
            if c.num_rows < 1:
                raise DataError(
                    f"column {c.name!r}: its table has {c.num_rows} rows; it must have at least 1"
                )
            if c.default is not None and not 0 <= c.default < c.num_rows:
                raise DataError(f"column {c.name!r}: default {c.default} is not in its table")
            if sizes.setdefault(c.table_name, c.num_rows) != c.num_rows:
                raise DataError(f"table {c.table!r}: its columns declare different sizes")
            if growths.setdefault(c.table_name, c.growth) != c.growth:
                raise DataError(
                    f"table {c.table!r}: its columns must all be growing, with the same min_count "
                    "and evict, or none of them"
                )
        object.__setattr__(self, "singles", tuple(c for c in self.categorical if not c.is_list))
        object.__setattr__(self, "lists", tuple(c for c in self.categorical if c.is_list))

    @property
    def _declared_names(self) -> list[str]:
        names = [c.name for c in self.labels] + [c.name for c in self.numeric]
        return names + [c.name for c in self.categorical] + [c.name for c in self.sequences]

    @property
    def growth(self) -> dict[str, Growth]:
        """How rows of growing tables are allocated and freed, by table."""
        columns: list[CategoricalColumn | SequenceColumn] = [*self.categorical, *self.sequences]
        return {c.table_name: c.growth for c in columns if c.growth is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that batches are read from, each name once."""
        names = [*self._declared_names, *(c.weights for c in self.lists if c.weights)]
        names += [self.weight] if self.weight else []
        return tuple(dict.fromkeys([*names, *self.groups]))


def narrowest_id_type(num_rows: int) -> np.dtype:
    """Return the smallest type for ids of a table with `num_rows` rows, in prepared files.

    Most tables are small, and the time of an epoch depends on the bytes that are read and gathered.
    """
    for type_, limit in ((np.uint8, 1 << 8), (np.uint16, 1 << 16), (np.int32, 1 << 31)):
        if num_rows <= limit:
            return np.dtype(type_)
    return np.dtype(np.int64)


def check_columns(columns: Columns, file_schema: pa.Schema, path: str) -> None:
    """Check that every declared column exists, with a type that its role accepts without loss.

    Raises:
        DataError: naming file and column, and the nearest name or the type that it must have.
    """
    for name in columns.names:
        count = len(file_schema.get_all_field_indices(name))
        if count == 0:
            raise DataError(f"{path}: no column {name!r}{nearest_hint(name, file_schema.names, 3)}")
        if count > 1:
            raise DataError(
                f"{path}: {count} columns are called {name!r}; give each a name of its own"
            )
    numbers = [c.name for c in columns.labels] + [c.name for c in columns.numeric]
    for name in numbers + ([columns.weight] if columns.weight else []):
        if not _is_number(file_schema.field(name).type):
            raise DataError(f"{path}: {_describe_type(file_schema, name)}; it must be a number")
    for name in [*(c.name for c in columns.singles), *columns.groups]:
        if not pt.is_integer(file_schema.field(name).type):
            raise DataError(f"{path}: {_describe_type(file_schema, name)}; it must be an integer")
    for name in [c.name for c in columns.lists] + [c.name for c in columns.sequences]:
        type_ = file_schema.field(name).type
        if not (is_list(type_) and pt.is_integer(type_.value_type)):
            raise DataError(
                f"{path}: {_describe_type(file_schema, name)}; it must be a list of integers"
            )


def _describe_type(schema: pa.Schema, name: str) -> str:
    return f"column {name!r} has type {schema.field(name).type}"


def _is_number(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or pt.is_floating(type_) or pt.is_boolean(type_))


def is_list(type_: pa.DataType) -> bool:
    """Return whether values are lists of any kind."""
    return bool(pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_))
