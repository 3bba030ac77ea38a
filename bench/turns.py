"""A whole run of the runner that takes turns with other loops over the same rows."""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.jobs import job_in, prepared
from bench.paired import Stopwatch, machine
from runner.errors import UserError

if TYPE_CHECKING:
    from bench.parts import Parts
    from runner.batch import Batch
    from runner.config.compose import ComposedConfig
    from runner.training.job import Job


@dataclass(frozen=True)
class Turns:
    """Which other loops run, and for how many updates at a time; `parts` times ours, if given."""

    loops: dict[str, tuple[Stopwatch, Iterator[None]]]
    ours: Stopwatch
    chunk: int
    parts: Parts | None = None

    def theirs(self) -> None:
        for watch, loop in self.loops.values():
            watch.start()
            next(loop, None)
            watch.stop()

    def pause(self) -> None:
        self.ours.stop()
        if self.parts is not None:
            self.parts.enter()
        self.theirs()
        if self.parts is not None:
            self.parts.leave("theirs")
        self.ours.start()


class Pausing:
    """A dataset that lets the other loops run before each chunk of training batches."""

    def __init__(self, job: Job, turns: Turns) -> None:
        self._job, self._turns = job, turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job.dataset, name)

    def batches(self, *args: Any, **more: Any) -> Iterator[Batch]:
        assert self._job.checkpointer is not None
        for number, batch in enumerate(self._job.dataset.batches(*args, **more)):
            if number and number % self._turns.chunk == 0:
                self._job.checkpointer.finish()  # no work of ours is left to run in their time
                self._turns.pause()
            yield batch


def run_in_turns(
    composed: ComposedConfig,
    loops: Mapping[str, Iterator[None]],
    *,
    chunk: int,
    updates: int,
    check: Callable[[Job], None],
    parts: Parts | None = None,
    stopwatch: Callable[[], Stopwatch] = Stopwatch,
) -> dict[str, Stopwatch]:
    """Times of `ours` and of each other loop over one whole run. parts: are filled with ours.

    Args: loops: yield after every `chunk` updates. updates: of the run. check: is given the job
        when all have ended, to see that they did the same. stopwatch: makes what times each.
    Raises: RuntimeError if the run did not end as it should.
    """
    from bench.parts import clocked

    with tempfile.TemporaryDirectory() as folder, job_in(Path(folder), composed) as job:
        watched = {name: (stopwatch(), loop) for name, loop in loops.items()}
        turns = Turns(watched, stopwatch(), chunk, parts)
        running = replace(job, dataset=Pausing(job, turns))  # type: ignore[arg-type]
        if parts is not None:
            running = clocked(running, parts)
        gc.collect()
        turns.ours.start()
        result = running.loop(running)
        turns.ours.stop()
        turns.theirs()
        if (result.status, result.step) != ("completed", updates):
            raise RuntimeError(f"the run is {result.status} at step {result.step}")
        check(job)
    return {"ours": turns.ours} | {name: watch for name, (watch, _) in watched.items()}


def measured_by_size(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    measure: Callable[[ComposedConfig, int, int], str],
    *,
    pairs: int,
    batch_sizes: str,
    rows: int,
    turn_rows: int = 51_200,
) -> int:
    """Prints what `measure` says of each batch size; the last four are the options' defaults.

    Args: measure: is given the configuration, the number of pairs and the updates of a turn.
    Returns: the exit code.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--batch-sizes", default=batch_sizes)
    parser.add_argument("--rows", type=int, default=rows, help="of each run")
    parser.add_argument("--turn-rows", type=int, default=turn_rows, help="rows of one turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("overrides", nargs="*", help="of the job, such as model.net.top=[512,256]")
    options = parser.parse_args(argv)
    print(machine(options.threads), flush=True)
    for size in map(int, options.batch_sizes.split(",")):
        whole = options.rows // size * size  # a last, shorter batch would fit neither's cadence
        try:
            composed = prepared(
                [
                    f"dataset.rows={{train: {whole}, validation: 0, test: 0}}",
                    f"trainer.batch_size={size}",
                    f"trainer.num_threads={options.threads}",
                    *options.overrides,
                ]
            )
            chunk = max(options.turn_rows // size, 1)
            print(measure(composed, options.pairs, chunk), flush=True)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


def speeds(runs: Sequence[Mapping[str, Stopwatch]], *, size: int, updates: int, chunk: int) -> str:
    """Return two lines above a table: how much was measured, and the rows/s of each."""
    num_rows = size * updates
    best = [f"{name} {num_rows / min(r[name].wall_s for r in runs):,.0f}" for name in runs[0]]
    return (
        f"\nbatch size {size:,}: {len(runs)} pairs of {updates:,} updates, turns of {chunk}\n"
        f"rows/s, the best run of each: {', '.join(best)}\n"
    )
