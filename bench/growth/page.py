"""How a cost grows, as a table, a picture and a section of a page."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.growth.axes import Axis
from bench.models import written
from bench.paired import table

TOLERANCE = 0.1  # of an exponent
INK, FAINT = "#1f2328", "#d0d7de"
DARK = {INK: "#e6edf3", FAINT: "#30363d"}  # what they become on a dark page
COLOURS = ("#0969da", "#bf5700", "#1a7f37", "#8250df", "#cf222e")


@dataclass(frozen=True)
class Growth:
    """How one cost grows.

    Attributes:
        medians: one for each size.
        fits: the exponent over all sizes, of each turn.
        lasts: the exponent between the last two sizes, of each turn.
    """

    cost: str
    expected: float
    medians: tuple[float, ...]
    fits: tuple[float, ...]
    lasts: tuple[float, ...]

    @property
    def is_faster(self) -> bool:
        """Whether it grows faster than its work, in every turn."""
        return min(self.lasts) > self.expected + TOLERANCE


def shown(cost: str, value: float) -> str:
    if cost.endswith("MB"):
        return f"{value:,.1f} MB" if value < 100 else f"{value:,.0f} MB"
    if value < 0.1:
        return f"{1000 * value:.2f} ms" if value < 0.01 else f"{1000 * value:.1f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


def cells(axis: Axis, grown: Sequence[Growth], name: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of an axis' table."""
    header = [name, *(one.cost.removesuffix(" MB") for one in grown)]
    rows = [
        [f"{size:,}", *(shown(one.cost, one.medians[k]) for one in grown)]
        for k, size in enumerate(axis.sizes)
    ]
    for words, slopes in (("exponent, all sizes", "fits"), ("exponent, last step", "lasts")):
        found = [getattr(one, slopes) for one in grown]
        ends = [(statistics.median(f), min(f), max(f)) for f in found]
        rows.append(
            [words, *(f"{mid:z.2f} ({low:z.2f} to {high:z.2f})" for mid, low, high in ends)]
        )
    judged = (f"{g.expected:g}" + (": GROWS FASTER" if g.is_faster else "") for g in grown)
    rows.append(["exponent of the work", *judged])
    return header, rows


def as_table(axis: Axis, grown: Sequence[Growth], name: str) -> str:
    return table(*cells(axis, grown, name))


def as_section(name: str, axis: Axis, grown: Sequence[Growth], machine: str) -> str:
    """Return the part of the page that stands between an axis' marks."""
    header, rows = cells(axis, grown, name)
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    turns = len(grown[0].fits)
    taken = "One turn" if turns == 1 else f"Medians of {turns} turns"
    said = machine.partition("\n")[0].replace(": others are busy on it", ", with other work on it")
    picture = f"![Cost by {name}](growth_{name}.svg)"
    return "\n".join([axis.about, "", picture, "", *lines, "", f"{taken}; {said}."])


def write_section(page: Path, name: str, section: str) -> None:
    """Replace what the page has between an axis' two marks.

    Raises:
        ValueError: if the page has no such marks.
    """
    begin = f"<!-- python -m bench.growth --only {name} -->"
    page.write_text(written(page.read_text(), section, begin=begin))


def draw(name: str, axis: Axis, grown: Sequence[Growth], path: Path) -> None:
    """Draw each cost as a multiple of that at the first size, beside the slope of its work."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    keys = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 11}
    with rc_context({**settings, **dict.fromkeys(keys, INK)}):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.add_subplot(xscale="log", yscale="log", xlabel=name)
        axes.set_ylabel(f"cost / cost at {axis.sizes[0]:,}")
        ends = [axis.sizes[0], axis.sizes[-1]]
        for slope in sorted({one.expected for one in grown}):
            line = [1.0, (ends[1] / ends[0]) ** slope]
            axes.plot(ends, line, ":", color=INK, label=f"work that grows with exponent {slope:g}")
        for one, colour in zip(grown, COLOURS):
            values = [value / one.medians[0] for value in one.medians]
            label = one.cost.removesuffix(" MB")
            axes.plot(axis.sizes, values, "o-", color=colour, label=label, markersize=4)
        axes.set_xticks(axis.sizes, [f"{size:,}" for size in axis.sizes], minor=False)
        axes.minorticks_off()
        axes.grid(color=FAINT)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        made = io.StringIO()
        figure.savefig(made, format="svg", transparent=True, metadata={"Date": None})
    path.write_text(with_dark_theme(made.getvalue()))


def with_dark_theme(svg: str) -> str:
    """Make ink and grid of a picture follow the theme of the page."""
    rules = "".join(
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important }} '
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{ {rules}}}</style>"
    head, end, rest = svg.partition("<defs>")
    assert end, "matplotlib writes definitions"
    return f"{head}{style}\n {end}{rest}"
