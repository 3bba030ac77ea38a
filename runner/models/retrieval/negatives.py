"""Negatives of retrieval models: drawn items that are scored against the positive one.

P queries, C candidates, L hard negatives of a row, I items, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import DataPosition
from runner.embeddings.initialization import hashed_generator
from runner.errors import ConfigError
from runner.models.retrieval.item_memory import ItemMemory
from runner.models.retrieval.known_positives import KnownPositives

# score of a candidate that is the positive item itself: finite, since -inf could become NaN
MASKED_SCORE = -1e30


class NegativeSampler(nn.Module):
    """Draws the candidates with which a query is compared, and scores them.

    In training, candidates are drawn once per batch, whose rows share them. The generator's seed
    comes from the position in the stream, so the candidates are the same on any number of ranks,
    for any number of micro-batches, and after a resume. In evaluation all batches, of all
    evaluations, have the same candidates, so a loss does not depend on how rows are divided.

    Args:
        num_items: I.
        all_items: whether all items are candidates; then nothing is drawn.
        uniform: how many candidates are drawn uniformly.
        popularity: how many candidates are drawn by their frequency in the train split.
        in_batch: whether the positive items of the other rows, in the micro-batch on this rank, are
            candidates.
        hardest: how many candidates of a query are kept, those with the highest scores; 0 for all.
            Dynamic negative sampling (Zhang et al. 2013, "Optimizing top-N collaborative filtering
            via dynamic negative item sampling", SIGIR). The kept ones depend on the scores, so
            there is no correction by log q then.
        memory: items of earlier updates that are also candidates; None for none.

    Raises:
        ConfigError: if a number is below 0 or above the number of items, if `all_items` is combined
            with draws, if there would be no candidate, or if a memory is used without items of
            the batch.
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
        hardest: int = 0,
        memory: ItemMemory | None = None,
    ) -> None:
        super().__init__()
        for name, count in (("uniform", uniform), ("popularity", popularity)):
            if not 0 <= count <= num_items:
                raise ConfigError(
                    f"model.net.{name}={count}: must be from 0 to the {num_items} items; a "
                    "next-item model takes all of them with model.net.every=true "
                    "model.net.uniform=0 model.net.popularity=0"
                )
        if all_items and (uniform or popularity):
            raise ConfigError(
                "model.net.every=true: takes all items, so none are drawn: model.net.uniform=0 "
                "model.net.popularity=0"
            )
        if not (all_items or uniform or popularity or in_batch):
            raise ConfigError(
                f"model.net.uniform={uniform}: leaves nothing to compare the right item with; "
                f"model.net.uniform={min(100, num_items)} draws items"
            )
        most = num_items if all_items else uniform + popularity
        if not in_batch and hardest > most:
            raise ConfigError(
                f"model.net.hardest={hardest}: must be from 0 to the {most} candidates"
            )
        if memory is not None and not in_batch:
            raise ConfigError(
                f"model.net.memory={len(memory.ids_M)}: holds items of earlier batches, so it "
                "needs model.net.in_batch=true"
            )
        self.hardest, self.memory = hardest, memory
        self.num_items, self.all_items, self.in_batch = num_items, all_items, in_batch
        self.uniform, self.popularity = uniform, popularity
        self.seed = int(torch.randint(2**31, ()))  # from the run's seed, so the same on all ranks
        self.register_buffer("counts_I", torch.ones(num_items), persistent=False)
        self._cumulative: tuple[tuple[int, int], Tensor] | None = None

    @property
    def needs_counts(self) -> bool:
        """Whether `counts_I` must be set to counts of the train split before the first batch."""
        return self.in_batch or self.popularity > 0

    @property
    def num_sampled(self) -> int:
        """How many candidates `sample` returns."""
        return self.num_items if self.all_items else self.uniform + self.popularity

    def sample(self, cursor: DataPosition) -> Tensor | None:
        """Return [C], the ids of the candidates that are not from the batch; None for none.

        Args:
            cursor: of the batch, which counts in training only.
        """
        device = self.counts_I.device
        if self.all_items:
            return torch.arange(self.num_items, device=device)
        if not self.uniform + self.popularity:
            return None
        position = f"{cursor.epoch}/{cursor.offset}" if self.training else "evaluation"
        generator = hashed_generator(self.seed, position)
        uniform_C = torch.randint(self.num_items, (self.uniform,), generator=generator)
        quantile_C = torch.rand(self.popularity, generator=generator, dtype=torch.float64)
        cumulative_I = self._cumulative_counts()
        threshold_C = quantile_C.to(device) * cumulative_I[-1]
        popular_C = torch.searchsorted(cumulative_I, threshold_C, right=True)
        return torch.cat((uniform_C.to(device), popular_C.clamp_(max=self.num_items - 1)))

    def _cumulative_counts(self) -> Tensor:
        """Return [I] float64, recomputed only after `counts_I` was written."""
        version = (self.counts_I.data_ptr(), self.counts_I._version)
        if self._cumulative is None or self._cumulative[0] != version:
            # of integers, since deterministic CUDA has no cumulative sum of floats
            self._cumulative = version, self.counts_I.long().cumsum(0).double()
        return self._cumulative[1]

    def log_q(self, ids: Tensor, num_in_batch: Tensor | int) -> Tensor | None:
        """Return the log of how often an id is expected among the candidates.

        None means that each item is a candidate once.
        """
        if self.all_items:
            return None
        share = self.counts_I[ids].clamp(min=1) / self.counts_I.sum().clamp(min=1)
        num_by_popularity = self.popularity + (num_in_batch if self.in_batch else 0)
        return (self.uniform / self.num_items + num_by_popularity * share).log()

    def score(
        self,
        query_PD: Tensor,
        positives: tuple[Tensor, Tensor],
        sampled: tuple[Tensor, Tensor] | None,
        *,
        known: KnownPositives | None = None,
        hard: tuple[Tensor, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Score the positive items and the candidates, in float32 even under autocast.

        In training, the positive items are added to the memory when the update ends.

        Args:
            positives: vectors [P, D] and ids [P] of the positive items.
            sampled: vectors [C, D] and ids [C] of the candidates of `sample`, if any.
            known: positives of the queries' users, which are not candidates; None excludes only the
                positive item.
            hard: vectors [P, L, D] and ids [P, L] of further candidates of each query, -1 for none.
                `hardest` keeps all of them.

        Returns:
            `positive_P`, scores of the positive items; `candidates_PC`, those of the candidates,
            MASKED_SCORE for excluded ones; and, unless all items or the hardest are candidates, the
            logarithms of `log_q` as `log_q_positive_P` and `log_q_candidates_C`. That of a hard
            negative is 0, since it occurs once.
        """
        positive_PD, positive_ids_P = positives
        sources = [*([positives] if self.in_batch else []), *([sampled] if sampled else [])]
        num_in_batch: Tensor | int = len(positive_ids_P)
        if self.memory is not None and self.training:
            sources.append(self.memory.read())
            num_in_batch = num_in_batch + (sources[-1][1] >= 0).sum()
            self.memory.remember(*positives)
        vectors, ids = zip(*sources)
        ids_C = torch.cat(ids)
        hard_PL = None
        with torch.autocast(query_PD.device.type, enabled=False):
            query_PD, positive_PD = query_PD.float(), positive_PD.float()
            positive_P = (query_PD * positive_PD).sum(1)
            scores_PC = query_PD @ torch.cat([v.float() for v in vectors]).t()
            scores_PC = self._mask(scores_PC, positive_ids_P, ids_C, known)
            if hard is not None:
                hard_PL = torch.einsum("pd,pld->pl", query_PD, hard[0].float())
                is_none_PL = (hard[1] < 0) | (hard[1] == positive_ids_P[:, None])
                hard_PL = hard_PL.masked_fill(is_none_PL, MASKED_SCORE)
        if self.hardest:
            scores_PC = scores_PC.topk(min(self.hardest, scores_PC.shape[1]), dim=1).values
        if hard_PL is not None:
            scores_PC = torch.cat((scores_PC, hard_PL), dim=1)
        scores = {"positive_P": positive_P, "candidates_PC": scores_PC}
        log_q_C = None if self.hardest else self.log_q(ids_C.clamp(min=0), num_in_batch)
        log_q_P = self.log_q(positive_ids_P, num_in_batch)
        if log_q_C is not None and log_q_P is not None:
            log_q_C = functional.pad(log_q_C, (0, scores_PC.shape[1] - len(log_q_C)))
            scores |= {"log_q_candidates_C": log_q_C, "log_q_positive_P": log_q_P}
        return scores

    def _mask(
        self, scores_PC: Tensor, positive_ids_P: Tensor, ids_C: Tensor, known: KnownPositives | None
    ) -> Tensor:
        """Return the scores, MASKED_SCORE where a candidate is not a negative of a query."""
        if known is not None:
            scores_PC = scores_PC.masked_fill(known.mask(ids_C), MASKED_SCORE)
        if self.memory is not None:
            scores_PC = scores_PC.masked_fill(ids_C < 0, MASKED_SCORE)
        if self.all_items and not self.in_batch:  # an item's index in the table is its id
            return scores_PC.scatter(1, positive_ids_P[:, None], MASKED_SCORE)
        return scores_PC.masked_fill(positive_ids_P[:, None] == ids_C, MASKED_SCORE)
