"""Numbers, tables and bars as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.metrics.names import TRAIN_EVALUATION, evaluation_name

SCALES_APART = 4  # from this ratio on the train loss is shown separately
GRADIENT_NORM = "train/gradient_norm"  # of `trainer.log_gradients`; parts follow a slash
LEVELS = "▁▂▃▄▅▆▇█"
BLANK = "·"  # in place of the bar of a value that is not finite
SPLITS = ("train", TRAIN_EVALUATION, "validation", "test")


@dataclass(frozen=True)
class TextTable:
    """A table of texts, with names in the first column and numbers in the others."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """Return aligned lines without borders. A header cell may have several lines."""
        height = self.header_height()
        header = [
            ("\n" * (height - 1 - cell.count("\n")) + cell).split("\n") for cell in self.header
        ]
        rows = [*zip(*header), *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in rows
        ]

    def width(self) -> int:
        return max(map(len, self.lines()))

    def header_height(self) -> int:
        return 1 + max(cell.count("\n") for cell in self.header)


def fit_to_width(table: TextTable, width: int) -> TextTable:
    """Return the table, with folded headers or transposed if it is wider than `width`."""
    folded = TextTable([name.replace("_", "\n") for name in table.header], table.rows)
    header, *rows = zip(*([table.header, *table.rows]))
    transposed = TextTable(header, rows)
    for choice in (table, folded, transposed):
        if choice.width() <= width:
            return choice
    return transposed if len(table.rows) < len(table.header) else folded


def format_number(value: float) -> str:
    """Format with five decimals, since the noise of an AUC of a million rows is below the fifth."""
    size = abs(value)
    if not math.isfinite(value) or 0 < size < 1e-3 or size >= 1e6:
        return f"{value:.4e}" if math.isfinite(value) else str(value)
    return f"{value:,.5f}" if size < 1000 else f"{value:,.2f}"


def format_speed(speed: Mapping[str, float]) -> str:
    """Format examples/s of all ranks, per rank if there are several, and updates/s."""
    words = []
    if "examples_per_s" in speed:
        words.append(f"{speed['examples_per_s']:,.0f} ex/s")
        per_rank = speed.get("examples_per_s_per_rank", speed["examples_per_s"])
        if per_rank != speed["examples_per_s"]:
            words[-1] += f" ({per_rank:,.0f} a rank)"
    if "updates_per_s" in speed:
        updates = speed["updates_per_s"]
        words.append(f"{updates:,.1f} updates/s" if updates >= 10 else f"{updates:.3g} updates/s")
    return "  ".join(words)


def format_duration(seconds: float) -> str:
    """Format as 0.4 s, 0:34, 12:05, 1:02:03 or 2d 1:02:03."""
    if 0 < seconds < 1:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if not hours:
        return f"{minute}:{second:02}"
    return (f"{days}d " if days else "") + f"{hour}:{minute:02}:{second:02}"


def evaluation_table(metrics: Mapping[str, float]) -> TextTable:
    """Return a table with a column for each metric and a row for each task and slice.

    Args:
        metrics: metric[/task] -> value.
    """
    names, rows = [], []
    for key in metrics:
        name, _, row = key.partition("/")
        names += [name] * (name not in names)
        rows += [row] * (row not in rows)
    rows.sort(key=bool)  # values over all rows and tasks come first
    cells = [
        [row or ("all" if len(rows) > 1 else ""), *_cells(metrics, names, row)] for row in rows
    ]
    return TextTable(["", *names], cells)


def has_parts(metrics: Mapping[str, float]) -> bool:
    """Return whether metric[/task] -> value has values of single tasks or slices."""
    return any("/" in name for name in metrics)


def _cells(metrics: Mapping[str, float], names: Sequence[str], row: str) -> list[str]:
    keys = [f"{name}/{row}" if row else name for name in names]
    return [format_number(metrics[key]) if key in metrics else "" for key in keys]


def group_by_split(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Divide `split/metric[/task]` -> value by split: train, validation, test, then others."""
    names = {key.partition("/")[0] for key in metrics}
    splits = [s for s in SPLITS if s in names] + sorted(names - set(SPLITS))
    return {s: {k: v for k, v in metrics.items() if k.startswith(f"{s}/")} for s in splits}


