"""Surfaces that a view draws on: a terminal or a notebook with a progress bar, or plain lines."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any, TextIO

from runner.errors import NO_ROOM, is_drawable
from runner.reporting.console.format import TextTable, fit_to_width

if TYPE_CHECKING:
    from rich.progress import Progress


class PlainSurface:
    """A stream of lines that are flushed at once. Warnings go to the error stream."""

    has_bar = False
    width = 1000  # files and pipes have no width

    def __init__(self, stream: TextIO, errors: TextIO) -> None:
        self._stream, self._errors = stream, errors

    def write_line(self, text: str) -> None:
        ignore_closed_stream(self._stream, lambda: print(text, file=self._stream, flush=True))

    def warn(self, text: str) -> None:
        message = f"warning: {text}"
        ignore_closed_stream(self._errors, lambda: print(message, file=self._errors, flush=True))

    def write_table(self, title: str, table: TextTable) -> None:
        self.write_line("\n".join([title, *("  " + line for line in table.lines())]))

    def draw_progress(self, label: str, done: int, total: int | None, facts: str) -> None:
        """Draw the progress bar, if there is one; the caller limits how often."""

    def end_progress(self) -> None:
        """Take the progress bar away, if there is one."""


class NotebookSurface(PlainSurface):
    """A notebook, with a progress bar above the lines of its cell, which is redrawn in place."""

    has_bar = True
    width = 100

    def __init__(self, stream: TextIO, errors: TextIO) -> None:
        super().__init__(stream, errors)
        self._bar: str | None = None  # the id of what is displayed

    def write_table(self, title: str, table: TextTable) -> None:
        super().write_table(title, fit_to_width(table, self.width - 2))

    def draw_progress(self, label: str, done: int, total: int | None, facts: str) -> None:
        share = f' value="{done}" max="{total}"' if total else ""
        text = f"{label}  {facts}"
        bar = f'<progress{share} style="width: 20em"></progress>'
        html = f'<pre style="margin: 0">{bar} {escape(text)}</pre>'
        self._display({"text/plain": text, "text/html": html})

    def end_progress(self) -> None:
        if self._bar is not None:
            self._display({"text/plain": "", "text/html": ""})

    def _display(self, forms: dict[str, str]) -> None:
        from IPython.display import publish_display_data

        is_new, self._bar = self._bar is None, self._bar or secrets.token_hex(8)
        publish: Callable[..., None] = publish_display_data
        publish(forms, transient={"display_id": self._bar}, update=not is_new)


class TerminalSurface:
    """A terminal with a progress bar on its last line and everything else above it."""

    has_bar = True

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._stream = stream
        self._console = Console(file=stream, highlight=False)
        self._bar: Progress | None = None

    @property
    def width(self) -> int:
        return self._console.width

    def write_line(self, text: str) -> None:
        self._print(text)

    def warn(self, text: str) -> None:
        self._print(f"warning: {text}", style="yellow")

    def write_table(self, title: str, table: TextTable) -> None:
        from rich.text import Text

        table = fit_to_width(table, self._console.width - 2)
        num_header, lines = table.header_height(), table.lines()
        text = Text(f"\n{title}", style="bold")
        for i, line in enumerate(lines):
            if line:  # a header with empty names only is left out
                text.append(f"\n  {line}", style="cyan not bold" if i < num_header else "not bold")
        self._print(text)

    def draw_progress(self, label: str, done: int, total: int | None, facts: str) -> None:
        def draw() -> None:
            bar = self._bar or self._begin()
            if bar.tasks:
                task = bar.task_ids[0]
                bar.update(task, description=label, completed=done, total=total, facts=facts)
                bar.refresh()
            else:
                bar.add_task(label, completed=done, total=total, facts=facts)
                bar.start()
                self._console.show_cursor(True)  # a killed run must not leave the cursor hidden

        ignore_closed_stream(self._stream, draw)

    def end_progress(self) -> None:
        if self._bar is not None:
            bar, self._bar = self._bar, None
            ignore_closed_stream(self._stream, bar.stop)

    def _begin(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            auto_refresh=False,  # refreshing would need a thread, which would slow training
            expand=True,
            transient=True,
        )
        return self._bar

    def _print(self, text: Any, **style: Any) -> None:
        # soft wrap, so that a path longer than the line can be copied
        def draw() -> None:
            self._console.print(text, markup=False, soft_wrap=True, **style)

        ignore_closed_stream(self._stream, draw)


def ignore_closed_stream(
    stream: TextIO, draw: Callable[[], object], *, may_be_full: bool = True
) -> None:
    """Draw, and continue without output if the reader is gone, as with `| head` or a lost terminal.

    Raises:
        OSError: if the disk is full, and it may not be.
    """
    try:
        draw()
    except OSError as error:
        if not may_be_full and error.errno in NO_ROOM:
            raise
        # buffered output goes there too; otherwise the interpreter would fail on exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def make_surface(stream: TextIO) -> PlainSurface | TerminalSurface:
    """Return a surface for a terminal that can move its cursor, a notebook, or plain lines."""
    kernel = sys.modules.get("ipykernel.iostream")  # in a notebook it is there already
    if kernel is not None and isinstance(stream, kernel.OutStream):
        return NotebookSurface(stream, sys.stderr)
    return TerminalSurface(stream) if is_drawable(stream) else PlainSurface(stream, sys.stderr)
