"""Builds HTML pages and their elements; a page is one self-contained file."""

from __future__ import annotations

import html
import importlib.util
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_AXIS_WIDTH = 80  # pixels of an axis of parallel coordinates, below which names overlap
_BREAKS, _BREAK = re.compile(r"(?<=[/._])"), "<wbr>"  # places where a long heading may fold


@dataclass
class Page:
    """A page under construction."""

    title: str
    parts: list[str] = field(default_factory=list)  # HTML
    # plotly's JSON by name, drawn where a part says `data-figure=name`
    figures: dict[str, Any] = field(default_factory=dict)

    def add_section(
        self, heading: str, body: str, *, css_class: str = "", folded: bool = False
    ) -> None:
        if not body:
            return
        if folded:
            head = f"<summary>{escape(heading)}</summary>"
            body = f"<details>{head}{body}</details>"
        else:
            body = f"<h2>{escape(heading)}</h2>{body}"
        self.parts.append(f'<section class="{css_class}">{body}</section>')

    def add_figure(self, figure: Mapping[str, Any], heading: str = "") -> str:
        """Add a figure and return the HTML that shows it, with a description for screen readers."""
        name = f"f{len(self.figures)}"
        self.figures[name] = figure
        head = f"<h3>{escape(heading)}</h3>" if heading else ""
        layout = figure["layout"]
        height = layout.get("height", 400)
        # A fixed height avoids jumps while the page is drawn.
        axes = max((len(trace.get("dimensions", ())) for trace in figure["data"]), default=0)
        beside = layout["margin"]["l"] + layout["margin"]["r"]
        least_width = _AXIS_WIDTH * (axes - 1) + beside if axes else 0
        said = escape(f"Figure: {heading or describe_figure(figure)}")
        place = (
            f'<div id="{name}" data-figure="{name}" role="figure" aria-label="{said}" '
            f'style="height:{height}px;min-width:{least_width}px"></div>'
        )
        return f'<div class="figure">{head}{place}</div>'

    def add_grid(self, figures: Mapping[str, Mapping[str, Any]]) -> str:
        """Add figures, and return HTML that shows them side by side; empty for none."""
        content = "".join(self.add_figure(figure, heading) for heading, figure in figures.items())
        return f'<div class="grid">{content}</div>' if content else ""

    def add_figure_choice(self, figures: Mapping[str, Mapping[str, Any]]) -> str:
        """Add figures of which one is shown, and return HTML with a list to choose from."""
        if not figures:
            return ""
        first, *_ = figures
        place = self.add_figure(figures[first])
        names = {first: f"f{len(self.figures) - 1}"}
        for title, figure in figures.items():
            if title != first:
                names[title] = f"f{len(self.figures)}"
                self.figures[names[title]] = figure
        options = "".join(f'<option value="{n}">{escape(t)}</option>' for t, n in names.items())
        select = f'<select data-draws="{names[first]}">{options}</select>'
        return f'<label class="note">Metric{select}</label>{place}'

    def body(self) -> str:
        """Return the page's HTML without its scripts."""
        return "".join(self.parts)

    def render(self, *, script_urls: Sequence[str] = ()) -> str:
        """Return the whole page.

        Args:
            script_urls: where a server has the scripts; empty: they are in the page, plotly's too.
        """
        figures = json.dumps(self.figures, separators=(",", ":"), allow_nan=False)
        figures = figures.replace("<", "\\u003c")  # it could end the script element
        inline = [plotly_js()] if self.figures else []
        scripts = [f"<script>{text}</script>" for text in (*inline, page_file("page.js"))]
        if script_urls:
            scripts = [f'<script src="{escape(url)}" defer></script>' for url in script_urls]
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{page_file('page.css')}</style></head>"
            f"<body><main>{self.body()}</main>"
            f'<script type="application/json" id="figures">{figures}</script>'
            f"{''.join(scripts)}</body></html>\n"
        )


