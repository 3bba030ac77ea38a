"""Numbers and tables as text: how many digits, which rows, which columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TextTable:
    """Cells of text: the first column is of names, the others of numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """Aligned, without borders. A header cell may have several lines."""
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
    """The same in at most `width` columns, if need be by broken headers, or turned on its side."""
    folded = TextTable([name.replace("_", "\n") for name in table.header], table.rows)
    sideways = list(zip(*([table.header, *table.rows])))
    turned = TextTable(sideways[0], sideways[1:])
    for choice in (table, folded, turned):
        if choice.width() <= width:
            return choice
    return turned if len(table.rows) < len(table.header) else folded


def format_number(value: float) -> str:
    """Five decimals: the fifth of an AUC is still above the noise of a million rows."""
    size = abs(value)
    if not math.isfinite(value) or 0 < size < 1e-3 or size >= 1e6:
        return f"{value:.4e}" if math.isfinite(value) else str(value)
    return f"{value:,.5f}" if size < 1000 else f"{value:,.2f}"


def format_duration(seconds: float) -> str:
    """0:34, 12:05, 1:02:03 or 2d 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if not hours:
        return f"{minute}:{second:02}"
    return (f"{days}d " if days else "") + f"{hour}:{minute:02}:{second:02}"


def evaluation_table(metrics: Mapping[str, float]) -> TextTable:
    """A column for each metric; a row for each task, if their names say that there are several."""
    names, rows = [], []
    for key in metrics:
        name, _, row = key.partition("/")
        names += [name] * (name not in names)
        rows += [row] * (row not in rows)
    cells = [
        [
            row,
            *(
                format_number(metrics[k]) if (k := _key(name, row)) in metrics else ""
                for name in names
            ),
        ]
        for row in rows
    ]
    return TextTable(["", *names], cells)


def _key(name: str, row: str) -> str:
    return f"{name}/{row}" if row else name


def group_by_split(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """`split/metric[/task]` -> value, a dictionary for each split, in the usual order."""
    found = {key.partition("/")[0] for key in metrics}
    splits = [s for s in SPLITS if s in found] + sorted(found - set(SPLITS))
    return {s: {k: v for k, v in metrics.items() if k.startswith(f"{s}/")} for s in splits}


def result_table(
    metrics: Mapping[str, float], reachable: Mapping[str, Mapping[str, float]]
) -> TextTable:
    """A row for each metric, a column for each split, and beside it what is reachable there.

    metrics: `split/metric[/task]` -> value. reachable: split -> metric[/task] -> best possible.
    """
    splits = list(group_by_split(metrics))
    # train's numbers are of a model that was moving, over the last interval: not to be compared
    reachable = {split: best for split, best in reachable.items() if split != "train"}
    names = list(dict.fromkeys(key.partition("/")[2] for key in metrics))
    header = ["metric"]
    for split in splits:
        header += [split, "reachable"] if reachable.get(split) else [split]
    rows = []
    for name in names:
        row, gains = [name], [f"{name} gain reached"]
        for split in splits:
            ours, best = metrics.get(f"{split}/{name}"), reachable.get(split, {}).get(name)
            row.append("" if ours is None else format_number(ours))
            gains.append("")
            if ours is not None and best is not None and best > 0.5:
                gains[-1] = f"{(ours - 0.5) / (best - 0.5):.1%}"
            if reachable.get(split):
                row.append("" if best is None else format_number(best))
                gains.append("")
        rows.append(row)
        if name.partition("/")[0] == "auc" and any(gains[1:]):
            rows.append(gains)
    return TextTable(header, rows)
