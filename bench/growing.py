"""Growing tables: the time of an update's ids, the longest pause, and what is gained on a drift.

    python -m bench.growing [--rows 1000000] [--ids 8192,100000] [--updates 60] [--skip-mch]
    python -m bench.growing --drift-rows 400000 --updates 0

The first table is measured in processor time, in a full table: all that the trainer does with the
ids of an update, the reset of rows included. TorchRec's managed collisions (MCH) get the same ids.
The second has the generated stream `drift`, learnt once in its order: each user is there for a
while, and hashing has as many rows. Its best possible AUC is that of the probabilities that drew
the labels.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np

from bench.paired import machine, table

WIDTH, EVERY, SHARE = 16, 10, 0.1
STAY, ROWS_PER_USER = 400, 50  # a user is there while 400 new ones come, one in 50 rows
GROWING = {"encode": "growing", "evict": {"by": "lru", "every": 20, "share": 0.1}}
WAYS = {
    "growing, lru": GROWING,
    "growing, lfu": {**GROWING, "evict": {"by": "lfu", "every": 20, "share": 0.1}},
    "growing, lru, seen twice": {**GROWING, "min_count": 2},
    "growing, never evicted": {"encode": "growing"},
    "hash": {"encode": "hash"},
}


def updates_of(num_ids: int, known: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the ids of updates without end: two of three are new, one of three is a known one."""
    rng = np.random.default_rng(seed)
    while True:
        ids = rng.integers(-(2**62), 2**62, num_ids)
        ids[::3] = rng.integers(0, known, len(ids[::3]))
        yield ids


def our_update(num_rows: int, rules: object) -> Callable[[np.ndarray], None]:
    """Return what the trainer does with the ids of an update, in a table of rowwise Adagrad."""
    import torch
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from runner.batch import Batch, DataPosition, Schema, SparseFeature, TaskSpec
    from runner.data.growing.settings import Growth
    from runner.distributed.ranks import SINGLE_PROCESS
    from runner.embeddings.factory import build_tables
    from runner.embeddings.interface import TableSpec
    from runner.optim.settings import SparseSettings
    from runner.training.update.growing_ids import GrowingIds

    assert isinstance(rules, Growth)
    torch.set_num_threads(1)
    specs = [TableSpec("user", num_rows, WIDTH, ("user",))]
    settings = SparseSettings(kind="rowwise_adagrad", lr=0.1)
    tables = build_tables(specs, ("user",), settings, seed=0, device=torch.device("cpu"))
    schema = Schema((), (SparseFeature("user", num_rows),), (TaskSpec("click"),))
    ids = GrowingIds(
        {"user": rules}, schema, tables, specs, seed=0, ranks=SINGLE_PROCESS, log=lambda n, x: None
    )

    def update(ids_B: np.ndarray) -> None:
        size = len(ids_B)
        kjt = KeyedJaggedTensor(
            ["user"], torch.from_numpy(ids_B), lengths=torch.ones(size, dtype=torch.int64)
        )
        rows_B, one_B1 = torch.arange(size), torch.ones(size, 1)
        groups_BG = rows_B[:, None][:, :0]
        ids.grow(Batch(one_B1, kjt, None, one_B1, one_B1[:, 0], rows_B, groups_BG, DataPosition()))

    return update


def mch_update(num_rows: int) -> Callable[[np.ndarray], None]:
    """Return what TorchRec's managed collisions do with them, without a reset of rows."""
    import torch
    from torchrec.modules.mc_modules import LRU_EvictionPolicy, MCHManagedCollisionModule
    from torchrec.sparse.jagged_tensor import JaggedTensor

    module = MCHManagedCollisionModule(
        num_rows, torch.device("cpu"), LRU_EvictionPolicy(), eviction_interval=EVERY
    )
    module.train()

    def update(ids_B: np.ndarray) -> None:
        lengths = torch.ones(len(ids_B), dtype=torch.int64)
        # it takes ids from 0 on only
        features = {"user": JaggedTensor(torch.from_numpy(np.abs(ids_B)), lengths=lengths)}
        with torch.no_grad():
            module.remap(module.profile(features))

    return update


def timed(update: Callable[[np.ndarray], None], num_rows: int, num_ids: int, count: int) -> str:
    """Return the median and the longest processor time of an update, in a table that is full."""
    for part in np.array_split(np.arange(num_rows), 4):
        update(part)
    times = []
    source = updates_of(num_ids, num_rows, seed=0)
    for _ in range(count):
        ids = next(source)
        started = time.process_time()
        update(ids)
        times.append(time.process_time() - started)
    return f"{np.median(times) * 1e3:.3g}/{max(times) * 1e3:.3g}"


