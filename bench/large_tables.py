"""What rows of 16 bits cost, and a table that memory cannot hold.

    python -m bench.large_tables [--only dtype,disk] [--cgroup /sys/fs/cgroup/memory/NAME]
        [--limit-gb 1]

dtype: one update, the start and a save with rows in 16 bits. disk: a table three times the limit of
a new memory cgroup, in a process of that cgroup, beside the same in memory without a limit; hits
are ids of 20,000 rows. How cost grows with rows and tables: `bench.growth`.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bench.paired import machine, table
from runner.embeddings.factory import build_tables
from runner.embeddings.interface import EmbeddingTables, TableSpec
from runner.machine.memory import keep_freed_memory
from runner.optim.settings import parse_sparse
from runner.rundir.checkpoint import Checkpointer

CPU, DIM, HOT_ROWS = torch.device("cpu"), 16, 20_000
HIT_RATES = (1.0, 0.99, 0.9, 0.5)


def build(
    num_tables: int,
    num_rows: int,
    dtype: str = "fp32",
    scratch: Path | None = None,
    dim: int = DIM,
) -> EmbeddingTables:
    specs = [TableSpec(f"t{i}", num_rows, dim, (f"f{i}",)) for i in range(num_tables)]
    settings = parse_sparse({"kind": "rowwise_adagrad", "lr": 0.01, "dtype": dtype})
    order = [f"f{i}" for i in range(num_tables)]
    return build_tables(specs, order, settings, seed=0, device=CPU, scratch=scratch)


def random_ids(
    num_tables: int, num_rows: int, pooling: int, bags: int, seed: int
) -> KeyedJaggedTensor:
    """Draw uniform ids, `pooling` for each of a table's bags."""
    g = torch.Generator().manual_seed(seed)
    return KeyedJaggedTensor(
        keys=[f"f{i}" for i in range(num_tables)],
        values=torch.randint(0, num_rows, (num_tables * bags * pooling,), generator=g),
        lengths=torch.full((num_tables * bags,), pooling),
    )


def update_ms(tables: EmbeddingTables, batches: list[KeyedJaggedTensor], seconds: float) -> float:
    """Return the processor time of the fastest update."""
    best, began, step = math.inf, time.perf_counter(), 0
    while step < 2 * len(batches) or time.perf_counter() - began < seconds:
        ids = batches[step % len(batches)]
        start = time.process_time()
        step += 1
        tables.set_lr_and_step(0.01, step)
        pooled_BE = tables(ids)
        pooled_BE.backward(torch.ones_like(pooled_BE))
        best = min(best, time.process_time() - start)
    return 1000 * best


def measure_dtypes(seconds: float) -> str:
    """Return the table of 26 tables of 100,000 rows in each dtype."""
    rows: list[list[str]] = []
    for dtype in ("fp32", "bf16", "fp16"):
        began = time.perf_counter()
        tables = build(26, 100_000, dtype)
        started_s = time.perf_counter() - began
        batches = [random_ids(26, 100_000, 1, 4096, seed) for seed in range(4)]
        num_bytes = sum(t.nbytes for t in tables.state().values())
        update = f"{update_ms(tables, batches, seconds):.1f} ms"
        ends = (f"{started_s:.2f} s", f"{save_s(tables):.2f} s")
        rows.append([dtype, f"{num_bytes / 1e9:.2f}", update, *ends])
    return "\n" + table(("dtype", "GB", "an update", "start", "save"), rows)


def save_s(tables: EmbeddingTables) -> float:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        saver = Checkpointer(Path(folder) / "checkpoints", keep=1)
        began = time.perf_counter()
        saver.save(1, {f"tables/{k}": t for k, t in tables.state().items()}, {}, wait=True)
        return time.perf_counter() - began


def batch_of(hit_rate: float, num_rows: int, seed: int) -> Iterator[KeyedJaggedTensor]:
    """Yield batches of 4,096 bags of 10 ids, `hit_rate` of them of rows that occur often."""
    g = torch.Generator().manual_seed(seed)
    hot = torch.randint(0, num_rows, (HOT_ROWS,), generator=torch.Generator().manual_seed(0))
    while True:
        cold_V = torch.randint(0, num_rows, (40_960,), generator=g)
        hot_V = hot[torch.randint(0, HOT_ROWS, (40_960,), generator=g)]
        values = torch.where(torch.rand(40_960, generator=g) < hit_rate, hot_V, cold_V)
        yield KeyedJaggedTensor(keys=["f0"], values=values, lengths=torch.full((4096,), 10))


