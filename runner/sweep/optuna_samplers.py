"""Where a search looks next, and which jobs it stops early: Optuna's samplers and pruners.

What is chosen for a trial is a function of the search's seed, the trial's place in it and what the
trials before came to, never of how often the sweep was started: so each choice has a sampler of its
own, seeded with the number of trials. One seed for all would repeat its points after a restart.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.study import StudyDirection

from runner.config.settings import SearchSettings
from runner.sweep.space import Dimension, Space, combinations

_POPULATION = 10  # of NSGA-II: small beside the number of trials that one trains for


def make_distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if dimension.is_whole:
        step = 1 if dimension.log else int(dimension.step or 1)
        return IntDistribution(int(dimension.low), int(dimension.high), dimension.log, step)
    return FloatDistribution(dimension.low, dimension.high, dimension.log, dimension.step)


def predetermined_params(
    settings: SearchSettings, space: Space, number: int
) -> dict[str, Any] | None:
    """The trial of this number, where the results of others do not matter; else None.

    Optuna's quasi-random sampler counts its points where a kill can lose one, and draws choices at
    random; here trial n is the n-th point of the sequence in all dimensions.
    """
    if settings.sampler == "grid":
        return next(itertools.islice(combinations(space), number, None))
    if settings.sampler == "quasi-random":
        from scipy.stats.qmc import Sobol

        sequence = Sobol(len(space), scramble=True, rng=settings.seed)
        if number:
            sequence.fast_forward(number)
        fractions = sequence.random(1)[0]
        return {d.key: d.value_at(float(f)) for d, f in zip(space, fractions)}
    return None


def make_sampler(
    settings: SearchSettings, number: int, *, slots: int
) -> optuna.samplers.BaseSampler:
    """For the choice of one trial."""
    digest = hashlib.sha256(f"{settings.seed}:{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    if settings.sampler == "tpe":
        # trials that run beside this one count as poor, or all slots would try the same place
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is said to be experimental
            return optuna.samplers.TPESampler(seed=seed, constant_liar=slots > 1)
    if settings.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    if settings.sampler == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=_POPULATION)
    return optuna.samplers.RandomSampler(seed=seed)


def make_pruner(settings: SearchSettings) -> BasePruner:
    """It counts evaluations, so that jobs of different batch sizes can be compared."""
    if settings.pruner == "asha":
        return SuccessiveHalvingPruner(
            min_resource=settings.pruner_first, reduction_factor=settings.pruner_factor
        )
    if settings.pruner == "median":
        return MedianPruner(
            n_startup_trials=settings.pruner_after, n_warmup_steps=settings.pruner_first
        )
    return NopPruner()


def study_directions(objectives: Mapping[str, str]) -> list[StudyDirection]:
    ways = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}
    return [ways[way] for way in objectives.values()]
