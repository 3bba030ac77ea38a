"""Rules of devices, ranks, precision and pipelines: what this machine, or a kernel, cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.optim.sharding import check_sharding, engine
from runner.rules.keys import Config, get
from runner.rules.loops import DEBUGS, FROM_A_RUN, ONLINE, TRAINS, TUNES


def precision(config: Config) -> Iterator[str]:
    trainer = config["trainer"]
    if not trainer.get("amp") or trainer.get("amp_dtype") != "fp16":
        return
    if _on_cpu(config):
        yield (
            "trainer.amp_dtype=fp16: needs a CUDA device "
            f"(trainer.device={trainer['device']}); bf16 works everywhere"
        )


def device(config: Config) -> Iterator[str]:
    name = config["trainer"]["device"]
    if isinstance(name, str) and name.startswith("cuda") and not _may_have_cuda():
        yield f"trainer.device={name}: this machine shows no NVIDIA device; auto or cpu works"


def ranks(config: Config) -> Iterator[str]:
    size = config["trainer"]["num_processes"]
    loop = get(config, "loop._target_")
    if size > 1 and loop not in (TRAINS, FROM_A_RUN, *TUNES):
        name = str(loop).rpartition(".")[2]
        why = ": a stream has one reader and one order of rows" if loop == ONLINE else ""
        yield f"trainer.num_processes={size}: the loop {name} works in one process{why}"
    if size > 1 and str(config["trainer"]["device"]).startswith("cuda:"):
        yield (
            f"trainer.device={config['trainer']['device']}: each of {size} ranks takes a GPU of "
            "its own; write cuda"
        )
    # one process has all tables whole, so that any plan is as good as another
    kind = get(config, "optimizer.sparse.kind") if size > 1 else None
    yield from check_sharding(config["sharding"], kind, on_cpu=_on_cpu(config) and size > 1)


def pipeline(config: Config) -> Iterator[str]:
    """What would be without effect, or cannot be had."""
    trainer = config["trainer"]
    kind, loop = trainer.get("pipeline"), str(get(config, "loop._target_"))
    if kind not in ("base", "sparse_dist"):
        return
    if loop in (ONLINE, DEBUGS):
        name = loop.rpartition(".")[2]
        yield (
            f"trainer.pipeline={kind}: the loop {name} takes no batch ahead of its update; auto "
            "fits every loop"
        )
    elif kind == "base" and _on_cpu(config):
        yield (
            "trainer.pipeline=base: copies a batch to the GPU beside the update before it, and on "
            "CPU there is nothing to copy; dataset.workers=1 reads and decodes beside it"
        )
    elif kind == "sparse_dist" and trainer["num_processes"] == 1:
        yield (
            "trainer.pipeline=sparse_dist: exchanges ids between ranks, and one process has all "
            "tables; auto takes what there is"
        )
    elif kind == "sparse_dist":
        yield from _exchanges(config)


def _exchanges(config: Config) -> Iterator[str]:
    """Whether TorchRec holds any table whose ids its pipeline could send ahead."""
    rule, node = get(config, "optimizer.sparse.kind"), config["sharding"]
    plans = {node.get("plan"), *(node.get("tables") or {}).values()}
    if all(engine(str(plan), str(rule), on_cpu=_on_cpu(config)) == "ours" for plan in plans):
        yield (
            f"trainer.pipeline=sparse_dist: with optimizer.sparse.kind={rule} and these plans our "
            "own exchange holds the tables, which sends ids within the update; auto takes what "
            "there is"
        )


def _on_cpu(config: Config) -> bool:
    name = config["trainer"]["device"]
    return name == "cpu" or (name == "auto" and not _may_have_cuda())


def _may_have_cuda() -> bool:
    """Whether there is any device file of a GPU; torch, which knows better, comes later."""
    return any(any(Path("/dev").glob(pattern)) for pattern in ("nvidia*", "nvhost*", "dxg", "kfd"))
