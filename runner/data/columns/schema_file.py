"""Parses the schema of a table, as a user's YAML declares its columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from typing import Any

from runner.config_key import UNDECLARED, Key
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
        entries = [entry for entry in declared if not isinstance(entry, str | int)]
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
    known = {f.name: f for f in fields(kind) if f.name not in ("name", "element", "one_of")}
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
        for name in settings.keys() & known.keys():
            try:
                values[name] = _parse_value(settings[name], known[name], f"{key}.{name}", choices)
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


def _parse_value(
    value: Any, setting: Field[Any], where: str, choices: Mapping[str, tuple[str, ...]]
) -> Any:
    known = choices.get(setting.name)
    if known and value not in known:
        raise ConfigError(
            f"{where}={value!r}: expected one of {', '.join(known)}"
            f"{nearest_hint(str(value), known)}"
        )
    if setting.name == "evict":
        return parse_eviction(value, where)
    type_ = str(setting.type)
    if setting.name == "classes" and isinstance(value, (list, tuple)):
        value = [str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in value]
    if type_.startswith("tuple") and isinstance(value, (list, tuple)):
        of_numbers = "float" in type_
        wrong = [v for v in value if not isinstance(v, (int, float) if of_numbers else str)]
        if not [v for v in wrong if v is not None] and (not wrong or "None" in type_):
            return tuple(value)
    elif value is None and "None" in type_:
        return None
    elif isinstance(value, bool):
        if type_ == "bool":
            return value
    elif type_.startswith("int") and isinstance(value, int):
        return value
    elif type_.startswith("float") and isinstance(value, (int, float)):
        return float(value)
    elif type_ == "str" and isinstance(value, str):
        return value
    kinds = {"int": "a whole number", "bool": "true or false", "str": "a text"}
    expected = kinds.get(type_.split(" ")[0], "a number")
    if type_.startswith("tuple"):
        values = value if isinstance(value, (list, tuple)) else [value]
        texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
        expected = "a list of numbers" if "float" in type_ else f"a list of texts, such as {texts}"
    raise ConfigError(f"{where}={value!r}: expected {expected}")


def _parse_column_names(
    schema: Mapping[str, Any], role: str, where: str, problems: list[str]
) -> tuple[str, ...]:
    declared = schema.get(role) or ()
    if not isinstance(declared, list | tuple) or not all(isinstance(n, str) for n in declared):
        problems.append(f"{where}.{role}={declared!r}: expected a list of columns")
        return ()
    return tuple(dict.fromkeys(declared))
