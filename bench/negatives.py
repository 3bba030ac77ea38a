"""What each way to choose negatives is worth on generated pairs of users and items.

    python -m bench.negatives [--seeds 3] [--only memory,hard_table] [--purity 0.8]

A user likes items of one of 20 colours and, of these, mostly (`--purity`) those of one of 5 sizes;
how often an item of a group occurs falls with its rank. Each way is tried where its paper says that
it helps, against the same run without it; the metric is recall@4 over all 400 items on test.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np

from bench.paired import machine, table

COLOURS, SIZES, COPIES, USERS = 20, 5, 4, 1000
ITEMS = COLOURS * SIZES * COPIES
SMALL_BATCH = ("trainer.batch_size=16", "trainer.max_steps=1500")
# name -> settings of both runs, and those of the second one
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "memory": (
        (*SMALL_BATCH, "optimizer.dense.lr=0.0003", "optimizer.sparse.lr=0.01"),
        ("model.net.memory=256", "model.net.memory_warmup=500"),
    ),
    "hard_table": (("trainer.max_steps=80",), ("model.net.hard_table={folder}/refused.parquet",)),
    "hardest": (
        ("model.net.in_batch=false", "model.net.uniform=20", "model/loss=bpr"),
        ("model.net.hardest=2",),
    ),
    "exclude_known": (
        ("trainer.batch_size=1024",),
        ("model.net.exclude_known=true", "model.net.user=user"),
    ),
    "corrected": (SMALL_BATCH, ("model.loss.corrected=true",)),
    "learn_temperature": (
        ("model.net.temperature=1.0", "trainer.max_steps=600"),
        ("model.net.learn_temperature=true",),
    ),
}


def write_pairs(folder: Path, seed: int, purity: float) -> None:
    """Write three splits, a schema, and five refused items of each user: of its colour alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    colour, size = rng.integers(COLOURS, size=USERS), rng.integers(SIZES, size=USERS)
    weight = 1 / np.arange(1, COPIES + 1)
    for split, count in (("train", 60_000), ("validation", 2_000), ("test", 5_000)):
        user = rng.integers(USERS, size=count)
        is_own = rng.random(count) < purity
        of_size = np.where(is_own, size[user], rng.integers(SIZES, size=count))
        copy = rng.choice(COPIES, count, p=weight / weight.sum())
        item = (colour[user] * SIZES + of_size) * COPIES + copy
        columns = {"click": np.ones(count, np.int8), "user": user, "item": item}
        pq.write_table(pa.table(columns), folder / f"{split}.parquet", row_group_size=8192)
    others = (size[:, None] + np.arange(1, SIZES)) % SIZES
    refused = (colour[:, None] * SIZES + others) * COPIES
    lists = {"user": np.arange(USERS), "negatives": refused.tolist()}
    pq.write_table(pa.table(lists), folder / "refused.parquet")
    places = "".join(f"{s}_path: {s}.parquet\n" for s in ("validation", "test"))
    (folder / "schema.yaml").write_text(
        f"path: train.parquet\n{places}labels: [click]\ncategorical:\n"
        f"  user: {{num_rows: {USERS}}}\n  item: {{num_rows: {ITEMS}}}\n"
    )


def recall(folder: Path, name: str, seed: int, words: Sequence[str]) -> float:
    """Train, and return recall@4 on test."""
    from runner.serving.api import train

    run = train(
        [
            *("dataset=parquet", f"dataset.schema={folder / 'schema.yaml'}", "model=two_tower"),
            *("model.net.item=[item]", "model.net.embedding_dim=16", "model.net.user_tower=[32]"),
            *("model.net.out=16", "optimizer.sparse.lr=0.05", "optimizer.dense.lr=0.003"),
            *("trainer.batch_size=256", "trainer.max_steps=150", "trainer.num_threads=1"),
            *("metrics.candidates=full", "metrics.eval=[recall@4]", "metrics.train=[]"),
            *("metrics.leave_history_out=false", "trainer.yardstick=false", "report=false"),
            *("checkpoint.monitor.metric=validation/recall@4", "trainer.log_every=1000"),
            *(word.format(folder=folder) for word in words),
            *(f"seed={seed}", f"hydra.run.dir={folder / name}"),
        ]
    )
    return float(run.metrics["test/recall@4"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--purity", type=float, default=0.8)
    options = parser.parse_args(argv)
    rows = []
    for case in options.only.split(","):
        both, more = CASES[case]
        found: list[list[float]] = [[], []]
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                write_pairs(Path(folder), seed, options.purity)
                for number, words in enumerate((both, (*both, *more))):
                    found[number].append(recall(Path(folder), str(number), seed, words))
        means = [f"{np.mean(values):.3f}" for values in found]
        gains = " ".join(f"{b - a:+.3f}" for a, b in zip(*found))
        rows.append([case, *means, gains])
        print(rows[-1], flush=True)
    print(machine(1))
    print(table(["way", "without", "with", "difference of each seed"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
