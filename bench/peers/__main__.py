"""The same rows, model and batch through this project and through its peers, in turns.

    python -m bench.peers [--rows 400000] [--turns 8] [--threads 1] [--only NAMES] [--picture FILE]

DeepFM on 26 features of ids, width 16, layers 400-400-400, Adam at .001, one epoch.
Each peer has an environment of its own below `--environments`, made by uv where it is missing; one
that cannot be made is named with its error. The libraries differ in what their Adam does: with
TorchRec's tables and ours the rows of a batch move, in the others every row of every table.

Rows a second count from the first update to the last: `cpu` by the processor time of the process,
`wall` by the clock, which compares several threads. `start` is from the start of the process to the
end of the first update, and `peak` the largest memory of the process by the end of training. AUC is
that of 100,000 test rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.paired import Estimate, estimate, machine, ratio, shown, table

OURS = "runner"
ADAGRAD = "runner_adagrad"
FBGEMM = "fbgemm-gpu-cpu==1.8.0"
COMMON = ("torch==2.13.0", "numpy", "pyarrow", "scikit-learn")
PEERS = {  # the module that trains with it -> what it installs
    "fuxictr": ("fuxictr",),
    "deepctr_torch": ("deepctr-torch", "requests", "pip"),
    "torch_rechub": ("torch-rechub",),
    "torchrec": ("torchrec==1.8.0", FBGEMM, "torchmetrics==1.0.3"),
    "lightning": ("lightning", "torchrec==1.8.0", FBGEMM),
}
UNDER_ADAGRAD = ("torchrec", "lightning")
TITLES = {
    OURS: "runner",
    ADAGRAD: "runner, Adagrad",
    "fuxictr": "FuxiCTR",
    "deepctr_torch": "DeepCTR-Torch",
    "torch_rechub": "torch-rechub",
    "torchrec": "TorchRec, Adagrad",
    "lightning": "Lightning, Adagrad",
}
NUM_TEST_ROWS = 100_000
SIZES = np.geomspace(4, 50_000, 26).astype(int)


def write_rows(folder: Path, num_rows: int) -> None:
    """Write rows whose label depends on single ids and on products of pairs of features."""
    rng = np.random.default_rng(0)
    effects = [rng.normal(size=(size, 3)) for size in SIZES]
    for name, count in (("train", num_rows), ("test", NUM_TEST_ROWS)):
        ids = [
            np.minimum((s + 1.0) ** rng.random(count) - 1, s - 1).astype(np.int32) for s in SIZES
        ]
        vectors = [effect[chosen] for effect, chosen in zip(effects, ids)]
        pairs = sum(a[:, 1] * b[:, 2] for a, b in itertools.pairwise(vectors))
        logit = sum(v[:, 0] for v in vectors) * 0.25 + pairs * 0.25 - 1
        labels = (rng.random(count) < 1 / (1 + np.exp(-logit))).astype(np.int8)
        columns = {f"C{n}": chosen for n, chosen in enumerate(ids, start=1)}
        pq.write_table(pa.table({"label": labels, **columns}), folder / f"{name}.parquet")
    (folder / "sizes.json").write_text(json.dumps(SIZES.tolist()))


def interpreter(environments: Path, name: str) -> Path | str:
    """Return the peer's interpreter, or the last line of why there is none."""
    folder = environments / name
    python = folder / "bin" / "python"
    if (folder / "installed").exists():
        return python
    # `python -m uv` takes the environment of that Python, whatever VIRTUAL_ENV says
    install = ["pip", "install", "--python", str(python)]
    steps = [["venv", "--clear", str(folder)], [*install, *COMMON, *PEERS[name]]]
    if FBGEMM in PEERS[name]:  # TorchRec asks for the build for CUDA, whose files have its names
        steps += [["pip", "uninstall", "--python", str(python), "fbgemm-gpu"]]
        steps += [[*install, "--reinstall", "--no-deps", FBGEMM]]
    for words in steps:
        done = subprocess.run(
            [sys.executable, "-m", "uv", *words, "--quiet"],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["uv failed"])[-1].strip()
    (folder / "installed").touch()
    return python


