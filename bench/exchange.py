"""What ranks exchange in an update, against the least that the plan needs; and what a save takes.

    python -m bench.exchange [--ranks 1,2,4] [--batch-size 512] [--updates 3] [--table-mb 128]

Bytes are counted where torch hands them to the process group, so that nothing is timed: what leaves
a rank for another one, each receiver counted, and an all-reduce as twice its size less one share.
The least: an id goes to the rank that has its row (8 bytes), with the length of every list that
this rank serves (8 bytes); embeddings and gradients of the features that another rank serves
cross once each way (4 bytes a number); copies of a table need the ids, the lengths and the
gradients of all ranks; and the gradients of the dense half are all-reduced.
Saving: the bytes of tensors in the files, against those of the tensors, and the most memory that a
rank has gained since its tables were built (they are `--table-mb` large on all ranks together).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("GOMP_SPINCOUNT", "0")

from bench.jobs import job_without_run, prepared
from bench.memory import held_mb, peak_mb
from bench.paired import table
from runner.distributed.launcher import ProcessResult, run_on_ranks

if TYPE_CHECKING:
    from runner.training.job import Job

PLANS = ("row_wise", "table_wise", "data_parallel")
KINDS = ("rowwise_adagrad", "adam")  # TorchRec's exchange on CPU, and ours
SMALL = (
    "trainer.num_threads=1",
    "dataset.max_cardinality=5000",
    "dataset.rows={train: 40000, validation: 2000, test: 2000}",
)


def sent_bytes(operation: str, arguments: Sequence[Any], rank: int, world_size: int) -> float:
    """Return the bytes that leave this rank for others in one operation of a process group."""
    import torch

    def size(value: Any) -> int:
        if isinstance(value, torch.Tensor):
            return value.nbytes
        return sum(size(v) for v in value) if isinstance(value, list | tuple) else 0

    others = world_size - 1
    if operation == "allreduce_":
        return 2 * size(arguments[0]) * others / world_size
    if operation in ("allgather_", "_allgather_base_"):
        return size(arguments[1]) * others
    if operation in ("reduce_scatter_", "_reduce_scatter_base_"):
        return size(arguments[1]) * others / world_size
    if operation == "alltoall_base_":
        whole, splits = arguments[1], arguments[4]
        own = splits[rank] / max(1, sum(splits)) if splits else 1 / world_size
        return size(whole) * (1 - own)
    if operation == "alltoall_":
        return size(arguments[1]) - size(arguments[1][rank])
    if operation == "broadcast_":
        return size(arguments[0]) * others * (arguments[2] == rank)
    if operation == "send":
        return size(arguments[0])
    if operation in ("recv_", "barrier"):
        return 0
    raise NotImplementedError(f"c10d.{operation} is not counted")


def count_updates(job: Job, updates: int) -> tuple[Counter[str], float]:
    """Return the bytes that this rank sends in some updates, by operation, and the least."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from runner.training.state import TrainState
    from runner.training.steps import steps

    ranks, counted = job.context.ranks, Counter[str]()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            namespace, _, name = func._schema.name.partition("::")
            if namespace == "c10d":
                counted[name] += sent_bytes(name, args, ranks.rank, ranks.world_size)
            return func(*args, **(kwargs or {}))

    least, batches = 0.0, []
    train_step = job.task.train_step

    def keep_batches(context: Any, source: Any) -> Any:
        taken = next(source)
        batches.append(taken)
        return train_step(context, iter([taken]))

    job.task.train_step = keep_batches  # type: ignore[method-assign]
    updating = steps(job, TrainState())
    next(updating)  # the first makes what all others use
    batches.clear()
    counted.clear()
    with Counting():
        for _ in range(updates):
            next(updating)
    least = sum(least_bytes(job, batch) for batch in batches)
    return counted, least


def least_bytes(job: Job, batch: Any) -> float:
    """Return the least that this rank has to send in an update with this batch."""
    from runner.training.update.parameters import dense_parameters

    tables, ranks = job.context.tables, job.context.ranks
    others, size = ranks.world_size - 1, batch.size
    dense = dense_parameters(job.context.model, job.context.loss).values()
    total = 2 * sum(p.numel() for p in dense) * 4 * others / ranks.world_size
    specs = {name: spec for spec in tables.layout.tables for name in spec.features}
    sizes = ranks.all_gather_object(size)
    for feature in tables.layout.feature_order:
        ids, spec = batch.sparse[feature].values(), specs[feature]
        shards = [p for p in tables.placement() if p.table == spec.name and p.num_rows]
        if shards and shards[0].plan == "data_parallel":
            total += others * (8 * len(ids) + 8 * size + 4 * size * spec.dim)
            continue
        for shard in shards:
            if shard.rank != ranks.rank:
                there = (ids >= shard.first_row) & (ids < shard.first_row + shard.num_rows)
                total += 8 * int(there.sum()) + 8 * size + 4 * size * spec.dim
            else:
                total += 4 * spec.dim * (sum(sizes) - size)
    return total


