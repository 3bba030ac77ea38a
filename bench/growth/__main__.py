"""How cost grows with rows, tables, width, ids of a bag, batch, ranks, table size, jobs and runs.

    python -m bench.growth [--only rows,report] [--turns 3] [--largest 10000000]
        [--write docs/growth.md]

Each turn is a process of its own, which measures all sizes of an axis. An exponent is the slope in
logarithms, by least squares over all sizes and between the last two alone: what a start costs hides
growth in the first and not in the second. A cost whose last slope lies in every turn more than 0.1
above what its work grows with is marked as growing faster, and the exit code is 1. `--write` draws
a picture of each axis beside the page and puts its table between the two marks of the page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.growth.axes import AXES, Axis, Costs
from bench.growth.page import Growth, as_section, as_table, draw, write_section
from bench.paired import machine
from runner.config.locations import PROJECT


def measure(name: str, sizes: Sequence[int], folder: Path) -> list[Costs]:
    """Measure sizes of an axis, one after another, in a process of its own.

    Raises:
        RuntimeError: with the end of its output if it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.growth", "--one", name, str(folder), *map(str, sizes)],
        env={**os.environ, "RUNNER_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    if done.returncode or len(said) != len(sizes):
        raise RuntimeError(f"{name}: {(done.stderr or done.stdout)[-2000:]}")
    return [json.loads(line.removeprefix("measured ")) for line in said]


def slopes(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """Return the exponents over all sizes and between the last two."""
    x, y = np.log(sizes), np.log(np.maximum(values, 1e-9))
    return float(np.polyfit(x, y, 1)[0]), float((y[-1] - y[-2]) / (x[-1] - x[-2]))


def measure_axis(name: str, axis: Axis, turns: int) -> list[Growth]:
    """Measure every size of an axis in each turn; return how each of its costs grows."""
    with tempfile.TemporaryDirectory(prefix="growth-") as name_of_folder:
        folder = Path(name_of_folder)
        found = [measure(name, axis.sizes, folder) for _ in range(turns)]
    grown = []
    for cost, expected in axis.costs.items():
        by_turn = [[costs[cost] for costs in turn] for turn in found]
        fits, lasts = zip(*(slopes(axis.sizes, values) for values in by_turn))
        medians = tuple(float(value) for value in np.median(by_turn, axis=0))
        grown.append(Growth(cost, expected, medians, fits, lasts))
    return grown


def main(argv: Sequence[str] | None = None) -> int:
    words = argparse.ArgumentParser(
        prog="python -m bench.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words.add_argument("--only", default=",".join(AXES), help="axes, with commas between them")
    words.add_argument("--turns", type=int, default=3)
    words.add_argument("--largest", type=float, default=math.inf, help="leave larger sizes out")
    words.add_argument("--sizes", help="of one axis, in place of its own")
    words.add_argument("--write", type=Path, help="a page with two marks for each axis")
    words.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    given = words.parse_args(argv)
    if given.one:
        name, folder, *sizes = given.one
        for size in sizes:
            found = AXES[name].measure(int(size), Path(folder))
            print("measured", json.dumps(found), flush=True)
        return 0
    chosen: Mapping[str, Axis] = {name: AXES[name] for name in given.only.split(",")}
    print(machine(1), flush=True)
    is_faster = False
    for name, axis in chosen.items():
        chosen_sizes = [int(size) for size in given.sizes.split(",")] if given.sizes else axis.sizes
        sized = replace(axis, sizes=tuple(n for n in chosen_sizes if n <= given.largest))
        began = time.monotonic()
        grown = measure_axis(name, sized, given.turns)
        is_faster |= any(one.is_faster for one in grown)
        print(f"\n{name}: {given.turns} turns, {time.monotonic() - began:.0f} s", flush=True)
        print(as_table(sized, grown, name), flush=True)
        if given.write:
            draw(name, sized, grown, given.write.with_name(f"growth_{name}.svg"))
            write_section(given.write, name, as_section(name, sized, grown, machine(1)))
    return int(is_faster)


if __name__ == "__main__":
    sys.exit(main())
