"""Measures the importance of every feature of a run's model, on rows of one of its splits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scipy.stats import spearmanr

from runner.data.prepare.progress import show_progress
from runner.errors import ConfigError
from runner.metrics.names import find_metric
from runner.reporting.console import View
from runner.training.builder import build_job
from runner.training.feature_importance import (
    Cut,
    CutFeature,
    find_cut_features,
    first_order_effects,
    measure_rows,
    metrics_at_mean,
    metrics_permuted,
)
from runner.training.job import Job
from runner.training.state import restore_weights

Measure = Callable[[Job, Cut, CutFeature], dict[str, float]]
METHODS = {"shark": ("first_order", "at_mean"), "permutation": ("permuted",)}
METHODS["both"] = METHODS["shark"] + METHODS["permutation"]
LABELS = {"at_mean": "each feature at its mean", "permuted": "each feature permuted"}
MAX_CUT_BYTES = 1 << 30  # of the look-ups of all rows, unless their number is given
DEFAULT_ROWS = 40_960


def measure_importance(
    config: Mapping[str, Any],
    *,
    method: str,
    num_rows: int | None,
    view: View,
    allowed: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure how much each feature matters.

    Args:
        config: of `loop=eval` over the run, resolved and checked. Without a split the validation
            rows are taken, so that a choice of features has not seen the test rows.
        method: shark, permutation or both.
        num_rows: the first rows of the split; None: up to 40,960.
        allowed: packages that a `_target_` may name besides ours.

    Returns:
        The content of `importance.json`, see docs/importance.md. The most important features come
        first.

    Raises:
        ConfigError: for a model or a split that cannot be measured.
    """
    job = build_job(config, None, view=view, allowed=allowed)
    assert job.source_checkpoint is not None
    restore_weights(job.context, job.source_checkpoint)
    features = find_cut_features(job.context.model, job.dataset.schema)
    split = _choose_split(job)
    job.context.set_eval_mode()
    with job.context.evaluation_weights():
        cut = Cut.of(job, split, num_rows or _affordable_rows(job, split))
        base = measure_rows(job, cut)
        metric, direction = _monitored_metric(job, base)
        permuted = partial(metrics_permuted, seed=int(config["seed"]))
        measures: dict[str, Measure] = {"at_mean": metrics_at_mean, "permuted": permuted}
        importances: dict[str, list[float]] = {}
        seconds: dict[str, float] = {}
        for column in METHODS[method]:
            started = time.monotonic()
            if column == "first_order":
                importances[column] = first_order_effects(job, cut, features)
            else:
                with show_progress(LABELS[column], len(features), "features") as advance:
                    importances[column] = []
                    for feature in features:
                        after = measures[column](job, cut, feature)[metric]
                        importances[column].append(_lost(direction, base[metric], after))
                        advance(1)
            seconds[column] = round(time.monotonic() - started, 3)
    leading = importances[METHODS[method][0]]
    order = sorted(range(len(features)), key=lambda n: -leading[n])
    return {
        "run": job.source_checkpoint.path.parent.parent.name,
        "step": job.source_checkpoint.step,
        "split": split,
        "rows": cut.batch.size,
        "metric": metric,
        "value": base[metric],
        "seconds": seconds,
        "rank_correlation": _rank_correlations(importances),
        "features": [
            {
                "name": features[n].name,
                "kind": features[n].kind,
                **{column: values[n] for column, values in importances.items()},
            }
            for n in order
        ],
    }


def _choose_split(job: Job) -> str:
    splits, split = job.dataset.num_rows, job.loop_settings["split"]
    if isinstance(split, list | tuple) or (split is not None and split not in splits):
        raise ConfigError(f"loop.split={split}: name one split; there are {', '.join(splits)}")
    return str(split) if split else "validation" if "validation" in splits else list(splits)[-1]


def _affordable_rows(job: Job, split: str) -> int:
    """Return the default number of rows, whose look-ups must fit in memory."""
    tensors = Cut.of(job, split, 1).embeddings.row_lookups()
    row_bytes = sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)
    return min(DEFAULT_ROWS, max(1024, MAX_CUT_BYTES // max(1, row_bytes)))


def _monitored_metric(job: Job, base: Mapping[str, float]) -> tuple[str, str]:
    """Return the metric by which the run's best checkpoint was chosen, or else the loss.

    The second value is its direction: max, min or one (nearer to 1).
    """
    monitor = job.checkpoint.monitor
    name = monitor.metric.partition("/")[2]
    if name not in base:
        return "loss", "min"
    known = find_metric(name)  # None: the loss, or a user's metric
    return name, monitor.direction if known is None else known.direction


def _lost(direction: str, before: float, after: float) -> float:
    """Return how much worse a metric has become; negative if it is better."""
    if direction == "one":
        return abs(after - 1) - abs(before - 1)
    return before - after if direction == "max" else after - before


def _rank_correlations(importances: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return Spearman's rank correlation of each pair of columns."""
    names = list(importances)
    pairs = [(a, b) for n, a in enumerate(names) for b in names[n + 1 :]]
    return {
        f"{a}, {b}": float(spearmanr(importances[a], importances[b]).statistic)
        for a, b in pairs
        if len(set(importances[a])) > 1 and len(set(importances[b])) > 1
    }
