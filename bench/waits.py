"""How long a rank is in the exchanges of an update, by what it exchanges.

    python -m bench.waits [--ranks 2,4,8] [--batch-size 512] [--updates 20]

The time within each collective that the trainer, the tables or TorchRec enter is noted with the
function that entered it: moving the bytes, and waiting for the rank that comes last. Where there
are more ranks than cores, most of it is waiting for the processor. All ranks are averaged.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

os.environ.setdefault("GOMP_SPINCOUNT", "0")

from bench.exchange import KINDS, PLANS, on_ranks
from bench.paired import table

if TYPE_CHECKING:
    from runner.training.job import Job

# a function that is on the stack of a collective -> what is exchanged; the first that fits
CAUSES = {
    "all_reduce_gradients": "dense gradients",
    "all_gather_ids": "ids",
    "send_ids": "ids",
    "return_pooled": "embeddings",
    "backward": "gradients of rows",
    "reduce_scatter_base_pooled": "embeddings",
    "PooledEmbeddingsAwaitable._wait_impl": "embeddings",
    "dist_data": "ids",
    "torchrec_inputs": "ids",
    "total_weight": "agreement",  # on the weight of the update's rows
    "steps": "agreement",  # on whether to go on
}
COLLECTIVES = (
    *("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "all_gather", "barrier"),
    *("all_gather_object", "all_to_all", "all_to_all_single", "broadcast_object_list"),
    *("gather_object", "reduce_scatter", "reduce_scatter_tensor"),
)


def cause_of(frame: Any) -> str:
    """Return what the collective that was entered at a frame exchanges."""
    names = []
    while frame is not None:
        code = frame.f_code
        names += [code.co_qualname, code.co_name, os.path.basename(code.co_filename)[:-3]]
        frame = frame.f_back
    return next((what for name, what in CAUSES.items() if name in names), "other")


def time_updates(job: Job, updates: int) -> dict[str, float]:
    """Return the seconds of an update on this rank (`all`), and those in exchanges by cause."""
    import torch.distributed as dist

    from runner.training.state import TrainState
    from runner.training.steps import steps

    seconds, is_inside = Counter[str](), [False]

    def timed(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def enter(*arguments: Any, **named: Any) -> Any:
            if is_inside[0]:  # a collective that is made of others is timed once
                return real(*arguments, **named)
            is_inside[0], begin = True, time.perf_counter()
            try:
                return real(*arguments, **named)
            finally:
                is_inside[0] = False
                seconds[cause_of(sys._getframe(1))] += time.perf_counter() - begin

        return enter

    for name in COLLECTIVES:
        setattr(dist, name, timed(inspect.unwrap(getattr(dist, name))))
    dist.Work.wait = timed(dist.Work.wait)
    updating = steps(job, TrainState())
    next(updating)  # the first makes what all others use
    seconds.clear()
    begin = time.perf_counter()
    for _ in range(updates):
        next(updating)
    seconds["all"] = time.perf_counter() - begin
    return {what: value / updates for what, value in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--ranks", default="2,4,8")
    words.add_argument("--batch-size", type=int, default=512, help="rows of a rank")
    words.add_argument("--updates", type=int, default=20)
    words.add_argument("more", nargs="*", help="overrides of every job")
    options = words.parse_args(arguments)
    causes = [*dict.fromkeys(CAUSES.values()), "other"]
    rows = []
    counts = [int(n) for n in options.ranks.split(",")]
    for plan, kind, num_ranks in itertools.product(PLANS, KINDS, counts):
        num_rows = num_ranks * options.batch_size * (options.updates + 1)
        of_job = [f"sharding={plan}", f"optimizer.sparse.kind={kind}"]
        of_job += [f"dataset.rows.train={max(40_000, num_rows)}", *options.more]
        found = on_ranks(
            num_ranks,
            [f"trainer.batch_size={options.batch_size}", *of_job],
            lambda job: time_updates(job, options.updates),
        )
        mean_ms = {
            what: 1e3 * sum(rank.get(what, 0.0) for rank in found) / num_ranks
            for what in ("all", *causes)
        }
        rows.append([f"{plan}, {kind}, {num_ranks}", *(f"{ms:.1f}" for ms in mean_ms.values())])
    print(table(["plan, optimizer, ranks", "ms an update", *causes], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
