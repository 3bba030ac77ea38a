"""Memory of the data layer: ten epochs, 1M against 20M rows; a vocabulary of 10M entries.

    python -m bench.memory [--rows 1000000 20000000] [--epochs 10] [--entries 10000000]
    python -m bench.memory --tables 0.25 1

Each case is a process of its own. RssAnon is what the process itself holds; pages of files that
the system keeps for it count as shared. The largest case is read again with one file open: what
up to 128 open files cost.

--tables GB [--num-tables 4]: the peak of each command of a run with one table (or several of
one size) of so many GB of weights and states (row-wise Adagrad, width 16), and what each further
byte of the tables adds to it. `no copy` is a training that finds no room for copying them when it
saves.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import pyarrow as pa

from bench.paired import machine, table

BLOCK_ROWS = 8192
BATCH_SIZE = 4096


def held_mb() -> float:
    """Return the RssAnon of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_rows(folder: Path, num_rows: int) -> list[Path]:
    """Write 40 columns as the cache has them: one block repeated, since only the size matters."""
    from runner.data.prepare.shards import ShardWriter

    rng = np.random.default_rng(0)
    columns = {"label": rng.integers(0, 2, BLOCK_ROWS, np.int8)}
    columns |= {f"I{n}": rng.integers(0, 50, BLOCK_ROWS).astype(np.float32) for n in range(13)}
    columns |= {f"C{n}": rng.integers(0, 1000, BLOCK_ROWS, np.int32) for n in range(26)}
    block, writer = pa.table(columns), ShardWriter(folder, "train")
    for _ in range(num_rows // BLOCK_ROWS):
        writer.write(block)
    return [folder / name for name in writer.close()]


def read(folder: Path, epochs: int, opened: int | None) -> None:
    """Print the memory that is held after every epoch."""
    from runner.batch import DataPosition
    from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn, NumericColumn
    from runner.data.read import decode
    from runner.data.read.parquet_dataset import ParquetDataset

    decode.MAX_OPEN_FILES = opened or decode.MAX_OPEN_FILES
    columns = Columns(
        labels=(LabelColumn("label"),),
        numeric=tuple(NumericColumn(f"I{n}") for n in range(13)),
        categorical=tuple(CategoricalColumn(f"C{n}", 1000) for n in range(26)),
    )
    before = held_mb()
    data = ParquetDataset({"train": sorted(folder.glob("train-*"))}, columns)
    indexed, held, began = held_mb(), [], time.process_time()
    for epoch in range(epochs):
        for _ in data.batches("train", batch_size=BATCH_SIZE, seed=0, start=DataPosition(epoch, 0)):
            pass
        held.append(held_mb())
    speed = epochs * data.num_rows["train"] / (time.process_time() - began)
    shown = " ".join(f"{value:.0f}" for value in held)
    print(
        f"{data.num_rows['train']:>11,} rows  in {len(list(folder.glob('train-*')))} files, "
        f"{decode.MAX_OPEN_FILES} open: imports {before:.0f} MB, index {indexed - before:.1f}"
        f" MB, after each epoch {shown} MB, peak {peak_mb():.0f} MB, {speed / 1e6:.2f}M rows/s"
    )


def count(entries: int) -> None:
    """Measure a vocabulary of distinct texts: counting as the fitting pass does, and looking up."""
    from runner.data.columns.hash_text import hash_texts
    from runner.data.columns.vocabulary import ValueCounter, look_up_ids

    before, began = held_mb(), time.process_time()
    counter = ValueCounter()
    for start in range(0, entries, 1 << 16):
        stop = min(start + (1 << 16), entries)
        texts = pa.array(np.arange(start, stop)).cast(pa.string())
        counter.add(np.repeat(hash_texts(texts), 2))
    vocabulary = counter.frequent_values(2)
    counted_s, peak = time.process_time() - began, peak_mb()
    del counter
    ids = look_up_ids(hash_texts(texts), vocabulary, np.zeros(len(texts), bool))
    assert len(vocabulary) == entries and int(ids.min()) > 1
    print(
        f"{entries:>11,} entries  {counted_s:.1f} s, {vocabulary.nbytes / 2**20:.0f} MB kept, "
        f"peak {peak - before:.0f} MB over imports"
    )


def table_peaks(gigabytes: float, num_tables: int, folder: Path) -> dict[str, float]:
    """Return the peak in GB of each command over a run with tables of that size together."""
    num_rows = int(gigabytes * 1e9 / (4 * 17) / num_tables)
    data = {"num_single": num_tables, "num_lists": 0, "num_numeric": 2, "num_pairs": 0}
    data |= {"min_cardinality": num_rows, "max_cardinality": num_rows}
    words = [
        *(f"dataset.{key}={value}" for key, value in data.items()),
        "dataset.rows={train: 20000, validation: 2000, test: 2000}",
        *("model=mlp", "model.net.embedding_dim=16", "model.net.deep=[16]", "report=false"),
        *("optimizer=rowwise_adagrad", "trainer.num_threads=1", "trainer.yardstick=false"),
    ]
    run = ["-m", "runner", *words]
    commands = {
        "prepare": [*run, f"hydra.run.dir={folder}/first", "trainer.max_steps=1"],
        "train": [*run, f"hydra.run.dir={folder}/run", "trainer.max_steps=3"],
        "train, no copy": ["-m", "bench.memory", "--scarce", *words]
        + [f"hydra.run.dir={folder}/scarce", "trainer.max_steps=3"],
        "resume": ["-m", "runner", "resume", f"{folder}/run", "trainer.max_steps=5"],
        "evaluate": ["-m", "runner", "loop=eval", f"run={folder}/run"]
        + [f"hydra.run.dir={folder}/evaluation"],
        "export": ["-m", "runner", "export", f"{folder}/run", "--out", f"{folder}/model"],
    }
    peaks = {}
    for name, command in commands.items():
        with (folder / "log").open("w") as log:
            process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
            _, status, used = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status):
            raise RuntimeError(f"{name}: {(folder / 'log').read_text()[-2000:]}")
        peaks[name] = used.ru_maxrss * 1024 / 1e9
        if name == "prepare":
            shutil.rmtree(folder / "first")
    return peaks