def hash_rows(weight_RD: Tensor) -> str:
    return hashlib.sha256(weight_RD[::97].contiguous().numpy().tobytes()).hexdigest()[:12]


def measure_disk(num_rows: int, scratch: Path | None, updates: int) -> None:
    """Print a line for each hit rate; the process is in its cgroup already."""
    keep_freed_memory()
    began = time.perf_counter()
    tables = build(1, num_rows, scratch=scratch)
    start_s = time.perf_counter() - began
    step = 0
    for rate in HIT_RATES:
        batches = batch_of(rate, num_rows, seed=step)
        for number in range(2 + updates):  # the first two fill the cache
            if number == 2:
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
                began = time.perf_counter()
            step += 1
            tables.set_lr_and_step(0.01, step)
            pooled_BE = tables(next(batches))
            pooled_BE.backward(torch.ones_like(pooled_BE))
        spent = time.perf_counter() - began
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
        print(f"{rate} {4096 * updates / spent} {faults / updates}", flush=True)
    print(f"start {start_s} save {save_s(tables)}", flush=True)
    print(f"rows {hash_rows(tables.state()['t0/weight'])}", flush=True)


def limited(cgroup: Path, limit_gb: float) -> None:
    """Make a memory cgroup of version 1 or 2 with a limit."""
    cgroup.mkdir(exist_ok=True)
    files = (cgroup / "memory.max", cgroup / "memory.limit_in_bytes")
    [file] = [file for file in files if file.exists()]
    file.write_text(str(int(limit_gb * 1e9)))


def run_disk(cgroup: Path | None, limit_gb: float, updates: int) -> str:
    num_rows = int(3 * limit_gb * 1e9 / (4 * (DIM + 1)))
    command = [sys.executable, "-m", "bench.large_tables", "--rows", str(num_rows)]
    command += ["--updates", str(updates)]
    found = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for name, more in (("disk", ["--scratch", folder]), ("memory", [])):
            if cgroup is not None and name == "disk":
                limited(cgroup, limit_gb)
                join = f"echo $$ > {cgroup}/cgroup.procs; exec "
                words = ["sh", "-c", join + " ".join([*command, *more])]
            else:
                words = [*command, *more]
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:  # -9: the system killed it for want of memory
                raise RuntimeError(f"{name}: exit {done.returncode}: {done.stderr[-2000:]}")
            found[name] = [line.split() for line in done.stdout.splitlines()]
    *disk, disk_ends, disk_hash = found["disk"]
    *memory, memory_ends, memory_hash = found["memory"]
    rows = [
        [rate, f"{float(speed):,.0f}", f"{float(faults):,.0f}", f"{float(other[1]):,.0f}"]
        for (rate, speed, faults), other in zip(disk, memory, strict=True)
    ]
    limit = f"{limit_gb:g} GB of memory" if cgroup else "no limit"
    ends = [
        f"{name}: start {e[1]} s, save {e[3]} s" for name, e in zip(found, (disk_ends, memory_ends))
    ]
    equal = "the same bits" if disk_hash == memory_hash else "OTHER WEIGHTS"
    head = ("hit rate", "rows/s on disk", "page faults an update", "rows/s in memory")
    return f"\n{num_rows:,} rows, {limit}; {equal}\n{table(head, rows)}\n" + "\n".join(ends)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="dtype")
    parser.add_argument("--seconds", type=float, default=2, help="of each dtype")
    parser.add_argument("--cgroup", type=Path, help="of disk; a folder that is made")
    parser.add_argument("--limit-gb", type=float, default=1.0)
    parser.add_argument("--updates", type=int, default=20, help="of each hit rate")
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.rows:
        measure_disk(given.rows, given.scratch, given.updates)
        return 0
    keep_freed_memory()
    print(machine(1))
    for what in given.only.split(","):
        if what == "disk":
            print(run_disk(given.cgroup, given.limit_gb, given.updates), flush=True)
        else:
            print(measure_dtypes(given.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
