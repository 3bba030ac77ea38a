"""Runs experiments over seeds as sweeps and writes what came out: experiments/README.md.

    python -m experiments.table --data ../shared/data          runs what is missing first
    python -m experiments.table --data ../shared/data --only movielens_dcn amazon_sasrec
    python -m experiments.table --write-only                   the table of the runs there are

Every number of ours comes from a run directory; what is said of the published ones and of the
protocol is the experiment's own comment. A sweep that is repeated does only what is not done.
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
    name: str
    question: str
    said: Mapping[str, str]  # Command, Protocol, Seen, Published: the comment of its YAML


@dataclass(frozen=True)
class Outcome:
    """A completed run of an experiment."""

    seed: int
    metrics: Mapping[str, float]
    active_s: float


def experiments(only: Sequence[str] = ()) -> list[Experiment]:
    """Those on real data: of `only`, or all. Raises: SystemExit for a name that there is not."""
    paths = [path for path in sorted(HERE.glob("*.yaml")) if path.stem.partition("_")[0] in DATA]
    found = [read(path) for path in paths]
    unknown = set(only) - {e.name for e in found}
    if unknown:
        sys.exit(
            f"no such experiment: {', '.join(sorted(unknown))}; there are "
            f"{', '.join(e.name for e in found)}"
        )
    return [e for e in found if not only or e.name in only]


def read(path: Path) -> Experiment:
    comment = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    said: dict[str, str] = {}
    key = ""
    for line in comment:
        if match := re.match(r"(Command|Protocol|Seen|Published) +(.*)", line):
            key = match[1]
            said[key] = match[2]
        elif key and line.startswith("  "):
            said[key] += " " + line.strip()
    return Experiment(path.stem, comment[1], said)


def run(experiment: Experiment, out: Path, data: Path, seeds: str, more: Sequence[str]) -> int:
    """One sweep over the seeds; returns its exit code."""
    folder = data / DATA[experiment.name.partition("_")[0]]
    words = [f"experiments={experiment.name}", f"seed={seeds}", f"dataset.path={folder}"]
    words += [f"hydra.sweep.dir={out / experiment.name}", *more]
    return subprocess.call([sys.executable, "-m", "runner", "-m", *words], cwd=ROOT)


def completed(folder: Path) -> list[tuple[int, Path, Mapping[str, Any]]]:
    """Seed, directory and result of the completed runs in a sweep's folder, by seed."""
    found = []
    for path in folder.glob("*/result.json"):
        result = json.loads(path.read_text())
        if result["status"] == "completed":
            meta = json.loads((path.parent / "meta.json").read_text())
            found.append((meta["seed"], path.parent, result))
    return sorted(found, key=lambda run: run[:2])


def outcomes(folder: Path) -> list[Outcome]:
    return [
        Outcome(
            seed,
            {k: v for k, v in result["metrics"].items() if isinstance(v, float)},
            result["active_s"],
        )
        for seed, _, result in completed(folder)
    ]


def table(found: Iterable[tuple[Experiment, Sequence[Outcome]]]) -> str:
    lines = [
        "| experiment | seeds | test, mean ± standard deviation | training | published |",
        "|---|---|---|---|---|",
    ]
    for experiment, runs in found:
        cells = [f"`{experiment.name}`", ", ".join(str(r.seed) for r in runs) or "none yet"]
        cells += ["; ".join(measured(runs)) or "not run"]
        cells += [f"{statistics.mean(r.active_s for r in runs):.0f} s" if runs else ""]
        cells += [experiment.said.get("Published", "")]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def measured(runs: Sequence[Outcome]) -> list[str]:
    """Of each shown metric its mean, and its spread if there is more than one run."""
    said = []
    for name in SHOWN:
        values = [r.metrics[f"test/{name}"] for r in runs if f"test/{name}" in r.metrics]
        if not values or len(values) < len(runs):
            continue
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        said.append(f"{name} {statistics.mean(values):.4f}{spread}")
    return said


def page(found: Sequence[tuple[Experiment, Sequence[Outcome]]]) -> str:
    protocols: dict[str, list[str]] = {}
    for experiment, _ in found:
        protocols.setdefault(experiment.said.get("Protocol", ""), []).append(experiment.name)
    return "\n".join(
        [
            "# Experiments",
            "",
            "Written by `python -m experiments.table` from run directories; edit no number here.",
            "`python -m runner experiments=NAME dataset.path=DIR` runs one of them. The time is",
            "that of one run's training, beside whatever else its machine had to do.",
            "",
            table(found),
            "",
            "Protocols, each tuned on validation only:",
            "",
            *(f"- {text}: {', '.join(names)}" for text, names in protocols.items()),
            "",
            "Questions:",
            "",
            *(f"- `{experiment.name}`: {experiment.question}" for experiment, _ in found),
            "",
        ]
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="folder with ml-1m and amazon-beauty")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "experiments")
    parser.add_argument("--page", type=Path, default=HERE / "README.md")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--write-only", action="store_true", help="start nothing")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for every run")
    asked = parser.parse_args(words)
    if not asked.write_only and asked.data is None:
        parser.error("--data DIR: where the data is; or --write-only")
    wanted, failed = experiments(asked.only), []
    for experiment in [] if asked.write_only else wanted:
        if run(experiment, asked.out, asked.data.resolve(), asked.seeds, asked.set):
            failed.append(experiment.name)
    found = [(e, outcomes(asked.out / e.name)) for e in wanted]
    asked.page.write_text(page(found))
    print(table(found))
    if failed:
        print(f"not all runs of these are done: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
