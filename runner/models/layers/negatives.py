"""Items that a retrieval model is to tell from the right one: how they are drawn and scored.

P queries, C candidates, I items, D width.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from runner.batch import DataPosition

MASKED_SCORE = (
    -1e30
)  # score of a candidate that is the right item itself: next to -inf, without its NaN


class NegativeSampler(nn.Module):
    """Which items a query is compared with, and how likely each is to be among them.

    Drawn once for a batch and shared by its rows, by generators keyed on the position in the
    stream: the same on any number of ranks, for any number of micro-batches, and after a resume.

    Args:
        every: all items; nothing is drawn. uniform, popularity: how many are drawn alike, and by
            how often each occurs in the train split. in_batch: the right items of the other rows,
            of the micro-batch on a rank.
    Raises: ValueError for numbers below 0, more than there are items, or nothing at all.
    """

    counts_I: Tensor

    def __init__(
        self,
        num_items: int,
        *,
        all_items: bool = False,
        uniform: int = 0,
        popularity: int = 0,
        in_batch: bool = False,
    ) -> None:
        super().__init__()
        for name, count in (("uniform", uniform), ("popularity", popularity)):
            if not 0 <= count <= num_items:
                raise ValueError(f"negatives.{name}={count}: from 0 to the {num_items:,} items")
        if all_items and (uniform or popularity):
            raise ValueError("negatives.every=true: takes all items; uniform and popularity are 0")
        if not (all_items or uniform or popularity or in_batch):
            raise ValueError("negatives: nothing to tell the right item from; uniform=100 draws")
        self.num_items, self.all_items, self.in_batch = num_items, all_items, in_batch
        self.uniform, self.popularity = uniform, popularity
        self.seed = int(torch.randint(2**31, ()))  # from the run's seed, alike on all ranks
        self.register_buffer("counts_I", torch.ones(num_items), persistent=False)

    @property
    def needs_counts(self) -> bool:
        """Whether `counts_I` must be set to the train split's before the first batch."""
        return self.in_batch or self.popularity > 0

    def sample(self, cursor: DataPosition) -> Tensor | None:
        """[C] ids of the candidates of a batch beside its own; None: there are none."""
        device = self.counts_I.device
        if self.all_items:
            return torch.arange(self.num_items, device=device)
        if not self.uniform + self.popularity:
            return None
        digest = hashlib.sha256(f"{self.seed}/{cursor.epoch}/{cursor.offset}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        uniform_C = torch.randint(self.num_items, (self.uniform,), generator=generator)
        at_C = torch.rand(self.popularity, generator=generator, dtype=torch.float64)
        # whole numbers: in deterministic mode CUDA has no running sum of others
        below_I = self.counts_I.long().cumsum(0).double()
        popular_C = torch.searchsorted(below_I, at_C.to(device) * below_I[-1], right=True)
        return torch.cat((uniform_C.to(device), popular_C.clamp_(max=self.num_items - 1)))

    def log_q(self, ids: Tensor, num_in_batch: int) -> Tensor | None:
        """Log of how often an id is expected among the candidates; None: all are there once."""
        if self.all_items:
            return None
        share = self.counts_I[ids].clamp(min=1) / self.counts_I.sum().clamp(min=1)
        by_share = self.popularity + (num_in_batch if self.in_batch else 0)
        return (self.uniform / self.num_items + by_share * share).log()

    def score(
        self,
        query_PD: Tensor,
        positives: tuple[Tensor, Tensor],
        sampled: tuple[Tensor, Tensor] | None,
    ) -> dict[str, Tensor]:
        """Scores of the right item and of all others, in float32 also under autocast.

        Args: positives: right items, their vectors [P, D] and ids [P]. sampled: [C, D] and [C].
        Returns: own_P, others_PC (GONE where it is the right item), and the logs of `log_q`:
        log_q_own_P, log_q_C.
        """
        own_PD, own_P = positives
        vectors = [*([own_PD] if self.in_batch else []), *([sampled[0]] if sampled else [])]
        ids = [*([own_P] if self.in_batch else []), *([sampled[1]] if sampled else [])]
        ids_C = torch.cat(ids)
        with torch.autocast(query_PD.device.type, enabled=False):
            query_PD, own_PD = query_PD.float(), own_PD.float()
            own_score_P = (query_PD * own_PD).sum(1)
            scores_PC = query_PD @ torch.cat(vectors).float().t()
            if self.all_items and not self.in_batch:  # place in the table and id are one
                scores_PC = scores_PC.scatter(1, own_P[:, None], MASKED_SCORE)
            else:
                scores_PC = scores_PC.masked_fill(own_P[:, None] == ids_C, MASKED_SCORE)
        found = {"own_P": own_score_P, "others_PC": scores_PC}
        log_q_C = self.log_q(ids_C, len(own_P))
        log_q_own_P = self.log_q(own_P, len(own_P))
        if log_q_C is not None and log_q_own_P is not None:
            found |= {"log_q_C": log_q_C, "log_q_own_P": log_q_own_P}
        return found
