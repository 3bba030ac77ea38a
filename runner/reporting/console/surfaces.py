"""Where a view draws: a terminal with a bar at its bottom, or a stream of plain lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from runner.reporting.console.format import Table, fitted

if TYPE_CHECKING:
    from rich.progress import Progress


class Surface(Protocol):
    has_bar: bool

    @property
    def width(self) -> int: ...

    def line(self, text: str) -> None: ...

    def warning(self, text: str) -> None: ...

    def table(self, title: str, table: Table) -> None: ...

    def progress(self, label: str, done: int, total: int | None, facts: str) -> None:
        """Draws the bar anew; the caller sees to it that this is not often."""

    def end_progress(self) -> None: ...


class Plain:
    """Lines, each flushed at once. Warnings go to the error stream."""

    has_bar = False
    width = 1000  # nobody can say: for files and pipes a line may be long

    def __init__(self, stream: TextIO, errors: TextIO) -> None:
        self._stream, self._errors = stream, errors

    def line(self, text: str) -> None:
        _survive(self._stream, lambda: print(text, file=self._stream, flush=True))

    def warning(self, text: str) -> None:
        message = f"warning: {text}"
        _survive(self._errors, lambda: print(message, file=self._errors, flush=True))

    def table(self, title: str, table: Table) -> None:
        self.line("\n".join([title, *("  " + line for line in table.lines())]))

    def progress(self, label: str, done: int, total: int | None, facts: str) -> None:
        pass

    def end_progress(self) -> None:
        pass


class Terminal:
    """A bar on the last line, everything else above it."""

    has_bar = True

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._stream = stream
        self._console = Console(file=stream, highlight=False)
        self._bar: Progress | None = None

    @property
    def width(self) -> int:
        return self._console.width

    def line(self, text: str) -> None:
        self._print(text)

    def warning(self, text: str) -> None:
        self._print(f"warning: {text}", style="yellow")

    def table(self, title: str, table: Table) -> None:
        from rich.text import Text

        table = fitted(table, self._console.width - 2)
        num_header, lines = table.header_height(), table.lines()
        text = Text(f"\n{title}", style="bold")
        for i, line in enumerate(lines):
            if line:  # a header of nothing but empty names
                text.append(f"\n  {line}", style="cyan not bold" if i < num_header else "not bold")
        self._print(text)

    def progress(self, label: str, done: int, total: int | None, facts: str) -> None:
        def draw() -> None:
            bar = self._bar or self._begin()
            if bar.tasks:
                task = bar.task_ids[0]
                bar.update(task, description=label, completed=done, total=total, facts=facts)
                bar.refresh()
            else:
                bar.add_task(label, completed=done, total=total, facts=facts)
                bar.start()
                self._console.show_cursor(True)  # a killed run must not leave it hidden

        _survive(self._stream, draw)

    def end_progress(self) -> None:
        if self._bar is not None:
            bar, self._bar = self._bar, None
            _survive(self._stream, bar.stop)

    def _begin(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            auto_refresh=False,  # a thread would take turns with training
            expand=True,
            transient=True,
        )
        return self._bar

    def _print(self, text: Any, **style: Any) -> None:
        # soft: a path that is longer than the line can still be copied whole
        def draw() -> None:
            self._console.print(text, markup=False, soft_wrap=True, **style)

        _survive(self._stream, draw)


def _survive(stream: TextIO, draw: Callable[[], None]) -> None:
    """A reader that went away (`| head`, a lost terminal) must not end the training."""
    try:
        draw()
    except OSError:
        # also what is still buffered goes there, else the interpreter's exit fails on it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def surface_for(stream: TextIO) -> Surface:
    """A terminal that can move its cursor, or plain lines."""
    capable = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return Terminal(stream) if stream.isatty() and capable else Plain(stream, sys.stderr)
