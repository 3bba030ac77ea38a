"""Sections of a run's page on its predictions, from `calibration.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.reporting.report.html import Page, escape, number_cell, render_table
from runner.reporting.report.plotly_bins import calibration_figure, gain_figure, label_figure
from runner.reporting.report.records import RunRecord
from runner.rundir.readers import as_number, check_shapes, numeric_values, read_optional_json

_BINS = ("predicted", "observed", "weight")
Bins = dict[str, dict[str, list[float]]]  # of each task: `predicted`, `observed` and `weight`
Calibration = dict[str, tuple[int, Bins]]  # of each split: the update and the tasks


def read_calibration(run: RunRecord) -> Calibration:
    """Return the content of `calibration.json` for each split that has tasks.

    Raises:
        UserError: if its values are of another form than a run writes.
    """
    path = run.folder / "calibration.json"
    by_split: dict[str, tuple[int, Bins]] = {}
    for split, facts in _read_splits(path).items():
        bins = {
            name: _read_bins(path, of_task) for name, of_task in (facts.get("tasks") or {}).items()
        }
        if bins:
            by_split[split] = facts["step"], bins
    return by_split


def _read_splits(path: Path) -> dict[str, dict[str, Any]]:
    """Return the content of a file for each split, including its step.

    Raises:
        UserError: if they are of another form than a run writes.
    """
    splits = read_optional_json(path)
    check_shapes(path, splits, dict.fromkeys(splits, dict))
    by_split = {}
    for split, facts in splits.items():
        if facts:
            check_shapes(path, facts, {"step": int, "tasks": dict, "rows": list})
            if facts.get("step") is None:
                raise UserError(f"{path}: damaged: {split} has no step")
            by_split[split] = facts
    return by_split


def _read_bins(path: Path, bins: Any) -> dict[str, list[float]]:
    """Return the bins of a task.

    Raises:
        UserError: if they are not lists of numbers.
    """
    by_key = {}
    for key in _BINS:
        values = bins.get(key) if isinstance(bins, dict) else None
        numbers = [as_number(value) for value in values] if isinstance(values, list) else [None]
        by_key[key] = [number for number in numbers if number is not None]
        if len(by_key[key]) < len(numbers):
            raise UserError(f"{path}: damaged: the bins of a task are no lists of numbers")
    return by_key


def calibration_section(page: Page, calibration: Calibration) -> str:
    """Return a figure for each split. Runs of older versions have none."""
    figures = {
        f"{split}, at update {step:,}": calibration_figure(tasks)
        for split, (step, tasks) in calibration.items()
    }
    if not figures:
        return ""
    note = (
        '<p class="note">The rows are sorted by their prediction and cut into twenty parts of '
        "equal weight. A point is the mean prediction of a part and its rate of positives.</p>"
    )
    return note + page.add_grid(figures)


def predictions_section(page: Page, calibration: Calibration) -> str:
    """Return the gain and the predictions of each label in the split that was evaluated last."""
    if not calibration:
        return ""
    split, (_, tasks) = list(calibration.items())[-1]
    figures = {
        f"{split}: gain, the positives found first": gain_figure(tasks),
        f"{split}: predictions of each label": label_figure(tasks),
    }
    note = (
        '<p class="note">Where the gain is twice as high as the diagonal, the rows up to there '
        "have twice as many positives as rows drawn at random (a lift of 2). The further apart the "
        "lines of the labels are, the better the predictions separate them.</p>"
    )
    return note + page.add_grid(figures)


def hardest_section(run: RunRecord) -> str:
    """Return a table of the rows with the largest loss; empty for a run that did not keep them.

    Raises:
        UserError: if `hardest.json` is of another form than a run writes.
    """
    path = run.folder / "hardest.json"
    parts = []
    for split, facts in _read_splits(path).items():
        rows = []
        for row in facts.get("rows") or ():
            check_shapes(path, {"a row": row}, {"a row": dict})
            check_shapes(path, row, {"row": int, "labels": dict, "predicted": dict})
            labels = numeric_values(row.get("labels") or {})
            predicted = numeric_values(row.get("predicted") or {})
            numbers = [row.get("row"), as_number(row.get("loss")), *labels.values()]
            rows.append([*numbers, *predicted.values()])
            names = [*labels, *(f"{name} predicted" for name in predicted)]
        if rows:
            cells = [[number_cell(value, _plain) for value in row] for row in rows]
            header = ["row", "loss", *names]
            table = render_table(header, cells, numeric=header, sortable=True)
            parts.append(f"<h3>{escape(split)}, at update {facts['step']:,}</h3>{table}")
    note = '<p class="note">Rows by their number in the split, counted from 0.</p>'
    return note + "".join(parts) if parts else ""


def _plain(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"


def positive_rates(calibration: Calibration) -> list[tuple[str, str]]:
    """Return the rate of positives of each task in the split that was evaluated last."""
    rates = {}
    for split, (_, tasks) in calibration.items():
        for task, bins in tasks.items():
            weight = sum(bins["weight"])
            if weight > 0:
                positive = sum(o * w for o, w in zip(bins["observed"], bins["weight"]))
                rates[task] = (f"positives of {task}, {split}", f"{positive / weight:.2%}")
    return list(rates.values())
