"""Runs experiments over seeds as sweeps and writes their results into experiments/README.md.

    python -m experiments.table --data ../shared/data          runs what is missing, then writes
    python -m experiments.table --data ../shared/data --only movielens_dcn amazon_sasrec
    python -m experiments.table --write-only                   writes from the runs that exist

Each of our numbers comes from a run directory; published numbers and protocols come from the
comment of the experiment's YAML. Where that lists models, every model has a row. A row without a
run in the folder of runs stays as the page has it. Repeating a sweep runs only the jobs that are
not completed.
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
# first word of a name -> folder or file
DATA = {
    "movielens": "ml-1m",
    "ml1m": "ml-1m/ratings.dat",
    "amazon": "amazon-beauty",
    "criteo": "criteo10k/train.txt",
}
SHOWN = ("auc", "log_loss", "recall@5", "ndcg@5", "recall@10", "ndcg@10")
KEYS = "Command|Protocol|Models|Seen|Published|Below"
HEADER = (
    *("experiment", "seeds", "date", "test, mean ± standard deviation", "logistic regression"),
    "training",
)
RECALL = "recall@10"  # compared where there is no AUC
TOLERANCE = 0.001  # of a result below the published one, for which no reason is asked


@dataclass(frozen=True)
class Experiment:
    """An experiment as the comment of its YAML describes it."""

    name: str
    question: str
    notes: Mapping[str, str]  # of KEYS; Published and Below have an entry `model: text; ` a model

    @property
    def models(self) -> list[str]:
        """The models that the experiment is run with; one empty name if it has its own."""
        return self.notes["Models"].split(", ") if "Models" in self.notes else [""]

    def note(self, key: str, model: str) -> str:
        """Return what a note says of a model."""
        text = self.notes.get(key, "")
        if not model:
            return text
        entries = dict(entry.split(": ", 1) for entry in text.split("; ") if ": " in entry)
        return entries.get(model, "")


@dataclass(frozen=True)
class CompletedRun:
    """Seed, date, metrics and seconds of a completed run, and the test AUC of its yardstick."""

    seed: int
    date: str
    metrics: Mapping[str, float]
    active_s: float
    yardstick: float | None


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
        if match := re.match(rf"({KEYS}) +(.*)", line):
            key = match[1]
            notes[key] = match[2]
        elif key and line.startswith("  "):
            notes[key] += " " + line.strip()
    return Experiment(path.stem, comment[1], notes)


def run(
    experiment: Experiment, model: str, out: Path, data: Path, seeds: str, more: Sequence[str]
) -> int:
    """Run one sweep over the seeds and return its exit code."""
    folder = data / DATA[experiment.name.partition("_")[0]]
    words = [f"experiments={experiment.name}", f"seed={seeds}", f"dataset.path={folder}"]
    words += [f"model={model}"] if model else []
    words += [f"hydra.sweep.dir={out / experiment.name / model}", *more]
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
            json.loads((path / "meta.json").read_text()).get("created", "")[:10],
            {k: v for k, v in result["metrics"].items() if isinstance(v, float)},
            result["active_s"],
            ((result.get("yardstick") or {}).get("metrics") or {}).get("test/auc"),
        )
        for seed, path, result in read_completed(folder)
    ]


def read_rows(page: Path) -> dict[str, list[str]]:
    """Return the first cells of the rows of a page by the cell of the experiment."""
    lines = page.read_text().splitlines() if page.is_file() else []
    found = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    rows = [[cell.strip() for cell in cells] for cells in found]
    return {cells[0]: cells[: len(HEADER)] for cells in rows}


def make_row(
    experiment: Experiment, model: str, runs: Sequence[CompletedRun], known: dict[str, list[str]]
) -> list[str]:
    """Return the cells of a row: those of HEADER, the published result, the difference to it."""
    name = f"`{experiment.name}`" + (f" `{model}`" if model else "")
    if runs:
        seeds, dates = ", ".join(str(r.seed) for r in runs), max(r.date for r in runs)
        beside = next((f"auc {r.yardstick:.4f}" for r in runs if r.yardstick), "")
        seconds = f"{statistics.mean(r.active_s for r in runs):.0f} s"
        cells = [name, seeds, dates, "; ".join(describe_metrics(runs)), beside, seconds]
    else:
        cells = known.get(name, [name, "none yet", "", "not run", "", ""])
    published = experiment.note("Published", model) or "none known"
    metric, said = ("auc", r"(?<!\d)") if cells[3].startswith("auc") else (RECALL, f"{RECALL} ")
    ours = re.search(rf"{metric} (0\.\d+)", cells[3])
    theirs = re.search(rf"{said}(\.\d{{4}})", published)
    difference = f"{float(ours[1]) - float(theirs[1]):+.4f}" if ours and theirs else ""
    return [cell.replace("|", "/") for cell in (*cells, published, difference)]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return the Markdown table of all experiments."""
    header = (*HEADER, "published", f"difference of AUC, or of {RECALL}")
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def reasons(rows: Mapping[tuple[str, str], Sequence[str]], of: Sequence[Experiment]) -> list[str]:
    """Return a line for each row that lies more than TOLERANCE below the published result."""
    known = {e.name: e for e in of}
    return [
        f"- {cells[0]}: {known[name].note('Below', model) or 'no reason is known'}"
        for (name, model), cells in rows.items()
        if cells[-1] and float(cells[-1]) < -TOLERANCE
    ]


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


def page(rows: Mapping[tuple[str, str], Sequence[str]], of: Sequence[Experiment]) -> str:
    """Return experiments/README.md.

    Args:
        rows: name of an experiment and model -> the cells of its row.
        of: the experiments.
    """
    protocols: dict[str, list[str]] = {}
    for experiment in of:
        protocols.setdefault(experiment.notes.get("Protocol", ""), []).append(experiment.name)
    return "\n".join(
        [
            "# Experiments",
            "",
            "Written by `python -m experiments.table` from run directories; edit no number here.",
            "`python -m runner experiments=NAME dataset.path=DIR` runs one of them, with",
            "`model=MODEL` where a model stands beside the name. The time is that of one run's",
            "training, on a machine that also had other work. The logistic regression is the",
            "baseline that a run trains on about 100,000 of its train rows.",
            "",
            table(rows.values()),
            "",
            f"More than {TOLERANCE:g} below the published result, and why:",
            "",
            *reasons(rows, of),
            "",
            "Protocols, each tuned on validation only:",
            "",
            *(f"- {text}: {', '.join(names)}" for text, names in protocols.items()),
            "",
            "Questions:",
            "",
            *(f"- `{experiment.name}`: {experiment.question}" for experiment in of),
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
    parser.add_argument(
        "--data", type=Path, help="folder that contains ml-1m, amazon-beauty and criteo10k"
    )
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
        for model in experiment.models:
            if run(experiment, model, args.out, args.data.resolve(), args.seeds, args.set):
                failed.append(f"{experiment.name} {model}".strip())
    known = read_rows(args.page)
    described = experiments()
    rows = {
        (e.name, model): make_row(e, model, read_runs(args.out / e.name / model), known)
        for e in described
        for model in e.models
    }
    args.page.write_text(page(rows, described))
    print(table(rows.values()))
    if failed:
        print(f"some runs of these are not completed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
