"""The whole runner against a bare loop: the same updates of the same rows.

    python -m bench.overhead [--pairs 12] [--batch-sizes 1024,4096] [overrides]

Ours is `runner.loops.train` as a run has it: Parquet on disk, shuffling, train metrics, log rows,
the view in plain lines, checkpoints at the default cadence and the last one waited for. Evaluation
is left out: no bare loop has one. Theirs takes batches that lie in memory: `bare` with the very
same model, tables and optimizers, `torchrec` with TorchRec's own modules.

One pair is one whole run of each. They take turns every few updates, A B A B, so that both meet
the same machine; a run's times are the sums over its turns. Afterwards the weights of `bare` must
be those of the run.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.jobs import job_in, job_without_run, prepared
from bench.paired import SHOWN, Stopwatch, machine, ratio, shown, table
from runner.errors import UserError

if TYPE_CHECKING:
    from bench.parts import Parts
    from runner.batch import Batch
    from runner.compose import Composed
    from runner.context import Context
    from runner.job import Job

NOW = 1 / 0.95  # of the bare loop's time: what is asked for now
AIM = 1.02  # what the design aims at


@dataclass(frozen=True)
class Turns:
    """Who else runs, and for how many updates at a time. parts: where our time goes, if asked."""

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
    """A dataset that lets the others run before every next chunk of training batches."""

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


def one_pair(
    composed: Composed, batches: Sequence[Batch], *, chunk: int, parts: Parts | None = None
) -> dict[str, Stopwatch]:
    """Times of `ours` and of each other loop over one whole run. parts: are filled with ours.

    Raises: RuntimeError if the bare loop did not end with the weights of the run.
    """
    from bench.bare import bare_loop, torchrec_loop
    from bench.parts import clocked

    with tempfile.TemporaryDirectory() as folder, job_in(Path(folder), composed) as job:
        bare = job_without_run(composed)
        bare.context.tables.set_rate(bare.rates.full["sparse"], 1)
        loops = {"bare": (Stopwatch(), bare_loop(bare.context, batches, chunk))}
        if composed.config["optimizer"]["sparse"]["kind"] == "rowwise_adagrad":
            loops["torchrec"] = (Stopwatch(), torchrec_loop(bare, batches, chunk))
        turns = Turns(loops, Stopwatch(), chunk, parts)
        running = replace(job, dataset=Pausing(job, turns))  # type: ignore[arg-type]
        if parts is not None:
            running = clocked(running, parts)
        gc.collect()
        turns.ours.start()
        result = running.loop(running)
        turns.ours.stop()
        turns.theirs()
        if (result.status, result.step) != ("completed", len(batches)):
            raise RuntimeError(f"the run is {result.status} at step {result.step}")
        check_same(job.context, bare.context)
    return {"ours": turns.ours} | {name: watch for name, (watch, _) in loops.items()}


def check_same(ours: Context, bare: Context) -> None:
    """Two loops that did the same updates have the same weights, but for rounding."""
    from runner.state import weights

    theirs = weights(bare)
    for name, weight in weights(ours).items():
        if not weight.isclose(theirs[name], rtol=1e-3, atol=1e-4).all():
            apart = (weight - theirs[name]).abs().max()
            raise RuntimeError(f"{name}: the two loops are {apart:.1e} apart")


def measure(composed: Composed, *, pairs: int, turn_rows: int) -> str:
    """All pairs of one batch size: speeds, a table of ratios, a table of parts."""
    from bench.parts import Parts

    job = job_without_run(composed)
    size = job.trainer.batch_size
    batches = list(job.dataset.batches("train", batch_size=size, seed=job.seed))
    chunk = max(turn_rows // size, 1)
    one_pair(composed, batches, chunk=chunk)  # not counted: the first use of everything
    runs = [one_pair(composed, batches, chunk=chunk) for _ in range(pairs)]
    parts = Parts()
    clocks = one_pair(composed, batches, chunk=chunk, parts=parts)
    num_rows = size * len(batches)
    speeds = [f"{name} {num_rows / min(r[name].wall_s for r in runs):,.0f}" for name in runs[0]]
    return "\n".join(
        [
            f"\nbatch size {size:,}: {pairs} pairs of {len(batches):,} updates, turns of {chunk}",
            f"rows/s, the best run of each: {', '.join(speeds)}",
            "",
            ratios(runs),
            "",
            decomposition(parts, clocks, len(batches)),
        ]
    )


def ratios(runs: Sequence[dict[str, Stopwatch]]) -> str:
    rows = []
    for other in (name for name in runs[0] if name != "ours"):
        for clock in ("wall_s", "cpu_s"):
            found = ratio(*([getattr(run[who], clock) for run in runs] for who in ("ours", other)))
            verdicts = [found.verdict(at_most=limit) for limit in (NOW, AIM)]
            rows.append([f"ours / {other}, {clock[:-2]} time", *shown(found), *verdicts])
    return table(("ratio", *SHOWN, f"at most {NOW:.3f}", f"at most {AIM:.3f}"), rows)


def decomposition(parts: Parts, clocks: dict[str, Stopwatch], updates: int) -> str:
    """What our time went into, in one more run; CPU is that of the training thread."""
    bare, ours = clocks["bare"], clocks["ours"]
    said = {
        "update": "cut, finiteness, weights of rows",
        "data": "data: read, shuffle, assemble",
        "metrics": "train metrics",
        "log": "log rows and lines",
        "view": "view",
        "save": "checkpoint: the stall",
        "wait": "checkpoint: the last, waited for",
        "rest": "rates, cadence, start and end",
    }
    cpu_s, wall_s = dict(parts.cpu_s), dict(parts.wall_s)
    cpu_s["rest"] = ours.cpu_s - sum(v for k, v in cpu_s.items() if k != "theirs")
    wall_s["rest"] = ours.wall_s - sum(v for k, v in wall_s.items() if k != "theirs")
    cpu_s["update"] -= bare.cpu_s
    wall_s["update"] -= bare.wall_s
    rows = [("a bare update", bare.cpu_s, bare.wall_s)]
    rows += [(text, cpu_s.get(k, 0.0), wall_s.get(k, 0.0)) for k, text in said.items()]
    rows.append(("all of ours", ours.cpu_s, ours.wall_s))
    cells = [
        [text, *(f"{s / updates * 1e3:.3f}" for s in (cpu, wall)), f"{cpu / bare.cpu_s:.1%}"]
        for text, cpu, wall in rows
    ]
    return table(("where it goes, ms an update", "cpu", "wall", "of bare, cpu"), cells)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--batch-sizes", default="1024,4096")
    parser.add_argument("--rows", type=int, default=1_024_000, help="of each run")
    parser.add_argument("--turn-rows", type=int, default=51_200, help="rows of one turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("overrides", nargs="*", help="of the job, such as model.net.top=[512,256]")
    options = parser.parse_args(argv)
    print(machine(options.threads), flush=True)
    for size in map(int, options.batch_sizes.split(",")):
        rows = options.rows // size * size  # a last, shorter batch would fit neither's cadence
        try:
            composed = prepared(
                [
                    f"dataset.rows={{train: {rows}, validation: 0, test: 0}}",
                    f"trainer.batch_size={size}",
                    f"trainer.num_threads={options.threads}",
                    *options.overrides,
                ]
            )
            print(measure(composed, pairs=options.pairs, turn_rows=options.turn_rows), flush=True)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
