"""What a run's `calibration.json` shows of its predictions, as sections of its page."""

from __future__ import annotations

from typing import Any

from runner.errors import UserError
from runner.reporting.report.html import Page, escape, number_cell, render_table
from runner.reporting.report.plotly_bins import calibration_figure, gain_figure, label_figure
from runner.reporting.report.records import RunRecord
from runner.rundir.readers import as_number, check_shapes, numeric_values, read_optional_json

_BINS = ("predicted", "observed", "weight")


def _read_calibration(run: RunRecord) -> dict[str, Any]:
    """Return what `calibration.json` says.

    Raises:
        UserError: if its values are of another form than a run writes.
    """
    path = run.folder / "calibration.json"
    calibration = read_optional_json(path)
    check_shapes(path, calibration, dict.fromkeys(calibration, dict))
    for split in calibration.values():
        check_shapes(path, split or {}, {"tasks": dict, "step": int})
        for bins in ((split or {}).get("tasks") or {}).values():
            lists = [bins.get(k) for k in _BINS] if isinstance(bins, dict) else []
            whole = [n for n in lists if isinstance(n, list) and None not in map(as_number, n)]
            if len(whole) < len(_BINS):
                raise UserError(f"{path}: damaged: the bins of a task are no lists of numbers")
    return calibration


def calibration_section(page: Page, run: RunRecord) -> str:
    """Return a figure for each split. Runs of older versions have none."""
    figures = {
        f"{split}, at update {of_split.get('step'):,}": calibration_figure(of_split["tasks"])
        for split, of_split in _read_calibration(run).items()
        if of_split.get("tasks")
    }
    if not figures:
        return ""
    note = (
        '<p class="note">The rows are sorted by their prediction and cut into twenty parts of '
        "equal weight. A point is the mean prediction of a part and its rate of positives.</p>"
    )
    return note + page.add_grid(figures)


def predictions_section(page: Page, run: RunRecord) -> str:
    """Return the gain and the predictions of each label in the split that was evaluated last."""
    calibration = _read_calibration(run)
    measured = [(split, s["tasks"]) for split, s in calibration.items() if s and s.get("tasks")]
    if not measured:
        return ""
    split, tasks = measured[-1]
    figures = {
        f"{split}: gain, the positives found first": gain_figure(tasks),
        f"{split}: predictions of each label": label_figure(tasks),
    }
    note = (
        '<p class="note">Gain over the diagonal is lift: twice as high means twice as many '
        "positives as rows drawn at random have. The further apart the labels' lines are, the "
        "better the predictions tell them from each other.</p>"
    )
    return note + page.add_grid(figures)


def hardest_section(run: RunRecord) -> str:
    """Return a table of the rows with the largest loss; empty for a run that did not keep them.

    Raises:
        UserError: if `hardest.json` is of another form than a run writes.
    """
    path = run.folder / "hardest.json"
    splits = read_optional_json(path)
    check_shapes(path, splits, dict.fromkeys(splits, dict))
    parts = []
    for split, found in splits.items():
        check_shapes(path, found, {"step": int, "rows": list})
        rows = []
        for row in found.get("rows") or ():
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
            parts.append(f"<h3>{escape(split)}, at update {found.get('step'):,}</h3>{table}")
    note = '<p class="note">Rows by their number in the split, counted from 0.</p>'
    return note + "".join(parts) if parts else ""


def _plain(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"


def positive_rates(run: RunRecord) -> list[tuple[str, str]]:
    """Return the rate of positives of each task in the split that was evaluated last."""
    rates = {}
    for split, of_split in _read_calibration(run).items():
        for task, bins in (of_split.get("tasks") or {}).items():
            weight = sum(bins["weight"])
            if weight > 0:
                positive = sum(o * w for o, w in zip(bins["observed"], bins["weight"]))
                rates[task] = (f"positives of {task}, {split}", f"{positive / weight:.2%}")
    return list(rates.values())
