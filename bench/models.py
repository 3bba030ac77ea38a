"""Measures where the time of an update goes, for each model.

    python -m bench.models [--only dcn,masknet] [--updates 8] [--threads 1] [--write docs/speed.md]

`products` is the time that the matrix products of an update would take by themselves, at the speed
of the fastest product of this machine (4,096 x 1,024 by 1,024 x 1,024), beside the whole update:
what is left to gain by anything but fewer multiplications.

Every model as its YAML has it, on synthetic rows read from Parquet, in eager updates with hooks on
every module, as `loop=debug loop.summary=true` has them; what the hooks take is left out, and so is
reading. Times are processor times of the thread that trains: other work does not stretch them. With
`--write`, the table replaces the one that the page has between its two marks.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from bench.jobs import job_without_run, prepared
from bench.paired import machine
from runner.config.locations import PROJECT
from runner.errors import UserError

if TYPE_CHECKING:
    from runner.training.debugging.timing import ModuleTimer
    from runner.training.job import Job
    from runner.training.loops.debug import DebugObservers

BEGIN, END = "<!-- python -m bench.models -->", "<!-- the end of what it wrote -->"
PARTS = ("look-up", "forward", "backward", "tables", "optimizer")
HISTORY = ("dataset.num_sequences=1", "dataset.sequence_length=10", "dataset.interest=1.0")
ROWS = 4096  # an update
OF_HISTORIES = dict.fromkeys(  # rows an update
    ("bert4rec", "bst", "dien", "din", "gru4rec", "hstu", "sasrec", "two_tower"), 1024
)


def names() -> list[str]:
    """Return all models but `own`, which is only a frame for a user's model."""
    stems = sorted(path.stem for path in (PROJECT / "conf" / "model").glob("*.yaml"))
    return [name for name in stems if name != "own"]


def words_of(name: str, *, updates: int, threads: int) -> list[str]:
    size = OF_HISTORIES.get(name, ROWS)
    return [
        f"model={name}",
        *(HISTORY if name in OF_HISTORIES else ()),
        f"dataset.rows={{train: {(updates + 1) * size}, validation: 0, test: 0}}",
        f"trainer.batch_size={size}",
        f"trainer.num_threads={threads}",
        "loop=debug",
        "loop.summary=true",
        "loop.stop_at_nonfinite=false",
        f"loop.max_steps={updates + 1}",
    ]


def profiled(job: Job) -> DebugObservers:
    """Time the updates of `loop=debug` by processor time of this thread, without the first one."""
    from dataclasses import replace

    from runner.config.settings import DebugLoopSettings
    from runner.training.debugging.hooks import ObservedDataset, attach_hooks
    from runner.training.loops.debug import make_observers, prepare_debug_job, run_updates
    from runner.training.loops.start import start_training
    from runner.training.stop_signal import stop_on_signals

    options = DebugLoopSettings(**job.loop_settings)
    with stop_on_signals() as stop:
        state = start_training(job)
        job = prepare_debug_job(job, state, options)
        look = make_observers(job, options)
        look.dispatcher.clock = time.thread_time
        job = replace(job, dataset=ObservedDataset(job.dataset, look.dispatcher))
        with attach_hooks(look.dispatcher, look.hooked, look.parameters):
            run_updates(job, state, look, options, stop)
    return look


def parts_of(look: DebugObservers) -> dict[str, float]:
    """Return the milliseconds of an update for each of PARTS."""
    from runner.models.layers.embedding import TableLookup
    from runner.training.debugging.hooks import DATA_PART, OPTIMIZER_PART

    times: ModuleTimer | None = look.timer
    assert times is not None
    found = dict.fromkeys(PARTS, 0.0)
    for (part, way), seconds in times.seconds.items():
        if part == DATA_PART:
            continue  # most of it, decoding a window, falls on the first update
        if part == OPTIMIZER_PART:
            name = "optimizer"
        elif isinstance(look.modules.get(part), TableLookup):
            name = "look-up" if way == "forward" else "tables"
        else:
            name = way
        found[name] += 1000 * seconds / max(times.num_steps, 1)
    return found


def product_ms(job: Job) -> float:
    """Return the milliseconds that the products of an update take at the machine's own speed."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from runner.models.layers import linear, small_products
    from runner.training.loops.start import start_training
    from runner.training.steps import steps
    from runner.training.stop_signal import StopSignal

    def count_linear(x: Sequence[int], weight: Sequence[int], *_: object, **__: object) -> int:
        return 2 * math.prod(x) * weight[0]

    updates = steps(job, start_training(job), StopSignal(job.context.ranks))
    mapping = {torch.ops.mkldnn._linear_pointwise: count_linear}
    # NumPy's products are torch's meanwhile, which are counted
    names = [(small_products, "has_faster_onednn"), (small_products, "takes_numpy_alone")]
    with ExitStack() as torchs, FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        for module, name in [*names, (linear, "takes_numpy_alone")]:
            torchs.enter_context(patch.object(module, name, lambda *_: False))
        next(updates)
    return 1000 * counter.get_total_flops() / fastest_product()


def fastest_product() -> float:
    """Return the operations a second of the faster of both libraries of matrix products."""
    import torch

    x, weight = torch.randn(ROWS, 1024), torch.randn(1024, 1024)
    seconds = []
    for multiply, more in (
        (torch.nn.functional.linear, ()),
        (torch.ops.mkldnn._linear_pointwise, (None, "none", [], "")),
    ):
        for _ in range(8):
            began = time.thread_time()
            multiply(x, weight, *more)
            seconds.append(time.thread_time() - began)
    return 2 * x.numel() * len(weight) / min(seconds)


def row(name: str, size: int, parts: Mapping[str, float], products: float) -> str:
    total = sum(parts.values())
    shares = [f"{part / total:.0%}" for part in (*(parts[part] for part in PARTS), products)]
    return f"| {' | '.join([f'`{name}`', f'{size:,}', f'{total:.1f}', *shares])} |"


def page(rows: Sequence[str], said: str) -> str:
    header = ["model", "rows", "ms", *PARTS, "products"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *rows]
    return "\n".join([*lines, "", said.replace("\n", "; ") + "."])


def written(text: str, table: str, begin: str = BEGIN) -> str:
    """Return the page with the table between its marks.

    Raises:
        ValueError: if the page has no such marks.
    """
    before, mark, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the page needs two lines, {begin} and {END}")
    return f"{before}{begin}\n{table}\n{END}{after}"


def one(name: str, options: argparse.Namespace) -> int:
    """Print the row of one model."""
    words = words_of(name, updates=options.updates, threads=options.threads)
    try:
        composed = prepared([*words, *options.overrides])
        job = job_without_run(composed)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    products = product_ms(job_without_run(composed))
    print(row(name, job.trainer.batch_size, parts_of(profiled(job)), products), flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(names()), help="models, with commas between")
    parser.add_argument("--updates", type=int, default=8, help="that count, of each model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", type=Path, help="a page with two marks to put the table between")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="of every job")
    options = parser.parse_args(argv)
    if options.one:
        return one(options.one, options)
    rows = []
    for name in options.only.split(","):  # a process each: threads are chosen when torch is loaded
        words = ["--one", name, "--updates", options.updates, "--threads", options.threads]
        done = subprocess.run(
            [sys.executable, "-m", "bench.models", *map(str, words), *options.overrides],
            cwd=PROJECT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return done.returncode
        rows += done.stdout.splitlines()[-1:]
        print(rows[-1], flush=True)
    if options.write:
        table = page(rows, machine(options.threads).replace(": others are busy on it", ""))
        options.write.write_text(written(options.write.read_text(), table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
