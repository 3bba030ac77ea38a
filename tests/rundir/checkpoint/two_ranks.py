"""Two processes save and load one checkpoint; started with their rank and a folder."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, init_from_local_shards
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor import Shard as ByRows

from runner.rundir.checkpoint import Checkpointer, CheckpointError, load_tensors

ROWS = torch.arange(40.0).view(10, 4)
CUTS = ([(0, 2), (2, 5)], [(5, 10)])  # by rank; the first has two parts of one table


def sharded(rank: int) -> ShardedTensor:
    parts = [Shard.from_tensor_and_offsets(ROWS[a:b].clone(), [a, 0], rank) for a, b in CUTS[rank]]
    return init_from_local_shards(parts, 10, 4)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {
        "tables/a/weight": sharded(rank),
        "tables/b/weight": distribute_tensor(ROWS[:5].contiguous(), mesh, [ByRows(0)]),
        "dense/w": torch.ones(3),  # the same on both: written once
    }
    notes: list[str] = []
    checkpointer = Checkpointer(folder / "checkpoints", keep=1, warn=notes.append)
    for step in (1, 2):
        checkpointer.save(step, state, {"step": step})
    checkpointer.finish()
    saved = checkpointer.open_latest()
    assert saved is not None
    assert saved.values == {"step": 2}
    assert checkpointer.saved_steps() == [2]

    columns = distribute_tensor(torch.zeros(10, 4), mesh, [ByRows(1)])  # another sharding
    load_tensors(saved, {"tables/a/weight": columns}, partial=True)
    assert isinstance(columns, DTensor)
    assert torch.equal(columns.full_tensor(), ROWS)

    if rank == 1:  # the disk of one rank is full: both get the error, and nothing is left
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    checkpointer.save(3, state, {})
    message = ""
    try:
        checkpointer.finish()
    except CheckpointError as error:
        message = str(error)
    assert "EFBIG" in message and "`ulimit -f`" in message
    dist.barrier()
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["step-2"]
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
