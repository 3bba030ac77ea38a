"""The ranks of a run as one process sees them, with every collective that the runner uses.

In a single process each collective does nothing and costs nothing. Objects are pickled for exchange
between the ranks of one run, but never from or to a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """This process's place among the ranks. Rank 0 alone prints and writes."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # number of the rank on its machine
    local_world_size: int = 1
    group: dist.ProcessGroup | None = None  # None: the default group, or a single process

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    def all_gather_object(self, value: Any) -> list[Any]:
        """Collective. Return the values of all ranks, in the order of ranks."""
        if not self.is_distributed:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered

    def broadcast_object(self, value: Any) -> Any:
        """Collective. Return the value of rank 0."""
        if not self.is_distributed:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Collective. Sum a tensor over all ranks in place; every rank gets the same bits."""
        if self.is_distributed:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_reduce_max(self, number: float) -> float:
        """Collective. Return the largest of the ranks' numbers, without using a GPU."""
        if not self.is_distributed:
            return number
        box = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self.group)
        return box.item()

    def all_reduce_max_each(self, numbers: Sequence[float]) -> list[float]:
        """Collective. Return `all_reduce_max` of each number, in one exchange."""
        if not self.is_distributed:
            return list(numbers)
        box = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self.group)
        return box.tolist()

    def broadcast_(self, tensor: Tensor) -> None:
        """Collective. Overwrite a tensor with that of rank 0, in place."""
        if self.is_distributed:
            dist.broadcast(tensor, src=0, group=self.group)

    def all_gather_rows(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        """Collective. Return the tensors of all ranks, whose first dimensions may differ.

        Args:
            sizes: the first dimensions of all ranks if they are known; else they are exchanged.
        """
        if not self.is_distributed:
            return [tensor]
        if sizes is None:
            num_rows = torch.tensor([len(tensor)], device=tensor.device)
            of_ranks = [torch.empty_like(num_rows) for _ in range(self.world_size)]
            dist.all_gather(of_ranks, num_rows, group=self.group)
            sizes = torch.cat(of_ranks).tolist()  # sync
        # An all-gather needs tensors of one shape, so the shorter ones are padded.
        if missing := max(sizes) - len(tensor):
            tensor = torch.cat((tensor, tensor.new_zeros(missing, *tensor.shape[1:])))
        tensor = tensor.contiguous()
        gathered = [torch.empty_like(tensor) for _ in sizes]
        dist.all_gather(gathered, tensor, group=self.group)
        return [t[:size] for t, size in zip(gathered, sizes)]

    def gather_states(self, state: Mapping[str, Tensor]) -> list[dict[str, Tensor]] | None:
        """Collective. Return the named tensors of all ranks on rank 0, and None elsewhere."""
        if not self.is_distributed:
            return [dict(state)]
        # The device decides between gloo and nccl, so both ends must use the same.
        specs = self.all_gather_object(
            [(name, tuple(t.shape), t.dtype, t.device.type) for name, t in state.items()]
        )
        if not self.is_main:
            for tensor in state.values():
                dist.send(tensor.contiguous(), dst=0, group=self.group)
            return None
        states = [dict(state)]
        for rank, spec in enumerate(specs[1:], start=1):
            received = {n: torch.empty(s, dtype=t, device=d) for n, s, t, d in spec}
            for tensor in received.values():
                dist.recv(tensor, src=rank, group=self.group)
            states.append(received)
        return states

    def with_new_group(self) -> Ranks:
        """Collective. Return the same ranks with a separate process group.

        A thread needs this, since its collectives must not mix with those of training.
        """
        if not self.is_distributed:
            return self
        # By default torch gives a new group a timeout of half an hour, not that of the first group.
        timeout = default_group()._get_backend(torch.device("cpu")).options._timeout
        group = dist.new_group(backend="gloo", timeout=timeout)
        return Ranks(self.rank, self.world_size, self.local_rank, self.local_world_size, group)


def default_group() -> dist.ProcessGroup:
    """Return the group of all ranks."""
    group = dist.group.WORLD
    assert group is not None, "ranks that are distributed have joined a group"
    return group


SINGLE_PROCESS = Ranks()


def current_ranks() -> Ranks:
    """Return the ranks of the process group of this process, if it has joined one."""
    if not (dist.is_available() and dist.is_initialized()):
        return SINGLE_PROCESS
    size = dist.get_world_size()
    return Ranks(
        rank=dist.get_rank(),
        world_size=size,
        local_rank=int(os.environ.get("LOCAL_RANK", dist.get_rank())),
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", size)),
    )
