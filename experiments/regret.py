"""Plots the regret of bandit runs: `python -m experiments.regret RUN... --html FILE`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from plotly import graph_objects
from plotly.subplots import make_subplots


def curve(run: Path) -> list[tuple[float, float, float]]:
    """Return decisions so far, regret of one, and regret so far, for each row of a train log."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        (row["decisions"], row["regret"], row["regret_so_far"])
        for row in rows
        if row["split"] == "train"
    ]


def plot(runs: Sequence[Path], html: Path) -> None:
    """Plot regret so far and regret of one decision over decisions, with a line per run."""
    figure = make_subplots(rows=1, cols=2, subplot_titles=("regret so far", "regret of a decision"))
    for run in runs:
        decisions, each, total = zip(*curve(run))
        for column, values in ((1, total), (2, each)):
            line = graph_objects.Scatter(x=decisions, y=values, name=run.name, mode="lines")
            figure.add_trace(line, row=1, col=column)
    figure.update_xaxes(title_text="decisions")
    figure.write_html(html)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Plots the regret of bandit runs.")
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--html", type=Path, default=Path("regret.html"))
    args = parser.parse_args()
    plot(args.runs, args.html)
    for run in args.runs:
        decisions, each, total = curve(run)[-1]
        print(f"{run.name}: regret {total:,.0f} in {decisions:,.0f} decisions, {each:.4f} now")
