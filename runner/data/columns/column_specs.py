"""What a user's YAML declares about the columns of a table.

The reprs of `Declared`, `LabelSpec`, `NumericSpec` and `IdSpec` enter signatures and cache keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from runner.data.columns.amounts import AMOUNT_FORMS, Amounts
from runner.data.columns.times import DAYS, TIME_FORMS, TIME_PARTS
from runner.data.growing.settings import Eviction, Growth
from runner.data.interactions.declaration import INTERACTIONS, Interactions

MOST_CLASSES = 100  # values of a label
COUNT, SHARE = "count", "share"  # encodings of a number: how many values of a list are the id
MATCHES = (COUNT, SHARE)


class _MayBeAmounts:
    """A column whose texts may be numbers with signs."""

    input: str
    unit: str
    missing: tuple[str, ...]

    @property
    def amounts(self) -> Amounts | None:
        """How its texts are converted to numbers; None if it has numbers, or ids."""
        is_amount = self.input in AMOUNT_FORMS
        return Amounts(self.input, self.unit, self.missing) if is_amount else None


@dataclass(frozen=True)
class LabelSpec(_MayBeAmounts):
    """A label, of one task."""

    name: str
    column: str = ""
    type: str = "binary"  # or regression
    allowed: tuple[float, ...] | None = None  # None: 0 and 1 if binary, any number if regression
    above: float | None = None  # the label is 1 for a value over this, 0 otherwise
    positive: tuple[str, ...] = ()  # the label is 1 for these texts, 0 for others
    default: float | None = None  # for a missing value; None: an error
    input: str = ""  # of AMOUNT_FORMS: how its texts are converted; empty: it has numbers
    grades: tuple[str, ...] = ()  # a regression label is 0, 1, 2 and so on for these texts
    classes: tuple[str, ...] = ()  # all values, one of which each row has
    one_of: str = ""  # the label with `classes` from which it is made; it is 1 for `positive`
    unit: str = ""  # with `input`, see `Amounts`
    missing: tuple[str, ...] = ()
    link: str = ""  # log: a regression label from 0 on is predicted by its logarithm
    scale: float | None = None  # of a label with a link: its usual size, at which training starts

    @property
    def is_text(self) -> bool:
        """Whether its column has texts, which are compared with the declared ones."""
        return bool(self.positive or self.grades)

    def __repr__(self) -> str:
        """Return the original repr if none of the settings added later is set."""
        later = ("positive", "default", "input", "grades", "classes", "one_of", "link", "scale")
        return _repr_without(self, *_unset(self, *later))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files that it needs."""
        return (self.column,)

    def split_classes(self) -> tuple[LabelSpec, ...]:
        """Return a label for each of its classes, which is 1 in the rows that have it."""
        names = {value: f"{self.name}.{value.strip()}" for value in self.classes}
        return tuple(
            replace(self, name=name, positive=(value,), one_of=self.name)
            for value, name in names.items()
        ) or (self,)


@dataclass(frozen=True)
class NumericSpec(_MayBeAmounts):
    """A dense feature, with its transforms."""

    name: str
    column: str = ""
    log1p: bool = False
    standardise: bool = False  # by mean and standard deviation of the train split, after log1p
    clip: tuple[float | None, float | None] = (None, None)
    default: float | None = None  # for a missing value; None: an error
    size: int = 0  # length of a vector, whose elements are features; 0: the column has one number
    separator: str = ""  # between the numbers of a vector that is written as text; or json
    element: int = 0  # index in the vector, from 0
    # of AMOUNT_FORMS: how its texts are converted; empty: it has numbers. With days: of TIME_FORMS,
    # how its values are parsed as times; empty: as seconds, or in ISO 8601
    input: str = ""
    encode: str = ""  # days: days since 1970 of its times; empty: it has numbers
    until: str = ""  # days: column of times up to which days are counted, instead of since 1970
    until_input: str = ""  # of TIME_FORMS, for `until`
    of: str = ""  # count and share: column with the id whose values in the list are counted
    unit: str = ""  # with an amount as `input`, see `Amounts`
    missing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the original repr if none of the kinds of numbers added later is used."""
        of_vectors = () if self.size else ("size", "separator", "element")
        of_days = () if self.encode else ("encode", "until", "until_input")
        of_lists = () if self.of else ("of",)
        of_amounts = () if self.input else ("input",)
        return _repr_without(self, *of_vectors, *of_amounts, *of_days, *of_lists, *_unset(self))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files that it needs."""
        return (self.column, *filter(None, (self.until, self.of)))

    @property
    def place(self) -> str:
        """The column, and the element of its vectors, for messages."""
        return f"{self.column}[{self.element}]" if self.size else self.column


