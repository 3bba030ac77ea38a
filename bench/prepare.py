"""Speed and peak memory of `prepare`, by rows: `python -m bench.prepare --rows 1000000 10000000`.

The table is generated: 13 numeric columns, one in buckets, and 13 columns of ids with vocabularies,
two of which have about as many values as a fifth of the rows; `--only-ids` leaves a label and one
column in which nearly every row has an id of its own; `--csv` writes one CSV file. Each measurement
is a process of its own; its peak is the largest sum of the memory of it and its workers, sampled
from /proc. `--cgroup FOLDER` makes a memory cgroup there that has no more than `--memory`, pages of
files among it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import yaml

from bench.large_tables import limited
from runner.cli.prepare import parse_bytes

FILE_ROWS, GROUP_ROWS = 1 << 20, 1 << 18
NUMERIC, IDS = 12, 11
SAMPLE_S = 0.2


def make_table(
    folder: Path, num_rows: int, *, only_ids: bool = False, is_csv: bool = False
) -> Path:
    """Write the files, and the YAML that declares them."""
    numeric, ids, num_values = (0, 0, 50 * num_rows) if only_ids else (NUMERIC, IDS, num_rows // 5)
    names = ("user",) if only_ids else ("user", "item")
    (folder / "rows").mkdir(parents=True)
    for number, start in enumerate(range(0, num_rows, FILE_ROWS)):
        rng = np.random.default_rng([7, number])
        count = min(FILE_ROWS, num_rows - start)
        columns = {"label": pa.array(rng.integers(0, 2, count).astype(np.int8))}
        for n in range(numeric):
            columns[f"I{n}"] = pa.array(rng.standard_exponential(count, np.float32))
        columns["age"] = pa.array(rng.standard_normal(count, np.float32))
        for n in range(ids):  # few values are often, many are rare
            share = rng.random(count, np.float32) ** 4
            columns[f"C{n}"] = pa.array((share * 10 ** (2 + n // 2)).astype(np.int64))
        for name in names:  # spread over all 64 bits, as hashed ids are
            spread = rng.integers(max(num_values, 1), size=count).astype(np.uint64)
            columns[name] = pa.array((spread * np.uint64(0x9E3779B97F4A7C15)).view(np.int64))
        path = folder / "rows" / f"{number:05d}.parquet"
        if is_csv:
            with (folder / "rows" / "all.csv").open("ab") as file:
                names_too = pacsv.WriteOptions(include_header=not number)
                pacsv.write_csv(pa.table(columns), file, names_too)
            continue
        pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS, compression="zstd")
    vocabulary = {"encode": "vocabulary"}
    schema = {
        "path": "rows/all.csv" if is_csv else "rows",
        "split": {"random": {"train": 0.9, "validation": 0.05, "test": 0.05}},
        "labels": {"label": {}},
        "numeric": {f"I{n}": {"log1p": True, "standardise": True} for n in range(numeric)},
        "categorical": {
            **{f"C{n}": vocabulary for n in range(ids)},
            "age": {"encode": "bucketise", "buckets": 32},
            **dict.fromkeys(names, vocabulary),
        },
    }
    (folder / "table.yaml").write_text(yaml.safe_dump(schema))
    return folder / "table.yaml"


def measure(
    schema: Path, workers: int, memory: str, cache: Path, cgroup: Path | None = None
) -> tuple[float, ...]:
    """Return seconds, processor seconds, and the peak of all memory and of what is no file, MB."""
    words = [sys.executable, "-m", "runner", "prepare", "--schema", str(schema)]
    words += ["--workers", str(workers), "--memory", memory]
    if cgroup is not None:
        limited(cgroup, parse_bytes(memory) / 1e9)
        words = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh", *words]
    began = time.monotonic()
    spent = os.times()
    job = subprocess.Popen(
        words,
        env={**os.environ, "RUNNER_CACHE": str(cache)},
        stderr=subprocess.DEVNULL,
    )
    peaks = np.zeros(2)
    while job.poll() is None:
        peaks = np.maximum(peaks, np.sum([_memory(pid) for pid in _family(job.pid)], axis=0))
        time.sleep(SAMPLE_S)
    if job.returncode:
        raise SystemExit(f"prepare ended with {job.returncode}")
    now = os.times()
    used = now.children_user + now.children_system - spent.children_user - spent.children_system
    return time.monotonic() - began, used, *peaks


def _family(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return [pid]
    return [pid, *(descendant for child in own for descendant in _family(int(child)))]


def _memory(pid: int) -> tuple[float, float]:
    """Return the resident memory of a process and its part that is no file, in MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    facts = dict(line.split(":", 1) for line in lines)
    whole, own = (int(facts.get(name, "0 kB").split()[0]) for name in ("VmRSS", "RssAnon"))
    return whole / 1e3, own / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--only-ids", action="store_true")
    parser.add_argument("--csv", action="store_true")
    parser.add_argument("--cgroup", type=Path, help="a folder that is made")
    parser.add_argument("--folder", type=Path, help="where the files are written, and removed")
    options = parser.parse_args()
    print("rows | workers | rows/s | rows per processor second | peak, MB | of it no file, MB")
    for num_rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            schema = make_table(
                Path(folder), num_rows, only_ids=options.only_ids, is_csv=options.csv
            )
            for workers in options.workers:
                cache = Path(folder) / "cache"
                took, used, peak, own = measure(
                    schema, workers, options.memory, cache, options.cgroup
                )
                print(
                    f"{num_rows:,} | {workers} | {num_rows / took:,.0f} | {num_rows / used:,.0f} | "
                    f"{peak:,.0f} | {own:,.0f}",
                    flush=True,
                )
                shutil.rmtree(cache)


if __name__ == "__main__":
    main()
