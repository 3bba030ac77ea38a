"""Parses the schema of a table, as a user's YAML declares its columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config_key import UNDECLARED, Key, field_hints
from runner.config_value import matches_type
from runner.data.columns.amounts import AMOUNT_FORMS
from runner.data.columns.column_rules import find_column_problems
from runner.data.columns.column_specs import (
    CHOICES,
    CHOICES_OF_NUMBERS,
    MOST_CLASSES,
    Declared,
    IdSpec,
    LabelSpec,
    NumericSpec,
)
from runner.data.columns.split_setting import parse_split
from runner.data.columns.vectors import expand_vectors
from runner.data.growing.settings import parse_eviction
from runner.data.interactions.declaration import INTERACTIONS, expand_schema, parse_interactions
from runner.errors import ConfigError, nearest_hint, raise_combined, unknown_keys

ROLES = ("labels", "weight", "numeric", "categorical", "sequences", "groups", "carried")
LOCATION_KEYS = ("path", "validation_path", "test_path", "split")
# settings of text files that are not in the usual format
TEXT_KEYS = ("delimiter", "quote", "decimal", "column_names")
DECIMALS = (".", ",")  # characters before the fraction of a number
PATTERN = re.compile(r"(.*)\{(\d+)\.\.(\d+)\}(.*)")  # a name for several columns
MAX_COLUMNS = 10_000  # that one pattern may expand to
RANGES: Mapping[type, Mapping[str, Key]] = {
    LabelSpec: {
        "allowed": Key(min_items=1),
        "scale": Key(gt=0),
        "classes": Key(min_items=2, max_items=MOST_CLASSES),
    },
    NumericSpec: {
        "clip": Key(min_items=2, max_items=2, note="null: no bound"),
        "size": Key(ge=1, le=MAX_COLUMNS),
    },
    IdSpec: {
        "num_rows": Key(ge=1, lt=2**31),
        "salt": Key(ge=0),
        "min_count": Key(ge=1),
        "buckets": Key(ge=1, lt=2**20),
        "default": Key(ge=0),
        "max_length": Key(ge=0, lt=2**20),
    },
}


def parse_schema(schema: Mapping[str, Any], where: str = "dataset.schema") -> Declared:
    """Parse the content of a schema file.

    Args:
        where: the file's name, for messages.

    Raises:
        ConfigError: naming every key that is wrong, its value, the rule, and the nearest right one.
    """
    known = (*ROLES, *LOCATION_KEYS, *TEXT_KEYS, INTERACTIONS)
    problems = list(unknown_keys(schema, known, where))
    interactions = parse_interactions(schema, where, problems)
    if interactions is not None:
        schema = expand_schema(schema, interactions, where, problems)
    labels: list[LabelSpec] = _parse_specs(schema, "labels", LabelSpec, where, problems)
    vectors: list[NumericSpec] = _parse_specs(schema, "numeric", NumericSpec, where, problems)
    pooled: list[IdSpec] = _parse_specs(schema, "categorical", IdSpec, where, problems)
    sequences: list[IdSpec] = _parse_specs(schema, "sequences", IdSpec, where, problems)
    if not schema.get("labels") and not schema.get(INTERACTIONS):
        problems.append(f"{where}.labels: no label is declared")
    problems += find_column_problems(labels, vectors, pooled, sequences, where)
    numeric = expand_vectors(vectors)
    labels = [part for spec in labels for part in spec.split_classes()]
    weight = schema.get("weight")
    if weight is not None and not isinstance(weight, str):
        problems.append(f"{where}.weight={weight!r}: expected the name of a column")
    counts = Counter(s.name for specs in (labels, numeric, pooled, sequences) for s in specs)
    problems += [
        f"{where}: {n!r} is declared twice; give one of them another name, and the name of its "
        f"column as `column: {n}`"
        for n, count in counts.items()
        if count > 1
    ]
    groups, carried = (
        _parse_column_names(schema, role, where, problems) for role in ("groups", "carried")
    )
    problems += _location_problems(schema, where)
    places = _parse_places(schema, where, problems)
    if interactions is not None:
        places[INTERACTIONS] = interactions
    raise_combined(problems)
    return Declared(
        labels=tuple(labels),
        numeric=numeric,
        ids=(*pooled, *sequences),
        weight=weight,
        groups=groups,
        carried=carried,
        places=places,
    )


def _location_problems(schema: Mapping[str, Any], where: str) -> Iterator[str]:
    for name in LOCATION_KEYS:
        value = schema.get(name)
        if name == "split":
            try:
                parse_split(value, f"{where}.split")
            except ConfigError as error:
                yield str(error)
        elif value is not None and not (
            isinstance(value, str)
            or (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value))
        ):
            yield f"{where}.{name}={value!r}: expected a path, or a list of paths"


def is_delimiter(value: object) -> bool:
    """Return whether a value can separate the columns of a text file."""
    is_one = isinstance(value, str) and len(value) == 1 and value.isascii()
    return is_one and value not in ('"', "\r", "\n")


def _parse_places(schema: Mapping[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
    places = {k: schema[k] for k in (*LOCATION_KEYS, *TEXT_KEYS) if schema.get(k) is not None}
    delimiter = places.get("delimiter", ",")
    if not is_delimiter(delimiter):
        problems.append(f"{where}.delimiter={delimiter!r}: expected one character")
    if not isinstance(quote := places.get("quote", ""), str) or len(quote) > 1:
        problems.append(f"{where}.quote={quote!r}: expected one character, or '' for none")
    if (decimal := places.get("decimal", ".")) not in DECIMALS:
        problems.append(f"{where}.decimal={decimal!r}: expected one of {', '.join(DECIMALS)!r}")
    if "column_names" in places:
        names = _parse_column_names(schema, "column_names", where, problems)
        places["column_names"] = [name for n in names for name in expand_pattern(n)]
    return places


def _parse_specs(
    schema: Mapping[str, Any], role: str, kind: type, where: str, problems: list[str]
) -> list[Any]:
    """Return the specs of a role, from `role: {name: {setting: value}}` or `role: [name]`.

    A name such as `C{1..3}` expands to several columns.

    Args:
        problems: receives a message for every key that is wrong.
    """
    declared = schema.get(role) or {}
    if isinstance(declared, (list, tuple)):
        entries = [e for e in declared if not isinstance(e, str | int) or isinstance(e, bool)]
        if entries:
            problems.append(
                f"{where}.{role}: its list holds {entries[0]}, which is not the name of a "
                "column; to give columns settings, write `name: {settings}` for each, without a "
                "list"
            )
            return []
        counts = Counter(map(str, declared))
        problems += [f"{where}.{role}: {n!r} is declared twice" for n, c in counts.items() if c > 1]
        declared = dict.fromkeys(map(str, declared))
    if not isinstance(declared, Mapping):
        problems.append(
            f"{where}.{role}={declared!r}: expected `name: {{settings}}` for each column"
        )
        return []
    hints = field_hints(kind)
    known = {name: hints[name] for name in hints if name not in ("name", "element", "one_of")}
    choices = CHOICES_OF_NUMBERS if kind is NumericSpec else CHOICES
    choices = {**choices, "input": AMOUNT_FORMS} if kind is LabelSpec else choices
    specs = []
    for pattern, declaration in declared.items():
        key, settings = f"{where}.{role}.{pattern}", declaration or {}
        if not isinstance(settings, Mapping):
            problems.append(
                f"{key}={settings!r}: expected settings, of {', '.join(known)}, or none: {{}}"
            )
            continue
        own_problems = list(unknown_keys(settings, known, key))
        values = {}
        for name in filter(known.__contains__, settings):  # in their order
            try:
                values[name] = _parse_value(
                    settings[name], known[name], f"{key}.{name}", choices.get(name)
                )
            except ConfigError as error:
                own_problems.append(str(error))
                continue
            range_ = RANGES[kind].get(name, UNDECLARED)  # a number must be finite in any case
            if problem := range_.find_problem(f"{key}.{name}", values[name]):
                own_problems.append(problem)
        try:
            names = expand_pattern(str(pattern), where=f"{where}.{role}")
        except ConfigError as error:
            own_problems.append(str(error))
        problems += own_problems
        if not own_problems:
            specs += [kind(**{"column": name, **values, "name": name}) for name in names]
    return specs


def expand_pattern(pattern: str, where: str = "") -> list[str]:
    """Return the names to which a pattern expands: C1, C2 and C3 for `C{1..3}`.

    Raises:
        ConfigError: for a pattern that expands to no column, or to too many.
    """
    match = PATTERN.fullmatch(pattern)
    if not match:
        return [pattern]
    head, first, last, tail = match.groups()
    are_short = len(first) < 10 and len(last) < 10  # Python refuses to parse a very long number
    if not are_short or not 1 <= int(last) - int(first) + 1 <= MAX_COLUMNS:
        place = f"{where}.{pattern[:80]}" if where else pattern[:80]
        raise ConfigError(
            f"{place}: stands for one column at least and {MAX_COLUMNS:,} at most, "
            "from the lower number to the higher one"
        )
    return [f"{head}{n}{tail}" for n in range(int(first), int(last) + 1)]


def _parse_value(value: Any, hint: Any, where: str, choices: tuple[str, ...] | None) -> Any:
    name = where.rpartition(".")[2]
    if choices and value not in choices:
        raise ConfigError(
            f"{where}={value!r}: expected one of {', '.join(choices)}"
            f"{nearest_hint(str(value), choices)}"
        )
    if name == "evict":
        return parse_eviction(value, where)
    if name == "classes" and isinstance(value, (list, tuple)):
        value = [str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in value]
    if matches_type(value, hint):
        if isinstance(value, (list, tuple)):
            return tuple(value)
        return float(value) if matches_type(0.5, hint) and value is not None else value
    expected = {bool: "true or false", str: "a text"}.get(hint, "a whole number")
    if matches_type([0.5], hint):
        expected = "a list of numbers"
    elif matches_type([], hint):
        values = value if isinstance(value, (list, tuple)) else [value]
        texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
        expected = f"a list of texts, such as {texts}"
    elif matches_type(0.5, hint):
        expected = "a number"
    raise ConfigError(f"{where}={value!r}: expected {expected}")


def _parse_column_names(
    schema: Mapping[str, Any], role: str, where: str, problems: list[str]
) -> tuple[str, ...]:
    declared = schema.get(role) or ()
    if not isinstance(declared, list | tuple) or not all(isinstance(n, str) for n in declared):
        problems.append(f"{where}.{role}={declared!r}: expected a list of columns")
        return ()
    return tuple(dict.fromkeys(declared))
