"""Rules for devices, ranks, precision and pipelines: limits of this machine or a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.config.rules.keys import Config, get_key
from runner.config.rules.loops import TUNING_LOOPS
from runner.config.settings import DEBUG_LOOP, EVALUATE_LOOP, ONLINE_LOOP, TRAIN_LOOP
from runner.distributed.world_size import launched_world_size
from runner.machine.cores import usable_cores
from runner.machine.free_memory import available_memory_bytes

# Bounds of the ranks that one command starts: more would make the machine unusable
MIN_RANKS = 8  # allowed with any number of cores, for trials on a small machine
RANKS_PER_CORE = 4
RANK_BYTES = 200_000_000  # of private memory, since each imports torch


def check_precision(config: Config) -> Iterator[str]:
    """Check that fp16 has a CUDA device."""
    trainer = config["trainer"]
    if not trainer.get("amp") or trainer.get("amp_dtype") != "fp16":
        return
    if runs_on_cpu(config):
        yield (
            "trainer.amp_dtype=fp16: needs a CUDA device "
            f"(trainer.device={trainer['device']}); bf16 works everywhere"
        )


def check_device(config: Config) -> Iterator[str]:
    """Check that a requested CUDA device may exist."""
    name = config["trainer"]["device"]
    if isinstance(name, str) and name.startswith("cuda") and not _may_have_cuda():
        yield f"trainer.device={name}: this machine shows no NVIDIA device; auto or cpu works"


def check_num_processes(config: Config) -> Iterator[str]:
    """Check that the loop works on several ranks, and that each rank has a device."""
    size = config["trainer"]["num_processes"]
    if launched_world_size() is None:
        yield from _check_room_for_ranks(size)
    loop = get_key(config, "loop._target_")
    if size > 1 and loop not in (TRAIN_LOOP, EVALUATE_LOOP, ONLINE_LOOP, *TUNING_LOOPS):
        name = str(loop).rpartition(".")[2]
        yield f"trainer.num_processes={size}: the loop {name} works in one process"
    if size > 1 and str(config["trainer"]["device"]).startswith("cuda:"):
        yield (
            f"trainer.device={config['trainer']['device']}: each of {size} ranks takes another "
            "GPU; write cuda"
        )


def _check_room_for_ranks(size: int) -> Iterator[str]:
    """Check that this machine can start so many processes, each of which imports torch."""
    cores, memory = usable_cores(), available_memory_bytes()
    most = max(MIN_RANKS, RANKS_PER_CORE * cores)
    if size > most:
        yield (
            f"trainer.num_processes={size}: this machine has {cores} cores, and starts at most "
            f"{most} ranks; several machines share a job by torchrun"
        )
    elif size > 1 and size * RANK_BYTES > memory:
        yield (
            f"trainer.num_processes={size}: a rank needs {RANK_BYTES / 1e9:.1f} GB before it has "
            f"read anything, and {memory / 1e9:.1f} GB of memory are free; "
            f"trainer.num_processes={max(1, memory // RANK_BYTES)} fits"
        )


def check_pipeline(config: Config) -> Iterator[str]:
    """Check that the pipeline works with this loop and device, and has an effect."""
    trainer = config["trainer"]
    kind, loop = trainer.get("pipeline"), str(get_key(config, "loop._target_"))
    if kind not in ("base", "sparse_dist"):
        return
    if loop in (ONLINE_LOOP, DEBUG_LOOP):
        name = loop.rpartition(".")[2]
        yield (
            f"trainer.pipeline={kind}: the loop {name} takes no batch ahead of its update; auto "
            "works with every loop"
        )
    elif kind == "base" and runs_on_cpu(config):
        yield (
            "trainer.pipeline=base: copies a batch to the GPU during the update before it, and on "
            "CPU there is nothing to copy; a thread reads and decodes during the update "
            "(dataset.workers)"
        )
    elif kind == "sparse_dist" and trainer["num_processes"] == 1:
        yield (
            "trainer.pipeline=sparse_dist: exchanges ids between ranks, and one process has all "
            "tables; auto takes the best that works"
        )


def check_tf32(config: Config, from_run: bool) -> Iterator[str]:
    """Check that a new run with TF32 does not train on a CPU, which does not have it."""
    if not from_run and get_key(config, "trainer.tf32") and runs_on_cpu(config):
        yield (
            "trainer.tf32=true: is a setting for CUDA devices, and this job runs on CPU; "
            "leave it out"
        )


def runs_on_cpu(config: Config) -> bool:
    """Return whether the job will train without a GPU, as far as that is known before torch."""
    name = config["trainer"]["device"]
    return name == "cpu" or (name == "auto" and not _may_have_cuda())


def _may_have_cuda() -> bool:
    """Return whether there is a device file of a GPU; torch checks more thoroughly later."""
    return any(any(Path("/dev").glob(pattern)) for pattern in ("nvidia*", "nvhost*", "dxg", "kfd"))
