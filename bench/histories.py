"""How fast histories are built of sorted and unsorted events, beside the Arrow sort that they need.

    python -m bench.histories [--events 1000000] [--max-length 50] [--turns 5]

Processor times of one thread, in turns: Arrow's sort of the events by user and time; our sort and
the histories of all rows; and the whole preparation of the same events as a Parquet file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.paired import machine, table
from runner.data.interactions.declaration import Interactions
from runner.data.interactions.histories import Events, history_columns, make_rows
from runner.data.prepare.recipe import prepare
from runner.data.prepare.shards import BLOCK_ROWS
from runner.data.tabular.table_recipe import TableRecipe

EVENTS_PER_USER = 33


def draw_events(count: int) -> pa.Table:
    """Return events in the order of their times; items have a long tail."""
    rng = np.random.default_rng(0)
    items = np.minimum(rng.pareto(1.0, count) * 20, 49_999).astype(np.int64)
    times = np.sort(rng.integers(1_500_000_000, 1_600_000_000, count))
    users = rng.integers(0, max(count // EVENTS_PER_USER, 1), count)
    return pa.table({"user": users, "item": items, "time": times})


def sort_by_arrow(events: pa.Table) -> None:
    events.sort_by([("user", "ascending"), ("time", "ascending")])


def build_histories(events: pa.Table, settings: Interactions) -> int:
    """Sort, and make the histories of all rows; return the number of their ids."""
    users, items, times = (events[name].to_numpy() for name in events.column_names)
    order_E = np.lexsort((times, users))
    split_E, ones_E = np.zeros(len(order_E), np.int8), np.ones(len(order_E), bool)
    times = times[order_E].astype(np.float64)
    rows = make_rows(Events(users[order_E], times, split_E, ones_E, ones_E), 0, settings)
    ids, total = {"history": pa.array(items[order_E].astype(np.int32))}, 0
    for first in range(0, len(rows.row_R), 4 * BLOCK_ROWS):
        block = rows.take(slice(first, first + 4 * BLOCK_ROWS))
        total += len(history_columns(block, times, ids, None)["history"].values)
    return total


def prepare_file(path: Path, cache: Path, settings: Interactions) -> None:
    """Prepare the events into a new cache folder."""
    os.environ["RUNNER_CACHE"] = str(cache)
    declared = {"user": "user", "item": "item", "time": "time", "max_length": settings.max_length}
    schema = {"path": str(path), "interactions": declared}
    prepare(TableRecipe("parquet", None, schema, split="leave_one_out"))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--max-length", type=int, default=50)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args(words)
    pa.set_cpu_count(1)
    events = draw_events(given.events)
    settings = Interactions("user", "item", "time", max_length=given.max_length)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        pq.write_table(events, path)
        fresh = iter(range(given.turns))
        kinds: dict[str, Callable[[], object]] = {
            "Arrow's sort": lambda: sort_by_arrow(events),
            "sort and histories": lambda: build_histories(events, settings),
            "the whole preparation": lambda: prepare_file(
                path, Path(folder) / f"cache-{next(fresh)}", settings
            ),
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(given.turns):
            for kind, measure in kinds.items():
                began = time.process_time()
                measure()
                seconds[kind].append(time.process_time() - began)
    sort_s = float(np.median(seconds["Arrow's sort"]))
    rows = [
        [kind, f"{s:.2f}", f"{given.events / s / 1e6:.2f}", f"{s / sort_s:.2f}"]
        for kind, s in ((kind, float(np.median(all_s))) for kind, all_s in seconds.items())
    ]
    print(machine(1))
    print(table(["", "seconds", "M events/s", "times Arrow's sort"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
