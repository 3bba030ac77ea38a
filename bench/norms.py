"""Measures what batch norm adds to an update: DLRM with and without it, in turns.

    python -m bench.norms [--pairs 30] [--threads 1] [--clock] [--change KEY=VALUE] [KEY=VALUE ...]

The widths are those that DLRM's authors have for Criteo (arXiv:1906.00091: bottom 512-256-64-16,
top 512-256), of which the last of the bottom is the width of the tables; every hidden layer has a
norm. The target is at most 1.05 times the processor time of an update without norm.

`--change trainer.compile=true model=deepfm` measures another setting of another model, which has no
target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from bench.jobs import job_without_run, prepared
from bench.paired import Stopwatch, alternate, machine, note, ratio
from runner.errors import UserError

TARGET = 1.05
NORM = "model.net.norm=batch"
ROWS = 4096  # an update
AUTHORS = ("model=dlrm", "model.net.bottom=[512,256,64]", "model.net.top=[512,256]")


def measure(words: Sequence[str], updates: int, *, by_clock: bool = False) -> Callable[[], float]:
    """Return a function that runs so many updates and returns their seconds.

    Args:
        words: of the job.
        updates: in a turn.
        by_clock: wall time is returned in place of processor time.
    """
    from runner.training.loops.start import start_training
    from runner.training.steps import steps
    from runner.training.stop_signal import StopSignal

    job = job_without_run(prepared(words))
    run = steps(job, start_training(job), StopSignal(job.context.ranks))

    def chunk() -> float:
        watch = Stopwatch()
        watch.start()
        for _ in range(updates):
            next(run)
        watch.stop()
        return watch.wall_s if by_clock else watch.cpu_s

    return chunk


def main(arguments: Sequence[str]) -> int:
    """Print the times of an update and their ratio; return 0 unless the target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--updates", type=int, default=4, help="in a turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", action="store_true", help="wall time, of turns of whole windows")
    parser.add_argument("--change", default=NORM, help="the setting that one of both has")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings of both")
    given = parser.parse_args(arguments)
    total = (given.pairs + 2) * given.updates
    words = [
        *([] if any(word.startswith("model=") for word in given.words) else AUTHORS),
        f"dataset.rows={{train: {total * ROWS}, validation: 0, test: 0}}",
        "trainer.eval_every=null", f"trainer.batch_size={ROWS}",
        f"trainer.num_threads={given.threads}", *given.words,
    ]  # fmt: skip
    try:
        plain, norm = (
            measure([*words, *more], given.updates, by_clock=given.clock)
            for more in ([], [given.change])
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    with_norm, without = alternate(norm, plain, given.pairs)
    found = ratio(with_norm, without)
    if given.change == NORM:
        note("batch norm: an update of the authors' DLRM with / without", found)
    for name, times in ((f"with {given.change}", with_norm), ("without", without)):
        print(f"{name}: {1000 * sorted(times)[len(times) // 2] / given.updates:.2f} ms an update")
    verdict = found.verdict(at_most=TARGET) if given.change == NORM else None
    target = f", at most {TARGET}: {verdict}" if verdict else ""
    print(f"ratio {found.median:.3f} [{found.low:.3f}, {found.high:.3f}]{target}")
    print(machine(given.threads))
    return 1 if verdict == "missed" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
