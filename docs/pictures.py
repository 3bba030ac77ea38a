"""Draws the pictures of the README and the site from real runs: `python -m docs.pictures [NAME]`.

`run` (run_light.svg, run_dark.svg) is what a terminal shows of the first command: training lines,
the table, the yardstick. `report` (report.png, report_sweep.png) is a sweep's page as Chromium
shows it, `board` (board.png) the board while a run trains, both light and dark (`_dark`); they take
the package playwright and a Chromium, see `docs/browser.py`.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from docs.browser import open_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parent
WIDTH = 118  # characters; longer lines are cut, as the picture has to fit the page
COMMAND = ("python", "-m", "runner")
SWEEP = (
    "-m",
    "optimizer=adam,rowwise_adagrad",
    "model=dcn,dlrm",
    "seed=1,2",
    "dataset.rows={train: 60000, validation: 10000, test: 10000}",
    "trainer.batch_size=512",
    "trainer.eval_every=15",
    "trainer.num_threads=1",
)
EVERY = ("trainer.log_every=20", "trainer.eval_every=40", "trainer.num_threads=1", "report=false")
ENDINGS = {"light": "", "dark": "_dark"}  # of the files of a theme
SETTLED_MS = 3000  # plotly's legends and axes find their places
THEMES = {
    "dark": TerminalTheme(
        (13, 17, 23),
        (230, 237, 243),
        [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)]
        + [(88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)],
    ),
    "light": TerminalTheme(
        (246, 248, 250),
        (31, 35, 40),
        [(36, 41, 47), (207, 34, 46), (17, 99, 41), (121, 79, 0)]
        + [(9, 105, 218), (130, 80, 223), (27, 124, 131), (110, 119, 129)],
    ),
}
# rich names fonts of another host, which would be fetched when the picture is opened
FONTS_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def picture_run() -> None:
    """Train by the README's first command, and draw what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        done = run("report=false", folder=folder)
    lines = (done.stdout + done.stderr).splitlines()
    train = [line for line in lines if line.startswith("train ")]
    rest = [line for line in lines if not line.startswith(("train ", "preparing"))]
    shown = [f"$ {' '.join(COMMAND)}", *train[:3], "...", *rest]
    for name, theme in THEMES.items():
        draw(shown, theme, FOLDER / f"run_{name}.svg")


def run(*words: str, folder: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder.

    Raises:
        subprocess.CalledProcessError: if it fails and `check` is set.
    """
    return subprocess.run(
        [sys.executable, *COMMAND[1:], *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=check,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
    )


def draw(lines: list[str], theme: TerminalTheme, picture: Path) -> None:
    """Write lines of a terminal as a picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    for line in lines:
        shown = line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."
        style = "bold" if line.startswith("$") else "yellow" if "warning" in line else ""
        console.print(Text(shown, style=style), no_wrap=True)
    console.print()  # rich cuts the lower edge of the last line off
    svg = console.export_svg(title="runner", theme=theme, unique_id="run")
    picture.write_text(FONTS_ELSEWHERE.sub("", svg))


def picture_report() -> None:
    """Run a small sweep, and take pictures of its page: the top, and curves with importance."""
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        run("hydra.sweep.dir=first_sweep", *SWEEP, folder=folder)
        [page_file] = Path(folder).glob("first_sweep/*.html")
        for theme, ending in ENDINGS.items():
            page = open_page(browser, page_file.as_uri(), theme, width=1400)
            save(page.screenshot(), FOLDER / f"report{ending}.png")
            page.set_viewport_size({"width": 1000, "height": 880})
            page.wait_for_timeout(SETTLED_MS)
            boxes = [
                page.locator("section", has=page.get_by_role("heading", name=name)).bounding_box()
                for name in ("Curves", "Importance")
            ]
            top, end = boxes[0]["y"] - 8, boxes[1]["y"] + boxes[1]["height"] + 8
            clip = {"x": 0, "y": top, "width": 1000, "height": end - top}
            taken = page.screenshot(full_page=True, clip=clip)
            save(taken, FOLDER / f"report_sweep{ending}.png")


def picture_board() -> None:
    """Take pictures of the board over a sweep, a run that fails, and one that trains."""
    rows = "dataset.rows={train: 100000, validation: 10000, test: 10000}"
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        jobs = [word for word in SWEEP if not word.startswith(("model", "optimizer"))]
        run("hydra.sweep.dir=outputs/first_sweep", *jobs, "report=false", folder=folder)
        run("hydra.run.dir=outputs/dcn", "model=dcn", rows, "report=false", folder=folder)
        diverging = ("optimizer.dense.lr=1e30", "optimizer.sparse.lr=1e30")
        run("hydra.run.dir=outputs/too_fast", *diverging, folder=folder, check=False)
        slow = ("optimizer.dense.lr=0.0003", "optimizer.sparse.lr=0.002", "trainer.max_epochs=500")
        words = ("hydra.run.dir=outputs/now", rows, *slow, *EVERY)
        with (
            start(*words, folder=folder, out=subprocess.DEVNULL) as training,
            start("board", "outputs", "--port", "0", folder=folder) as board,
        ):
            try:
                assert board.stdout is not None
                address = board.stdout.readline().split("http://")[1].split()[0]
                wait_for_rows(Path(folder) / "outputs" / "now" / "metrics.jsonl", training)
                for theme, ending in ENDINGS.items():
                    page = open_page(browser, f"http://{address}", theme, width=1180)
                    save(page.screenshot(full_page=True), FOLDER / f"board{ending}.png")
            finally:
                training.terminate()
                board.terminate()


def start(*words: str, folder: str, out: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a command in a folder."""
    return subprocess.Popen(
        [sys.executable, *COMMAND[1:], *words],
        cwd=folder,
        stdout=out,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent), "PYTHONUNBUFFERED": "1"},
    )


def wait_for_rows(log: Path, training: subprocess.Popen[str], evaluations: int = 6) -> None:
    """Wait until a training has logged some evaluations.

    Raises:
        RuntimeError: if it ends before.
    """
    while not log.exists() or log.read_text().count('"validation"') < evaluations:
        if training.poll() is not None:
            raise RuntimeError(f"the training has ended with code {training.returncode}")
        time.sleep(0.5)


def open_page(browser: Browser, address: str, theme: str, *, width: int) -> Page:
    """Open a page with all its figures drawn."""
    page = browser.new_page(viewport={"width": width, "height": 880}, color_scheme=theme)
    page.goto(address)
    page.wait_for_function("document.documentElement.dataset.drawn !== undefined")
    page.evaluate("drawAll('[data-figure]')")
    page.wait_for_timeout(SETTLED_MS)
    return page


def save(taken: bytes, picture: Path) -> None:
    """Write a screenshot as a small PNG."""
    from PIL import Image

    image = Image.open(io.BytesIO(taken)).convert("RGB").quantize(96)
    image.save(picture, optimize=True)


PICTURES = {"run": picture_run, "report": picture_report, "board": picture_board}


def main() -> None:
    """Draw the pictures that are named, or all."""
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main()
