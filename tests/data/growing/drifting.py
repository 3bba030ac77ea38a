"""A table whose users come and go: of a row, its user is one that has come lately."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

NUM_ITEMS = 80
USER = {"encode": "growing", "num_rows": 120, "evict": {"by": "lru", "every": 3, "share": 0.3}}
ITEM = {"encode": "growing", "num_rows": 70, "min_count": 2, "table": "item"}
TAGS = {"encode": "growing", "num_rows": 90, "list": True, "min_count": 2}
TAGS |= {"evict": {"by": "lfu", "every": 4}}
# read as they are
DIRECT: dict[str, Any] = {
    "labels": ["click"],
    "numeric": ["x"],
    "categorical": {"user": USER, "tags": TAGS, "place": {"encode": "hash", "num_rows": 20}},
}
# rewritten first: texts, and a sequence of the same table
REWRITTEN: dict[str, Any] = {
    **DIRECT,
    "categorical": {"user": USER, "item": ITEM, "tags": TAGS},
    "sequences": {"history": {**ITEM, "separator": "|", "max_length": 4}},
}
MODEL = (
    "model=din",
    "model.net.embedding_dim=4",
    "trainer.num_threads=1",
    "trainer.batch_size=32",
    "trainer.log_every=7",
    "checkpoint.save_every=5",
    "report=false",
)


def user_ids(numbers: np.ndarray) -> np.ndarray:
    """Any 64-bit integers: the splitting of one bit apart, a bijection."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def table(num_rows: int, *, first_row: int = 0, seed: int = 0) -> pa.Table:
    """Return rows of a stream, of which each user has its own chance of a click."""
    rng = np.random.default_rng(seed)
    user = (first_row + np.arange(num_rows)) // 4 - rng.integers(0, 40, num_rows)
    chance = 1 / (1 + np.exp(-1.5 * ((user * 7) % 5 - 2)))
    item = rng.integers(0, NUM_ITEMS, num_rows)
    return pa.table(
        {
            "click": (rng.random(num_rows) < chance).astype(np.int8),
            "x": rng.normal(size=num_rows),
            "user": _with_gaps(user_ids(user), 19),
            "item": _with_gaps([f"item {n}" for n in item], 23),
            "tags": [user_ids(user[n] // 9 + np.arange(n % 4)).tolist() for n in range(num_rows)],
            "place": rng.integers(0, 50, num_rows),
            "history": [
                "|".join(f"item {n}" for n in rng.integers(0, NUM_ITEMS, rng.integers(0, 6)))
                for _ in range(num_rows)
            ],
        }
    )


def _with_gaps(values: Iterable[Any], every: int) -> pa.Array:
    return pa.array([None if n % every == 0 else v for n, v in enumerate(values)])


def write(folder: Path, schema: dict[str, Any], *, num_rows: int = 1500) -> tuple[str, ...]:
    """Write a table of three splits and its schema; return the words of a run on them."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(num_rows), folder / "train.parquet", row_group_size=200)
    for seed, split in enumerate(("validation", "test"), 1):
        rows = table(300, first_row=num_rows - 300, seed=seed)
        pq.write_table(rows, folder / f"{split}.parquet")
    places = {f"{split}_path": f"{split}.parquet" for split in ("validation", "test")}
    content = {**schema, "path": "train.parquet", **places}
    (folder / "schema.yaml").write_text(yaml.safe_dump(content))
    return ("dataset=parquet", f"dataset.schema={folder / 'schema.yaml'}", *MODEL)
