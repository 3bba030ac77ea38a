"""Draws `rooms.svg` from the imports of the package: `python -m docs.rooms`.

A box is a room, or a module at the top of the package; an arrow says that files of the upper one
import files of the lower one. Arrows that follow from others are left out, as are `errors`,
`machine`, `batch` and `parts`, which every room may import.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.test_architecture import EVERYWHERE, imports, modules, room_of

PICTURE = Path(__file__).with_name("rooms.svg")
WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW_HEIGHT = 860, 112, 34, 74
# Where a room's middle is, from left to right, chosen so that no arrow crosses a box.
ACROSS = {
    **{"__main__": 0.26, "cli": 0.12, "remote": 0.4, "launch": 0.75, "worker": 0.85},
    **{"sweep": 0.15, "training": 0.93, "config": 0.5, "models": 0.8, "reporting": 0.2},
    **{"embeddings": 0.8, "rundir": 0.36},
    **{"distributed": 0.45, "metrics": 0.08, "optim": 0.65, "data": 0.93},
}
STYLE = """
text { font: 15px sans-serif; text-anchor: middle; fill: #1f2328 }
rect { fill: #ddf4ff; stroke: #0969da; rx: 6 }
line { stroke: #656d76; marker-end: url(#tip) }
path { fill: #656d76 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } rect { fill: #0d2740; stroke: #4493f8 }
  line { stroke: #9198a1 } path { fill: #9198a1 }
}
"""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


def room_imports() -> dict[str, set[str]]:
    """Room -> the rooms that its files import."""
    found: dict[str, set[str]] = {}
    for name in modules():
        if "." not in name or room_of(name) in EVERYWHERE:
            continue
        ours = {room_of(i) for i in imports(name) if i.startswith("runner.")}
        found.setdefault(room_of(name), set()).update(ours - EVERYWHERE - {room_of(name)})
    return found


def without_implied(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from two or more others."""

    def reached(room: str) -> set[str]:
        return arrows[room].union(*(reached(below) for below in arrows[room]))

    return {
        room: {b for b in below if not any(b in reached(other) for other in below - {b})}
        for room, below in arrows.items()
    }


def draw(arrows: Mapping[str, set[str]]) -> str:
    """The picture as SVG: rooms in rows, each above all rooms that it imports."""

    def height(room: str) -> int:
        return 1 + max((height(below) for below in arrows[room]), default=-1)

    rows: dict[int, list[str]] = {}
    for room in sorted(arrows):
        rows.setdefault(height(room), []).append(room)
    total = len(rows) * ROW_HEIGHT
    centre = {
        room: (WIDTH * ACROSS.get(room, (i + 0.5) / len(row)), total - (level + 0.5) * ROW_HEIGHT)
        for level, row in rows.items()
        for i, room in enumerate(row)
    }
    shapes = []
    for room, below in sorted(without_implied(arrows).items()):
        for other in sorted(below):
            (x1, y1), (x2, y2) = centre[room], centre[other]
            top = y2 - BOX_HEIGHT / 2
            shapes.append(f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{top:.0f}"/>')
    for room, (x, y) in sorted(centre.items()):
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        size = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}"'
        shapes.append(f'<rect x="{left:.0f}" y="{top:.0f}" {size}/>')
        shapes.append(f'<text x="{x:.0f}" y="{y + 5:.0f}">{room}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}">'
    return "\n".join([head, f"<style>{STYLE}</style>", TIP, *shapes, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(room_imports()))
