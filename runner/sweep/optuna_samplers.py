"""Optuna's samplers and pruners: where a search looks next, and which jobs it stops early.

The choice for a trial is a function of the search's seed, the trial's number and the results of
earlier trials, never of how often the sweep was started. So each choice has its own sampler, seeded
with the trial's number. One seed for all would repeat the points of the first start at a restart.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner

from runner.config.settings import SearchSettings
from runner.sweep.space import Dimension, Space, combinations

_POPULATION = 10  # of NSGA-II; small compared with usual numbers of trials


def make_distribution(dimension: Dimension) -> BaseDistribution:
    """Return Optuna's distribution for a dimension."""
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if dimension.is_whole:
        step = 1 if dimension.log else int(dimension.step or 1)
        return IntDistribution(int(dimension.low), int(dimension.high), dimension.log, step)
    return FloatDistribution(dimension.low, dimension.high, dimension.log, dimension.step)


def predetermined_params(
    settings: SearchSettings, space: Space, number: int
) -> dict[str, Any] | None:
    """Return the parameters of a trial that do not depend on results; None if they do.

    A grid and a quasi-random sequence need no sampler. Optuna's quasi-random sampler could lose
    count of its points at a kill, and it draws choices at random. Here trial n is the n-th point of
    the sequence in all dimensions.

    Args:
        number: of the trial, from 0.
    """
    if settings.sampler == "grid":
        return next(itertools.islice(combinations(space), number, None))
    if settings.sampler == "quasi-random":
        from scipy.stats.qmc import Sobol

        sequence = Sobol(len(space), scramble=True, rng=settings.seed)
        if number:
            sequence.fast_forward(number)
        return {d.key: d.value_at(float(f)) for d, f in zip(space, sequence.random(1)[0])}
    return None


def make_sampler(
    settings: SearchSettings, number: int, *, slots: int
) -> optuna.samplers.BaseSampler:
    """Return the sampler that chooses one trial.

    Args:
        number: of the trial, from 0.
        slots: jobs that run at once.
    """
    digest = hashlib.sha256(f"{settings.seed}:{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    if settings.sampler == "tpe":
        # Running trials count as poor; otherwise all slots would try the same point.
        with warnings.catch_warnings(action="ignore"):  # Optuna warns that it is experimental
            return optuna.samplers.TPESampler(seed=seed, constant_liar=slots > 1)
    if settings.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    if settings.sampler == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=_POPULATION)
    return optuna.samplers.RandomSampler(seed=seed)


def make_pruner(settings: SearchSettings) -> BasePruner:
    """Return a pruner whose steps are evaluations, so that all batch sizes can be compared."""
    if settings.pruner == "asha":
        return SuccessiveHalvingPruner(
            min_resource=settings.pruner_first, reduction_factor=settings.pruner_factor
        )
    if settings.pruner == "median":
        return MedianPruner(
            n_startup_trials=settings.pruner_after, n_warmup_steps=settings.pruner_first
        )
    return NopPruner()
