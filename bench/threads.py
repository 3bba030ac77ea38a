"""Measures what a second thread brings: updates with two beside one, by the clock, in turns.

    python -m bench.threads [--pairs 8] [--updates 3] [--rows 4096] [--busy] [MODEL ...]

`authors` is the DLRM of its authors' widths. `--busy` keeps one core busy meanwhile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from bench.jobs import job_without_run, prepared
from bench.norms import AUTHORS, ROWS
from bench.paired import alternate, machine, ratio

MODELS = ("authors", "dcn", "dlrm")


def main(arguments: Sequence[str]) -> int:
    """Print a row of a table for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--updates", type=int, default=3, help="in a turn")
    parser.add_argument("--rows", type=int, default=ROWS, help="of an update")
    parser.add_argument("--busy", action="store_true", help="another process uses a core")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    given = parser.parse_args(arguments)
    print(
        "| model | one thread, ms | two, ms | times as fast | 95% interval |\n|---|---|---|---|---|"
    )
    with _busy_core() if given.busy else nullcontext():
        for name in given.models or MODELS:
            turns = [_measure(name, given, num_threads=count) for count in (1, 2)]
            times = alternate(*turns, given.pairs)
            found = ratio(*times)
            ms = [1000 * sorted(of_one)[len(of_one) // 2] / given.updates for of_one in times]
            print(
                f"| `{name}` | {ms[0]:.1f} | {ms[1]:.1f} | {found.median:.2f} | "
                f"{found.low:.2f} to {found.high:.2f} |",
                flush=True,
            )
    print(machine(2))
    return 0


def _measure(name: str, given: argparse.Namespace, *, num_threads: int) -> Callable[[], float]:
    """Return a function that takes the seconds of the updates of a turn."""
    import torch

    from runner.training.loops.start import start_training
    from runner.training.steps import steps
    from runner.training.stop_signal import StopSignal

    total = (given.pairs + 2) * given.updates * given.rows
    words = [*(AUTHORS if name == "authors" else [f"model={name}"]), "trainer.eval_every=null"]
    words += [f"dataset.rows={{train: {total}, validation: 0, test: 0}}", "trainer.num_threads=2"]
    job = job_without_run(prepared([*words, f"trainer.batch_size={given.rows}"]))
    run = steps(job, start_training(job), StopSignal(job.context.ranks))

    def chunk() -> float:
        torch.set_num_threads(num_threads)
        begin = time.perf_counter()
        for _ in range(given.updates):
            next(run)
        return time.perf_counter() - begin

    return chunk


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
    from runner.machine import set_thread_environment

    set_thread_environment(2)  # before torch is imported
    sys.exit(main(sys.argv[1:]))
