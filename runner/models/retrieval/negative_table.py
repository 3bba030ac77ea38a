"""Hard negatives of a row's key, such as its user or its item, from a precomputed table.

B batch, L most negatives of a key, K keys, V negatives of all keys, U distinct negatives.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NegativeTable(nn.Module):
    """Maps keys to hard negative items; a part of the data, not of the weights.

    Args:
        path: of the file whose content `fill` receives.
    """

    offsets_K1: Tensor
    items_V: Tensor

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.key, self.longest = path, "", 0
        self.register_buffer("offsets_K1", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.register_buffer("items_V", torch.zeros(0, dtype=torch.int64), persistent=False)

    def fill(self, key: str, offsets_K1: Tensor, items_V: Tensor) -> None:
        """Set the content.

        Args:
            key: the feature whose id has the negatives.
            offsets_K1: those of key k are `items_V[offsets_K1[k] : offsets_K1[k + 1]]`.
            items_V: int64.
        """
        self.key, self.longest = key, int(offsets_K1.diff().max())
        self.offsets_K1 = offsets_K1.to(self.offsets_K1.device)
        self.items_V = items_V.to(self.items_V.device)

    def find(self, key_B: Tensor, is_query_B: Tensor) -> tuple[Tensor, Tensor]:
        """Find the negatives of some keys.

        Args:
            is_query_B: whether a key's negatives are requested.

        Returns:
            The distinct negatives, [U] ascending, and the indices among them of those of each key,
            [B, L]; -1 for none.
        """
        start_B = self.offsets_K1[key_B]
        count_B = (self.offsets_K1[key_B + 1] - start_B) * is_query_B
        place_L = torch.arange(self.longest, device=key_B.device)
        is_there_BL = place_L < count_B[:, None]
        ids = self.items_V[(start_B[:, None] + place_L)[is_there_BL]]  # sync: their number
        ids_U, at = torch.unique(ids, return_inverse=True)
        at_BL = torch.full_like(is_there_BL, -1, dtype=torch.int64)
        at_BL[is_there_BL] = at
        return ids_U, at_BL
