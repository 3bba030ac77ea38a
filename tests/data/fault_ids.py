"""Fault 9: ids outside their tables, missing ids, ragged and empty lists.

The expected rows of the tables are computed here in plain Python, value by value.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from runner.errors import DataError
from tests.data.clicks import open_dataset
from tests.data.fault_values import ROWS, check_message, csv_text, write_files
from tests.fault_table import Table

SIZE, HASHED = 100, 37
ONE = {
    "plain": {"num_rows": SIZE},
    "defaulted": {"num_rows": SIZE, "default": 7},
    "forgiving": {"num_rows": SIZE, "default": 7, "out_of_range": "default"},
    "hashed": {"encode": "hash", "num_rows": HASHED},
    "hashed_or_default": {"encode": "hash", "num_rows": HASHED, "salt": 3, "default": 5},
    "known": {"encode": "vocabulary"},
    "known_or_default": {"encode": "vocabulary", "default": 0},
}
MANY = {
    "tags": {"list": True, "num_rows": SIZE},
    "tags_hashed": {"list": True, "encode": "hash", "num_rows": HASHED, "default": 5},
    "tags_known": {"list": True, "encode": "vocabulary"},
    "last": {"max_length": 3, "num_rows": SIZE},
    "first": {"max_length": 2, "keep": "first", "encode": "hash", "num_rows": HASHED},
}
BIG = 2**63 - 1
IDS = (-1, SIZE, SIZE - 1, 0, BIG, -(2**63), None, 1 << 31, 1 << 32, 50)
LISTS = (
    [], None, [None], [-1], [SIZE], [1, 2, BIG], [3, None, 4], [99] * 300, [5, 5, 5, 5],
    [0, 1, 2, SIZE], [-(2**63), 1], [7],
)  # fmt: skip
FORMATS = ("as it is", "rewritten", "csv")
USUAL = 11


def mixed(value: int, salt: int) -> int:
    """Hash an id by splitmix64 and multiply-shift, in Python's integers."""
    mask = 2**64 - 1
    x = (value + (salt + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return ((x ^ (x >> 31)) >> 32) * HASHED >> 32


def row_of(settings: dict[str, Any], value: int | None, known: list[int]) -> int | None:
    """Return the row of the table for one value; None if it is an error."""
    encode, default = settings.get("encode", "as_is"), settings.get("default")
    if encode == "vocabulary":
        if value is None:
            return 1 if default is None else default
        return 2 + known.index(value) if value in known else 0
    if value is None:
        return default
    if encode == "hash":
        return mixed(value, settings.get("salt", 0))
    if 0 <= value < SIZE:
        return value
    return default if settings.get("out_of_range") == "default" else None


def rows_of(settings: dict[str, Any], value: Any, known: list[int]) -> list[int] | None:
    """Return the rows of the table for the value of one example; None if it is an error."""
    values = [value] if not isinstance(value, list) else value
    if value is None and settings in MANY.values():
        values = []
    if longest := settings.get("max_length"):
        values = values[:longest] if settings.get("keep") == "first" else values[-longest:]
    found = [row_of(settings, v, known) for v in values]
    return None if None in found else [row for row in found if row is not None]


def bad_ids(table: Table, top: Path, *, short: bool) -> None:
    """Try 500 random cases of column, value, format and policy."""
    table.fault = "9: ids and lists"
    every = [
        *itertools.product(ONE, IDS, FORMATS, ("error", "skip")),
        *itertools.product(MANY, LISTS, FORMATS, ("error", "skip")),
    ]
    # in CSV, lists are texts with a separator, in which a missing value cannot be written
    every = [(n, v, f, p) for n, v, f, p in every if not (f == "csv" and None in listed(v))]
    for number, (name, value, format_, policy) in enumerate(
        random.Random(9).sample(every, 40 if short else 500)
    ):
        row = random.Random(number).randrange(ROWS)
        settings = dict({**ONE, **MANY}[name])
        columns: dict[str, list] = {"label": [n % 2 for n in range(ROWS)]}
        columns[name] = [[USUAL, 12]] * ROWS if name in MANY else [USUAL] * ROWS
        columns[name][row] = value
        type_ = pa.list_(pa.int64()) if name in MANY else pa.int64()
        if format_ == "csv":
            settings["input"] = "integer"  # otherwise they would be hashed, or counted, as texts
        if format_ == "csv" and name in MANY:
            columns[name] = [csv_text(v) for v in columns[name]]
            type_ = pa.string()
            settings = {k: v for k, v in settings.items() if k != "list"} | {"separator": "|"}
        whole = pa.table({"label": columns["label"], name: pa.array(columns[name], type_)})
        write_files(top / str(number), whole, format_)
        role = "sequences" if "max_length" in settings else "categorical"
        options = {
            "path": str(top / str(number)),
            "format": "csv" if format_ == "csv" else "parquet",
            "schema": {"labels": ["label"], role: {name: settings}},
            "rewrite": "auto" if format_ == "as it is" else "always",
            "on_bad_rows": policy,
            "mix": False,
        }
        table.judge(
            f"{name}={value}, row {row}, {format_}, {policy}",
            lambda o=options, n=name, v=value, r=row, f=format_: run_case(o, n, v, r, f),
        )


def listed(value: Any) -> list:
    return value if isinstance(value, list) else []


def run_case(options: dict[str, Any], name: str, value: Any, row: int, format_: str) -> str:
    settings = {**ONE, **MANY}[name]
    usual: Any = [USUAL, 12] if name in MANY else USUAL
    # all values of an integer column are in its vocabulary
    known = sorted({v for v in (*listed(value), *listed(usual), value, usual) if type(v) is int})
    wanted = rows_of(settings, value, known)
    try:
        data = open_dataset(**options)
        [batch] = data.batches("train", batch_size=ROWS)
    except DataError as error:
        assert wanted is None, f"refused, though it is fine: {error}"
        assert options["on_bad_rows"] == "error", f"not skipped: {error}"
        check_message(error, row, name, format_)
        return "named"
    ids = (batch.sequences if "max_length" in settings else batch.sparse)[name]
    found = [part.tolist() for part in ids.to_dense()]
    size = {f.name: f.num_rows for f in (*data.schema.sparse, *data.schema.sequences)}[name]
    assert all(0 <= i < size for own in found for i in own), "an id that its table does not have"
    others = rows_of(settings, usual, known)
    assert [own for r, own in enumerate(found) if r != row] == [others] * (ROWS - 1)
    if wanted is None:
        assert options["on_bad_rows"] == "skip", "no error"
        assert data.bad_rows["count"] == 1, data.bad_rows
        check_message(DataError(data.bad_rows["examples"][0]), row, name, format_)
        assert np.flatnonzero(batch.weights_B == 0).tolist() == [row]
        return "skipped in its place"
    assert data.bad_rows["count"] == 0 and found[row] == wanted, (found[row], wanted)
    default = settings.get("default")
    return "default" if default is not None and default in wanted else "taken"
