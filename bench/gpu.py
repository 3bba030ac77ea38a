"""The whole runner on a GPU beside TorchRec's DLRM example with its pipeline: `make bench-gpu`.

    python -m bench.gpu [--pairs 8] [--batch-sizes 4096,16384,65536] [--device cpu] [overrides]

Ours is a training as a command has it, with reading, shuffling, metrics, log and checkpoints.
Theirs is the example's: `DLRMTrain` sharded by `DistributedModelParallel`, row-wise Adagrad in the
tables' backward, and `TrainPipelineSparseDist` over batches in pinned memory. Both run in one
process and take turns; a clock is read when the GPU has done its work. `waits` counts how often an
update of ours makes the host wait, which torch itself tells. `--device cpu` tries the command where
there is no GPU; `--check` only says whether there is one. What can be seen without a GPU:
`python -m bench.gpu_audit`.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.jobs import job_without_run
from bench.paired import Stopwatch, note, ratio, shown, table
from bench.turns import measured_by_size, run_in_turns

if TYPE_CHECKING:
    from torch import nn

    from runner.batch import Batch
    from runner.config.compose import ComposedConfig
    from runner.training.job import Job

HEADER = ("rows of an update", "ours, rows/s", "theirs", "ours / theirs, time", "95% interval")
HEADER += ("all", "waits", "peak, GB")


def why_no_gpu() -> str | None:
    """Return why nothing can run on a GPU here; None if it can."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA; make setup VARIANT=gpu"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device (nvidia-smi shows what there is)"
    return None


@dataclass
class DeviceStopwatch(Stopwatch):
    """Reads the clock when the GPU has done what it was given."""

    def start(self) -> None:
        settle()
        super().start()

    def stop(self) -> None:
        settle()
        super().stop()


def settle() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def make_example(job: Job) -> tuple[nn.Module, Any]:
    """Build TorchRec's example of the job's size, and its optimizer. Needs a process group."""
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.planner import (
        EmbeddingShardingPlanner,
        ParameterConstraints,
        Topology,
    )
    from torchrec.distributed.sharding_plan import get_default_sharders
    from torchrec.models.dlrm import DLRM, DLRMTrain
    from torchrec.optim import RowWiseAdagrad
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
    from torchrec.optim.optimizers import in_backward_optimizer_filter

    schema, net = job.dataset.schema, job.config["model"]["net"]
    sparse, dim = job.config["optimizer"]["sparse"], net["embedding_dim"]
    configs = [
        EmbeddingBagConfig(
            name=f.name, embedding_dim=dim, num_embeddings=f.num_rows, feature_names=[f.name]
        )
        for f in schema.sparse
    ]
    tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    rates = {"lr": sparse["lr"], "eps": sparse["eps"]}
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), rates)
    module = DLRM(
        tables,
        dense_in_features=len(schema.dense),
        dense_arch_layer_sizes=[*net["bottom"], dim],
        over_arch_layer_sizes=[*net["top"], 1],
        dense_device=job.context.device,
    )
    # left to itself, the planner copies small tables to every rank and learns them densely
    fused = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
    kind = job.context.device.type
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=1, local_world_size=1, compute_device=kind),
        constraints={f.name: fused for f in schema.sparse},
    )
    training = DLRMTrain(module)
    plan = planner.plan(training, get_default_sharders())
    model = DistributedModelParallel(training, device=job.context.device, plan=plan)
    ours = job.context.dense_optimizer
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda parameters: type(ours)(parameters, **ours.defaults),
    )
    return model, CombinedOptimizer([model.fused_optimizer, dense])


def example_loop(job: Job, batches: Sequence[Batch], chunk: int) -> Iterator[None]:
    """Train the example; yield after every `chunk` updates. It joins a process group of its own."""
    import torch.distributed as dist
    from torchrec.datasets.utils import Batch as TheirBatch
    from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

    device = job.context.device
    with tempfile.NamedTemporaryFile() as store:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{store.name}", world_size=1, rank=0)
        try:
            model, optimizer = make_example(job)
            model.train()
            theirs = (TheirBatch(b.dense_BD, b.sparse, b.labels_BT[:, 0]) for b in batches)
            if device.type == "cuda":
                theirs = iter([batch.pin_memory() for batch in theirs])
            pipeline = TrainPipelineSparseDist(model, optimizer, device, execute_all_batches=True)
            for number in itertools.count(1):
                try:
                    pipeline.progress(theirs)
                except StopIteration:
                    return
                if number % chunk == 0:
                    yield
        finally:
            dist.destroy_process_group()


def one_pair(
    composed: ComposedConfig, batches: Sequence[Batch], chunk: int
) -> dict[str, Stopwatch]:
    """Measure one whole run of ours, and theirs over the same batches."""
    other = job_without_run(composed)  # its sizes and device; built before a process group is there
    loop = example_loop(other, batches, chunk)
    try:
        return run_in_turns(
            composed,
            {"torchrec": loop},
            chunk=chunk,
            updates=len(batches),
            check=lambda job: None,
            stopwatch=DeviceStopwatch,
        )
    finally:
        loop.close()  # type: ignore[attr-defined]


def host_waits(composed: ComposedConfig, updates: int = 10) -> str:
    """Return how often an update of ours waits for the GPU, as torch reports it."""
    import torch

    from runner.training.state import TrainState
    from runner.training.steps import steps

    if not torch.cuda.is_available():
        return "-"
    updating = steps(job_without_run(composed), TrainState())
    for _ in range(3):
        next(updating)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(updates):
                next(updating)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return f"{sum('synchroniz' in str(one.message) for one in said) / updates:.1f}"


def measure(rows: list[list[str]], composed: ComposedConfig, pairs: int, chunk: int) -> str:
    """Measure one batch size, and return the table of all so far."""
    import torch

    job = job_without_run(composed)
    size = job.trainer.batch_size
    batches = list(job.dataset.batches("train", batch_size=size, seed=job.seed))
    one_pair(composed, batches, chunk)  # not counted: the first use of everything
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    runs = [one_pair(composed, batches, chunk) for _ in range(pairs)]
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    found = ratio(*([run[who].wall_s for run in runs] for who in ("ours", "torchrec")))
    note(f"gpu: ours / torchrec, {size:,} rows", found)
    num_rows = size * len(batches)
    best = [num_rows / min(run[who].wall_s for run in runs) for who in ("ours", "torchrec")]
    speeds = [f"{speed:,.0f}" for speed in best]
    rows.append([f"{size:,}", *speeds, *shown(found), host_waits(composed), f"{peak / 1e9:.2f}"])
    return table(HEADER, rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--check", action="store_true", help="only say whether there is a GPU")
    given = list(sys.argv[1:] if argv is None else argv)
    options, _ = parser.parse_known_args(given)
    if (reason := why_no_gpu()) and options.device == "cuda":
        print(f"no GPU to measure: {reason}", file=sys.stderr)
        return 2
    if options.check:
        return 0
    logging.disable(logging.WARNING)  # TorchRec notes every table
    rows: list[list[str]] = []
    return measured_by_size(
        parser,
        [*given, f"trainer.device={options.device}"],
        partial(measure, rows),
        pairs=8,
        batch_sizes="4096,16384,65536",
        rows=6_553_600,
        turn_rows=655_360,
    )


if __name__ == "__main__":
    sys.exit(main())