def show_times(num_rows: int, sizes: Sequence[int], count: int, *, with_mch: bool) -> None:
    """Print the time of an update for each kind of growing table."""
    from runner.data.growing.settings import Eviction, Growth

    evictions = {by: Eviction(by, EVERY, SHARE) for by in ("lru", "lfu")}
    ways: dict[str, Callable[[], Callable[[np.ndarray], None]]] = {
        "growing": lambda: our_update(num_rows, Growth()),
        "growing, lru": lambda: our_update(num_rows, Growth(evict=evictions["lru"])),
        "growing, lfu, seen twice": lambda: our_update(num_rows, Growth(2, evictions["lfu"])),
    }
    if with_mch:
        ways["TorchRec MCH, lru"] = lambda: mch_update(num_rows)
    rows = [
        [name, *(timed(make(), num_rows, n, count) for n in sizes)] for name, make in ways.items()
    ]
    print(f"median/longest ms of processor time, {num_rows:,} rows, eviction every {EVERY} updates")
    print(table(["ids of an update", *(f"{n:,}" for n in sizes)], rows))


def drift(num_rows: int, seed: int = 0) -> tuple[dict[str, np.ndarray], float]:
    """Return a stream whose users come and go, and the AUC of the probabilities of its labels."""
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(seed)
    user = np.arange(num_rows) // ROWS_PER_USER - rng.integers(0, STAY, num_rows)
    effect = rng.normal(size=num_rows // ROWS_PER_USER + STAY) * 1.5
    chance = 1 / (1 + np.exp(-effect[user + STAY]))
    click = (rng.random(num_rows) < chance).astype(np.int8)
    ids = (user.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    noise = rng.normal(size=num_rows).astype(np.float32)
    return {"click": click, "user": ids, "x": noise}, float(roc_auc_score(click, chance))


def progressive_auc(folder: Path, way: str, table_rows: int, num_rows: int) -> float:
    """Return the AUC over the second half of a stream, each row scored before it is learnt."""
    import yaml

    from runner.serving.api import train

    user = {**WAYS[way], "num_rows": table_rows}
    schema = {"labels": ["click"], "numeric": ["x"], "categorical": {"user": user}}
    name = f"way-{list(WAYS).index(way)}"
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(schema))
    batch_size = 256
    half = num_rows // 2 // batch_size
    run = train(
        [
            *("loop=online", "dataset=parquet", "dataset.mix=false", "model=deepfm"),
            *(f"dataset.path={folder / 'stream.parquet'}", f"dataset.schema={path}"),
            *("model.net.embedding_dim=4", "model.net.deep=[16]", "optimizer.sparse.lr=0.3"),
            *(f"trainer.batch_size={batch_size}", f"trainer.log_every={half}", "report=false"),
            *("trainer.max_epochs=1", "trainer.num_threads=1", "checkpoint.save_every=null"),
            f"hydra.run.dir={folder / name}",
        ]
    )
    windows = [json.loads(line) for line in (run.dir / "metrics.jsonl").read_text().splitlines()]
    return float(windows[1]["auc"])


def show_drift(num_rows: int, ways: Sequence[str] = tuple(WAYS)) -> dict[str, float]:
    """Print and return the AUC of some ways on the generated stream."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, best = drift(num_rows)
    table_rows = 3 * STAY
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pq.write_table(pa.table(columns), folder / "stream.parquet", row_group_size=65_536)
        found = {way: progressive_auc(folder, way, table_rows, num_rows) for way in ways}
    users = num_rows // ROWS_PER_USER + STAY
    print(f"{users:,} users, about {STAY} at a time, {table_rows:,} rows, best possible {best:.4f}")
    print(table(["ids", "AUC, second half"], [[way, f"{auc:.4f}"] for way, auc in found.items()]))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", default="8192,100000")
    parser.add_argument("--updates", type=int, default=60, help="0: no times")
    parser.add_argument("--drift-rows", type=int, default=0, help="0: no drift")
    parser.add_argument("--skip-mch", action="store_true")
    options = parser.parse_args(argv)
    print(machine(1))
    if options.updates:
        sizes = [int(size) for size in options.ids.split(",")]
        show_times(options.rows, sizes, options.updates, with_mch=not options.skip_mch)
    if options.drift_rows:
        show_drift(options.drift_rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