def measure_tables(sizes: Sequence[float], num_tables: int) -> None:
    """Print the peaks for each size of the tables, and the slope between the first and the last."""
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="memory-") as folder:
            os.environ["RUNNER_CACHE"] = f"{folder}/cache"
            found.append(table_peaks(size, num_tables, Path(folder)))
    span = sizes[-1] - sizes[0]
    rows = [
        [name, *(f"{peaks[name]:.2f} GB" for peaks in found)]
        + [f"{(found[-1][name] - found[0][name]) / span:.2f}" if span else ""]
        for name in found[0]
    ]
    header = ("peak", *(f"{size:g} GB" for size in sizes), "a byte of the tables")
    print(f"{machine(1)}\n\n{table(header, rows)}")


def run_scarce(words: Sequence[str]) -> int:
    """Run a command that finds no memory for copies of its state."""
    from runner.__main__ import main as run
    from runner.rundir.checkpoint import staging

    staging.available_memory_bytes = lambda: 0.0
    return run(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 20_000_000])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--open-files", type=int)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tables", type=float, nargs="+", help="GB of tables, smallest first")
    parser.add_argument("--num-tables", type=int, default=1)
    if sys.argv[1:2] == ["--scarce"]:
        sys.exit(run_scarce(sys.argv[2:]))
    options = parser.parse_args()
    if options.tables:
        return measure_tables(options.tables, options.num_tables)
    if options.read:
        return read(options.read, options.epochs, options.open_files)
    if options.count:
        return count(options.entries)
    again = [sys.executable, "-m", "bench.memory"]
    for num_rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            write_rows(Path(folder), num_rows)
            words = ["--read", folder, "--epochs", str(options.epochs)]
            counts = [options.open_files] if num_rows < max(options.rows) else [None, 1]
            for opened in [options.open_files] if options.open_files else counts:
                more = ["--open-files", str(opened)] if opened else []
                subprocess.run([*again, *words, *more], check=True)
    subprocess.run([*again, "--count", "--entries", str(options.entries)], check=True)


if __name__ == "__main__":
    main()
