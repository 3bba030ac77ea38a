"""Fault 8: labels, weights and features that no training can use, in Parquet and CSV.

What must become of a value is computed here in plain Python, by `expected`.
"""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.errors import DataError
from tests.data.clicks import open_dataset
from tests.fault_table import Table

ROWS, GROUP_ROWS = 48, 16
LARGEST = float(np.finfo(np.float32).max)  # what a batch can hold
COLUMNS: dict[str, tuple[str, dict[str, Any], float]] = {  # role, settings, a harmless value
    "label": ("labels", {}, 1.0),
    "grade": ("labels", {"allowed": [1, 2, 3]}, 2.0),
    "soft": ("labels", {"allowed": [0, 0.5, 1]}, 0.5),
    "rating": ("labels", {"above": 3}, 4.0),
    "amount": ("labels", {"type": "regression"}, 0.5),
    "weight": ("weight", {}, 1.0),
    "plain": ("numeric", {}, 0.25),
    "log": ("numeric", {"log1p": True}, 3.0),
    "clipped": ("numeric", {"clip": [0, 10]}, 3.0),
    "both": ("numeric", {"clip": [0, None], "log1p": True}, 3.0),
    "filled": ("numeric", {"default": 1.5}, 0.75),
    "scaled": ("numeric", {"standardise": True, "default": 0}, 2.0),
}
VALUES = (math.nan, math.inf, -math.inf, None, 2.0, -1.0, 0.5, 1e39, -1e39, 1e300, 7.0, -0.0)
FORMATS = ("as it is", "rewritten", "csv")


def expected(name: str, value: float | None) -> float | None:
    """Return the value in the batch, None for an error; of `scaled`, any finite number will do."""
    role, settings, _ = COLUMNS[name]
    if value is None or (role == "numeric" and math.isnan(value)):
        value = settings.get("default")
    if value is None or not math.isfinite(value):
        return None
    if role == "weight":
        return value if 0 <= value <= LARGEST else None
    if role == "labels":
        if settings == {}:
            return value if value in (0, 1) else None
        if "allowed" in settings:
            return value if value in settings["allowed"] else None
        if "above" in settings:
            return float(value > settings["above"])
    low, high = settings.get("clip", [None, None])
    value = value if low is None else max(value, low)
    value = value if high is None else min(value, high)
    if settings.get("log1p") and value > -1 and value <= LARGEST:
        value = math.log1p(value)
    elif settings.get("log1p"):
        return None
    return value if abs(value) <= LARGEST else None


def declared(names: list[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for name in names:
        role, settings, _ = COLUMNS[name]
        if role == "weight":
            schema["weight"] = name
        else:
            schema.setdefault(role, {})[name] = settings
    return schema


def write_files(folder: Path, table: pa.Table, format_: str) -> None:
    """Write two files, of three row groups each if they are Parquet."""
    folder.mkdir()
    half = table.num_rows // 2
    for part, rows in enumerate((table.slice(0, half), table.slice(half))):
        if format_ != "csv":
            pq.write_table(rows, folder / f"{part}.parquet", row_group_size=GROUP_ROWS // 2)
            continue
        lines = [",".join(rows.column_names)]
        lines += [",".join(map(csv_text, row.values())) for row in rows.to_pylist()]
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


def csv_text(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(map(str, value))
    return "" if value is None else str(value)


def describe_place(row: int, format_: str) -> str:
    """Return the place of a row that an error must name."""
    part, within = divmod(row, ROWS // 2)
    if format_ == "csv":
        return f"{part}.csv: line {within + 2},"  # the first one has the names
    group, within = divmod(within, GROUP_ROWS // 2)
    return f"{part}.parquet: row group {group}, row {within},"


def check_message(error: DataError, row: int, name: str, format_: str) -> None:
    where = f"{describe_place(row, format_)} column {name!r}"
    assert where in str(error), f"{where!r} is not in {error}"


def bad_values(table: Table, top: Path, *, short: bool) -> None:
    """Try 500 random cases of column, value, format and policy."""
    table.fault = "8: labels, weights, features"
    every = list(itertools.product(COLUMNS, VALUES, FORMATS, ("error", "skip")))
    cases = random.Random(8).sample(every, 40 if short else 500)
    for number, (name, value, format_, policy) in enumerate(cases):
        row = random.Random(number).randrange(ROWS)
        needs_rewriting = ("scaled", "rating") if format_ == "as it is" else ()
        names = [n for n in COLUMNS if n not in needs_rewriting or n == name]
        columns = {n: [COLUMNS[n][2]] * ROWS for n in names}
        columns[name][row] = value
        whole = pa.table({n: pa.array(v, pa.float64()) for n, v in columns.items()})
        write_files(top / str(number), whole, format_)
        settings = {
            "path": str(top / str(number)),
            "format": "csv" if format_ == "csv" else "parquet",
            "schema": declared(names),
            "rewrite": "auto" if format_ == "as it is" else "always",
            "on_bad_rows": policy,
            "mix": False,
        }
        table.judge(
            f"{name}={value}, row {row}, {format_}, {policy}",
            lambda s=settings, n=name, v=value, r=row, f=format_: run_case(s, n, v, r, f),
        )


def run_case(settings: dict[str, Any], name: str, value: Any, row: int, format_: str) -> str:
    wanted = expected(name, value)
    try:
        data = open_dataset(**settings)
        [batch] = data.batches("train", batch_size=ROWS)
    except DataError as error:
        assert wanted is None, f"refused, though it is fine: {error}"
        assert settings["on_bad_rows"] == "error", f"not skipped: {error}"
        check_message(error, row, name, format_)
        return "named"
    for tensor in (batch.dense_BD, batch.labels_BT, batch.weights_B):
        assert tensor.isfinite().all(), "a batch that is not finite"
    if wanted is None:
        assert settings["on_bad_rows"] == "skip", "no error"
        assert data.bad_rows["count"] == 1, data.bad_rows
        check_message(DataError(data.bad_rows["examples"][0]), row, name, format_)
        assert np.flatnonzero(batch.weights_B == 0).tolist() == [row]
        return "skipped in its place"
    assert data.bad_rows["count"] == 0
    role, _, usual = COLUMNS[name]
    if role == "weight":
        assert batch.weights_B[row] == np.float32(wanted)
        return "taken"
    names, of_all = (
        ([t.name for t in data.schema.tasks], batch.labels_BT)
        if role == "labels"
        else (data.schema.dense, batch.dense_BD)
    )
    found = of_all[:, list(names).index(name)]
    if name != "scaled":
        assert math.isclose(float(found[row]), wanted, rel_tol=1e-6), (float(found[row]), wanted)
        others = np.delete(found.numpy(), row)
        assert np.allclose(others, expected(name, usual), rtol=1e-6)
    return "taken"