def describe_figure(figure: Mapping[str, Any]) -> str:
    """Return what a figure shows in words: its axes, and how many lines it has."""
    layout = figure["layout"]
    axes = [((layout.get(k) or {}).get("title") or {}).get("text") for k in ("yaxis", "xaxis")]
    axes += [d.get("label") for trace in figure["data"] for d in trace.get("dimensions", ())]
    count = len(figure["data"])
    return f"{' over '.join(filter(None, axes)) or 'values'}, {count} series of values"


def escape(text: Any) -> str:
    """Return a text with the special characters of HTML escaped."""
    return html.escape(str(text))


@lru_cache
def page_file(name: str, folder: Path = _HERE) -> str:
    """Return a script or the style of the pages."""
    return (folder / name).read_text(encoding="utf-8")


@lru_cache
def plotly_js() -> str:
    """Return the plotly.js of the Python package, found without importing the package."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.origin is not None, "plotly is a dependency of the project"
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    value: Any = None  # value for sorting the column
    css_class: str = ""
    is_html: bool = False  # the text is HTML already

    def render(self) -> str:
        value = f"{self.value:.7g}" if isinstance(self.value, float) else str(self.value)
        shown = self.value is None or value == self.text
        sort = "" if shown else f' data-v="{escape(value)}"'
        kind = f' class="{self.css_class}"' if self.css_class else ""
        return f"<td{kind}{sort}>{self.text if self.is_html else escape(self.text)}</td>"


def render_table(
    header: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    numeric: Iterable[str] = (),
    sortable: bool = False,
) -> str:
    """Return an HTML table, whose `numeric` columns are aligned to the right."""
    right = set(numeric)
    sort = ' tabindex="0" aria-sort="none"' if sortable else ""
    heads = "".join(
        f'<th scope="col" class="{"num" if name in right else ""}" title="{escape(name)}"{sort}>'
        f"{_BREAKS.sub(_BREAK, escape(name))}</th>"
        if name
        else "<td></td>"
        for name in header
    )
    body = "".join(f"<tr>{''.join(cell.render() for cell in row)}</tr>" for row in rows)
    kind = ' class="sortable"' if sortable else ""
    return (
        '<div class="scroll" tabindex="0" role="group" aria-label="table">'
        f"<table{kind}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def render_table_tools(header: Sequence[str], hidden: Collection[str] = ()) -> str:
    """Return a filter of rows and a choice of columns for the table that follows."""
    boxes = "".join(
        f'<label><input type="checkbox" data-column="{number}"'
        f"{'' if name in hidden else ' checked'}> {escape(name)}</label>"
        for number, name in enumerate(header)
    )
    return (
        '<div class="tools"><label>Filter <input type="search" data-filter placeholder="'
        'words, or column&gt;0.7"></label> <span data-count role="status"></span>'
        f"<details><summary>Columns</summary><div>{boxes}</div></details></div>"
    )


def number_cell(value: float | None, form: Callable[[Any], str] = "{:,}".format) -> Cell:
    """Return a cell with a number, by which it is sorted; an empty one for None."""
    return Cell("" if value is None else form(value), value, "num")


def status_cell(status: str) -> Cell:
    """Return a cell with a status in its colour."""
    return Cell(f'<span class="pill {escape(status)}">{escape(status)}</span>', is_html=True)


def link_cell(address: str, text: str, css_class: str = "") -> Cell:
    """Return a cell with a link, sorted by its text; cut where it is long and no cell of `wide`."""
    return Cell(
        f'<a href="{escape(address)}">{escape(text)}</a>', css_class=css_class, is_html=True
    )


def render_facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return HTML with large numbers and a word below each."""
    return (
        '<div class="facts">'
        + "".join(
            f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for name, value in pairs
        )
        + "</div>"
    )


def render_bullets(lines: Iterable[str]) -> str:
    """Return HTML with one bullet for each line; empty without lines."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="bare">{items}</ul>' if items else ""
