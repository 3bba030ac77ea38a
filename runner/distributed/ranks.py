"""This process among the ranks of its run, and every collective that the runner uses.

Alone, each of them does nothing and costs nothing. Values travel pickled between ranks of one run,
never from or to a file.
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
    """Rank 0 is the chief: it prints and writes; all else every rank does alike."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # on its machine
    local_world_size: int = 1
    group: dist.ProcessGroup | None = None  # None: the default one, or no other rank

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    def barrier(self) -> None:
        """Collective. Returns when every rank has come here."""
        self.all_gather_object(None)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Collective. What every rank gave, in the order of ranks."""
        if not self.is_distributed:
            return [value]
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, value, group=self.group)
        return everyone

    def broadcast_object(self, value: Any) -> Any:
        """Collective. What rank 0 gave."""
        if not self.is_distributed:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Collective. The sum over ranks, in place; the same bits on each."""
        if self.is_distributed:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_reduce_max(self, number: float) -> float:
        """Collective. The largest of the ranks' numbers, agreed without touching a GPU."""
        if not self.is_distributed:
            return number
        box = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self.group)
        return box.item()

    def all_reduce_max_each(self, numbers: Sequence[float]) -> list[float]:
        """Collective. `largest` of each of several numbers, at once."""
        if not self.is_distributed:
            return list(numbers)
        box = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self.group)
        return box.tolist()

    def broadcast_(self, tensor: Tensor) -> None:
        """Collective. Becomes what rank 0 has, in place."""
        if self.is_distributed:
            dist.broadcast(tensor, src=0, group=self.group)

    def all_gather_rows(self, tensor: Tensor) -> list[Tensor]:
        """Collective. Every rank's tensor, in the order of ranks; first dimensions may differ."""
        if not self.is_distributed:
            return [tensor]
        sizes = self.all_gather_object(len(tensor))
        # collectives of tensors want one shape, so the shorter ones are padded
        padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        everyone = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(everyone, padded, group=self.group)
        return [t[:size] for t, size in zip(everyone, sizes)]

    def gather_states(self, state: Mapping[str, Tensor]) -> list[dict[str, Tensor]] | None:
        """Collective. Every rank's named tensors on rank 0, None elsewhere."""
        if not self.is_distributed:
            return [dict(state)]
        # a tensor on the host goes by gloo and one on a GPU by nccl: both ends must mean the same
        forms = self.all_gather_object(
            [(name, tuple(t.shape), t.dtype, t.device.type) for name, t in state.items()]
        )
        if not self.is_main:
            for tensor in state.values():
                dist.send(tensor.contiguous(), dst=0, group=self.group)
            return None
        everyone = [dict(state)]
        for rank, form in enumerate(forms[1:], start=1):
            others = {n: torch.empty(s, dtype=t, device=d) for n, s, t, d in form}
            for tensor in others.values():
                dist.recv(tensor, src=rank, group=self.group)
            everyone.append(others)
        return everyone

    def with_new_group(self) -> Ranks:
        """Collective. The same ranks for a thread, whose talk must not mix with training's."""
        if not self.is_distributed:
            return self
        # torch gives a further group half an hour, whatever the first one was given
        timeout = _world()._get_backend(torch.device("cpu")).options._timeout
        group = dist.new_group(backend="gloo", timeout=timeout)
        return Ranks(self.rank, self.world_size, self.local_rank, self.local_world_size, group)


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "several ranks have joined a group"
    return group


SINGLE_PROCESS = Ranks()


def current_ranks() -> Ranks:
    """The ranks of the process group that this process has joined; alone without one."""
    if not (dist.is_available() and dist.is_initialized()):
        return SINGLE_PROCESS
    size = dist.get_world_size()
    return Ranks(
        rank=dist.get_rank(),
        world_size=size,
        local_rank=int(os.environ.get("LOCAL_RANK", dist.get_rank())),
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", size)),
    )