def train(
    python: Path | str, name: str, folder: Path, batch_size: int, threads: int
) -> dict[str, float]:
    """Train in a process of its own; return what it measured, and the seconds to its first update.

    Raises: RuntimeError with the end of its output if it failed.
    """
    began = time.time()
    done = subprocess.run(
        [str(python), "-m", f"bench.peers.with_{name}", str(folder), str(batch_size)],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    if done.returncode or not said:
        raise RuntimeError((done.stderr or done.stdout).strip()[-2000:])
    found: dict[str, float] = json.loads(said[0].removeprefix("measured "))
    return {**found, "start": found["first_at"] - began}


def as_table(found: Mapping[str, Sequence[Mapping[str, float]]], clock: str) -> str:
    rows = []
    for name, runs in found.items():
        values = {key: [run[key] for run in runs] for key in runs[0]}
        beside = found[ADAGRAD if name in UNDER_ADAGRAD else OURS]
        faster = ratio([run[clock] for run in beside], values[clock])
        medians = {key: estimate(one).median for key, one in values.items()}
        rows.append(
            [
                name,
                f"{medians['cpu']:,.0f}",
                f"{medians['wall']:,.0f}",
                *(["", ""] if name in (OURS, ADAGRAD) else shown(faster, digits=2)[:2]),
                f"{medians['start']:.1f} s",
                f"{medians['peak_mb']:,.0f} MB",
                f"{medians['auc']:.4f}",
            ]
        )
    header = ("", "rows/s, cpu", "wall", "ours / it", "95% interval", "start", "peak", "AUC")
    return table(header, rows)


def draw(
    found: Mapping[str, Sequence[Mapping[str, float]]], clock: str, unit: str, path: Path
) -> None:
    """Draw the rows a second of each, with the intervals of their medians."""
    from matplotlib import pyplot as plt

    speeds: dict[str, Estimate] = {
        name: estimate([run[clock] for run in runs]) for name, runs in found.items()
    }
    names = sorted(speeds, key=lambda name: speeds[name].median)
    middle = [speeds[name].median for name in names]
    ends = [
        [speeds[name].median - speeds[name].low for name in names],
        [speeds[name].high - speeds[name].median for name in names],
    ]
    figure, axes = plt.subplots(figsize=(7, 0.45 * len(names) + 1))
    colours = ["tab:blue" if name in (OURS, ADAGRAD) else "tab:gray" for name in names]
    axes.barh([TITLES[name] for name in names], middle, xerr=ends, color=colours)
    axes.set_xlabel(f"rows per second{unit}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    words = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words.add_argument("--environments", type=Path, default=Path("outputs/peers"))
    words.add_argument("--rows", type=int, default=400_000)
    words.add_argument("--turns", type=int, default=8)
    words.add_argument("--batch-size", type=int, default=4096)
    words.add_argument("--threads", type=int, default=1, help="of each library")
    words.add_argument("--only", help="names of peers, with commas between them")
    words.add_argument("--picture", type=Path, help="an SVG of the rows a second")
    given = words.parse_args(argv)
    print(machine(given.threads), flush=True)
    pythons: dict[str, Path | str] = {name: Path(sys.executable) for name in (OURS, ADAGRAD)}
    for name in given.only.split(",") if given.only else PEERS:
        found_python = interpreter(given.environments.absolute(), name)
        if isinstance(found_python, Path):
            pythons[name] = found_python
        else:
            print(f"{name} cannot be installed: {found_python}", flush=True)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RUNNER_CACHE"] = f"{folder}/cache"
        write_rows(Path(folder), given.rows)
        for turn in range(given.turns + 1):  # the first one warms caches and is not counted
            for name in list(pythons):
                try:
                    one = train(pythons[name], name, Path(folder), given.batch_size, given.threads)
                except RuntimeError as error:
                    print(f"{name} fails: {error}", flush=True)
                    del pythons[name], found[name]
                    continue
                if turn:
                    found[name].append(one)
    print(f"\n{given.turns} turns of {given.rows:,} rows, batch size {given.batch_size:,}\n")
    clock, unit = "cpu", " of processor time, one thread"
    if given.threads > 1:
        clock, unit = "wall", f", {given.threads} threads"
    print(as_table(found, clock))
    if given.picture:
        draw(found, clock, unit, given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
