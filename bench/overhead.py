"""The whole runner against a bare loop: the same updates of the same rows.

    python -m bench.overhead [--pairs 12] [--batch-sizes 1024,4096] [overrides]

Ours is `runner.training.loops.train` as a run has it: Parquet on disk, shuffling, train metrics,
log rows, the view in plain lines, checkpoints at the default cadence and the last one waited for.
Evaluation is left out: no bare loop has one. Theirs takes batches that lie in memory: `bare` with
the very same model, tables and optimizers, `torchrec` with TorchRec's own modules.

One pair is one whole run of each. They take turns every few updates, A B A B, so that both meet
the same machine; a run's times are the sums over its turns. Afterwards the weights of `bare` must
be those of the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.jobs import job_without_run
from bench.paired import SHOWN, Stopwatch, note, ratio, shown, table
from bench.turns import measured_by_size, run_in_turns, speeds

if TYPE_CHECKING:
    from torch import Tensor

    from bench.parts import Parts
    from runner.batch import Batch
    from runner.config.compose import ComposedConfig
    from runner.training.job import Job

NOW = 1 / 0.95  # of the bare loop's time: what is asked for now
AIM = 1.02  # what the design aims at


def one_pair(
    composed: ComposedConfig, batches: Sequence[Batch], *, chunk: int, parts: Parts | None = None
) -> dict[str, Stopwatch]:
    """Measure `ours` and each other loop over one whole run; `parts` collects where our time goes.

    Raises: RuntimeError if the bare loop did not end with the weights of the run.
    """
    from bench.bare import bare_loop, torchrec_loop
    from runner.training.state import weight_tensors

    bare = job_without_run(composed)
    bare.context.tables.set_lr_and_step(bare.learning_rates.base["sparse"], 1)
    loops = {"bare": bare_loop(bare.context, batches, chunk)}
    if composed.config["optimizer"]["sparse"]["kind"] == "rowwise_adagrad":
        loops["torchrec"] = torchrec_loop(bare, batches, chunk)

    def check(job: Job) -> None:
        check_same(weight_tensors(job.context), weight_tensors(bare.context))

    return run_in_turns(
        composed, loops, chunk=chunk, updates=len(batches), check=check, parts=parts
    )


def check_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Check that two loops with the same kernels have the same weights up to rounding."""
    for name, weight in ours.items():
        if not weight.isclose(theirs[name], rtol=1e-3, atol=1e-4).all():
            apart = (weight - theirs[name]).abs().max()
            raise RuntimeError(f"{name}: the two loops are {apart:.1e} apart")


def measure(composed: ComposedConfig, pairs: int, chunk: int) -> str:
    """Return all pairs of one batch size as lines: speeds, a table of ratios, a table of parts."""
    from bench.parts import Parts

    job = job_without_run(composed)
    size = job.trainer.batch_size
    batches = list(job.dataset.batches("train", batch_size=size, seed=job.seed))
    one_pair(composed, batches, chunk=chunk)  # not counted: the first use of everything
    runs = [one_pair(composed, batches, chunk=chunk) for _ in range(pairs)]
    parts = Parts()
    clocks = one_pair(composed, batches, chunk=chunk, parts=parts)
    return "\n".join(
        [
            speeds(runs, size=size, updates=len(batches), chunk=chunk),
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
            note(f"overhead: ours / {other}, {clock[:-2]} time", found)
            verdicts = [found.verdict(at_most=limit) for limit in (NOW, AIM)]
            rows.append([f"ours / {other}, {clock[:-2]} time", *shown(found), *verdicts])
    return table(("ratio", *SHOWN, f"at most {NOW:.3f}", f"at most {AIM:.3f}"), rows)


def decomposition(parts: Parts, clocks: dict[str, Stopwatch], updates: int) -> str:
    """Return where our time goes, in one more run; CPU is that of the training thread."""
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
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    return measured_by_size(
        parser, argv, measure, pairs=12, batch_sizes="1024,4096", rows=1_024_000
    )


if __name__ == "__main__":
    sys.exit(main())
