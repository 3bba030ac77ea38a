"""Vectors of items of earlier updates, as further negatives: cross-batch negative sampling.

M slots, N items, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runner.models.layers.update_state import UpdateState


class ItemMemory(UpdateState):
    """A queue of the newest item vectors and their ids, without gradient.

    Wang, Zhu and He 2021 ("Cross-Batch Negative Sampling for Training Two-Tower Recommenders",
    SIGIR, section 3.2). A vector's age is the number of updates since its insertion, at most M
    divided by the queries of an update. The queue is part of a checkpoint, and an update that is
    skipped does not change it.

    Args:
        size: M.
        width: D.
        warmup: updates before the queue is read, while vectors still move fast.
    """

    uncompiled = ("remember",)
    vectors_MD: Tensor
    ids_M: Tensor  # -1: an empty slot
    num_items: Tensor  # put in so far
    num_updates: Tensor

    def __init__(self, size: int, width: int, warmup: int = 0) -> None:
        super().__init__()
        self.warmup = warmup
        self.register_buffer("vectors_MD", torch.zeros(size, width))
        self.register_buffer("ids_M", torch.full((size,), -1))
        self.register_buffer("num_items", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))
        self.pending: list[tuple[Tensor, Tensor]] = []

    def read(self) -> tuple[Tensor, Tensor]:
        """Return vectors [M, D] and ids [M]; -1 where there is none, and during the warm-up."""
        is_warm = self.num_updates >= self.warmup
        return self.vectors_MD, torch.where(is_warm, self.ids_M, -1)

    def remember(self, vectors_ND: Tensor, ids_N: Tensor) -> None:
        """Put items in when the update ends."""
        self.pending.append((vectors_ND.detach().float(), ids_N))

    @torch.no_grad()
    def end_update(self, *, applied: bool) -> None:
        if applied and self.pending:
            vectors, ids = zip(*self.pending)
            size = len(self.ids_M)
            vectors_ND, ids_N = torch.cat(vectors), torch.cat(ids)
            place_N = (self.num_items + torch.arange(len(ids_N), device=ids_N.device)) % size
            newest = slice(max(0, len(ids_N) - size), None)
            self.vectors_MD[place_N[newest]] = vectors_ND[newest]
            self.ids_M[place_N[newest]] = ids_N[newest]
            self.num_items += len(ids_N)
            self.num_updates += 1
        self.forget_update()

    def forget_update(self) -> None:
        self.pending = []
