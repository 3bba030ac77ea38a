"""A user's table with columns of all kinds, and its schema."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe

SCHEMA: dict[str, Any] = {
    "labels": {"click": {}, "rating": {"type": "regression"}},
    "weight": "importance",
    "numeric": {
        "price": {"log1p": True, "clip": [0, None], "default": 0.0},
        "age": {"standardise": True, "default": 30},
    },
    "categorical": {
        "user": {"num_rows": 100},
        "city": {"encode": "vocabulary", "min_count": 3},
        "device": {"encode": "hash", "num_rows": 50, "salt": 7, "default": 0},
        "price_level": {"column": "price", "encode": "bucketise", "boundaries": [5, 10, 20]},
        "tags": {"list": True, "encode": "vocabulary", "weights": "tag_weights"},
        "words": {"separator": "|", "encode": "hash", "num_rows": 30, "pooling": "mean"},
        "user_city": {"cross": ["user", "city"], "num_rows": 1000},
    },
    "sequences": {"history": {"max_length": 3, "table": "item", "num_rows": 40}},
    "groups": ["user", "fold"],
    "carried": ["id", "city"],
}
CITIES = ["Rome", "Oslo", "Lima", "Bath", "Köln", "Ur"]


def clicks(num_rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)

    def lists(make) -> list:
        return [make(int(rng.integers(0, 5))) for _ in range(num_rows)]

    def some(values: list, share: float = 0.1) -> list:
        return [None if rng.random() < share else value for value in values]

    tags = lists(lambda n: rng.choice(["a", "b", "c", "d"], n).tolist())
    return pa.table(
        {
            "id": [f"row{n}" for n in range(num_rows)],
            "click": rng.integers(0, 2, num_rows),
            "rating": rng.normal(size=num_rows),
            "importance": rng.uniform(0.5, 2, num_rows),
            "price": pa.array(some(rng.integers(-2, 30, num_rows).tolist()), pa.int32()),
            "age": pa.array(some(rng.uniform(10, 90, num_rows).tolist()), pa.float64()),
            "user": rng.integers(0, 100, num_rows),
            "city": some(
                rng.choice(CITIES, num_rows, p=[0.5, 0.3, 0.1, 0.08, 0.018, 0.002]).tolist()
            ),
            "device": some([f"device {n}" for n in rng.integers(0, 9, num_rows)]),
            "tags": tags,
            "tag_weights": [rng.uniform(0, 1, len(own)).tolist() for own in tags],
            "words": ["|".join(own) for own in lists(lambda n: rng.choice(["x", "y"], n).tolist())],
            "history": lists(lambda n: rng.integers(0, 40, n).tolist()),
            "time": pa.array(np.arange(num_rows) * 3600, pa.timestamp("s")),
            "fold": (np.arange(num_rows) % 5).astype(str),
        }
    )


def write_parquet(folder: Path, table: pa.Table, parts: int = 1) -> str:
    """Write `parts` Parquet files with one row group each; return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = np.linspace(0, table.num_rows, parts + 1).astype(int)
    for n, (start, stop) in enumerate(pairwise(ends)):
        pq.write_table(table.slice(start, stop - start), folder / f"part-{n}.parquet")
    return str(folder)


def write_text_table(path: Path, table: pa.Table, delimiter: str = ",") -> str:
    """Write a text file, in which lists are joined by bars; return its path."""
    for place, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            texts = ["|".join(map(str, own)) for own in table[field.name].to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts))
    options = pacsv.WriteOptions(delimiter=delimiter)
    pacsv.write_csv(table, path, write_options=options)
    return str(path)


def recipe_settings(**changes: Any) -> dict[str, Any]:
    settings = {"format": "parquet", "path": None, "schema": SCHEMA}
    return {**settings, **changes}


def open_dataset(**changes: Any):
    recipe = TableRecipe(**recipe_settings(**changes))
    recipe.check()
    return open_table(recipe, window_rows=1 << 17, prefetch=0)
