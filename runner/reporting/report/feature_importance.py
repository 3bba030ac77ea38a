"""The importance of a run's features: a table for the terminal, bars for the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner.errors import UserError
from runner.reporting.report.plotly_curves import (
    COLOURS,
    LEGEND_ABOVE,
    Figure,
    make_figure,
    to_json_numbers,
)
from runner.rundir.readers import as_number, check_shapes, read_optional_json

IMPORTANCE_FILE = "importance.json"
_BARS = 60  # features that the page shows
_HEADINGS = {
    "first_order": "first-order loss",
    "at_mean": "{metric} lost if at its mean",
    "permuted": "{metric} lost if permuted",
}


def read_importance(folder: Path) -> dict[str, Any]:
    """Return the content of a run's `importance.json`; {} if there is none.

    Raises:
        UserError: if it does not have the form that `importance` writes.
    """
    path = folder / IMPORTANCE_FILE
    facts = read_optional_json(path)
    check_shapes(path, facts, {"features": list, "metric": str, "split": str, "rows": int})
    for feature in facts.get("features") or ():
        check_shapes(path, {"a feature": feature}, {"a feature": dict})
        check_shapes(path, feature, {"name": str, "kind": str})
    is_whole = all(facts.get(name) for name in ("features", "metric", "split", "rows"))
    return facts if is_whole and all(f.get("name") for f in facts["features"]) else {}


def show_importance(out: Console, facts: Mapping[str, Any]) -> None:
    """Print the features, the most important first."""
    columns = [name for name in _HEADINGS if name in facts["features"][0]]
    table = Table(box=None, pad_edge=False)
    for name in ("feature", "kind"):
        table.add_column(name, overflow="fold")
    for name in columns:
        table.add_column(_HEADINGS[name].format(metric=facts["metric"]), justify="right")
    for feature in facts["features"]:
        numbers = [f"{feature[name]:.6f}" for name in columns]
        table.add_row(*(Text(text) for text in (feature["name"], feature["kind"], *numbers)))
    out.print(table)
    lines = [
        f"{facts['metric']} {facts['value']:.6f} over {facts['rows']:,} rows of {facts['split']}, "
        f"step {facts['step']}"
    ]
    lines += [
        f"rank correlation of {k.replace(', ', ' and ')}: {v:.3f}"
        for k, v in facts["rank_correlation"].items()
    ]
    lines.append(
        "time: "
        + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in facts["seconds"].items())
    )
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def importance_figure(facts: Mapping[str, Any]) -> tuple[Figure, str]:
    """Return bars of each method's importances, scaled to its largest value, and a note.

    Args:
        facts: of `read_importance`.

    Raises:
        UserError: for a value that is no number.
    """
    features = facts["features"][:_BARS][::-1]
    traces = []
    for (name, heading), colour in zip(_HEADINGS.items(), COLOURS):
        if name not in features[0]:
            continue
        values = [as_number(feature.get(name)) for feature in features]
        if None in values:
            raise UserError(
                f"{IMPORTANCE_FILE}: damaged: {name} of a feature is no number; "
                "`python -m runner importance DIR` writes it anew"
            )
        numbers = [float(value or 0.0) for value in values]
        most = max(max(numbers), 1e-30)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": heading.format(metric=facts["metric"]),
                "y": [feature["name"] for feature in features],
                "x": to_json_numbers([value / most for value in numbers]),
                "text": [f"{value:.5f}" for value in numbers],
                "textposition": "none",
                "marker": {"color": colour},
                "hovertemplate": "%{y}: %{text}<extra>%{fullData.name}</extra>",
            }
        )
    figure = make_figure(
        traces,
        xaxis={"title": {"text": "share of the largest"}},
        yaxis={"type": "category", "automargin": True},
        barmode="group",
        legend={**LEGEND_ABOVE, "traceorder": "reversed"},  # as the bars of a feature stand
        height=110 + (14 + 10 * len(traces)) * len(features),
        margin={"l": 60, "r": 20, "t": 30, "b": 45},
    )
    more = len(facts["features"]) - len(features)
    left_out = f"; {more:,} weaker features are left out" if more else ""
    return figure, f"Over {facts['rows']:,} rows of {facts['split']}{left_out}."
