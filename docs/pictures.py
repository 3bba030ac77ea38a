"""Draws the pictures of the README from real runs: `python -m docs.pictures`.

`run.svg` is what a terminal shows of the first command: training lines, the table, the yardstick.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

FOLDER = Path(__file__).parent
WIDTH = 118  # characters; longer lines are cut, as the picture has to fit the page
COMMAND = ("python", "-m", "runner")
THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)]
    + [(88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)],
)


def main() -> None:
    """Train by the README's first command, and draw what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *COMMAND[1:], "report=false"]
        env = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, env=env
        )
    lines = (done.stdout + done.stderr).splitlines()
    train = [line for line in lines if line.startswith("train ")]
    rest = [line for line in lines if not line.startswith(("train ", "preparing"))]
    draw([f"$ {' '.join(COMMAND)}", *train[:3], "...", *rest], FOLDER / "run.svg")


def draw(lines: list[str], picture: Path) -> None:
    """Write lines of a terminal as a picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    for line in lines:
        shown = line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."
        style = "bold" if line.startswith("$") else "yellow" if "warning" in line else ""
        console.print(Text(shown, style=style), no_wrap=True)
    picture.write_text(console.export_svg(title="runner", theme=THEME, unique_id="run"))


if __name__ == "__main__":
    main()
