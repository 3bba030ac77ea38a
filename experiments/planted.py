"""Runs models on data whose best possible result is known, and writes experiments/PLANTED.md.

    python -m experiments.planted                       runs what is missing, then writes
    python -m experiments.planted --only planted_order  runs one kind of data
    python -m experiments.planted --write-only          writes from the runs that exist

Each kind of data is an experiment, generated from a known model with a structure that calls for a
kind of model (`planted` in the names of these experiments means that).
`reached` is (AUC - 0.5) / (reachable AUC - 0.5) on test, the mean over tasks. Every number comes
from a run directory. Repeating a sweep runs only the jobs that are not completed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.table import HERE, ROOT, read_completed, read_experiment

SMALL_SASREC = ("model/loss=bce", "model.net.embedding_dim=16", "model.net.num_blocks=1")
SASREC = (*SMALL_SASREC, "model.net.dropout=0", "model.net.uniform=1")
ROW_MODELS = (
    *("mlp", "dlrm", "dcn", "deepfm", "wide_and_deep", "xdeepfm"),
    *("autoint", "masknet", "finalmlp", "mmoe", "ple"),
)
# experiment -> model -> its overrides. In planted_tasks they make the MLP the largest model.
MODELS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "planted_rows": dict.fromkeys(ROW_MODELS, ()),
    "planted_interest": {"mlp": (), "din": ()},
    "planted_order": {"mlp": (), "din": (), "sasrec": SASREC},
    "planted_tasks": {
        "mlp": ("model.net.deep=[128,16]",),
        "mmoe": ("model.net.experts=[16]", "model.net.tower=[8]"),
        "ple": (
            *("model.net.num_levels=1", "model.net.num_own=1"),
            *("model.net.experts=[14]", "model.net.tower=[8]"),
        ),
    },
}


@dataclass(frozen=True)
class PlantedRun:
    """A completed run, with its AUC and the reachable one on test by task ("" for a single one)."""

    seed: int
    auc: Mapping[str, float]
    reachable: Mapping[str, float]

    @property
    def reached(self) -> float:
        """The share of the reachable gain over an AUC of 0.5, the mean over tasks."""
        gains = [(self.auc[task] - 0.5) / (best - 0.5) for task, best in self.reachable.items()]
        return statistics.mean(gains)


def run(name: str, model: str, out: Path, seeds: str, more: Sequence[str]) -> int:
    """Run one sweep over the seeds and return its exit code."""
    words = [f"experiments={name}", f"model={model}", *MODELS[name][model], f"seed={seeds}"]
    words += [f"hydra.sweep.dir={out / name / model}", *more]
    return subprocess.call([sys.executable, "-m", "runner", "-m", *words], cwd=ROOT)


def read_runs(folder: Path) -> list[PlantedRun]:
    """Read the completed runs in a sweep's folder, by seed."""
    runs = []
    for seed, run_dir, result in read_completed(folder):
        data = json.loads((run_dir / "data.json").read_text())
        metrics = {k.removeprefix("test/"): v for k, v in result["metrics"].items()
                   if k.startswith("test/")}  # fmt: skip
        reachable = auc_by_task(data["reachable"]["test"])
        runs.append(PlantedRun(seed, auc_by_task(metrics), reachable))
    return runs


def auc_by_task(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return task -> AUC, from `auc` of a single task or `auc/TASK` of several."""
    each = {k.partition("/")[2]: v for k, v in metrics.items() if k.startswith("auc/")}
    return each or {"": metrics["auc"]}


def table(results: Iterable[tuple[str, Sequence[PlantedRun]]]) -> str:
    """Return the Markdown table of one kind of data, the best model first."""
    rows = []
    for model, runs in results:
        cells = [f"`{model}`", ", ".join(str(r.seed) for r in runs) or "none yet"]
        if not runs:
            rows.append((0.0, [*cells, "not run", "", ""]))
            continue
        aucs = [statistics.mean(r.auc[task] for task in r.reachable) for r in runs]
        best = statistics.mean(statistics.mean(r.reachable.values()) for r in runs)
        reached = statistics.mean(r.reached for r in runs)
        spread = f" ± {statistics.stdev(aucs):.4f}" if len(aucs) > 1 else ""
        cells += [f"{statistics.mean(aucs):.4f}{spread}", f"{best:.4f}", f"{reached:.1%}"]
        rows.append((reached, cells))
    rows.sort(key=lambda row: -row[0])
    header = ["model", "seeds", "test AUC", "reachable", "reached"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for _, cells in rows)])


def page(out: Path) -> str:
    """Return experiments/PLANTED.md."""
    parts = [
        "# Data generated from known models",
        "",
        "Written by `python -m experiments.planted` from run directories; edit no number here.",
        "The rows are drawn from models that are known, so the best reachable AUC is known as",
        "well; `reached` is the share of the way there from 0.5, the mean over tasks.",
    ]
    for name, models in MODELS.items():
        about = read_experiment(HERE / f"{name}.yaml")
        parts += ["", f"## {name}", "", about.question, "", about.notes["Protocol"] + ".", ""]
        parts.append(table((model, read_runs(out / name / model)) for model in models))
        overrides = [f"`{model}`: `{' '.join(words)}`" for model, words in models.items() if words]
        parts += ["", f"With {'; '.join(overrides)}."] if overrides else []
    return "\n".join(parts) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, write the page, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.planted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "experiments")
    parser.add_argument("--page", type=Path, default=HERE / "PLANTED.md")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=MODELS, metavar="NAME")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of every run"
    )
    args = parser.parse_args(words)
    failed = []
    for name in [] if args.write_only else args.only:
        for model in MODELS[name]:
            if run(name, model, args.out.resolve(), args.seeds, args.set):
                failed.append(f"{name} {model}")
    args.page.write_text(page(args.out))
    print(f"wrote {args.page}")
    if failed:
        print(f"some runs of these are not completed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
