"""Progress of data preparation on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.errors import is_drawable

Advance = Callable[[int], None]  # called from any thread with the number of newly finished units

LINE_EVERY_S = 5.0


@contextmanager
def show_progress(label: str, total: int, unit: str = "rows") -> Iterator[Advance]:
    """Show `label` with the finished share of `total` and, at the end, the elapsed time."""
    started = time.monotonic()
    if is_drawable(sys.stderr):
        with _bar(label, total) as advance:
            yield advance
    else:
        print(f"{label} ...", file=sys.stderr, flush=True)
        yield _lines(label, total, unit)
    print(f"{label}: done in {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)


@contextmanager
def _bar(label: str, total: int) -> Iterator[Advance]:
    from rich import progress
    from rich.console import Console

    columns = progress.Progress.get_default_columns()
    with progress.Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def _lines(label: str, total: int, unit: str) -> Advance:
    lock = threading.Lock()
    done, last_line_s = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, last_line_s
        with lock:
            done += count
            if time.monotonic() - last_line_s >= LINE_EVERY_S:
                last_line_s = time.monotonic()
                # for text files the total is an estimate, and there may be more rows
                share = f" ({100 * done / total:.0f}%)" if done < total else ""
                print(f"{label}: {done:,} {unit}{share}", file=sys.stderr, flush=True)

    return advance
