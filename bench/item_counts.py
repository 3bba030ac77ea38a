"""Counts of a large catalogue: the memory and the time of counting, and of draws by popularity.

    python -m bench.item_counts [--items 10000000] [--rows 2000000] [--negatives 512]

Item n is drawn with a chance that falls with its rank (Zipf). The memory is what the process takes
at most beyond what it took before.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np

from bench.paired import machine


def batches_of(num_items: int, num_rows: int) -> Iterator[object]:
    """Yield batches of 65,536 rows with an item each."""
    import torch
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from runner.batch import Batch, DataPosition
    from runner.training.catalogue import COUNT_ROWS

    rng = np.random.default_rng(0)
    one_B1, rows_B = torch.ones(COUNT_ROWS, 1), torch.arange(COUNT_ROWS)
    for start in range(0, num_rows, COUNT_ROWS):
        ids = torch.from_numpy((rng.zipf(1.2, COUNT_ROWS) * 7919) % num_items)
        kjt = KeyedJaggedTensor(["item"], ids, lengths=torch.ones_like(ids))
        place = DataPosition(0, start)
        yield Batch(one_B1, kjt, None, one_B1, one_B1[:, 0], rows_B, rows_B[:, None][:, :0], place)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--negatives", type=int, default=512)
    options = parser.parse_args(argv)
    import torch

    from runner.batch import DataPosition, Schema, SparseFeature, TaskSpec
    from runner.models.retrieval.negatives import NegativeSampler
    from runner.training.catalogue import count_ids

    torch.set_num_threads(1)
    schema = Schema((), (SparseFeature("item", options.items),), (TaskSpec("click"),))
    batches = list(batches_of(options.items, options.rows))
    before, started = peak_mb(), time.process_time()
    counts_I = count_ids(batches, schema, ["item"])  # type: ignore[arg-type]
    counting_s, counted = time.process_time() - started, peak_mb() - before
    sampler = NegativeSampler(options.items, popularity=options.negatives)
    sampler.counts_I.copy_(counts_I)
    del counts_I
    times = []
    for update in range(21):
        started = time.process_time()
        sampler.sample(DataPosition(0, update))
        times.append((time.process_time() - started) * 1e3)
    print(machine(1))
    print(f"{options.items:,} items, {len(batches) * 65_536:,} rows: counted in {counting_s:.2f} s")
    print(
        f"memory: {counted:.0f} MB to count, {peak_mb() - before:.0f} MB with draws at their most"
    )
    print(f"draws: {times[0]:.1f} ms the first time, then {np.median(times[1:]):.2f} ms an update")
    return 0


if __name__ == "__main__":
    sys.exit(main())
