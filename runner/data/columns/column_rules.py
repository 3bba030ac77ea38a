"""Rules on how the settings of declared columns may be combined."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.data.columns.amounts import AMOUNT_FORMS
from runner.data.columns.column_specs import MATCHES, IdSpec, LabelSpec, NumericSpec
from runner.data.columns.durations import DURATION
from runner.data.columns.times import DAYS, TIME_FORMS, TIME_PARTS
from runner.data.files.text_values import WORDS

LEAST_GROWING_ROWS = 3  # the shared row, the row of missing values, and one for an id
MOST_SIGHTINGS = 255  # before an id gets a row of a growing table: the maximum of a counter cell


def find_column_problems(
    labels: Sequence[LabelSpec],
    numbers: Sequence[NumericSpec],
    pooled: Sequence[IdSpec],
    sequences: Sequence[IdSpec],
    where: str,
) -> Iterator[str]:
    """Yield a message for every setting of a column that conflicts with another or needs one."""
    for column in numbers:
        yield from _numeric_problems(column, f"{where}.numeric.{column.name}")
    yield from _match_problems(numbers, [*pooled, *sequences], where)
    for label in labels:
        yield from _label_problems(label, f"{where}.labels.{label.name}")
    for spec in pooled:
        key = f"{where}.categorical.{spec.name}"
        yield from _id_problems(spec, key)
        if spec.max_length:
            yield f"{key}.max_length: only sequences have a length"
    for spec in sequences:
        key = f"{where}.sequences.{spec.name}"
        yield from _id_problems(spec, key)
        if not spec.is_sequence:
            yield f"{key}.max_length is not set"


def _label_problems(spec: LabelSpec, where: str) -> Iterator[str]:
    has_numbers = bool(spec.above is not None or spec.allowed or spec.input)
    if spec.positive and (spec.type != "binary" or has_numbers):
        yield f"{where}.positive: is for a binary label, without above, allowed and input"
    is_binary = spec.type == "binary"
    if spec.grades and (is_binary or has_numbers or len(set(spec.grades)) < len(spec.grades)):
        yield (
            f"{where}.grades: is for `type: regression`, without above, allowed and input, and "
            "names each text once"
        )
    if spec.link and (is_binary or spec.grades):
        yield f"{where}.link={spec.link}: is for `type: regression` of numbers from 0 on"
    if spec.scale is not None and not spec.link:
        yield f"{where}.scale={spec.scale:g}: is for a label with `link: log`"
    yield from _amount_problems(spec, where)
    has_more = replace(spec, classes=()) != LabelSpec(spec.name, spec.column)
    once = {text.strip() for text in spec.classes}
    if spec.classes and (has_more or len(once) < len(spec.classes)):
        yield f"{where}.classes: names each value once, without other settings than `column`"


def _amount_problems(spec: LabelSpec | NumericSpec | IdSpec, where: str) -> Iterator[str]:
    settings = {"unit": spec.unit, "missing": list(spec.missing)}
    for name in (name for name, value in settings.items() if value and not spec.amounts):
        yield f"{where}.{name}={settings[name]}: is for texts that are numbers: `input: amount`"
    if spec.unit and spec.input == DURATION:
        yield f"{where}.unit={spec.unit}: a duration has units of its own; leave it out"


def _numeric_problems(spec: NumericSpec, where: str) -> Iterator[str]:
    low, high = spec.clip
    if low is not None and high is not None and low >= high:
        yield f"{where}.clip={[low, high]}: the first must be below the second"
    if spec.separator and not (spec.size or spec.of):
        yield f"{where}.separator: is for a vector, whose number of values `size` says"
    if spec.separator == WORDS:
        yield f"{where}.separator: words: are ids; a vector of numbers has a mark between them"
    yield from _amount_problems(spec, where)
    if spec.input and spec.size:
        yield f"{where}.input={spec.input}: is for one amount a row, not for a vector"
    if spec.encode == DAYS and (spec.size or spec.input in AMOUNT_FORMS):
        yield f"{where}.encode={spec.encode}: is made of one time a row"
    if spec.encode in MATCHES and (spec.size or spec.input or not spec.of):
        yield f"{where}.encode={spec.encode}: is of ids in a list; `of` names the id's column"
    if spec.of and spec.encode not in MATCHES:
        yield f"{where}.of={spec.of}: is for an id in a list: encode: {' or '.join(MATCHES)}"
    if spec.encode != DAYS and (spec.input in TIME_FORMS or spec.until):
        key = f"until={spec.until}" if spec.until else f"input={spec.input}"
        yield f"{where}.{key}: is for the days of a time: encode: days"
    if spec.until_input and not spec.until:
        yield f"{where}.until_input={spec.until_input}: is for the column that `until` names"


def _match_problems(
    numbers: Sequence[NumericSpec], ids: Sequence[IdSpec], where: str
) -> Iterator[str]:
    """Yield a message for each column of a match of ids that is not a feature of its kind."""
    lists = {(s.column, s.separator) for s in ids if s.is_list}
    single = {s.column for s in ids if not (s.is_list or s.cross)}
    for spec in (s for s in numbers if s.of):
        key = f"{where}.numeric.{spec.name}"
        if (spec.column, spec.separator) not in lists:
            same = "of the same separator" if spec.separator else "of lists"
            other = min((by for name, by in lists if name == spec.column and by), default="")
            more = f"; that one has separator: {json.dumps(other)}, set it" if other else ""
            declares = f"which declares its ids{more}"
            yield f"{key}.column={spec.column}: expected a feature {same}, {declares}"
        if spec.of not in single:
            yield f"{key}.of={spec.of}: expected a feature of one id a row, which declares its ids"


def _id_problems(spec: IdSpec, where: str) -> Iterator[str]:
    if spec.encode == "hash" and not spec.num_rows and not spec.cross:
        yield f"{where}.num_rows is not set: hash needs the number of rows"
    if spec.cross and spec.encode == "growing":
        yield f"{where}.cross: a cross is hashed, so that it cannot be growing"
    elif spec.cross and (spec.encode not in ("as_is", "hash") or not spec.num_rows):
        yield f"{where}.num_rows: a cross is always hashed, which needs the number of rows"
    if len(spec.cross) == 1 or (spec.cross and spec.is_list):
        yield f"{where}.cross={list(spec.cross)}: expected two or more columns with one id a row"
    counted = {"vocabulary": "values", "bucketise": "buckets"}.get(spec.encode)
    if counted and spec.num_rows is not None:
        yield (
            f"{where}.num_rows={spec.num_rows}: its table has as many rows as its {counted} need; "
            "leave it out"
        )
    if spec.encode == "bucketise" and bool(spec.boundaries) == bool(spec.buckets):
        yield f"{where}: bucketise needs either boundaries or a number of buckets"
    if list(spec.boundaries) != sorted(set(spec.boundaries)):
        yield f"{where}.boundaries={list(spec.boundaries)}: expected an ascending list"
    if spec.out_of_range == "default" and spec.default is None:
        yield f"{where}.default is not set, which out_of_range=default needs"
    if spec.default is not None and spec.num_rows is not None and spec.default >= spec.num_rows:
        yield f"{where}.default={spec.default}: must be below num_rows={spec.num_rows}"
    is_part = spec.encode in TIME_PARTS
    if is_part and (spec.is_list or spec.cross or spec.input in ("integer", "string")):
        yield f"{where}.encode={spec.encode}: is made of one time a row"
    if not is_part and spec.input in TIME_FORMS:
        yield f"{where}.input={spec.input}: is for a part of a time: encode: hour, or weekday"
    if spec.input in AMOUNT_FORMS and (spec.encode != "bucketise" or spec.is_list):
        yield f"{where}.input={spec.input}: is for one amount a row in buckets: encode: bucketise"
    yield from _amount_problems(spec, where)
    if spec.weights and spec.is_sequence:
        yield f"{where}.weights: sequences have no weights"
    yield from _growing_problems(spec, where)


def _growing_problems(spec: IdSpec, where: str) -> Iterator[str]:
    if spec.encode != "growing":
        if spec.evict is not None:
            yield f"{where}.evict: is for encode: growing, whose rows can be taken back"
        return
    if spec.num_rows is None or spec.num_rows < LEAST_GROWING_ROWS:
        yield (
            f"{where}.num_rows={spec.num_rows}: growing needs the number of rows that its table "
            f"has when it is full, at least {LEAST_GROWING_ROWS:,}"
        )
    if spec.min_count > MOST_SIGHTINGS:
        yield f"{where}.min_count={spec.min_count}: growing counts to {MOST_SIGHTINGS} at most"
    if spec.default is not None or spec.out_of_range != "error":
        key = "default" if spec.default is not None else "out_of_range"
        yield (
            f"{where}.{key}: growing takes every id, and gives missing values row 1; leave it out"
        )
