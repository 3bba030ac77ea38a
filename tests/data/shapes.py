"""Tables in the shapes of published data sets and of hostile ones, with the role of every column.

`make` writes a table with the published names of columns and about the published numbers of values,
as far as a few thousand rows can have them. The label follows a planted logistic model: every value
of an id has an effect, and every quantity a slope, so that whoever takes an id for a number loses.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from tests.data.shape_tables import TABLES

CATEGORICAL, NUMERIC, LEFT = "categorical", "numeric", "left out"
START_S = 1_413_849_600  # the 21st of October 2014
DAYS = 30
# kind of a column -> the roles that are right for it: two where it may be either
ROLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("id", "sparse", "hash", "code", "floats", "hex", "text"), (CATEGORICAL,)),
    **dict.fromkeys(("flag", "bool", "words", "bars", "carets", "list", "json"), (CATEGORICAL,)),
    **dict.fromkeys(("count", "age", "money", "gain", "real", "signed"), (NUMERIC,)),
    **dict.fromkeys(("yymmddhh", "yyyymmdd", "seconds", "ms", "iso", "stamp", "clock"), (LEFT,)),
    **dict.fromkeys(("const", "empty", "leak", "other", "vectors", "objects"), (LEFT,)),
    "unique": ("carried",),
    "prose": ("carried",),
    "weight": ("weight",),
    "label": ("labels",),
    "positive": ("labels",),
    "rating": ("labels",),
    "level": (CATEGORICAL, NUMERIC),
}
LABELS = ("label", "positive", "rating")


@dataclass(frozen=True)
class Column:
    """A column of a table: `name kind size`."""

    name: str
    kind: str
    size: int = 0  # how many values an id has
    base: int = 0  # the least of them
    missing: float = 0.0


@dataclass(frozen=True)
class Shape:
    """A table: its file's name, the flags that `schema` needs for it, and its columns."""

    file: str
    flags: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """Column -> the roles that are right."""
        return {column.name: ROLES[column.kind] for column in self.columns}


def _parse(text: str) -> Shape:
    """Parse a table: its file, flags, and columns as `name kind [size][@base][?missing]`."""
    first, *lines = text.strip().splitlines()
    file, *flags = first.split()
    columns = []
    for line in lines:
        for part in line.split(","):
            pattern, kind, *more = part.split()
            match = re.fullmatch(r"(\d*)(?:@(\d+))?(?:\?(\d+)%)?", more[0] if more else "")
            assert match, part
            size, base, missing = (int(n or 0) for n in match.groups())
            numbered = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}", pattern)
            names = [pattern]
            if numbered:
                first_n, last_n = int(numbered[2]), int(numbered[3])
                names = [f"{numbered[1]}{n}" for n in range(first_n, last_n + 1)]
            columns += [Column(n, kind, size, base, missing / 100) for n in names]
    return Shape(file, tuple(flags), tuple(columns))


SHAPES = {name: _parse(text) for name, text in TABLES.items()}


