"""A table of clicks with columns of all kinds, and runs that were trained on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.conftest import Zygote
from tests.data.clicks import CITIES

SCHEMA: dict[str, Any] = {
    "labels": {"click": {}},
    "numeric": {
        "price": {"log1p": True, "clip": [0, None], "default": 0.0},
        "age": {"standardise": True, "default": 30},
    },
    "categorical": {
        "user": {"encode": "vocabulary"},  # integers
        "item": {"num_rows": 40, "table": "item"},
        "city": {"encode": "vocabulary", "min_count": 3},
        "device": {"encode": "hash", "num_rows": 50, "salt": 7, "default": 0},
        "price_level": {"column": "price", "encode": "bucketise", "buckets": 4},
        "words": {"separator": "|", "encode": "hash", "num_rows": 30, "pooling": "mean"},
        "user_city": {"cross": ["device", "city"], "num_rows": 1000},
    },
    "sequences": {"history": {"separator": "|", "max_length": 3, "table": "item", "num_rows": 40}},
    "groups": ["user"],
    "path": "train.parquet",
    "validation_path": "validation.parquet",
    "test_path": "test.parquet",
}
SETTINGS = (
    "dataset=parquet",
    "report=false",
    "trainer.num_threads=1",
    "trainer.batch_size=64",
    "trainer.max_epochs=2",
    "optimizer.sparse.lr=0.2",
)


def clicks(num_rows: int, seed: int) -> pa.Table:
    """Rows whose label depends on the user and the city."""
    rng = np.random.default_rng(seed)

    def some(values: list, share: float = 0.1) -> list:
        return [None if rng.random() < share else value for value in values]

    def lists(values: list[str]) -> list[str]:
        return ["|".join(rng.choice(values, rng.integers(0, 5))) for _ in range(num_rows)]

    user = rng.integers(1000, 1060, num_rows)
    city = rng.choice(len(CITIES), num_rows, p=[0.5, 0.3, 0.1, 0.08, 0.018, 0.002])
    chance = 1 / (1 + np.exp(-((user % 7) - 3) * 0.6 - (city - 1)))
    return pa.table(
        {
            "id": [f"row{n}" for n in range(num_rows)],
            "click": (rng.random(num_rows) < chance).astype(int),
            "price": pa.array(some(rng.integers(0, 30, num_rows).tolist()), pa.int32()),
            "age": pa.array(some(rng.uniform(10, 90, num_rows).tolist()), pa.float64()),
            "user": user,
            "item": rng.integers(0, 40, num_rows),
            "city": some([CITIES[n] for n in city]),
            "device": some([f"device {n}" for n in rng.integers(0, 9, num_rows)]),
            "words": lists(["x", "y", "z"]),
            "history": lists([str(n) for n in range(40)]),
        }
    )


def train(runner: Zygote, folder: Path, *more: str) -> Path:
    """Train on clicks in a folder; return the run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, rows) in enumerate((("train", 1500), ("validation", 300), ("test", 1000))):
        pq.write_table(clicks(rows, seed), folder / f"{name}.parquet", row_group_size=350)
    (folder / "clicks.yaml").write_text(json.dumps(SCHEMA))
    run = folder / "run"
    runner.run(
        *SETTINGS, f"dataset.schema={folder / 'clicks.yaml'}", f"hydra.run.dir={run}", *more
    ).check()
    return run
