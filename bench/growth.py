"""How cost grows with the rows: an epoch of 1M, 5M and 20M rows.

    python -m bench.growth [--sizes 1,5,20] [--turns 3] [--block-rows 1000000]

Files of a million rows, 13 numbers, 26 ids and three lists in each; the larger sizes are the same
file under several names, so that what grows is the number of rows, files and row groups, and the
page cache stays warm. Every measurement is a process of its own and they take turns; times are
processor times. RssAnon is what a process itself holds; `index`: what it reads before it starts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np

from bench.data import BATCH_SIZE, opened, read, schemas, write_rows
from bench.memory import held_mb, peak_mb
from bench.paired import machine, ratio, table

BLOCK_ROWS = 1_000_000  # of a file


def measure(folder: Path) -> None:
    """Print seconds to open, seconds of an epoch after a warm-up epoch, MB held and peak MB."""
    import torch

    torch.set_num_threads(1)
    began = time.process_time()
    data = opened(format="parquet", path=str(folder), schema=schemas()["lists"].schema)
    opened_s = time.process_time() - began
    warm = data.batches("train", batch_size=BATCH_SIZE, seed=99)
    for _ in zip(range(BLOCK_ROWS // BATCH_SIZE), warm):
        pass
    del warm
    print(opened_s, read(data, 0), held_mb(), peak_mb())


def copies(folder: Path, source: Path, count: int) -> Path:
    """Make a folder with `count` links to the same file."""
    folder.mkdir()
    for number in range(count):
        (folder / f"rows-{number:03}.parquet").hardlink_to(source)
    return folder


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--sizes", default="1,5,20", help="files of --block-rows each")
    words.add_argument("--turns", type=int, default=3)
    words.add_argument("--block-rows", type=int, default=BLOCK_ROWS)
    words.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.measure:
        measure(given.measure)
        return 0
    sizes = [int(size) for size in given.sizes.split(",")]
    found: dict[int, list[list[float]]] = {size: [] for size in sizes}
    print(machine(1))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        os.environ["RUNNER_CACHE"] = f"{name}/cache"
        source = Path(name) / "rows.parquet"
        write_rows(source, given.block_rows)
        folders = {size: copies(Path(name) / str(size), source, size) for size in sizes}
        for size in sizes * given.turns:
            command = [sys.executable, "-m", "bench.growth", "--measure", str(folders[size])]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
            found[size].append([float(word) for word in done.stdout.split()])
    rows = []
    for size in sizes:
        opened_s, epoch_s, held, peak = np.median(found[size], axis=0)
        per_row = [[one[1] / n for one in found[n]] for n in (size, sizes[0])]
        compared = ratio(*per_row)
        rows.append(
            [
                f"{size * given.block_rows:,}",
                f"{epoch_s:.2f} s",
                f"{1e9 * epoch_s / (size * given.block_rows):,.0f} ns",
                f"{compared.median:.2f}",
                f"{compared.smallest:.2f} to {compared.largest:.2f}",
                f"{1000 * opened_s:,.0f} ms",
                f"{held:,.0f} MB",
                f"{peak:,.0f} MB",
            ]
        )
    header = ("rows", "an epoch", "a row", "to the first", "all", "index", "held", "peak")
    print(f"\n{given.turns} turns, {time.monotonic() - began:.0f} s\n{table(header, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
