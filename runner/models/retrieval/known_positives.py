"""Determines which candidates are known positives of a query's user.

P queries, C candidates, N known pairs of a user and an item, U users, K different candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runner.models.layers.sequences import is_event


@dataclass(frozen=True)
class KnownPositives:
    """Pairs of users and items, of the rows of a batch."""

    user_P: Tensor  # the users of the queries
    pair_user_N: Tensor  # the users of the pairs
    pair_item_N: Tensor  # the items of the pairs

    @classmethod
    def of_rows(
        cls,
        row_P: Tensor,
        user_B: Tensor,
        item_B: Tensor,
        is_positive_B: Tensor,
        history: tuple[Tensor, Tensor] | None,
    ) -> KnownPositives:
        """Collect the positive items of all rows of a user, and the items of their histories.

        Args:
            row_P: the rows of the queries.
            user_B: the users of the rows.
            item_B: the items of the rows.
            is_positive_B: whether a row's item is a positive one.
            history: ids [B, L] and lengths [B], if there is one.
        """
        users, items = [user_B[is_positive_B]], [item_B[is_positive_B]]
        if history is not None:
            ids_BL, length_B = history
            in_history_BL = is_event(length_B, ids_BL.shape[1])
            users.append(user_B[:, None].expand_as(ids_BL)[in_history_BL])
            items.append(ids_BL[in_history_BL])
        return cls(user_B[row_P], torch.cat(users), torch.cat(items))

    def mask(self, ids_C: Tensor) -> Tensor:
        """Return [P, C], whether a candidate is a known positive of the query's user."""
        if not len(ids_C):
            return torch.zeros(len(self.user_P), 0, dtype=torch.bool, device=ids_C.device)
        candidates_K, place_C = torch.unique(ids_C, return_inverse=True)
        users = torch.cat((self.user_P, self.pair_user_N))
        users_U, row = torch.unique(users, return_inverse=True)
        row_P, row_N = row.split([len(self.user_P), len(self.pair_user_N)])
        place_N = torch.searchsorted(candidates_K, self.pair_item_N)
        place_N = place_N.clamp(max=len(candidates_K) - 1)
        is_candidate_N = candidates_K[place_N] == self.pair_item_N
        known_UK = torch.zeros(
            len(users_U), len(candidates_K), dtype=torch.bool, device=ids_C.device
        )
        known_UK[row_N[is_candidate_N], place_N[is_candidate_N]] = True
        return known_UK[row_P[:, None], place_C]
