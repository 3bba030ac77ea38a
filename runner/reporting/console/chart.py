"""Line charts without a browser: in braille dots for a terminal, as SVG, HTML or PNG for a file."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df", "#bf3989", "#6e7781")
CHART_SUFFIXES = (".png", ".svg", ".html")  # of files that a chart can be written to
_WIDTH, _HEIGHT = 900, 480  # pixels of a file
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 24, 48, 64  # around the axes
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille sign, from U+2800


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]  # x rises


@dataclass(frozen=True)
class Chart:
    """Lines over common axes; y begins at 0."""

    title: str
    x_label: str
    lines: Sequence[Line]

    @property
    def x_range(self) -> tuple[float, float]:
        ends = [x for line in self.lines for x, _ in (line.points[0], line.points[-1])]
        return min(ends), max(max(ends), min(ends) + 1)

    @property
    def y_max(self) -> float:
        return max((y for line in self.lines for _, y in line.points), default=0.0) or 1.0


def render_braille(chart: Chart, *, width: int = 80, height: int = 12) -> list[str]:
    """Lines of text at most `width` wide; every chart line in dots, so name them apart."""
    margin = max(len(_number(chart.y_max)), 3) + 1
    columns = max(width - margin - 1, 20)
    dots = [[0] * columns for _ in range(height)]
    (low, high), top = chart.x_range, chart.y_max
    for line in chart.lines:
        before = None
        for x, y in line.points:
            here = (
                round((x - low) / (high - low) * (2 * columns - 1)),
                round((1 - y / top) * (4 * height - 1)),
            )
            for column, row in _stroke_dots(before or here, here):
                dots[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
            before = here
    labels = {0: top, round((4 * height - 1) / 2) // 4: top / 2, height - 1: 0.0}
    text = [
        f"{_number(labels[i]) if i in labels else '':>{margin}}│"
        + "".join(chr(0x2800 + bits) if bits else " " for bits in row).rstrip()
        for i, row in enumerate(dots)
    ]
    left, right = _number(low), f"{_number(high)}"
    gap = max(columns - len(left) - len(right) - len(chart.x_label), 2)
    text.append(" " * margin + "└" + "─" * columns)
    half = gap // 2
    below = f"{left}{' ' * half}{chart.x_label}{' ' * (gap - half)}{right}"
    text.append(" " * (margin + 1) + below)
    return text


def _stroke_dots(a: tuple[int, int], b: tuple[int, int]) -> list[tuple[int, int]]:
    """Dots of a straight stroke from a to b."""
    count = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
    return [
        (a[0] + round((b[0] - a[0]) * i / count), a[1] + round((b[1] - a[1]) * i / count))
        for i in range(count + 1)
    ]


def write_chart(chart: Chart, path: Path) -> None:
    """As the name's ending, one of ENDINGS, says. Raises: OSError."""
    ending = path.suffix.lower()
    assert ending in CHART_SUFFIXES, path
    if ending == ".png":
        _draw_png(chart, path)
        return
    text = render_svg(chart)
    if ending == ".html":
        title = html.escape(chart.title)
        text = f'<!doctype html><meta charset="utf-8"><title>{title}</title>\n{text}'
    path.write_text(f"{text}\n", encoding="utf-8")


def render_svg(chart: Chart) -> str:
    """A picture that needs nothing else."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="14">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for x0, y0, x1, y1, colour in _axis_lines(chart):
        parts.append(f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}"/>')
    for x, y, text, anchor, colour in _texts(chart):
        name = {"l": "start", "m": "middle", "r": "end"}[anchor]
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{name}" fill="{colour}">'
            f"{html.escape(text)}</text>"
        )
    for line, colour in zip(chart.lines, _colours(chart)):
        dots = " ".join(f"{x:.1f},{y:.1f}" for x, y in _pixels(chart, line))
        parts.append(f'<polyline points="{dots}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"])


def _draw_png(chart: Chart, path: Path) -> None:
    from PIL import Image, ImageDraw, ImageFont

    scale = 2  # drawn larger, so that it is sharp on a fine screen
    image = Image.new("RGB", (_WIDTH * scale, _HEIGHT * scale), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(14 * scale)
    for *ends, colour in _axis_lines(chart):
        draw.line([scale * end for end in ends], fill=colour, width=scale)
    for x, y, text, anchor, colour in _texts(chart):
        draw.text((scale * x, scale * y), text, fill=colour, font=font, anchor=f"{anchor}s")
    for line, colour in zip(chart.lines, _colours(chart)):
        pixels = [(scale * x, scale * y) for x, y in _pixels(chart, line)]
        draw.line(pixels, fill=colour, width=2 * scale, joint="curve")
    image.save(path)


def _colours(chart: Chart) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(chart.lines))]


def _pixels(chart: Chart, line: Line) -> list[tuple[float, float]]:
    return [_at(chart, x, y) for x, y in line.points]


def _at(chart: Chart, x: float, y: float) -> tuple[float, float]:
    low, high = chart.x_range
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    return _LEFT + (x - low) / (high - low) * across, _TOP + (1 - y / chart.y_max) * down


def _axis_lines(chart: Chart) -> list[tuple[float, float, float, float, str]]:
    """The axes and the lines behind the curve: x0, y0, x1, y1, colour."""
    low, high = chart.x_range
    found = []
    for tick in _ticks(0, chart.y_max):
        found.append((*_at(chart, low, tick), *_at(chart, high, tick), "#d0d7de"))
    for tick in _ticks(low, high):
        x, y = _at(chart, tick, 0)
        found.append((x, y, x, y + 5, "#57606a"))
    found.append((*_at(chart, low, 0), *_at(chart, high, 0), "#57606a"))
    return found


def _texts(chart: Chart) -> list[tuple[float, float, str, str, str]]:
    """Title, labels and legend: x, y of the base line, text, anchor, colour."""
    low, high = chart.x_range
    grey = "#57606a"
    found: list[tuple[float, float, str, str, str]] = [(_LEFT, 20, chart.title, "l", "#1f2328")]
    for tick in _ticks(0, chart.y_max):
        x, y = _at(chart, low, tick)
        found.append((x - 8, y + 5, _number(tick), "r", grey))
    for tick in _ticks(low, high):
        x, y = _at(chart, tick, 0)
        found.append((x, y + 22, _number(tick), "m", grey))
    found.append(((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, chart.x_label, "m", grey))
    x = float(_LEFT)
    for line, colour in zip(chart.lines, _colours(chart)):
        found.append((x, 40, line.name, "l", colour))
        x += 9 * len(line.name) + 40
    return found


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.3g}"
