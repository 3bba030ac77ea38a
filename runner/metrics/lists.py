"""Metrics of the recommended lists of a pass: coverage, novelty and concentration at k.

B rows of a batch, I items, K items of a list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runner.batch import Prediction, TaskSpec
from runner.metrics.names import parse_cutoff
from runner.metrics.protocol import Metrics
from runner.metrics.result_keys import UNDEFINED_NOTE, names_for_task, result_key

# in `Prediction.aux` of a model with an open catalogue
LISTS_KEY = "top_BK"  # the ids of the best items, best first; -1 if no item is left
POPULARITY_KEY = "popularity_I"  # how often each item occurs in the train split


class RecommendedLists(Metrics):
    """Metrics of the lists of best items for the rows of label 1.

    Implements `Metrics`. Rows of weight 0 are ignored, other weights do not matter. A list is
    shorter than k if fewer items may be recommended.

    coverage@k is the share of the catalogue that is in at least one list. novelty@k is the mean
    over recommended items of -log2 p, where p is the item's share of the train split (Vargas and
    Castells, RecSys 2011); an item that is absent there counts as one occurrence. gini@k is
    the Gini index of how often items are recommended: 0 if all equally often, near 1 if few are.
    """

    def __init__(
        self, names: Sequence[str], tasks: Sequence[TaskSpec], *, device: torch.device
    ) -> None:
        [column] = [i for i, task in enumerate(tasks) if task.kind == "binary"][:1]
        self._names, self._tasks = names_for_task(names, tasks[column]), tuple(tasks)
        self._column = column
        self._cutoffs = sorted({int(parse_cutoff(name)[1] or 0) for name in self._names})
        self._device = device
        self.reset()

    def names(self) -> list[str]:
        return [result_key(name, self._tasks[self._column], self._tasks) for name in self._names]

    def reset(self) -> None:
        none = torch.zeros(0, dtype=torch.int64, device=self._device)
        self._counts_I = dict.fromkeys(self._cutoffs, none)  # how often an item is in a list
        self._popularity_I = none

    @torch.no_grad()
    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        is_query_B = (prediction.labels_BT[:, self._column] > 0.5) & (prediction.weights_B > 0)
        top_BK = prediction.aux[LISTS_KEY][is_query_B]
        self._popularity_I = prediction.aux[POPULARITY_KEY].long()
        for k, counts_I in self._counts_I.items():
            places = top_BK[:, :k].flatten() + 1  # 0 if no item is left
            found_I = torch.bincount(places, minlength=len(self._popularity_I) + 1)[1:]
            self._counts_I[k] = found_I if not len(counts_I) else counts_I + found_I

    def state(self) -> dict[str, Tensor]:
        counts = {f"lists/{k}": counts_I for k, counts_I in self._counts_I.items()}
        return {**counts, "popularity": self._popularity_I}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        if not len(state["popularity"]):  # of a rank without rows
            return
        self._popularity_I = state["popularity"].to(self._device)
        for k, counts_I in self._counts_I.items():
            more_I = state[f"lists/{k}"].to(self._device)
            self._counts_I[k] = counts_I + more_I if len(counts_I) else more_I.clone()

    def notes(self) -> tuple[str, ...]:
        if any(int(counts_I.sum()) for counts_I in self._counts_I.values()):  # sync
            return ()
        return (f"{', '.join(self.names())}: {UNDEFINED_NOTE} nothing was recommended",)

    def compute(self) -> dict[str, float]:
        return {key: self._compute(name) for key, name in zip(self.names(), self._names)}

    def _compute(self, name: str) -> float:
        kind, k = parse_cutoff(name)
        assert k is not None, name
        counts_I = self._counts_I[k].double()
        total = float(counts_I.sum())  # sync
        if not total:
            return math.nan
        if kind == "coverage":
            return float((counts_I > 0).double().mean())
        if kind == "novelty":
            share_I = self._popularity_I.clamp(min=1) / self._popularity_I.sum().clamp(min=1)
            return float(-(share_I.double().log2() * counts_I).sum() / total)
        num_items = len(counts_I)
        place_I = torch.arange(1, num_items + 1, device=counts_I.device)
        weights_I = 2 * place_I - num_items - 1
        return float((weights_I * counts_I.sort().values).sum() / (num_items * total))


def popularity_levels(popularity_I: Tensor) -> Tensor:
    """Return [I] int64: 0 for items that training never saw, else 1, 2 or 3.

    Sorted by popularity, three parts of the items account for a third of all occurrences each: 3 is
    the most popular part, 1 the rarest. An item on a boundary belongs to the more popular part.
    """
    # of integers, so that the order is the same everywhere
    order_I = torch.argsort(popularity_I, descending=True, stable=True)
    before_I = popularity_I.long()[order_I].cumsum(0) - popularity_I.long()[order_I]
    total = popularity_I.long().sum()
    level_I = torch.empty_like(order_I)
    level_I[order_I] = 3 - (3 * before_I // total.clamp(min=1)).clamp(max=2)
    return torch.where(popularity_I > 0, level_I, 0)
