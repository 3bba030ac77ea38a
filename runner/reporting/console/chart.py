"""Line charts: in braille dots for a terminal, as PNG, SVG or HTML for a file.

plotext draws for the terminal and plotly writes the HTML page. plotly needs a browser for PNG and
SVG, so matplotlib writes these. Each is imported when it is used.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly import graph_objects

COLOURS = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df", "#bf3989", "#6e7781")
CHART_SUFFIXES = (".png", ".svg", ".html")  # suffixes of files that a chart can be written to


@dataclass(frozen=True)
class Line:
    """A named line through points (x, y), ordered by x."""

    name: str
    points: Sequence[tuple[float, float]]

    @property
    def xs(self) -> list[float]:
        return [x for x, _ in self.points]

    @property
    def ys(self) -> list[float]:
        return [y for _, y in self.points]


@dataclass(frozen=True)
class Chart:
    """Lines over common axes; y begins at 0."""

    title: str
    x_label: str
    lines: Sequence[Line]


def render_braille(chart: Chart, *, width: int) -> list[str]:
    """Return 15 lines of text, at most `width` wide, with all chart lines but no names."""
    import plotext

    xs = [x for line in chart.lines for x in line.xs]
    y_max = max((y for line in chart.lines for y in line.ys), default=0.0) or 1.0
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limitsize(False, False)  # not to the terminal: the caller knows its size
    plotext.plotsize(width, 15)
    for line in chart.lines:
        plotext.plot(line.xs, line.ys, marker="braille")
    plotext.ylim(0, y_max)
    x_ticks, y_ticks = [min(xs), (min(xs) + max(xs)) // 2, max(xs)], [0, y_max / 2, y_max]
    plotext.xticks(x_ticks, [f"{x:,.8g}" for x in x_ticks])
    plotext.yticks(y_ticks, [f"{y:,.3g}" for y in y_ticks])
    plotext.xaxes(True, False)
    plotext.yaxes(True, False)
    plotext.xlabel(chart.x_label)
    text: str = plotext.uncolorize(plotext.build())
    return [line.rstrip() for line in text.splitlines()]


def write_chart(chart: Chart, path: Path) -> None:
    """Write the chart in the format of the path's suffix, one of CHART_SUFFIXES.

    Raises:
        OSError: if the file cannot be written.
    """
    suffix = path.suffix.lower()
    assert suffix in CHART_SUFFIXES, path
    if suffix == ".html":
        _write_page(chart, path)
    else:
        _write_picture(chart, path)


def _write_page(chart: Chart, path: Path) -> None:
    from plotly import graph_objects

    figure = graph_objects.Figure(
        [graph_objects.Scatter(x=line.xs, y=line.ys, name=line.name) for line in chart.lines],
        {"title": chart.title, "xaxis": {"title": chart.x_label}, "yaxis": {"rangemode": "tozero"}},
    )
    figure.update_layout(colorway=COLOURS, showlegend=True, template="plotly_white")
    path.write_text(whole_page(figure), encoding="utf-8")


def whole_page(figure: graph_objects.Figure) -> str:
    """Return a page of one figure, which needs no network; a browser names it by its title."""
    title = html.escape(figure.layout.title.text)
    page: str = figure.to_html()
    return page.replace("<head>", f"<head><title>{title}</title>", 1)


def _write_picture(chart: Chart, path: Path) -> None:
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "axes.prop_cycle": cycler(color=COLOURS)}):
        figure = Figure(figsize=(9, 4.8), dpi=200, layout="constrained")
        axes = figure.add_subplot(title=chart.title, xlabel=chart.x_label)
        for line in chart.lines:
            axes.plot(line.xs, line.ys, label=line.name)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#d0d7de")
        axes.legend()
        figure.savefig(path)
