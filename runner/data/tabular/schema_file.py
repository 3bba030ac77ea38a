"""What a user's YAML declares of the columns of a table: read, checked, named by its keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from runner.errors import ConfigError, nearest_hint

ROLES = ("labels", "weight", "numeric", "categorical", "sequences", "groups", "carried")
LOCATION_KEYS = ("path", "validation_path", "test_path", "split")


@dataclass(frozen=True)
class LabelSpec:
    name: str
    column: str = ""
    type: str = "binary"  # or regression
    allowed: tuple[float, ...] | None = None
    above: float | None = None  # 1 for a value over this, 0 otherwise


@dataclass(frozen=True)
class NumericSpec:
    name: str
    column: str = ""
    log1p: bool = False
    standardise: bool = False  # by mean and standard deviation of the train split, after log1p
    clip: tuple[float | None, float | None] = (None, None)
    default: float | None = None


@dataclass(frozen=True)
class IdSpec:
    """Ids of a look-up: `categorical`, and with a `max_length` of `sequences`."""

    name: str
    column: str = ""
    encode: str = "as_is"  # hash, vocabulary, bucketise
    num_rows: int | None = None  # None: what the data holds; hash needs it
    salt: int = 0
    min_count: int = 1  # of a vocabulary: in the train split, to get a row of its own
    boundaries: tuple[float, ...] = ()  # of bucketise; or `buckets` of equal size are learnt
    buckets: int | None = None
    default: int | None = None  # id of a missing value; None: an error, or vocabulary's own row
    out_of_range: str = "error"  # of as_is: error, or default
    list: bool = False
    separator: str = ""  # of lists that are written as texts
    weights: str = ""  # column with a list of weights as long
    pooling: str = "sum"
    cross: tuple[str, ...] = ()  # columns whose combination is hashed
    input: str = "auto"  # of texts in files: integer, or string; auto: by the column's type
    table: str = ""
    max_length: int = 0
    keep: str = "last"  # which end of a longer sequence
    order_by: str = ""  # column with a list of times as long

    @property
    def is_sequence(self) -> bool:
        return self.max_length > 0

    @property
    def is_list(self) -> bool:
        return self.list or bool(self.separator) or bool(self.weights) or self.is_sequence

    @property
    def columns(self) -> tuple[str, ...]:
        """All that it is made of."""
        more = tuple(c for c in (self.weights, self.order_by) if c)
        return (*(self.cross or (self.column,)), *more)


CHOICES = {
    "type": ("binary", "regression"),
    "encode": ("as_is", "hash", "vocabulary", "bucketise"),
    "out_of_range": ("error", "default"),
    "pooling": ("sum", "mean"),
    "input": ("auto", "integer", "string"),
    "keep": ("last", "first"),
}


@dataclass(frozen=True)
class Declared:
    labels: tuple[LabelSpec, ...]
    numeric: tuple[NumericSpec, ...] = ()
    ids: tuple[IdSpec, ...] = ()  # pooled ones, then sequences
    weight: str | None = None
    groups: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    places: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column of the files that is needed, each once."""
        names = [spec.column for spec in self.labels] + [spec.column for spec in self.numeric]
        names += [column for spec in self.ids for column in spec.columns]
        names += [self.weight] if self.weight else []
        return tuple(dict.fromkeys([*names, *self.groups, *self.carried]))


def parse_schema(schema: Mapping[str, Any], where: str = "dataset.schema") -> Declared:
    """Raises: ConfigError naming the key that is wrong, and the nearest right one."""
    _known(schema, (*ROLES, *LOCATION_KEYS), where)
    labels = tuple(_specs(schema, "labels", LabelSpec, where))
    if not labels:
        raise ConfigError(f"{where}.labels: no label is declared")
    pooled = tuple(_specs(schema, "categorical", IdSpec, where))
    sequences = tuple(_specs(schema, "sequences", IdSpec, where))
    for spec in pooled:
        _check_id(spec, f"{where}.categorical.{spec.name}")
        if spec.max_length:
            raise ConfigError(f"{where}.categorical.{spec.name}.max_length: is for sequences")
    for spec in sequences:
        _check_id(spec, f"{where}.sequences.{spec.name}")
        if not spec.is_sequence:
            raise ConfigError(f"{where}.sequences.{spec.name}.max_length is not set")
    weight = schema.get("weight")
    if weight is not None and not isinstance(weight, str):
        raise ConfigError(f"{where}.weight={weight!r}: needed is the name of a column")
    numeric = tuple(_specs(schema, "numeric", NumericSpec, where))
    names = [s.name for s in (*labels, *numeric, *pooled, *sequences)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{where}: {name!r} is declared twice; `column` takes one column for two"
            )
    return Declared(
        labels=labels,
        numeric=numeric,
        ids=(*pooled, *sequences),
        weight=weight,
        groups=_names(schema, "groups", where),
        carried=_names(schema, "carried", where),
        places={key: schema[key] for key in LOCATION_KEYS if schema.get(key) is not None},
    )


