"""Metrics of all ranks together."""

from __future__ import annotations

from runner.dist.ranks import Ranks
from runner.metrics.protocol import Metrics


def measured(metrics: Metrics, ranks: Ranks) -> tuple[dict[str, float], tuple[str, ...]]:
    """Collective. What the rows of all ranks give, the same on each, and what to say beside it.

    It uses the set up: on rank 0 it holds the rows of all afterwards, so reset or drop it.
    """
    if not ranks.several:
        return metrics.compute(), metrics.notes()
    states = ranks.gather_states(metrics.state())
    if states is not None:
        for state in states[1:]:
            metrics.merge(state)
        return ranks.share((metrics.compute(), metrics.notes()))
    return ranks.share(None)
