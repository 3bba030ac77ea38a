"""What grows, to which sizes, and how each cost may grow.

Seconds are processor times of the process that measures and of those that it started; MB of memory
are what the process holds itself by then (RssAnon).
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("GOMP_SPINCOUNT", "0")

from bench.jobs import job_without_run, prepared
from bench.memory import held_mb

if TYPE_CHECKING:
    from torch import Tensor

    from runner.training.job import Job

Costs = dict[str, float]
FILE_ROWS = 1_000_000
SMALL_JOB = (
    *("model=mlp", "model.net.deep=[64]", "model.net.embedding_dim=8", "dataset.num_lists=0"),
    *("dataset.max_cardinality=5000", "trainer.num_threads=1"),
)


@dataclass(frozen=True)
class Axis:
    """What grows.

    Attributes:
        about: what is measured, as a sentence of the page.
        sizes: the smallest first.
        measure: is given a size and a folder for files that its other sizes use as well.
        costs: name -> the exponent that the work itself grows with; a cost that ends in `MB` is
            memory or a file, any other one seconds.
    """

    about: str
    sizes: tuple[int, ...]
    measure: Callable[[int, Path], Costs]
    costs: Mapping[str, float]


def measure_rows(size: int, folder: Path) -> Costs:
    import runner.data.read.parquet_dataset  # noqa: F401  # is no part of the index
    import runner.data.tabular.table  # noqa: F401
    from bench.data import BATCH_SIZE, opened, read, schemas, write_rows

    source, place = folder / "rows.parquet", folder / f"rows-{size}"
    if not source.exists():
        write_rows(source, FILE_ROWS)
    if not place.exists():  # the same file under several names, so that the page cache stays warm
        place.mkdir()
        for number in range(size // FILE_ROWS):
            (place / f"{number:03}.parquet").hardlink_to(source)
    began = time.process_time()
    data = opened(format="parquet", path=str(place), schema=schemas()["columns"].schema)
    index_s = time.process_time() - began
    warm = data.batches("train", batch_size=BATCH_SIZE, seed=99)
    for _ in zip(range(FILE_ROWS // BATCH_SIZE), warm):
        pass
    del warm
    return {"an epoch": read(data, 0), "the index": index_s, "memory MB": held_mb()}


def time_updates(job: Job, updates: int) -> float:
    """Return the median processor time of an update with its reading, after two others."""
    from runner.training.state import TrainState
    from runner.training.steps import steps

    updating, times = steps(job, TrainState()), []
    for _ in range(updates + 2):
        began = time.process_time()
        next(updating)
        times.append(time.process_time() - began)
    return statistics.median(times[2:])


def time_files(tensors: Mapping[str, Tensor]) -> Costs:
    """Save and load tensors as a checkpoint does; Python's collector has nothing left to do."""
    from runner.rundir.checkpoint import Checkpointer
    from runner.rundir.checkpoint.tensors import load_tensors

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        checkpointer = Checkpointer(Path(folder), keep=1)
        gc.collect()
        began = time.process_time()
        checkpointer.save(1, tensors, {}, wait=True)
        saved_s, began = time.process_time() - began, time.process_time()
        saved = checkpointer.open_latest()
        assert saved is not None
        load_tensors(saved, tensors)
        return {"a save": saved_s, "a load": time.process_time() - began}


def measure_job(words: Sequence[str], batch_size: int, updates: int = 20) -> Costs:
    from runner.training.state import checkpoint_tensors

    sizes = f"train: {batch_size * (updates + 2)}, validation: 0, test: 0"
    composed = prepared(
        [*SMALL_JOB, *words, f"trainer.batch_size={batch_size}", f"dataset.rows={{{sizes}}}"]
    )
    job_without_run(composed)  # imports everything and writes the rows
    began = time.process_time()
    job = job_without_run(composed)
    started_s = time.process_time() - began
    update_s = time_updates(job, updates)
    tensors = checkpoint_tensors(job.context, job.train_metrics)
    return {"an update": update_s, "the start": started_s, **time_files(tensors)}


def measure_tables(size: int, folder: Path) -> Costs:
    return measure_job([f"dataset.num_single={size}"], 256)


def measure_width(size: int, folder: Path) -> Costs:
    return measure_job([f"model.net.embedding_dim={size}"], 2048)


def measure_batch(size: int, folder: Path) -> Costs:
    costs = measure_job([], size, updates=8 if size > 10_000 else 20)
    return {"an update": costs["an update"]}


def measure_ranks(size: int, folder: Path) -> Costs:
    from bench.exchange import on_ranks

    rows, found = "dataset.rows={train: 100000, validation: 0, test: 0}", {}
    for plan in ("table_wise", "row_wise"):
        words = [*SMALL_JOB, rows, "trainer.batch_size=1024", f"sharding={plan}"]
        found[plan] = sum(on_ranks(size, words, lambda job: time_updates(job, 12)))
    return found


