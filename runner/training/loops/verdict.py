"""Decides whether a run that reached its end has failed, by a NaN as loss or monitored metric.

An undefined metric, such as the AUC of rows that all have one label, is no failure: the notes of
the evaluation explain it (`Metrics.notes`), and the run has completed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from runner.reporting.console.format import format_number
from runner.training.job import Job
from runner.training.state import TrainState

_UNDEFINED = ": undefined"  # in a note, after the names of metrics


def explained_metrics(notes: Iterable[str]) -> set[str]:
    """Return the metrics that the notes of an evaluation call undefined."""
    marked = [note.partition(_UNDEFINED)[0] for note in notes if _UNDEFINED in note]
    return {name for names in marked for name in names.split(", ")}


def undefined_results(
    metrics: Mapping[str, float], notes: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return the reasons why results are not numbers, one line each.

    Args:
        metrics: of the result, `split/metric[/task]`.
        notes: split -> the notes of its evaluation.
    """
    return [
        f"{split}/{f', {split}/'.join(names.split(', '))}: undefined{why}"
        for split, split_notes in notes.items()
        for names, separator, why in (note.partition(_UNDEFINED) for note in split_notes)
        if separator and any(math.isnan(metrics.get(f"{split}/{n}", 0)) for n in names.split(", "))
    ]


def why_no_best(
    job: Job, state: TrainState, metrics: Mapping[str, float], undefined: Iterable[str]
) -> str | None:
    """Return why a training that has ended has no best checkpoint; None if it has one.

    Args:
        metrics: of the result, `split/metric[/task]`.
        undefined: see `undefined_results`.
    """
    if state.best is not None:
        return None
    monitored = job.checkpoint.monitor.metric
    if "validation" not in job.dataset.num_rows:
        why = "there is no validation split"
    elif "validation" not in job.trainer.eval_splits:
        why = "trainer.eval_splits leaves validation out"
    elif math.isnan(metrics.get(monitored, 0.0)):
        its_lines = [line for line in undefined if monitored in re.split("[,:] ", line)]
        reasons = [line.partition(_UNDEFINED)[2] for line in its_lines]
        why = f"{monitored}, which chooses it, was undefined at every evaluation"
        why += "".join(reasons[:1]) + "; checkpoint.monitor names another metric"
    else:
        why = f"{monitored} was a number at no evaluation but the last"
    return f"no best checkpoint: {why}; the results are those of the last weights"


def skipped_in_a_row(job: Job, state: TrainState) -> str | None:
    """Return why a training must fail now: `trainer.max_skipped` updates in a row were skipped."""
    limit = job.trainer.max_skipped
    if limit is None or state.skipped_in_a_row < limit:
        return None
    return (
        f"{state.skipped_in_a_row:,} updates in a row were skipped up to step {state.step:,}, "
        "since a gradient was not finite (trainer.max_skipped); loop=debug "
        "loop.stop_at_nonfinite=true finds the first value that is not"
    )


def failure_at_end(
    job: Job,
    state: TrainState,
    evaluations: Mapping[str, Mapping[str, float]],
    notes: Mapping[str, Iterable[str]] | None = None,
) -> str | None:
    """Return why a training has failed although it reached its end.

    Args:
        evaluations: split -> the final metrics; without any evaluation, of the last window.
        notes: split -> the notes of its evaluation.
    """
    if 0 < state.step == state.skipped:
        return (
            f"all {state.step:,} updates were skipped, since a gradient was not finite: nothing "
            "was learnt; loop=debug loop.stop_at_nonfinite=true finds the first value that is not"
        )
    if problem := not_finite_loss(evaluations, notes or {}):
        return problem
    monitored = job.checkpoint.monitor.metric
    split, _, name = monitored.partition("/")
    value = evaluations.get(split, {}).get(name, 0.0)
    if math.isnan(value) and name not in explained_metrics((notes or {}).get(split, ())):
        return f"{monitored}, the monitored metric, is NaN although the loss is finite"
    return None


def not_finite_loss(
    evaluations: Mapping[str, Mapping[str, float]], notes: Mapping[str, Iterable[str]]
) -> str | None:
    """Return the final loss that is NaN or infinite although rows have weight, or None."""
    for split, metrics in evaluations.items():
        loss = metrics.get("loss", 0.0)
        if not math.isfinite(loss) and "loss" not in explained_metrics(notes.get(split, ())):
            return f"{split}/loss is {format_number(loss)}: the model gives no numbers"
    return None