def _specs(schema: Mapping[str, Any], role: str, kind: type, where: str) -> Iterator[Any]:
    """`role: {name: {setting: value}}`, or `role: [name]` for all defaults; {1..9} counts."""
    given = schema.get(role) or {}
    if isinstance(given, (list, tuple)):
        given = dict.fromkeys(given)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}.{role}={given!r}: needed is `name: {{settings}}` a column")
    known = {f.name: f for f in fields(kind) if f.name != "name"}
    for pattern, settings in given.items():
        settings = settings or {}
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{where}.{role}.{pattern}={settings!r}: needed are settings")
        _known(settings, known, f"{where}.{role}.{pattern}")
        values = {
            key: _value(value, known[key], f"{where}.{role}.{pattern}.{key}")
            for key, value in settings.items()
        }
        for name in expand_pattern(str(pattern)):
            yield kind(**{"column": name, **values, "name": name})


def expand_pattern(pattern: str) -> list[str]:
    """`C{1..3}` -> C1, C2, C3."""
    found = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", pattern)
    if not found:
        return [pattern]
    head, first, last, tail = found.groups()
    return [f"{head}{n}{tail}" for n in range(int(first), int(last) + 1)]


def _value(value: Any, known: Any, where: str) -> Any:
    if known.name in CHOICES and value not in CHOICES[known.name]:
        choices = CHOICES[known.name]
        raise ConfigError(
            f"{where}={value!r}: one of {', '.join(choices)}{nearest_hint(str(value), choices)}"
        )
    wanted = str(known.type)
    if wanted.startswith("tuple") and isinstance(value, (list, tuple)):
        number = "float" in wanted
        wrong = [v for v in value if not isinstance(v, (int, float) if number else str)]
        if not [v for v in wrong if v is not None] and (not wrong or "None" in wanted):
            return tuple(value)
    elif value is None and "None" in wanted:
        return None
    elif isinstance(value, bool):
        if wanted == "bool":
            return value
    elif wanted.startswith("int") and isinstance(value, int):
        return value
    elif wanted.startswith("float") and isinstance(value, (int, float)):
        return float(value)
    elif wanted == "str" and isinstance(value, str):
        return value
    spoken = {"int": "a whole number", "bool": "true or false", "str": "a text"}
    need = spoken.get(wanted.split(" ")[0], "a list" if wanted.startswith("tuple") else "a number")
    raise ConfigError(f"{where}={value!r}: needed is {need}")


def _check_id(spec: IdSpec, where: str) -> None:
    if spec.encode == "hash" and not spec.num_rows and not spec.cross:
        raise ConfigError(f"{where}.num_rows: hash needs the number of rows to spread over")
    if spec.cross and (spec.encode not in ("as_is", "hash") or not spec.num_rows):
        raise ConfigError(f"{where}.num_rows: a cross is hashed: needed is the number of rows")
    if len(spec.cross) == 1 or (spec.cross and spec.is_list):
        raise ConfigError(
            f"{where}.cross={list(spec.cross)}: needed are two or more single columns"
        )
    if spec.encode == "bucketise" and bool(spec.boundaries) == bool(spec.buckets):
        raise ConfigError(f"{where}: bucketise needs either boundaries or a number of buckets")
    if list(spec.boundaries) != sorted(set(spec.boundaries)):
        raise ConfigError(
            f"{where}.boundaries={list(spec.boundaries)}: needed is an ascending list"
        )
    if spec.num_rows is not None and spec.num_rows < 1:
        raise ConfigError(f"{where}.num_rows={spec.num_rows}: needed is at least 1")
    if spec.out_of_range == "default" and spec.default is None:
        raise ConfigError(f"{where}.default is not set, which out_of_range=default needs")
    if spec.min_count < 1:
        raise ConfigError(f"{where}.min_count={spec.min_count}: needed is at least 1")
    if spec.weights and spec.is_sequence:
        raise ConfigError(f"{where}.weights: sequences take none")


def _names(schema: Mapping[str, Any], role: str, where: str) -> tuple[str, ...]:
    given = schema.get(role) or ()
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{where}.{role}={given!r}: needed is a list of columns")
    return tuple(dict.fromkeys(given))


def _known(given: Mapping[str, Any], known: Any, where: str) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}.{key}: there is no such key{nearest_hint(str(key), known)}")
