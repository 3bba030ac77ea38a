"""Loaders of the same Parquet file: ours, torch's DataLoader, FuxiCTR's and DeepCTR-Torch's.

    python -m bench.loaders [--rows 200000] [--turns 5] [--only ours,torch-rows,...]

The peers are of PyPI and in none of our extras; where one is not installed, its row says so:

    uv pip install --target peers --no-deps fuxictr deepctr-torch h5py pandas polars \\
        polars-runtime-32
    PYTHONPATH=peers python -m bench.loaders        # FuxiCTR's loaders need ray as well

All make shuffled batches of 13 numbers, 26 ids and a label. Every measurement is a process of its
own and they take turns. Times are processor times of the process and all that it starts: a loader
with workers pays for them too. `before`: from the file to the first batch, once a run.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import pyarrow.parquet as pq

from bench.data import BATCH_SIZE, opened, schemas, write_rows
from bench.paired import machine, ratio, table

Epoch = Callable[[], Iterable[int]]  # an epoch: how many rows each batch has
NUMBERS = list(schemas()["columns"].schema["numeric"])
IDS = list(schemas()["columns"].schema["categorical"])
ROWS_AT_MOST = {"torch-rows": 20_000}  # of an epoch: a slow one is not waited for
NOT_INSTALLED = 3  # exit code


def processor_s() -> float:
    """Return processor seconds of this process and of its children, running or ended."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(stat.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))  # own and of children that have ended
    waiting, total = [os.getpid()], 0
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += parents.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def ours(path: Path) -> Epoch:
    data = opened(format="parquet", path=str(path), schema=schemas()["columns"].schema)
    seeds = iter(range(1000))
    return lambda: (b.size for b in data.batches("train", batch_size=BATCH_SIZE, seed=next(seeds)))


def torch_rows(path: Path) -> Epoch:
    """Measure a Dataset that makes one row at a time, as the tutorials do."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    rows = pq.read_table(path, columns=["label", *NUMBERS, *IDS])

    class Rows(Dataset):
        def __init__(self) -> None:
            self.columns = {name: rows[name].to_numpy() for name in rows.column_names}

        def __len__(self) -> int:
            return rows.num_rows

        def __getitem__(self, n: int) -> tuple:
            numbers = torch.tensor([float(self.columns[c][n]) for c in NUMBERS])
            own = torch.tensor([int(self.columns[c][n]) for c in IDS])
            return numbers, own, float(self.columns["label"][n])

    loader = DataLoader(Rows(), BATCH_SIZE, shuffle=True)
    return lambda: (len(batch[0]) for batch in loader)


def torch_tensors(path: Path) -> Epoch:
    """Measure a TensorDataset: all rows in memory, collated row by row."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rows = pq.read_table(path, columns=["label", *NUMBERS, *IDS])

    def stacked(names: list[str], type_: Any) -> Any:
        return torch.from_numpy(np.stack([rows[c].to_numpy() for c in names], 1).astype(type_))

    parts = (stacked(NUMBERS, np.float32), stacked(IDS, np.int64), stacked(["label"], np.float32))
    loader = DataLoader(TensorDataset(*parts), BATCH_SIZE, shuffle=True)
    return lambda: (len(batch[0]) for batch in loader)


def deepctr_torch(path: Path) -> Epoch:
    """Measure DeepCTR-Torch's `fit`, which holds its loader, around a model of one weight."""
    import torch
    from deepctr_torch.inputs import DenseFeat
    from deepctr_torch.models.basemodel import BaseModel

    rows = pq.read_table(path, columns=["label", *NUMBERS, *IDS])

    class OneWeight(BaseModel):
        seen: list[int]

        def forward(self, x_BC: torch.Tensor) -> torch.Tensor:
            self.seen.append(len(x_BC))
            return torch.sigmoid(self.out.bias * x_BC[:, :1])

    columns = [DenseFeat(name, 1) for name in (*NUMBERS, *IDS)]  # as they are: no look-up
    model = OneWeight(columns, columns)
    model.compile(torch.optim.SGD([model.out.bias], lr=0.0), "binary_crossentropy")
    model.regularization_weight = []
    x = {name: rows[name].to_numpy() for name in (*NUMBERS, *IDS)}
    y = rows["label"].to_numpy().astype(np.float32)

    def epoch() -> list[int]:
        model.seen = []
        model.fit(dict(x), y, batch_size=BATCH_SIZE, epochs=1, verbose=0, shuffle=True)
        return model.seen

    return epoch


def _fuxictr_map(folder: Path) -> Any:
    from fuxictr.features import FeatureMap

    found = FeatureMap("bench", str(folder))
    numeric = {name: {"type": "numeric", "source": ""} for name in NUMBERS}
    ids = {name: {"type": "categorical", "source": "", "vocab_size": 1 << 20} for name in IDS}
    found.features.update(numeric | ids)
    found.labels = ["label"]
    found.set_column_index()
    return found


