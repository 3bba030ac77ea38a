"""What the benchmarks share: alternated pairs, medians with bootstrap intervals, tables.

A target is judged by the far end of the interval, not by the median: `held` only if the whole
interval is inside, `missed` if none of it is, `open` if the machine was too noisy to say.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

PACKAGES = ("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy", "pyarrow")
NOTES = "RUNNER_BENCH_NOTES"  # the file that `note` adds to
CONFIDENCE = 0.95
RESAMPLES = 10_000
FEWEST = 6  # values that an interval can be drawn from: of fewer, it cannot even hold 95%


@dataclass(frozen=True)
class Estimate:
    """A median, its bootstrap interval, and how far the single values lie apart."""

    median: float
    low: float
    high: float
    smallest: float
    largest: float
    count: int

    def verdict(self, *, at_most: float) -> str:
        if self.count < FEWEST:
            return "open"
        if self.high <= at_most:
            return "held"
        return "missed" if self.low > at_most else "open"


def estimate(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The median of the values with its 95% percentile bootstrap interval.

    Raises: ValueError if there are none.
    """
    values_N = np.asarray(values, float)
    if not len(values_N):
        raise ValueError("no value was measured")
    drawn = np.random.default_rng(seed).choice(values_N, (RESAMPLES, len(values_N)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(drawn, axis=1), (tail, 1 - tail))
    ends = float(values_N.min()), float(values_N.max())
    return Estimate(float(np.median(values_N)), float(low), float(high), *ends, len(values_N))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Estimate ours / theirs from paired measurements: number k of one with number k of the other.

    Raises: ValueError if there are not as many of one as of the other.
    """
    return estimate([a / b for a, b in zip(ours, theirs, strict=True)])


def note(name: str, found: Estimate, *, is_cost: bool = True) -> None:
    """Add a ratio to the file that `bench.check` has named, if it has started this benchmark.

    Args:
        name: of the ratio, the same for as long as it measures the same.
        is_cost: a larger ratio is a worse one.
    """
    if path := os.environ.get(NOTES):
        values = {"name": name, "is_cost": is_cost, **asdict(found)}
        with Path(path).open("a") as file:
            file.write(json.dumps(values) + "\n")


def alternate(
    first: Callable[[], float], second: Callable[[], float], pairs: int
) -> tuple[list[float], list[float]]:
    """Measure A B, A B, ... after one warm-up of each, and return what each returned."""
    first(), second()
    measured = [(first(), second()) for _ in range(pairs)]
    return [a for a, _ in measured], [b for _, b in measured]


@dataclass
class Stopwatch:
    """Adds up the wall time and the processor time (of all threads) between start and stop.

    On a machine that others use as well, processor time says what the work costs, wall time also
    how long the others were served in between.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    _began: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    def start(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.wall_s += time.perf_counter() - self._began[0]
        self.cpu_s += time.process_time() - self._began[1]


def turns_row(name: str, times: tuple[Sequence[float], Sequence[float]], updates: int) -> str:
    """Return a row of Markdown: a model's two times of an update in ms, and first / second.

    Args:
        name: of the model.
        times: seconds of each turn of both sides.
        updates: in a turn.
    """
    found = ratio(*times)
    ms = [1000 * statistics.median(of_one) / updates for of_one in times]
    interval = f"{found.low:.2f} to {found.high:.2f}"
    return f"| `{name}` | {ms[0]:.1f} | {ms[1]:.1f} | {found.median:.2f} | {interval} |"


def turns_parser(about: str, *, pairs: int, updates: int, rows: int) -> argparse.ArgumentParser:
    """Return the parser of a benchmark that compares updates of models in turns."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--updates", type=int, default=updates, help="in a turn")
    parser.add_argument("--rows", type=int, default=rows, help="of an update")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    return parser


def machine(threads: int | str) -> str:
    """Two lines: what was measured on, by which versions, and how busy it was."""
    versions = [f"python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:  # of the CPU and the CUDA build there is one
            continue
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    word = "thread" if threads in (1, "1") else "threads"
    busy = ": others are busy on it" if load > cores + 0.5 else ""
    return (
        f"{_processor()}, {cores} cores, {threads} {word}, load {load:.1f}{busy}\n"
        f"{', '.join(versions)}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format columns side by side: the first aligned left, the others right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        first, *others = (
            cell.ljust(w) if not i else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join((first, *others)).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def shown(value: Estimate, *, digits: int = 3, unit: str = "") -> list[str]:
    """Return the cells of a table: the median, the interval, the smallest and largest value."""
    return [
        f"{value.median:.{digits}f}{unit}",
        f"{value.low:.{digits}f} to {value.high:.{digits}f}",
        f"{value.smallest:.{digits}f} to {value.largest:.{digits}f}",
    ]


SHOWN = ("median", "95% interval", "all")
