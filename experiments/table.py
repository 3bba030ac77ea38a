"""Runs experiments over seeds as sweeps and writes their results into experiments/README.md.

    python -m experiments.table --data ../shared/data          runs what is missing, then writes
    python -m experiments.table --data ../shared/data --only movielens_dcn amazon_sasrec
    python -m experiments.table --write-only                   writes from the runs that exist

Each of our numbers comes from a run directory; published numbers and protocols come from the
comment of the experiment's YAML. Repeating a sweep runs only the jobs that are not completed.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DATA = {"movielens": "ml-1m", "amazon": "amazon-beauty"}  # first word of a name -> folder
SHOWN = ("auc", "log_loss", "recall@5", "ndcg@5", "recall@10", "ndcg@10")


@dataclass(frozen=True)
class Experiment:
    """An experiment as the comment of its YAML describes it."""

    name: str
    question: str
    notes: Mapping[str, str]  # Command, Protocol, Seen, Published


@dataclass(frozen=True)
class CompletedRun:
    """Seed, metrics and seconds of a completed run."""

    seed: int
    metrics: Mapping[str, float]
    active_s: float


def experiments(only: Sequence[str] = ()) -> list[Experiment]:
    """Return the experiments on real data with names in `only`, or all of them.

    Raises:
        SystemExit: if a name is unknown.
    """
    paths = [path for path in sorted(HERE.glob("*.yaml")) if path.stem.partition("_")[0] in DATA]
    known = [read_experiment(path) for path in paths]
    unknown = set(only) - {e.name for e in known}
    if unknown:
        sys.exit(
            f"no such experiment: {', '.join(sorted(unknown))}; there are "
            f"{', '.join(e.name for e in known)}"
        )
    return [e for e in known if not only or e.name in only]


def read_experiment(path: Path) -> Experiment:
    """Read the comment of an experiment's YAML."""
    comment = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    notes: dict[str, str] = {}
    key = ""
    for line in comment:
        if match := re.match(r"(Command|Protocol|Seen|Published) +(.*)", line):
            key = match[1]
            notes[key] = match[2]
        elif key and line.startswith("  "):
            notes[key] += " " + line.strip()
    return Experiment(path.stem, comment[1], notes)


def run(experiment: Experiment, out: Path, data: Path, seeds: str, more: Sequence[str]) -> int:
    """Run one sweep over the seeds and return its exit code."""
    folder = data / DATA[experiment.name.partition("_")[0]]
    words = [f"experiments={experiment.name}", f"seed={seeds}", f"dataset.path={folder}"]
    words += [f"hydra.sweep.dir={out / experiment.name}", *more]
    return subprocess.call([sys.executable, "-m", "runner", "-m", *words], cwd=ROOT)


def read_completed(folder: Path) -> list[tuple[int, Path, Mapping[str, Any]]]:
    """Return seed, directory and result of the completed runs in a sweep's folder, by seed."""
    completed = []
    for path in folder.glob("*/result.json"):
        result = json.loads(path.read_text())
        if result["status"] == "completed":
            meta = json.loads((path.parent / "meta.json").read_text())
            completed.append((meta["seed"], path.parent, result))
    return sorted(completed, key=lambda run: run[:2])


def read_runs(folder: Path) -> list[CompletedRun]:
    """Read the completed runs in a sweep's folder, by seed."""
    return [
        CompletedRun(
            seed,
            {k: v for k, v in result["metrics"].items() if isinstance(v, float)},
            result["active_s"],
        )
        for seed, _, result in read_completed(folder)
    ]


def table(results: Iterable[tuple[Experiment, Sequence[CompletedRun]]]) -> str:
    """Return the Markdown table of all experiments."""
    lines = [
        "| experiment | seeds | test, mean ± standard deviation | training | published |",
        "|---|---|---|---|---|",
    ]
    for experiment, runs in results:
        cells = [f"`{experiment.name}`", ", ".join(str(r.seed) for r in runs) or "none yet"]
        cells += ["; ".join(describe_metrics(runs)) or "not run"]
        cells += [f"{statistics.mean(r.active_s for r in runs):.0f} s" if runs else ""]
        cells += [experiment.notes.get("Published", "")]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def describe_metrics(runs: Sequence[CompletedRun]) -> list[str]:
    """Return the mean of each metric of SHOWN, and its spread if there are several runs."""
    texts = []
    for name in SHOWN:
        values = [r.metrics[f"test/{name}"] for r in runs if f"test/{name}" in r.metrics]
        if not values or len(values) < len(runs):
            continue
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        texts.append(f"{name} {statistics.mean(values):.4f}{spread}")
    return texts


def page(results: Sequence[tuple[Experiment, Sequence[CompletedRun]]]) -> str:
    """Return experiments/README.md."""
    protocols: dict[str, list[str]] = {}
    for experiment, _ in results:
        protocols.setdefault(experiment.notes.get("Protocol", ""), []).append(experiment.name)
    return "\n".join(
        [
            "# Experiments",
            "",
            "Written by `python -m experiments.table` from run directories; edit no number here.",
            "`python -m runner experiments=NAME dataset.path=DIR` runs one of them. The time is",
            "that of one run's training, on a machine that also had other work.",
            "",
            table(results),
            "",
            "Protocols, each tuned on validation only:",
            "",
            *(f"- {text}: {', '.join(names)}" for text, names in protocols.items()),
            "",
            "Questions:",
            "",
            *(f"- `{experiment.name}`: {experiment.question}" for experiment, _ in results),
            "",
        ]
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, write the page, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="folder that contains ml-1m and amazon-beauty")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "experiments")
    parser.add_argument("--page", type=Path, default=HERE / "README.md")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of every run"
    )
    args = parser.parse_args(words)
    if not args.write_only and args.data is None:
        parser.error("--data DIR is required unless --write-only is given")
    selected, failed = experiments(args.only), []
    for experiment in [] if args.write_only else selected:
        if run(experiment, args.out, args.data.resolve(), args.seeds, args.set):
            failed.append(experiment.name)
    results = [(e, read_runs(args.out / e.name)) for e in selected]
    args.page.write_text(page(results))
    print(table(results))
    if failed:
        print(f"some runs of these are not completed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
