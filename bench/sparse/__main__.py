"""Rows per second of one update with embedding tables: ours beside what others write.

    python -m bench.sparse [--only updates,boundary,size,save] [--seconds 240] [--threads 1]

updates: ours and each of the others in turns, for two models and two batch sizes. boundary: what
the cut for exact gradients costs with one micro-batch. size: time of an update by rows of a table.
save: a model of 1 GB saved beside training. A ratio is of processor times, pair by pair; the
medians have bootstrap intervals. `open` means that the machine was too noisy to say.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # before torch

import torch

from bench.paired import SHOWN, Stopwatch, estimate, machine, note, ratio, shown, table
from bench.sparse.contestants import (
    CONTESTANTS,
    OURS,
    Update,
    our_context,
    our_update,
    uncut_update,
)
from bench.sparse.scenes import SCENES, Prepared, Scene, prepared
from runner.machine.memory import keep_freed_memory
from runner.rundir.checkpoint import Checkpointer

# ours must take at most this part of theirs: (contestant, batch size) -> ratio of times
TARGETS = {
    ("TorchRec fused, row-wise Adagrad", 4096): 1 / 1.3,
    ("nn.EmbeddingBag, Adam", 4096): 1 / 2.5,
    ("nn.EmbeddingBag, Adam", 1024): 1 / 8,
}
BOUNDARY_AT_MOST = 1.05
# An update touches the rows of its batch, however many lie beside them: no part of its time grows
# with the table. What remains: the smallest tables fit the processor's caches, the largest do not,
# and a row of them costs a miss of the page table too.
SIZE_AT_MOST = 1.25
MOST_ROUNDS = 20
GB = 10**9


def turn(update: Update, batches: Sequence[Prepared], updates: int) -> Stopwatch:
    watch = Stopwatch()
    watch.start()
    for i in range(updates):
        update(batches[i % len(batches)])
    watch.stop()
    return watch


def in_turns(
    updates: dict[str, Update], batches: Sequence[Prepared], *, seconds: float, turn_s: float
) -> dict[str, list[Stopwatch]]:
    """Run each of them for about `turn_s`, again and again, and return times of an update."""
    began = time.perf_counter()
    counts = {}
    for name, update in updates.items():
        turn(update, batches, 1)  # the first use of everything
        once_s = turn(update, batches, 1).wall_s
        counts[name] = max(1, min(200, round(turn_s / max(once_s, 1e-6))))
    found: dict[str, list[Stopwatch]] = {name: [] for name in updates}
    for number in range(MOST_ROUNDS):
        if number >= 2 and time.perf_counter() - began > seconds:
            break
        for name, update in updates.items():
            watch = turn(update, batches, counts[name])
            each = Stopwatch(watch.wall_s / counts[name], watch.cpu_s / counts[name])
            found[name].append(each)
    return found


def free_bytes() -> int:
    """Return the memory that is available now, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say what memory is available")


def measure_updates(scene: Scene, size: int, seconds: float, turn_s: float) -> str:
    """Measure ours against each of the others in turns; only these two are in memory at a time."""
    batches = [prepared(scene, size, seed) for seed in range(4)]
    [ours] = [c for c in CONTESTANTS if c.name == OURS]
    others = [c for c in CONTESTANTS if c.name != OURS]
    our_turn, best_s = ours.make(scene), math.inf
    rows, rounds = [], []
    for other in others:
        needed = other.memory * scene.weights_bytes
        if needed > free_bytes() * 0.9:
            rows.append([other.name, "left out:", "needs", f"{needed / GB:.1f} GB", ""])
            continue
        updates = {OURS: our_turn, other.name: other.make(scene)}
        share_s = seconds / len(others)
        times = in_turns(updates, batches, seconds=share_s, turn_s=turn_s)
        del updates
        gc.collect()
        found = ratio(*([w.cpu_s for w in times[name]] for name in (OURS, other.name)))
        limit = TARGETS.get((other.name, size))
        rows.append(
            [
                other.name,
                f"{size / min(w.wall_s for w in times[other.name]):,.0f}",
                f"{1 / found.median:.2f}x",
                f"{1 / found.high:.2f} to {1 / found.low:.2f}",
                "" if limit is None else f"{1 / limit:.1f}x: {found.verdict(at_most=limit)}",
            ]
        )
        best_s = min(best_s, *(w.wall_s for w in times[OURS]))
        rounds.append(len(times[OURS]))
    rows.append([OURS, f"{size / best_s:,.0f}", "", "", ""])
    pairs = f"{min(rounds)} to {max(rounds)} pairs" if rounds else "no pair"
    head = f"{scene.name}, batch {size:,}, {pairs}"
    return "\n" + table((head, "rows/s, best", "ours faster", "95% interval", "target"), rows)


def measure_boundary(size: int, seconds: float, turn_s: float) -> str:
    scene = SCENES["26"]
    batches = [prepared(scene, size, seed) for seed in range(4)]
    updates = {
        "cut": our_update(our_context(scene, "rowwise_adagrad")),
        "uncut": uncut_update(our_context(scene, "rowwise_adagrad")),
    }
    times = in_turns(updates, batches, seconds=seconds, turn_s=turn_s)
    rows = []
    for clock in ("cpu_s", "wall_s"):
        found = ratio(*([getattr(w, clock) for w in times[who]] for who in ("cut", "uncut")))
        note(f"cut and check of gradients, batch {size:,}, {clock[:-2]} time", found)
        verdict = found.verdict(at_most=BOUNDARY_AT_MOST)
        rows.append([f"batch {size:,}, {clock[:-2]} time", *shown(found), verdict])
    return "\n" + table(
        ("the boundary and the check of gradients", *SHOWN, f"at most {BOUNDARY_AT_MOST}"), rows
    )


