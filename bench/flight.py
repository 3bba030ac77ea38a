"""The data service: rows a second from data servers, beside reading the files in the trainer.

    python -m bench.flight [--rows 600000] [--pairs 8] [--only training,transforms]

`training`: updates of the default model on rows like Criteo's, read by the trainer itself and by
one server. `transforms`: batches alone, of columns that cost more to read than a small model to
train (Parquet decoded from gzip, 13 logarithms, 26 hashes, three lists), from one
server and from two. The sides take turns, pass by pass. The clock on the wall counts, which other
work on the machine disturbs, so processor times of a million rows stand beside it: with a free core
for each process, the larger of them is what bounds the speed. Three processes on two cores hide
what a second server brings, so `--cgroup /sys/fs/cgroup/cpu` holds each of the two servers to half
a core: the trainer then has a core of its own, as on a machine beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np

from bench.data import BATCH_SIZE, opened, schemas, write_rows
from bench.paired import alternate, machine, ratio, shown, table
from runner.machine.memory import keep_freed_memory

CODEC = "gzip"
HEADER = ("what", "needed", "rows/s", "beside", "share", "95% interval", "all", "")
NEEDED = {"training": 0.95, "transforms": 5 / 3}
READY = re.compile(r"at (grpc://[^\s]+)\n")


class Server:
    """A server in a process of its own, by choice in a cgroup."""

    def __init__(self, schema: Path, log: Path, group: Path | None = None) -> None:
        words = [sys.executable, "-m", "runner", "data-serve", "--schema", str(schema)]
        with log.open("w") as output:
            self.process = subprocess.Popen([*words, "--port", "0"], stderr=output)
        if group is not None:  # before it has threads, which inherit it
            (group / "cgroup.procs").write_text(str(self.process.pid))
        while not (found := READY.search(log.read_text())):
            if self.process.poll() is not None:
                raise RuntimeError(f"the server has ended: {log.read_text()}")
            time.sleep(0.1)
        self.location = found.group(1)

    def cpu_s(self) -> float:
        """Return the processor time of all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def half_core(group: Path) -> Path:
    """Make a cgroup of version 1 or 2 whose processes get half a core together."""
    group.mkdir(exist_ok=True)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text("5000 10000")
    else:
        (group / "cpu.cfs_period_us").write_text("10000")
        (group / "cpu.cfs_quota_us").write_text("5000")
    return group


@contextmanager
def servers(schema: Path, groups: Sequence[Path | None]) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        started = []
        for number, group in enumerate(groups):
            started.append(Server(schema, schema.with_name(f"server-{number}.txt"), group))
            stack.callback(started[-1].process.wait)
            stack.callback(started[-1].process.terminate)
        yield started


def connect(chosen: list[Server], workers: int) -> Any:
    from runner.data.flight.dataset import open_flight
    from runner.data.flight.settings import FlightRecipe

    return open_flight(FlightRecipe([server.location for server in chosen]), workers=workers)


class Timed:
    """Passes over the rows, with the processor time of this process and of the servers."""

    def __init__(self, name: str, run: Callable[[], int], chosen: list[Server]) -> None:
        self.name, self._run, self._servers = name, run, chosen
        self.own_s, self.servers_s, self.rows = 0.0, 0.0, 0

    def __call__(self) -> float:
        wall, own = time.perf_counter(), time.process_time()
        before = sum(server.cpu_s() for server in self._servers)
        self.rows += self._run()
        self.own_s += time.process_time() - own
        self.servers_s += sum(server.cpu_s() for server in self._servers) - before
        return time.perf_counter() - wall

    def told(self) -> list[str]:
        per_million = 1e6 / self.rows
        return [self.name, f"{self.own_s * per_million:.2f}", f"{self.servers_s * per_million:.2f}"]


def compare(name: str, first: Timed, second: Timed, num_rows: int, pairs: int) -> list[str]:
    """Return how many rows a second `second` has, beside `first`."""
    first_s, second_s = alternate(first, second, pairs)
    share = ratio(first_s, second_s)
    needed = NEEDED[name]
    verdict = "held" if share.low >= needed else "missed" if share.high < needed else "open"
    speeds = [f"{num_rows / float(np.median(s)) / 1e6:.3f}M" for s in (second_s, first_s)]
    return [name, f"{needed:.2f}", *speeds, *shown(share, digits=2), verdict]


def training(schema: Path, num_rows: int, pairs: int) -> tuple[list[str], list[Timed]]:
    from bench.jobs import job_to_update, prepared

    words = ("dataset=parquet", f"dataset.schema={schema}", "trainer.num_threads=1")
    job = job_to_update(prepared(words))
    job.context.model.train()

    def train(data: Any) -> int:
        batches = data.batches("train", batch_size=BATCH_SIZE, seed=0)
        for _ in range(-(-num_rows // BATCH_SIZE)):
            job.task.train_step(job.context, batches)
        return num_rows

    with servers(schema, [None]) as started:
        served = connect(started, workers=1)
        local = Timed("training, read by itself", lambda: train(job.dataset), [])
        one = Timed("training, one server", lambda: train(served), started)
        return compare("training", local, one, num_rows, pairs), [local, one]


def transforms(
    schema: Path, num_rows: int, pairs: int, groups: Sequence[Path | None] = (None, None)
) -> tuple[list[str], list[Timed]]:
    def read(data: Any) -> int:
        return sum(batch.size for batch in data.batches("train", batch_size=BATCH_SIZE, seed=0))

    with servers(schema, groups) as started:
        alone, both = connect(started[:1], 2), connect(started, 2)
        one = Timed("batches alone, one server", lambda: read(alone), started)
        two = Timed("batches alone, two servers", lambda: read(both), started)
        return compare("transforms", one, two, num_rows, pairs), [one, two]


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--rows", type=int, default=600_000)
    words.add_argument("--pairs", type=int, default=8)
    words.add_argument("--only", default="training,transforms")
    words.add_argument("--cgroup", type=Path, help="of transforms; where cgroups are made")
    given = words.parse_args()
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()  # as a training does
    print(machine(1), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["RUNNER_CACHE"] = str(folder / "cache")
        path = folder / "rows.parquet"
        write_rows(path, given.rows, compression=CODEC)
        cases = schemas()
        heavy = {**cases["log1p and hashing"].schema}
        lists = cases["lists only"].schema["categorical"]
        hashed = {n: {**c, "encode": "hash", "num_rows": 100_000} for n, c in lists.items()}
        heavy["categorical"] = {**heavy["categorical"], **hashed}
        groups: list[Path | None] = [None, None]
        if given.cgroup:
            groups = [half_core(given.cgroup / f"data-server-{number}") for number in (1, 2)]
        rows, timed = [], []
        for case, content, measure in (
            ("training", cases["columns rewritten once"].schema, training),
            ("transforms", heavy, partial(transforms, groups=groups)),
        ):
            if case in given.only.split(","):
                schema = folder / f"{case}.yaml"
                schema.write_text(json.dumps({"path": str(path), **content}))
                opened(format="parquet", path=None, schema=str(schema))  # prepared for all
                row, both = measure(schema, given.rows, given.pairs)
                rows.append(row)
                timed += [t.told() for t in both]
        print(f"\n{given.rows:,} rows, {given.pairs} pairs\n{table(HEADER, rows)}\n")
        costs = ("processor seconds of a million rows", "trainer", "servers")
        print(table(costs, timed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
