"""Exported models beside the model in the project: microseconds a call, size, metrics.

    python -m bench.export [--formats pt2,aoti,onnx] [--quantise fp16,int8,int4] [overrides]

Trains the default model shortly on generated rows and exports it in each format on one thread.
Times are of the fastest of many calls with prepared inputs, as `metrics.json` of each artifact has
them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.paired import machine

SMALL = (
    "dataset.rows={train: 200000, validation: 5000, test: 20000}",
    "trainer.num_threads=1",
    "trainer.max_steps=200",
    "report=false",
)
TARGETS = {"1": 0.25, "1024": 1.0}  # of the eager time, for machine code


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table with a line for each format and quantisation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default="pt2,aoti,onnx")
    parser.add_argument("--quantise", default="fp16,int8,int4")
    given, overrides = parser.parse_known_args(argv)
    print(machine(1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run([*SMALL, *overrides, f"hydra.run.dir={folder / 'run'}"])
        jobs = [("", given.formats)] + [(q, "pt2") for q in given.quantise.split(",") if q]
        print("| form | 1 row | 64 | 1,024 | MB | AUC | largest logit difference |")
        print("|---|---|---|---|---|---|---|")
        for number, (quantise, formats) in enumerate(jobs):
            out = folder / f"model-{number}"
            more = ["--quantise", quantise] if quantise else []
            _run(["export", str(folder / "run"), "--out", str(out), "--format", formats, *more])
            measured = json.loads((out / "metrics.json").read_text())
            _print_rows(measured, quantise, with_eager=not number)
    return 0


def _run(words: Sequence[str]) -> None:
    command = [sys.executable, "-m", "runner", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _print_rows(measured: dict[str, Any], quantise: str, *, with_eager: bool) -> None:
    for number, (format_, found) in enumerate(measured["formats"].items()):
        times = found["latency_us"]
        if with_eager and not number:
            cells = [f"{t:,.0f}" for t in times["eager"].values()]
            auc = f"{measured['evaluated']['auc']:.6f}"
            print("|", " | ".join(["eager", *cells, "", auc, ""]), "|")
        cells = [f"{t:,.0f}" for t in times["exported"].values()]
        if format_ == "aoti":
            for place, (size, t) in enumerate(times["exported"].items()):
                share = t / times["eager"][size]
                at_most = f", at most {TARGETS[size]}" if size in TARGETS else ""
                cells[place] += f" ({share:.2f} of eager{at_most})"
        name = " ".join(part for part in (format_, quantise) if part)
        values = [f"{found['bytes'] / 1e6:.2f}", f"{found['metrics']['auc']:.6f}"]
        difference = f"{found['largest_logit_difference']:.1e}"
        print("|", " | ".join([name, *cells, *values, difference]), "|", flush=True)


if __name__ == "__main__":
    sys.exit(main())