def on_ranks(num_ranks: int, words: Sequence[str], work: Any) -> list[Any]:
    """Call `work(job)` on every rank of a job, and return what each has returned."""
    composed = prepared([*SMALL, *words, f"trainer.num_processes={num_ranks}"])
    with tempfile.TemporaryDirectory() as place:

        def one() -> ProcessResult:
            from runner.config.settings import TrainerSettings, make_settings
            from runner.distributed.process_group import leave_process_group
            from runner.training.builder import join_ranks

            ranks = join_ranks(make_settings(TrainerSettings, composed.config["trainer"]))
            found = work(job_without_run(composed))
            (Path(place) / str(ranks.rank)).write_text(json.dumps(found))
            ranks.all_gather_object(None)
            leave_process_group()
            return ProcessResult(0)

        result = run_on_ranks(num_ranks, one)
        assert result.is_ok, result.message + result.trace
        return [json.loads((Path(place) / str(r)).read_text()) for r in range(num_ranks)]


def save_and_load(job: Job, folder: Path) -> dict[str, float]:
    """Save the job's state and read it again; return bytes and this rank's memory in MB."""
    from runner.rundir.checkpoint import Checkpointer
    from runner.rundir.checkpoint.tensors import load_tensors
    from runner.training.state import checkpoint_tensors

    tensors = checkpoint_tensors(job.context, job.train_metrics)
    before = held_mb()
    checkpointer = Checkpointer(folder, keep=1)
    checkpointer.save(1, tensors, {}, wait=True)
    saved = checkpointer.open_latest()
    assert saved is not None
    load_tensors(saved, tensors)
    written = 0
    for file in sorted(saved.path.glob("*.safetensors")):
        with file.open("rb") as opened:
            written += file.stat().st_size - 8 - int.from_bytes(opened.read(8), "little")
    # a row of each rank's generators is stacked to one tensor, whose size is that of all rows
    held = sum(t.numel() * t.element_size() for t in tensors.values())
    return {"written": written, "tensors": held, "before": before, "gained": peak_mb() - before}


def main(arguments: Sequence[str] | None = None) -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--ranks", default="1,2,4")
    words.add_argument("--batch-size", type=int, default=512, help="rows of a rank")
    words.add_argument("--updates", type=int, default=3)
    words.add_argument("--table-mb", type=int, default=128)
    words.add_argument("more", nargs="*", help="overrides of every job")
    options = words.parse_args(arguments)
    counts = [int(n) for n in options.ranks.split(",")]
    print(count_plans(counts, options.batch_size, options.updates, options.more), "\n")
    print(save_tables(counts, options.table_mb, options.more))
    return 0


def count_plans(counts: Sequence[int], batch_size: int, updates: int, more: Sequence[str]) -> str:
    """Return the table of what is exchanged under every plan, by TorchRec and by us."""
    rows = []
    for plan, kind, num_ranks in itertools.product(PLANS, KINDS, counts):
        plans = [f"sharding={plan}", f"optimizer.sparse.kind={kind}"]
        found = on_ranks(
            num_ranks,
            [f"trainer.batch_size={batch_size}", *more, *plans],
            lambda job: count_updates(job, updates),
        )
        sent = sum(sum(by_name.values()) for by_name, _ in found) / updates
        least = sum(value for _, value in found) / updates
        shown = [f"{value / 1e3:,.1f}" for value in (sent, least)]
        ratio = f"{sent / least:.3f}" if least else "-"
        rows.append([f"{plan}, {kind}, {num_ranks}", *shown, ratio])
    return table(["plan, optimizer, ranks", "kB an update", "least", "ratio"], rows)


def save_tables(counts: Sequence[int], table_mb: int, more: Sequence[str]) -> str:
    """Return the table of what ranks write and hold when they save and load one large table."""
    rows = []
    size = table_mb * 10**6 // (4 * 16)
    columns = {"num_single": 1, "num_lists": 0, "min_cardinality": size, "max_cardinality": size}
    words = [
        *(f"dataset.{key}={value}" for key, value in columns.items()),
        *("sharding=row_wise", "model.net.embedding_dim=16", *more),
    ]
    for num_ranks in counts:
        with tempfile.TemporaryDirectory() as folder:
            save = partial(save_and_load, folder=Path(folder))
            found = on_ranks(num_ranks, words, save)
        once = found[0]["written"] / found[0]["tensors"]
        gained = ", ".join(f"{f['gained']:.0f}" for f in found)
        rows.append([str(num_ranks), f"{found[0]['written'] / 1e6:.1f}", f"{once:.4f}", gained])
    return table(["ranks", "MB saved", "of the tensors'", "MB gained by each rank"], rows)


if __name__ == "__main__":
    sys.exit(main())
