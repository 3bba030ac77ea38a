"""An evaluation of a split beside the forward pass alone, over the same rows.

    python -m bench.evaluation [--pairs 12] [--rows 409600] [--threads 1] [overrides]

Ours is what `loop=eval` does with a split: rows from disk, forward pass, loss, metrics. The forward
pass alone takes batches that lie in memory and keeps nothing. Whole passes take turns, by
processor time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.jobs import job_without_run, prepared
from bench.paired import SHOWN, alternate, machine, note, ratio, shown, table
from bench.predict import processor_seconds

TARGET = 0.9  # of the rows a second of the forward pass alone


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=409_600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args(argv)
    composed = prepared(
        [
            f"dataset.rows={{train: 4096, validation: 0, test: {given.rows}}}",
            f"trainer.num_threads={given.threads}",
            *given.overrides,
        ]
    )
    import torch

    from runner.training.loops.evaluate_split import evaluate_split

    job = job_without_run(composed)
    size = job.trainer.eval_batch_size or job.trainer.batch_size
    batches = list(job.dataset.batches("test", batch_size=size))

    @torch.no_grad()
    def forward() -> None:
        job.context.model.eval()
        for batch in batches:
            job.context.model(batch)

    ours, alone = alternate(
        lambda: processor_seconds(lambda: evaluate_split(job, "test")),
        lambda: processor_seconds(forward),
        given.pairs,
    )
    share = ratio(alone, ours)
    note("loop=eval / the forward pass alone, rows a second", share, is_cost=False)
    print(f"{machine(given.threads)}\n{given.rows:,} rows in batches of {size:,}")
    print(table(["", *SHOWN], [["evaluation / forward pass, rows a second", *shown(share)]]))
    print(f"target: at least {TARGET}: {ratio(ours, alone).verdict(at_most=1 / TARGET)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
