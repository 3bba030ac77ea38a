"""A table of clicks with a column for every transform, as a Parquet file and its schema."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

SCHEMA = {
    "labels": {"click": {}, "price": {"type": "regression"}},
    "numeric": {
        "age": {"standardise": True, "default": 30.0},
        "spent": {"log1p": True, "clip": [0, None]},
    },
    "categorical": {
        "city": {"encode": "vocabulary", "min_count": 2},
        "shop": {"num_rows": 10, "out_of_range": "default", "default": 0},
        "brand": {"num_rows": 7},
        "agent": {"encode": "hash", "num_rows": 50, "salt": 3},
        "hour": {"encode": "bucketise", "buckets": 4},
        "tags": {"encode": "vocabulary", "list": True, "weights": "tag_weights"},
        "pages": {"encode": "hash", "num_rows": 30, "separator": "|", "pooling": "mean"},
        "both": {"encode": "hash", "num_rows": 40, "cross": ["city", "brand"]},
    },
}


def with_gaps(values: Iterable[Any], every: int) -> pa.Array:
    return pa.array([None if i % every == 0 else v for i, v in enumerate(values)])


def table(num_rows: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    cities = np.array(["Bern", "Basel", "Chur", "Genf"])[random.integers(0, 4, num_rows)]
    lengths = random.integers(0, 4, num_rows)
    tags = [[f"t{random.integers(6)}" for _ in range(n)] for n in lengths]
    pages = ["|".join(f"p{p}" for p in random.integers(0, 90, i % 3)) for i in range(num_rows)]
    brand = random.integers(0, 7, num_rows)
    return pa.table(
        {
            "click": (random.random(num_rows) < 0.2 + 0.6 * (brand > 3)).astype(np.int8),
            "price": random.normal(size=num_rows).astype(np.float32),
            "age": with_gaps(random.integers(18, 80, num_rows).astype(float), 11),
            "spent": random.exponential(5, num_rows),
            "city": with_gaps(cities, 13),
            "shop": random.integers(0, 14, num_rows),
            "brand": brand,
            "agent": [f"agent {i}" for i in random.integers(0, 200, num_rows)],
            "hour": random.random(num_rows) * 24,
            "tags": with_gaps(tags, 17),
            "tag_weights": with_gaps([[0.5] * len(t) for t in tags], 17),
            "pages": pages,
        }
    )


def write(folder: Path, num_rows: int = 900) -> tuple[str, ...]:
    """Write table and schema; return the overrides of a small run on them."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(num_rows), folder / "clicks.parquet")
    (folder / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    return (
        "dataset=parquet",
        f"dataset.path={folder / 'clicks.parquet'}",
        f"dataset.schema={folder / 'schema.yaml'}",
        "dataset.split={random: {train: 0.6, validation: 0.2, test: 0.2}}",
        "model=mmoe",
        "model/loss=by_kind",
        "model.net.embedding_dim=5",
        "trainer.num_threads=1",
        "trainer.batch_size=32",
        "trainer.max_steps=30",
        "report=false",
        "checkpoint.monitor.metric=validation/auc/click",
    )