def fuxictr_npz(path: Path) -> Epoch:
    """Measure FuxiCTR's default loader, an NPZ file in memory, without worker processes."""
    from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader

    made = path.with_suffix(".npz")
    if not made.exists():
        raise FileNotFoundError(made)
    loader = NpzDataLoader(
        _fuxictr_map(path.parent), str(made), batch_size=BATCH_SIZE, shuffle=True, num_workers=0
    )
    return lambda: (len(batch["label"]) for batch in loader)


def fuxictr_parquet(path: Path) -> Epoch:
    """Measure FuxiCTR's loader of Parquet files, which uses Ray."""
    from fuxictr.pytorch.dataloaders.parquet_dataloader import ParquetDataLoader

    loader = ParquetDataLoader(
        _fuxictr_map(path.parent), str(path), batch_size=BATCH_SIZE, shuffle=True
    )
    return lambda: (len(batch["label"]) for batch in loader)


LOADERS: Mapping[str, tuple[str, Callable[[Path], Epoch]]] = {
    "ours": ("this data layer", ours),
    "torch-rows": ("torch DataLoader, a Dataset of rows", torch_rows),
    "torch-tensors": ("torch DataLoader, TensorDataset", torch_tensors),
    "deepctr-torch": ("DeepCTR-Torch, its fit", deepctr_torch),
    "fuxictr-npz": ("FuxiCTR, NPZ", fuxictr_npz),
    "fuxictr-parquet": ("FuxiCTR, Parquet by Ray", fuxictr_parquet),
}


def measure(name: str, path: Path) -> None:
    """Print processor seconds up to the first batch and of a row, and the peak MB."""
    import torch

    torch.set_num_threads(1)
    try:
        LOADERS[name][1](path)  # imports are not what is measured
        began = processor_s()
        epoch = LOADERS[name][1](path)
    except ImportError as error:
        print(f"not installed: {error.name}")
        sys.exit(NOT_INSTALLED)
    next(iter(epoch()))
    before_s = processor_s() - began
    began, seen = processor_s(), 0
    for size in epoch():
        seen += size
        if seen >= ROWS_AT_MOST.get(name, sys.maxsize):
            break
    took_s = processor_s() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{before_s} {took_s / seen} {peak}")


def turns(path: Path, names: list[str], count: int) -> Iterator[tuple[str, list[float] | str]]:
    """Yield (name, numbers of `measure`) in turns; for a missing peer a text instead, once."""
    missing: set[str] = set()
    for _ in range(count):
        for name in (name for name in names if name not in missing):
            command = [
                sys.executable,
                "-m",
                "bench.loaders",
                "--measure",
                name,
                "--file",
                str(path),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            said = (done.stdout.splitlines() or [""])[-1]
            if done.returncode == NOT_INSTALLED:
                missing.add(name)
                yield name, said
            elif done.returncode:
                raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
            else:
                yield name, [float(number) for number in said.split()]


def rows_of(found: Mapping[str, list[list[float]]], missing: Mapping[str, str]) -> list[list[str]]:
    """Return rows of the table: our speed over theirs, paired within each turn."""
    shown = []
    for name in [*found, *missing]:
        title = LOADERS[name][0]
        if name in missing:
            shown.append([title, missing[name], *[""] * 4])
            continue
        before, of_row, peak = (np.array(column) for column in zip(*found[name]))
        times = [one[1] for one in found["ours"]] if "ours" in found else list(of_row)
        compared = ratio(list(of_row), times)
        shown.append(
            [
                title,
                f"{1 / np.median(of_row) / 1e3:,.0f}k",
                f"{compared.median:.1f}",
                f"{compared.low:.1f} to {compared.high:.1f}",
                f"{np.median(before):.1f} s",
                f"{np.median(peak):,.0f} MB",
            ]
        )
    return shown


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--rows", type=int, default=200_000)
    words.add_argument("--turns", type=int, default=5)
    words.add_argument("--only", default=",".join(LOADERS))
    words.add_argument("--measure", help=argparse.SUPPRESS)
    words.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.measure:
        measure(given.measure, given.file)
        return 0
    names = given.only.split(",")
    if unknown := [name for name in names if name not in LOADERS]:
        words.error(f"--only {unknown[0]}: one of {', '.join(LOADERS)}")
    print(machine(1))
    found: dict[str, list[list[float]]] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RUNNER_CACHE"] = f"{folder}/cache"
        path = Path(folder) / "rows.parquet"
        write_rows(path, given.rows)
        rows = pq.read_table(path, columns=["label", *NUMBERS, *IDS])
        np.savez(path.with_suffix(".npz"), **{n: rows[n].to_numpy() for n in rows.column_names})
        began = time.monotonic()
        for name, numbers in turns(path, names, given.turns):
            if isinstance(numbers, str):
                missing[name] = numbers
            else:
                found.setdefault(name, []).append(numbers)
    header = ("loader", "rows/s", "ours is faster by", "95% interval", "before", "memory")
    print(f"\n{given.rows:,} rows, {given.turns} turns, {time.monotonic() - began:.0f} s")
    print(table(header, rows_of(found, missing)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
