"""The seed that decides which elements of each row of an update a dropout drops."""

from __future__ import annotations

import torch
from torch import Tensor

from runner.distributed.ranks import Ranks


def draw_seed(ranks: Ranks, weights_B: Tensor, *, is_shared: bool) -> tuple[int, int]:
    """Draw the seed of an update, with which ranks drop the same elements as one process.

    Collective.

    Args:
        weights_B: of the rows of the update, on this rank.
        is_shared: whether ranks share a seed. Without a dropout they need none, and on a GPU each
            rank has its own draws, those of PyTorch.

    Returns:
        The seed, and the number of rows of the update before those of this rank.
    """
    seed = int(torch.randint(1 << 62, ()))
    if not ranks.is_distributed or not is_shared:
        return seed, 0
    of_ranks = torch.zeros(3, ranks.world_size, dtype=torch.int64)  # a sum is faster than a gather
    of_ranks[:, ranks.rank] = torch.tensor([seed, len(weights_B), int(weights_B.any())])
    seeds, sizes, have_rows = ranks.all_reduce_sum(of_ranks)
    # with fewer rows than ranks, a rank without rows has one of weight 0 instead
    num_rows = sizes if int(sizes.max()) > 1 else have_rows
    return int(seeds[0]), int(num_rows[: ranks.rank].sum())