def measure_size(seconds: float, turn_s: float, largest: int) -> str:
    """Measure the same look-ups in larger and larger tables."""
    updates, rows, batches = {}, [], {}
    count = largest // 100
    while count <= largest:
        scene = Scene(num_tables=2, num_rows=count, dim=16, pooling=10)
        name = f"{count:,}"
        needed = 1.2 * scene.weights_bytes
        if needed > free_bytes() * 0.8:
            rows.append([name, "left out:", "needs", f"{needed / GB:.1f} GB", "", "", ""])
            break
        batches[name] = [prepared(scene, 4096, seed) for seed in range(4)]
        updates[name] = our_update(our_context(scene, "rowwise_adagrad"))
        count *= 10
    began = time.perf_counter()
    times: dict[str, list[Stopwatch]] = {name: [] for name in updates}
    for number in range(MOST_ROUNDS + 1):
        if number >= 3 and time.perf_counter() - began > seconds:
            break
        for name, update in updates.items():
            watch = in_one_turn(update, batches[name], turn_s)
            if number:  # the first is not counted
                times[name].append(watch)
    names, left_out = list(times), rows
    rows = []
    for name in names:
        found = estimate([w.cpu_s * 1000 for w in times[name]])
        against = ratio(*([w.cpu_s for w in times[n]] for n in (name, names[0])))
        verdict = against.verdict(at_most=SIZE_AT_MOST) if name == names[-1] != names[0] else ""
        rows.append([name, *shown(found, digits=2), *shown(against, digits=2)[:2], verdict])
    head = ("rows of each of 2 tables: cpu ms an update", *SHOWN, "to the smallest", SHOWN[1])
    return "\n" + table((*head, f"at most {SIZE_AT_MOST}"), [*rows, *left_out])


def in_one_turn(update: Update, batches: Sequence[Prepared], turn_s: float) -> Stopwatch:
    """Measure the time of an update, over about `turn_s`."""
    count, began, total = 0, time.perf_counter(), Stopwatch()
    while count == 0 or time.perf_counter() - began < turn_s:
        watch = turn(update, batches, len(batches))
        total.wall_s += watch.wall_s
        total.cpu_s += watch.cpu_s
        count += len(batches)
    return Stopwatch(total.wall_s / count, total.cpu_s / count)


def measure_save(num_bytes: int, saves: int) -> str:
    """Measure saving weights and accumulators of `num_bytes` with the runner's checkpointer."""
    num_rows = num_bytes // (4 * 17 * 4)  # 17 numbers a row: 16 weights and their accumulator
    scene = Scene(num_tables=4, num_rows=num_rows, dim=16, pooling=1)
    context = our_context(scene, "rowwise_adagrad")
    tensors = {f"tables/{name}": t for name, t in context.tables.state().items()}
    total = sum(t.nbytes for t in tensors.values())
    stalls, totals = [], []
    with tempfile.TemporaryDirectory() as folder:
        saver = Checkpointer(Path(folder), keep=1)
        saver.prepare(tensors)
        saver.finish()
        for step in range(saves):
            began = time.perf_counter()
            saver.save(step, tensors, {})
            stalls.append(time.perf_counter() - began)
            saver.finish()
            totals.append(time.perf_counter() - began)
    rows = [
        ["training stands still", *shown(estimate(stalls), unit=" s")],
        ["until it is whole on disk", *shown(estimate(totals), unit=" s")],
    ]
    return "\n" + table((f"{total / GB:.2f} GB saved beside training", *SHOWN), rows)


PARTS = ("updates", "boundary", "size", "save")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sparse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--scenes", default=",".join(SCENES))
    parser.add_argument("--batch-sizes", default="1024,4096")
    parser.add_argument("--seconds", type=float, default=240, help="for all turns together")
    parser.add_argument("--turn-s", type=float, default=0.4, help="of one contestant")
    parser.add_argument("--rows", type=int, help="of each table, instead of the scenes' own")
    parser.add_argument("--largest", type=int, default=10**7, help="rows, of --only size")
    parser.add_argument("--save-gb", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    unknown = set(options.only.split(",")) - set(PARTS)
    if unknown or set(options.scenes.split(",")) - set(SCENES):
        parser.error(f"--only takes {', '.join(PARTS)}, --scenes {', '.join(SCENES)}")
    torch.set_num_threads(options.threads)
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    only, scenes = options.only.split(","), options.scenes.split(",")
    cells = len(scenes) * len(sizes) * ("updates" in only) + 1
    share = options.seconds / cells
    print(machine(options.threads))
    for name in scenes if "updates" in only else ():
        scene = SCENES[name]
        if options.rows:
            scene = replace(scene, num_rows=options.rows)
        for size in sizes:
            print(measure_updates(scene, size, share, options.turn_s), flush=True)
            gc.collect()
    # from here on it is ours alone, with memory as the runner's process has it: handed back to the
    # system after every update, it costs more than the boundary, now on one side, now on the other
    keep_freed_memory()
    for size in sizes if "boundary" in only else ():
        print(measure_boundary(size, share / 4, options.turn_s), flush=True)
    if "size" in only:
        print(measure_size(share / 2, options.turn_s, options.largest), flush=True)
    if "save" in only:
        print(measure_save(int(options.save_gb * GB), saves=3), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