def result_tables(
    metrics: Mapping[str, float],
    reachable: Mapping[str, Mapping[str, float]],
    yardstick: Mapping[str, Any] | None = None,
) -> dict[str, TextTable]:
    """Return the tables of a result by their headings.

    It is one table of metrics and splits without a heading or, with several tasks or slices, a
    table of tasks and metrics for each split.

    Args:
        metrics: `split/metric[/task]` -> value.
        reachable: split -> metric[/task] -> the best value that any model could have.
        yardstick: `name` and `metrics` of what the run is compared with.
    """
    metrics = {k: v for k, v in metrics.items() if not k.startswith(f"{GRADIENT_NORM}/")}
    by_split = {
        split: {key.partition("/")[2]: value for key, value in of_split.items()}
        for split, of_split in group_by_split(metrics).items()
    }
    if not any(map(has_parts, by_split.values())):
        return {"": result_table(metrics, reachable, yardstick)}
    yardstick = yardstick or {}
    best = {evaluation_name(split): values for split, values in reachable.items()}
    tables = {}
    for split, values in by_split.items():
        items = yardstick.get("metrics", {}).items()
        measured = {k.removeprefix(f"{split}/"): v for k, v in items if k.startswith(f"{split}/")}
        table = evaluation_table(values)
        has_part_all = any(name.partition("/")[2] == "all" for name in values)
        rows: list[Sequence[str]] = []
        for row in table.rows:
            rows.append(row)
            part = "" if row[0] == "all" and not has_part_all else row[0]
            for name, beside in (("reachable", best.get(split)), (yardstick.get("name"), measured)):
                cells = _cells(beside or {}, table.header[1:], part)
                rows += [[f"  {name}", *cells]] if any(cells) else []
        tables[split] = TextTable(table.header, rows)
    return tables


def result_table(
    metrics: Mapping[str, float],
    reachable: Mapping[str, Mapping[str, float]],
    yardstick: Mapping[str, Any] | None = None,
) -> TextTable:
    """Return a table with a row for each metric and columns for each split.

    Args:
        metrics: `split/metric[/task]` -> value.
        reachable: split -> metric[/task] -> the best value that any model could have. Splits with
            such values have a second column for them.
        yardstick: `name` and `metrics` of the baseline: a row below each of these metrics.
    """
    splits = list(group_by_split(metrics))
    reachable = {evaluation_name(split): best for split, best in reachable.items()}
    names = list(dict.fromkeys(key.partition("/")[2] for key in metrics))
    header = ["metric"]
    for split in splits:
        header += [split, "reachable"] if reachable.get(split) else [split]
    rows = []
    for name in names:
        row, gains = [name], [f"{name} gain reached"]
        for split in splits:
            value, best = metrics.get(f"{split}/{name}"), reachable.get(split, {}).get(name)
            row.append("" if value is None else format_number(value))
            gains.append("")
            if value is not None and math.isfinite(value) and best is not None and best > 0.5:
                gains[-1] = f"{(value - 0.5) / (best - 0.5):.1%}"
            if reachable.get(split):
                row.append("" if best is None else format_number(best))
                gains.append("")
        rows += _by_scale(row, header, metrics)
        if name.partition("/")[0] == "auc" and any(gains[1:]):
            rows.append(gains)
        if (yardstick_row := _yardstick_row(name, header[1:], yardstick or {})) is not None:
            rows.append(yardstick_row)
    return TextTable(header, rows)


def _by_scale(
    row: list[str], header: Sequence[str], metrics: Mapping[str, float]
) -> list[list[str]]:
    """Return a metric's row, or two if the train loss has another scale.

    The loss of a sequence is summed over its places in training, and of one place in an evaluation:
    in one row they would seem comparable.
    """
    name, *cells = row
    train = metrics.get(f"train/{name}", 0.0)
    sizes = [abs(v) for k, v in metrics.items() if k in (f"validation/{name}", f"test/{name}")]
    if name != "loss" or not sizes or not train >= SCALES_APART * max(sizes):
        return [row]
    in_training = [cell if split == "train" else "" for cell, split in zip(cells, header[1:])]
    other_cells = ["" if split == "train" else cell for cell, split in zip(cells, header[1:])]
    return [[name, *other_cells], [f"{name} of the train rows", *in_training]]


def _yardstick_row(
    name: str, columns: Sequence[str], yardstick: Mapping[str, Any]
) -> list[str] | None:
    """Return the row of a metric of the yardstick, below the run's own; None without values."""
    values = [yardstick.get("metrics", {}).get(f"{column}/{name}") for column in columns]
    if all(value is None for value in values):
        return None
    cells = ["" if value is None else format_number(value) for value in values]
    return [f"{name} of {yardstick.get('name')}", *cells]


def sparkline(values: Sequence[float]) -> str:
    """Return one bar per value, scaled from the least to the greatest value."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return BLANK * len(values)
    low, high = min(finite), max(finite)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((v - low) * scale)] if math.isfinite(v) else BLANK for v in values)


def bar(value: float, largest: float) -> str:
    """Return a bar of value / largest x 30 characters, in eighths of one."""
    if not (math.isfinite(value) and largest > 0):
        return ""
    eighths = round(8 * 30 * max(0.0, value) / largest)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