def make(name: str, folder: Path, num_rows: int = 3000, seed: int = 0) -> str:
    """Write a table and return its path; equal arguments write equal files."""
    shape = SHAPES[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    logit_R = np.zeros(num_rows)
    columns: dict[str, pa.Array] = {}
    for column in shape.columns:
        if column.kind not in (*LABELS, "leak"):
            values, effect_R = _make_column(column, num_rows, rng)
            columns[column.name] = values
            logit_R += effect_R
    logit_R = 1.5 * (logit_R - logit_R.mean()) / max(float(logit_R.std()), 1e-9) - 1.0
    y_R = rng.random(num_rows) < 1 / (1 + np.exp(-logit_R))
    for column in shape.columns:
        if column.kind in (*LABELS, "leak"):
            columns[column.name] = _make_label(column, y_R, rng, shape)
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({column.name: columns[column.name] for column in shape.columns})
    return _write(table, folder / shape.file, shape)


def _make_column(
    column: Column, num_rows: int, rng: np.random.Generator
) -> tuple[pa.Array, np.ndarray]:
    """Return the values, and their effect on the logit."""
    if make_plain := PLAIN.get(column.kind):
        return make_plain(num_rows, rng), np.zeros(num_rows)
    if make_quantity := QUANTITIES.get(column.kind):
        x_R = make_quantity(num_rows, rng)
        scaled_R = np.log1p(np.abs(x_R)) * np.sign(x_R)
        effect_R = rng.choice([-0.4, 0.4]) * (scaled_R - scaled_R.mean()) / (scaled_R.std() or 1)
        whole = column.kind in ("count", "age", "gain", "signed")
        values = x_R.astype(np.int64) if whole else x_R.round(3)
        return pa.array(values, mask=rng.random(num_rows) < column.missing), effect_R
    size = max(2, min(column.size or 2, num_rows // 4))
    shares = 1 / np.arange(1, size + 1) ** 0.8
    if column.kind in ("words", "bars", "carets", "list", "json"):
        return _make_lists(column, size, num_rows, rng), np.zeros(num_rows)
    codes_R = rng.permutation(size)[rng.choice(size, num_rows, p=shares / shares.sum())]
    effect_R = rng.normal(0, 0.6, size)[codes_R]
    values = _name_ids(column, codes_R, size, rng)
    return pa.array(values, mask=rng.random(num_rows) < column.missing), effect_R


def _name_ids(
    column: Column, codes_R: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    base = column.base
    match column.kind:
        case "flag" | "id" | "level":
            return codes_R + base
        case "bool":
            return codes_R == 1
        case "floats":
            return (codes_R + base).astype(np.float64)
        case "sparse":  # as of a table that is larger than these rows
            return np.sort(rng.choice(max(column.size, 10 * size), size, False))[codes_R] + base
        case "code":  # -1 for those that have none
            return np.where(codes_R == 0, -1, codes_R + (base or 100_000))
        case "hash":
            return rng.integers(-(2**62), 2**62, size)[codes_R]
        case "hex":
            return np.array([f"{n:08x}" for n in rng.integers(0, 2**32, size)])[codes_R]
        case "text":
            return np.array([f"{column.name[:4]} {n}" for n in range(size)])[codes_R]
    raise AssertionError(column.kind)


def _make_lists(column: Column, size: int, num_rows: int, rng: np.random.Generator) -> pa.Array:
    lists = [[f"v{n}" for n in rng.integers(0, size, rng.integers(1, 5))] for _ in range(num_rows)]
    if column.kind == "list":
        return pa.array(lists)
    if column.kind == "json":
        return pa.array([json.dumps(own) for own in lists])
    return pa.array(
        [{"words": " ", "bars": "|", "carets": "^"}[column.kind].join(o) for o in lists]
    )


def _make_label(
    column: Column, y_R: np.ndarray, rng: np.random.Generator, shape: Shape
) -> pa.Array:
    if column.kind == "leak":
        return pa.array((~y_R).astype(np.int64))
    if column.kind == "positive":
        positive = shape.flags[-1] if "--positive" in shape.flags else ">50K"
        return pa.array(np.where(y_R, positive, "<=50K" if positive == ">50K" else "pv"))
    if column.kind == "rating":
        return pa.array(np.where(y_R, rng.integers(4, 6, len(y_R)), rng.integers(1, 4, len(y_R))))
    first = next(c.name for c in shape.columns if c.kind == "label")
    return pa.array(
        (y_R & ((column.name == first) | (rng.random(len(y_R)) < 0.5))).astype(np.int64)
    )


def _times(num_rows: int, rng: np.random.Generator) -> np.ndarray:
    return START_S + np.sort(rng.integers(0, DAYS * 86400, num_rows))


def _format_times(pattern: str, offset: int = 0) -> Callable[..., pa.Array]:
    def make_times(num_rows: int, rng: np.random.Generator) -> pa.Array:
        times = pa.array(_times(num_rows, rng), pa.timestamp("s"))
        texts = pc.strftime(times, format=pattern)
        return texts if offset else texts.cast(pa.int64())

    return make_times


PLAIN: dict[str, Callable[[int, np.random.Generator], pa.Array]] = {
    "const": lambda n, rng: pa.array(["de"] * n),
    "empty": lambda n, rng: pa.nulls(n, pa.string()),
    "unique": lambda n, rng: pa.array([f"{i:016x}" for i in rng.integers(0, 2**62, n)]),
    "prose": lambda n, rng: pa.array(
        [" ".join(f"word{w}" for w in rng.integers(0, 400, 30)) for _ in range(n)]
    ),
    "vectors": lambda n, rng: pa.array(rng.random((n, 4)).round(2).tolist()),
    "objects": lambda n, rng: pa.array([[{"a": int(i)}] for i in rng.integers(0, 9, n)]),
    "other": lambda n, rng: pa.array(rng.integers(0, 2, n)),
    "weight": lambda n, rng: pa.array(rng.uniform(0.5, 2, n).round(2)),
    "yymmddhh": _format_times("%y%m%d%H"),
    "yyyymmdd": _format_times("%Y%m%d"),
    "iso": _format_times("%Y-%m-%d %H:%M:%S", 1),
    "seconds": lambda n, rng: pa.array(_times(n, rng)),
    "ms": lambda n, rng: pa.array(_times(n, rng) * 1000 + rng.integers(0, 1000, n)),
    "stamp": lambda n, rng: pa.array(_times(n, rng), pa.timestamp("s")),
    "clock": lambda n, rng: pa.array(_times(n, rng) - START_S),  # from an origin of its own
}
QUANTITIES: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "count": lambda n, rng: np.floor(rng.lognormal(2, 1.5, n)),
    "age": lambda n, rng: np.clip(np.rint(rng.normal(38, 13, n)), 17, 90),
    "money": lambda n, rng: rng.lognormal(3, 1, n),
    "gain": lambda n, rng: np.where(rng.random(n) < 0.8, 0, np.rint(rng.lognormal(7, 1.2, n))),
    "real": lambda n, rng: rng.normal(size=n),
    "signed": lambda n, rng: np.rint(rng.normal(0, 300, n)),
}


def _write(table: pa.Table, path: Path, shape: Shape) -> str:
    plain = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".bz2")
    if plain.endswith(".parquet"):
        pq.write_table(table, path)
        return str(path)
    with pa.output_stream(str(path), compression="detect") as out:
        if plain.endswith(".jsonl"):
            for row in table.to_pylist():
                out.write((json.dumps(row, default=str) + "\n").encode())
            return str(path)
        delimiter = {"semicolons": ";", "tabs": "\t"}.get(plain.split(".")[0], ",")
        delimiter = "\t" if plain.endswith(".tsv") else delimiter
        pacsv.write_csv(
            table,
            out,
            pacsv.WriteOptions(include_header="--columns" not in shape.flags, delimiter=delimiter),
        )
    return str(path)


def find_mistakes(shape: Shape, proposed: dict[str, str]) -> tuple[list[str], Sequence[str]]:
    """Return the columns with a wrong role, and those of them that are ids taken for numbers.

    Args:
        proposed: column -> its role; `left out` for none.
    """
    wrong = [name for name, right in shape.roles.items() if proposed[name] not in right]
    ids = [n for n in wrong if proposed[n] == NUMERIC and CATEGORICAL in shape.roles[n]]
    return wrong, ids
