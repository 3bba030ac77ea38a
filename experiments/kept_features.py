"""AUC over the number of features that are kept, after training again; into docs/importance.md.

    python -m experiments.kept_features --criteo ../shared/data/criteo10k/train.txt

A run with all features is measured by `runner importance`. Then runs with the best features by
each measure, and with random ones, are trained on the same rows, over the same seeds. Generated
rows have twelve features, of which six make the label, each less than the one before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import runner
from runner.cli.importance import importance
from runner.data.tabular.keep_features import format_kept_schema, keep_features
from runner.data.tabular.table_recipe import TableRecipe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "importance.md"
BEGIN, END = "<!-- kept_features begins -->", "<!-- kept_features ends -->"
WEIGHTS = (1.2, 0.9, 0.7, 0.5, 0.35, 0.25)  # of the features with an effect; as many have none
CRITEO = {
    "delimiter": "\t",
    "column_names": ["label", "I{1..13}", "C{1..26}"],
    "labels": {"label": {}},
    "numeric": {"I{1..13}": {"log1p": True, "clip": [0.0, None], "default": 0.0}},
    "categorical": {"C{1..26}": {"encode": "vocabulary", "min_count": 2}},
}
SPLIT = {"random": {"train": 0.6, "validation": 0.2, "test": 0.2}}
COMMON = ("trainer.batch_size=128", "trainer.yardstick=false", "report=false")
SETTINGS = {  # found by hand: few rows, so few epochs, of which validation chooses
    "generated": (*COMMON, "model=deepfm", "trainer.max_epochs=6"),
    "criteo": (*COMMON, "model=dlrm", "trainer.max_epochs=3"),
}
COUNTS = {"generated": (2, 4, 6, 12), "criteo": (10, 15, 25, 39)}


def write_generated(folder: Path, num_rows: int = 20_000) -> dict[str, object]:
    """Write rows whose label is made of half of the features; return their declaration."""
    dice = np.random.default_rng(0)
    ids = {f"f{n:02}": dice.integers(0, 30, num_rows) for n in range(1, 2 * len(WEIGHTS) + 1)}
    logit = sum(
        weight * dice.normal(size=30)[ids[f"f{n:02}"]] for n, weight in enumerate(WEIGHTS, 1)
    )
    label = dice.random(num_rows) < 1 / (1 + np.exp(-logit))
    pq.write_table(pa.table({"label": label.astype(np.int8), **ids}), folder / "generated.parquet")
    return {"labels": {"label": {}}, "categorical": {name: {"num_rows": 30} for name in ids}}


def train(out: Path, kind: str, schema: str, seed: int, threads: int) -> runner.TrainedRun:
    """Train one run; one that is there is only read."""
    format_ = "tsv" if kind == "criteo" else "parquet"
    words = [f"dataset={format_}", f"dataset.schema={schema}", *SETTINGS[kind], f"seed={seed}"]
    words += [f"hydra.run.dir={out}", f"trainer.num_threads={threads}"]
    return runner.train(words)


def curve(out: Path, kind: str, path: Path, content: dict[str, object], given: argparse.Namespace):
    """Return measure -> AUC of the test rows for each count, over the seeds."""
    out.mkdir(parents=True, exist_ok=True)
    content = {"path": str(path.absolute()), "split": SPLIT, **content}
    recipe = TableRecipe("tsv" if kind == "criteo" else "parquet", None, content)
    (out / "all.yaml").write_text(format_kept_schema(content, "all features"))
    base = train(out / "all", kind, str(out / "all.yaml"), 0, given.threads)
    if not (base.dir / "importance.json").exists():
        importance([str(base.dir)], ())
    facts = json.loads((base.dir / "importance.json").read_text())
    names = [feature["name"] for feature in facts["features"]]
    columns = {"shark": "first_order", "permutation": "permuted"}
    orders = {
        measure: sorted(names, key=lambda n: -_of(facts, n, column))
        for measure, column in columns.items()
    }
    found: dict[str, dict[int, list[float]]] = {}
    known: dict[tuple[frozenset[str], int], float] = {}  # measures often agree
    for measure in (*orders, "random"):
        for count in COUNTS[kind]:
            for seed in range(given.seeds):
                order = orders.get(measure) or list(np.random.default_rng(seed).permutation(names))
                key = (frozenset(order[:count]), seed)
                if key not in known:
                    own = out / f"{measure}-{count}-{seed}"
                    schema = out / f"{own.name}.yaml"
                    kept = keep_features(recipe, order[:count])
                    schema.write_text(format_kept_schema(kept, f"{count} features by {measure}"))
                    run = train(own, kind, str(schema), seed, given.threads)
                    known[key] = run.metrics["test/auc"]
                found.setdefault(measure, {}).setdefault(count, []).append(known[key])
                print(f"{kind} {measure} {count} of {len(names)}, seed {seed}: {known[key]:.4f}")
    return found, facts


def _of(facts: dict[str, object], name: str, column: str) -> float:
    [value] = [f[column] for f in facts["features"] if f["name"] == name]
    return value


def table(kind: str, found: dict[str, dict[int, list[float]]], facts: dict[str, object]) -> str:
    """Return a Markdown table of means and deviations over the seeds."""
    counts = COUNTS[kind]
    lines = [f"| {kind}: kept | " + " | ".join(map(str, counts)) + " |"]
    lines.append("|---" * (len(counts) + 1) + "|")
    for measure, of_measure in found.items():
        cells = [
            f"{statistics.mean(aucs):.4f} ± {statistics.stdev(aucs):.4f}"
            if len(aucs) > 1
            else f"{aucs[0]:.4f}"
            for aucs in of_measure.values()
        ]
        lines.append(f"| {measure} | " + " | ".join(cells) + " |")
    correlation = facts["rank_correlation"]["first_order, permuted"]
    seconds = facts["seconds"]
    lines.append("")
    lines.append(
        f"Rank correlation of first order and permutation {correlation:.2f}, over "
        f"{facts['rows']:,} rows; {seconds['first_order']:.1f} s and {seconds['permuted']:.1f} s."
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is missing, and write the tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--criteo", type=Path, help="the file train.txt; without it it is left out")
    parser.add_argument("--out", type=Path, help="folder of the runs; default: a temporary one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        out = (given.out or Path(temporary)).absolute()
        out.mkdir(parents=True, exist_ok=True)
        content = write_generated(out)
        sets = {"generated": (out / "generated.parquet", content)}
        if given.criteo is not None:
            sets["criteo"] = (given.criteo, CRITEO)
        parts = [table(kind, *curve(out / kind, kind, *sets[kind], given)) for kind in sets]
    text = given.page.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    given.page.write_text(f"{before}{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