def measure_embeddings(num_rows: int, dim: int, pooling: int, num_tables: int) -> Costs:
    """Measure look-ups of uniform ids by themselves: 4,096 bags over all tables."""
    import torch

    from bench.large_tables import build, random_ids, update_ms
    from runner.machine.memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    began = time.process_time()
    tables = build(num_tables, num_rows, dim=dim)
    started_s = time.process_time() - began
    bags = 4096 // num_tables
    batches = [random_ids(num_tables, num_rows, pooling, bags, seed) for seed in range(4)]
    update_s = update_ms(tables, batches, seconds=2) / 1000
    return {"an update": update_s, "the start": started_s, **time_files(tables.state())}


def measure_pooling(size: int, folder: Path) -> Costs:
    return {"an update": measure_embeddings(100_000, 16, size, 26)["an update"]}


def measure_size(size: int, folder: Path) -> Costs:
    return measure_embeddings(size, 4, 1, 1)


def measure_sweep(size: int, folder: Path) -> Costs:
    from bench.sweep import run

    with tempfile.TemporaryDirectory(dir=folder) as place:
        words = ["-m", "bench.sweep", "--inside", str(size), f"{place}/jobs"]
        return {"all jobs": run(words).cpu_s, "again, all done": run(words).cpu_s}


def measure_report(size: int, folder: Path) -> Costs:
    from bench.sweep import run
    from tests.reporting.report.run_directories import make_run

    place, page = folder / f"runs-{size}", folder / "page.html"
    if not place.exists():
        for n in range(size):
            identity = {"optimizer.dense.lr": 10.0 ** -(n % 5), "width": n % 7}
            auc = 0.5 + (n * 37 % 100) / 250
            run_folder = place / f"r{n:05}"
            make_run(run_folder, identity=identity, seed=n % 3, auc=auc, num_rows=100)
            result = json.loads((run_folder / "result.json").read_text())
            result["metrics"] |= {f"test/m{k}": n / (k + 3) for k in range(20)}
            (run_folder / "result.json").write_text(json.dumps(result))
    spent = run(["-m", "runner", "report", str(place), "--html", str(page)])
    return {"a report": spent.cpu_s, "its page MB": page.stat().st_size / 1e6}


AXES = {
    "rows": Axis(
        "Reading Parquet of 13 numbers and 26 ids a row, in files of a million rows, shuffled.",
        (1_000_000, 5_000_000, 20_000_000, 50_000_000),
        measure_rows,
        {"an epoch": 1, "the index": 1, "memory MB": 0},
    ),
    "tables": Axis(
        "A whole job with so many tables of 4 to 5,000 rows of width 8, batch 256.",
        (26, 260, 1000),
        measure_tables,
        {"an update": 1, "the start": 1, "a save": 1, "a load": 1},
    ),
    "width": Axis(
        "A whole job with 23 tables of this width, batch 2,048.",
        (8, 32, 128, 256),
        measure_width,
        {"an update": 1, "the start": 1, "a save": 1, "a load": 1},
    ),
    "pooling": Axis(
        "Look-ups and updates of 26 tables of 100,000 x 16 with so many ids in each of 4,096 bags.",
        (1, 10, 50),
        measure_pooling,
        {"an update": 1},
    ),
    "batch": Axis(
        "An update of a small MLP over 23 tables by its rows.",
        (256, 1024, 4096, 16_384, 65_536),
        measure_batch,
        {"an update": 1},
    ),
    "ranks": Axis(
        "An update of 1,024 rows a rank, times added up; ranks share the machine's cores. Under "
        "row_wise each rank sums its part of every bag of every rank, which is work that grows "
        "with their square.",
        (1, 2, 4),
        measure_ranks,
        {"table_wise": 1, "row_wise": 2},
    ),
    "size": Axis(
        "One table of width 4 under row-wise Adagrad by its rows, 4,096 uniform ids an update.",
        (100_000, 1_000_000, 10_000_000, 100_000_000),
        measure_size,
        {"an update": 0, "the start": 1, "a save": 1, "a load": 1},
    ),
    "sweep": Axis(
        "A sweep of jobs that do nothing, and the same command again.",
        (10, 100, 1000, 10_000),
        measure_sweep,
        {"all jobs": 1, "again, all done": 1},
    ),
    "report": Axis(
        "`report` of so many runs of 200 rows of metrics and 23 results each.",
        (10, 100, 1000, 10_000),
        measure_report,
        {"a report": 1, "its page MB": 1},
    ),
}
