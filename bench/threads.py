"""Measures what a second thread brings: updates with two beside one, by the clock, in turns.

    python -m bench.threads [--pairs 8] [--updates 3] [--rows 4096] [--busy] [MODEL ...]

A model may have options behind it, in one word of the shell (`"deepfm model.net.norm=batch"`).
Models of histories have 1,024 rows, each with ten events. `authors` is the DLRM of its authors'
widths. `product` is a product of two matrices alone and `copy` a copy in memory: what the machine
itself gains by a second thread. `--busy` keeps one core busy meanwhile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from bench.models import HISTORY, OF_HISTORIES
from bench.norms import AUTHORS, ROWS, measure
from bench.paired import alternate, machine, turns_parser, turns_row

MODELS = ("authors", "dcn", "dlrm", "product", "copy")
WIDTH = 1024  # of the matrices that are multiplied


def main(arguments: Sequence[str]) -> int:
    """Print a row of a table for each model."""
    parser = turns_parser(__doc__ or "", pairs=8, updates=3, rows=ROWS)
    parser.add_argument("--busy", action="store_true", help="another process uses a core")
    given = parser.parse_args(arguments)
    print("| model | one thread, ms | two, ms | times as fast | 95% interval |")
    print("|---|---|---|---|---|")
    with _busy_core() if given.busy else nullcontext():
        for name in given.models or MODELS:
            timer = _bare_timer if name in ("product", "copy") else _update_timer
            one, two = (timer(name, given, num_threads=count) for count in (1, 2))
            print(turns_row(name, alternate(one, two, given.pairs), given.updates), flush=True)
    print(machine(2))
    return 0


def _bare_timer(name: str, given: argparse.Namespace, *, num_threads: int) -> Callable[[], float]:
    """Return a function that takes the seconds of one operation for each update of a turn."""
    import torch

    left = torch.randn(given.rows, WIDTH)
    right = torch.randn(WIDTH, WIDTH)
    source, target = (torch.zeros(1 << 24) for _ in range(2))

    def timed() -> float:
        torch.set_num_threads(num_threads)
        began = time.perf_counter()
        for _ in range(given.updates):
            if name == "product":
                torch.mm(left, right)
            else:
                target.copy_(source)
        return time.perf_counter() - began

    return timed


def _update_timer(name: str, given: argparse.Namespace, *, num_threads: int) -> Callable[[], float]:
    """Return a function that takes the seconds of the updates of a turn."""
    import torch

    model, *more = name.split()
    more += HISTORY if model in OF_HISTORIES else ()
    rows = OF_HISTORIES.get(model, given.rows)
    total = (given.pairs + 2) * given.updates * rows
    words = [*(AUTHORS if model == "authors" else [f"model={model}"]), "trainer.eval_every=null"]
    words += [f"dataset.rows={{train: {total}, validation: 0, test: 0}}"]
    words += [f"trainer.num_threads={num_threads}", f"trainer.batch_size={rows}", *more]
    chunk = measure(words, given.updates, by_clock=True)

    def timed() -> float:
        torch.set_num_threads(num_threads)
        return chunk()

    return timed


@contextmanager
def _busy_core() -> Iterator[None]:
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, {core})) as other:
        try:
            yield
        finally:
            other.kill()


if __name__ == "__main__":
    from runner.machine.cores import set_thread_environment

    set_thread_environment(2)  # before torch is imported
    sys.exit(main(sys.argv[1:]))