@dataclass(frozen=True)
class IdSpec(_MayBeAmounts):
    """A sparse feature: of `categorical`, or with a `max_length` of `sequences`."""

    name: str
    column: str = ""
    # as_is, hash, vocabulary, growing, bucketise, or a part of a time: hour, weekday
    encode: str = "as_is"
    # rows of its table; None: as many as the data needs; required for hash and growing
    num_rows: int | None = None
    salt: int = 0
    # vocabulary: occurrences in the train split that give a value its own row; growing: sightings
    min_count: int = 1
    boundaries: tuple[float, ...] = ()  # bucketise: the boundaries between buckets
    buckets: int | None = None  # bucketise: their number; boundaries give all equally many rows
    default: int | None = None  # id for a missing value; None: an error, or the vocabulary's row 1
    out_of_range: str = "error"  # as_is: error, or default
    list: bool = False
    separator: str = ""  # between the ids of a list that is written as text; or json, words
    weights: str = ""  # column with a list of weights, as long as the ids
    pooling: str = "sum"
    cross: tuple[str, ...] = ()  # columns whose combination is hashed
    # how texts are read: as integer, or string; auto: by the column's type. Of a part of a time:
    # the form of its numbers, of TIME_FORMS; auto: seconds. Of buckets: of AMOUNT_FORMS, if any
    input: str = "auto"
    table: str = ""
    max_length: int = 0
    keep: str = "last"  # which end of a too long sequence is kept
    order_by: str = ""  # column with a list of times, as long as the ids
    evict: Eviction | None = None  # growing: when rows are freed; None: never
    unit: str = ""  # with an amount as `input`, see `Amounts`
    missing: tuple[str, ...] = ()

    @property
    def takes_missing(self) -> bool:
        """Whether a row may lack a value: it gets an empty list, a default, or a table's row."""
        has_own_row = self.encode in ("vocabulary", "growing", "bucketise", *TIME_PARTS)
        return self.is_list or bool(self.cross) or has_own_row or self.default is not None

    def __repr__(self) -> str:
        """Return the original repr if none of the settings added later is set."""
        return _repr_without(self, *_unset(self, "evict"))

    @property
    def growth(self) -> Growth | None:
        """How rows of its table are allocated and freed; None: they are fixed."""
        return Growth(self.min_count, self.evict) if self.encode == "growing" else None

    @property
    def table_name(self) -> str:
        return self.table or self.name

    @property
    def is_sequence(self) -> bool:
        return self.max_length > 0

    @property
    def is_list(self) -> bool:
        return self.list or bool(self.separator) or bool(self.weights) or self.is_sequence

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files that are needed for it."""
        return (*(self.cross or (self.column,)), *filter(None, (self.weights, self.order_by)))


def _unset(spec: LabelSpec | NumericSpec | IdSpec, *later: str) -> list[str]:
    """Return which of the settings added later, and of those of amounts, are not set."""
    names = (*later, "unit", "missing")
    return [name for name in names if getattr(spec, name) in ((), None, "")]


def _repr_without(spec: Any, *hidden: str) -> str:
    shown = [f"{f.name}={getattr(spec, f.name)!r}" for f in fields(spec) if f.name not in hidden]
    return f"{type(spec).__name__}({', '.join(shown)})"


CHOICES = {
    "type": ("binary", "regression"),
    "encode": ("as_is", "hash", "vocabulary", "growing", "bucketise", *TIME_PARTS),
    "out_of_range": ("error", "default"),
    "pooling": ("sum", "mean"),
    "input": ("auto", "integer", "string", *TIME_FORMS, *AMOUNT_FORMS),
    "keep": ("last", "first"),
    "link": ("log",),
}

CHOICES_OF_NUMBERS = {
    "encode": (DAYS, *MATCHES),
    "input": (*AMOUNT_FORMS, *TIME_FORMS),
    "until_input": TIME_FORMS,
}


@dataclass(frozen=True)
class Declared:
    """All declared columns of a table, and the paths of its files."""

    labels: tuple[LabelSpec, ...]
    numeric: tuple[NumericSpec, ...] = ()
    ids: tuple[IdSpec, ...] = ()  # pooled features, then sequences
    weight: str | None = None
    groups: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    # LOCATION_KEYS and TEXT_KEYS, and `interactions`, if given
    places: Mapping[str, Any] = field(default_factory=dict)

    @property
    def interactions(self) -> Interactions | None:
        """How rows are made from the events in the files; None if the files have the rows."""
        return self.places.get(INTERACTIONS)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column of the rows that is needed, each listed once."""
        names = [spec.column for spec in self.labels]
        names += [column for spec in self.numeric for column in spec.columns]
        names += [column for spec in self.ids for column in spec.columns]
        names += [self.weight] if self.weight else []
        return tuple(dict.fromkeys([*names, *self.groups, *self.carried]))

    @property
    def features(self) -> Declared:
        """The same declaration with the features alone, without labels and other columns."""
        return replace(self, labels=(), weight=None, groups=(), carried=())

    @property
    def numbers(self) -> tuple[NumericSpec, ...]:
        """The dense features except matches of ids, whose columns are those of `ids`."""
        return tuple(spec for spec in self.numeric if spec.encode not in MATCHES)

    @property
    def optional_columns(self) -> frozenset[str]:
        """Columns that every row may lack, as all that is made from them allows missing values."""
        numbers: list[LabelSpec | NumericSpec] = [*self.labels, *self.numbers]  # matches take all
        columns = [(spec.columns, spec.default is not None) for spec in numbers]
        columns += [(spec.columns, spec.takes_missing) for spec in self.ids]
        needed = {name for names, takes_missing in columns if not takes_missing for name in names}
        needed |= {*self.groups, *self.carried, *([self.weight] if self.weight else [])}
        return frozenset(self.columns) - needed

    @property
    def time_forms(self) -> dict[str, str]:
        """Column from which features are made as times -> its form, of TIME_FORMS."""
        forms = {s.column: s.input for s in self.ids if s.encode in TIME_PARTS}
        days = [spec for spec in self.numeric if spec.encode == DAYS]
        forms |= {s.column: s.input for s in days} | {s.until: s.until_input for s in days}
        return {
            name: form if form in TIME_FORMS else "seconds" for name, form in forms.items() if name
        }
