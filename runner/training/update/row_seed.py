"""What decides which elements of each row of an update a dropout drops."""

from __future__ import annotations

import torch
from torch import Tensor

from runner.distributed.ranks import Ranks


def draw_seed(ranks: Ranks, weights_B: Tensor, *, is_shared: bool) -> tuple[int, int]:
    """Draw the seed of an update, by which ranks drop what one process drops.

    Collective.

    Args:
        ranks: of the run.
        weights_B: of the rows of the update, on this rank.
        is_shared: whether ranks share a seed. Without a dropout they need none, and on a GPU each
            has draws of its own, PyTorch's.

    Returns:
        The seed, and how many rows of the update lie before those of this rank.
    """
    seed = int(torch.randint(1 << 62, ()))
    if not ranks.is_distributed or not is_shared:
        return seed, 0
    found = torch.zeros(3, ranks.world_size, dtype=torch.int64)  # a sum is faster than a gather
    found[:, ranks.rank] = torch.tensor([seed, len(weights_B), int(weights_B.any())])
    seeds, sizes, have_rows = ranks.all_reduce_sum(found)
    # of fewer rows than ranks some rank has none, and in its place one of weight 0
    num_rows = sizes if int(sizes.max()) > 1 else have_rows
    return int(seeds[0]), int(num_rows[: ranks.rank].sum())
