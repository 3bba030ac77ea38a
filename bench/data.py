"""The data layer: rows a second from files on disk to ready batches.

    python -m bench.data [--rows 1000000] [--pairs 12] [--only columns,lists,...]

Against Arrow's own scan of the same columns of the same files, in the same process, one thread, the
page cache warm: they take turns, pass by pass. Times are processor times, since others may use the
machine as well; a pass of either reads everything once. Other loaders: `bench.loaders`; how cost
grows with the rows: `bench.growth`.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from bench.paired import alternate, machine, note, ratio, shown, table
from runner.machine.memory import keep_freed_memory

BATCH_SIZE = 4096
BLOCKS_AT_ONCE = 16
HEADER = ("what", "needed", "rows/s", "Arrow's", "share", "95% interval", "all", "")


@dataclass(frozen=True)
class Case:
    name: str
    schema: dict[str, Any]
    needed: float  # share of Arrow's own speed
    seed: int | None = 0
    rewrite: str = "auto"


def schemas() -> dict[str, Case]:
    label = {"labels": {"label": {}}}
    numbers = {f"I{n}": {} for n in range(1, 14)}
    logs = {name: {"log1p": True} for name in numbers}
    ids = {f"C{n}": {"num_rows": 1 << 20} for n in range(1, 27)}
    hashed = {name: {"encode": "hash", "num_rows": 100_000} for name in ids}
    lists = {f"L{n}": {"num_rows": 1 << 20, "list": True} for n in range(1, 4)}
    plain = {**label, "numeric": numbers, "categorical": ids}
    cases = [
        Case("columns", plain, 0.6),
        Case("columns in file order", plain, 0.6, None),
        Case("columns rewritten once", plain, 0.6, rewrite="always"),
        Case("log1p and hashing", {**label, "numeric": logs, "categorical": hashed}, 0.2),
        Case("lists", {**label, "numeric": numbers, "categorical": {**ids, **lists}}, 0.2),
        Case("lists only", {**label, "categorical": lists}, 0.2),
    ]
    return {case.name: case for case in cases}


def write_rows(path: Path, num_rows: int, compression: str = "none") -> None:
    """Write rows like Criteo's: 13 numbers and 26 Zipf-distributed ids, and three list columns."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, num_rows, 1 << 17):
        count = min(1 << 17, num_rows - start)
        columns: dict[str, pa.Array] = {"label": pa.array(rng.integers(0, 2, count, np.int8))}
        for n in range(1, 14):
            columns[f"I{n}"] = pa.array(rng.exponential(30, count).astype(np.int32))
        for n, size in enumerate(np.geomspace(4, 200_000, 26).astype(int), start=1):
            columns[f"C{n}"] = pa.array(ids(rng, size, count))
        for n in range(1, 4):
            offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 5, count))])
            values = pa.array(ids(rng, 50_000, int(offsets[-1])))
            columns[f"L{n}"] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
        block = pa.table(columns)
        writer = writer or pq.ParquetWriter(
            path, block.schema, compression=compression, write_page_checksum=True
        )
        writer.write_table(block, row_group_size=8192)
    assert writer is not None
    writer.close()


def ids(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    return np.minimum((size + 1.0) ** rng.random(count) - 1, size - 1).astype(np.int32)


def scan(path: Path, names: list[str]) -> float:
    """Return the seconds that Arrow takes for the same columns, a window of row groups at once."""
    began = time.process_time()
    with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
        for group in range(0, file.num_row_groups, BLOCKS_AT_ONCE):
            groups = range(group, min(group + BLOCKS_AT_ONCE, file.num_row_groups))
            file.read_row_groups(list(groups), columns=names, use_threads=False)
    return time.process_time() - began


def read(data: Any, seed: int | None) -> float:
    began = time.process_time()
    for batch in data.batches("train", batch_size=BATCH_SIZE, seed=seed):
        assert batch.size
    return time.process_time() - began


def compare(case: Case, path: Path, num_rows: int, pairs: int) -> list[str]:
    data = opened(format="parquet", path=str(path), schema=case.schema, rewrite=case.rewrite)
    files = data.indexes["train"].files
    assert (files == (path,)) == (case.rewrite == "auto"), "read as it is"
    names = list(data.columns.names)
    return _row(
        case.name,
        case.needed,
        num_rows,
        pairs,
        lambda: scan(path, names),
        lambda: read(data, case.seed),
    )


def sequences(path: Path, num_rows: int, pairs: int) -> list[str]:
    """Measure the rewritten table, since a training reads sequences after they were cut."""
    schema = {"labels": {"label": {}}, "sequences": {}}
    schema["sequences"] = {f"L{n}": {"num_rows": 1 << 20, "max_length": 3} for n in range(1, 4)}
    data = opened(format="parquet", path=str(path), schema=schema)
    names = list(data.columns.names)
    return _row(
        "sequences",
        0.2,
        num_rows,
        pairs,
        lambda: scan(path, names),
        lambda: read(data, 0),
    )


def csv(path: Path, num_rows: int, pairs: int) -> list[str]:
    """Measure CSV to encoded rows against Arrow's reading of the same columns and types."""
    from runner.data.columns.encode import encode_chunk
    from runner.data.files.bad_rows import RowValidator
    from runner.data.tabular.fit import TransformFitter
    from runner.data.tabular.table_recipe import TableRecipe

    case = schemas()["columns"]
    columns = ["label", *case.schema["numeric"], *case.schema["categorical"]]
    text = path.with_suffix(".csv")
    pacsv.write_csv(pq.read_table(path, columns=columns), text)
    recipe = TableRecipe(format="csv", path=str(text), schema=case.schema)
    recipe.check()
    fitted = TransformFitter(recipe.declared, split_seed=0, skip_bad_rows=False).compute()
    (file,) = recipe.files["train"]
    found = recipe.schemas[str(file)]

    def arrow() -> float:
        began = time.process_time()
        options = pacsv.ConvertOptions(
            column_types={name: found.field(name).type for name in columns},
            include_columns=columns,
        )
        reading = pacsv.ReadOptions(block_size=1 << 23, use_threads=False)
        for _ in pacsv.open_csv(text, read_options=reading, convert_options=options):
            pass
        return time.process_time() - began

    def ours() -> float:
        began = time.process_time()
        for chunk in recipe.read_chunks(file, recipe.columns_read):
            encode_chunk(chunk, recipe.declared, fitted, RowValidator.for_chunk(chunk, False))
        return time.process_time() - began

    return _row("CSV", 0.7, num_rows, pairs, arrow, ours)


def _row(
    name: str, needed: float, num_rows: int, pairs: int, theirs: Callable, ours: Callable
) -> list[str]:
    our_s, their_s = alternate(ours, theirs, pairs)
    share = ratio(their_s, our_s)
    note(f"reading: {name}, share of Arrow's speed", share, is_cost=False)
    verdict = "held" if share.low >= needed else "missed" if share.high < needed else "open"
    speeds = [f"{num_rows / float(np.median(s)) / 1e6:.2f}M" for s in (our_s, their_s)]
    return [name, f"{needed:g}", *speeds, *shown(share, digits=2), verdict]


def opened(**settings: Any) -> Any:
    from runner.data.tabular.table import open_table
    from runner.data.tabular.table_recipe import TableRecipe

    recipe = TableRecipe(**settings)
    recipe.check()
    return open_table(recipe, window_rows=131_072, prefetch=0)


def training(num_rows: int, pairs: int, *, ahead: bool) -> list[str]:
    """Updates of the default model on synthetic rows read from the disk, and from memory.

    ahead: a thread reads on another core, so that the clock on the wall is what counts.
    """
    from bench.jobs import job_to_update, prepared

    rows = f"dataset.rows={{train: {num_rows}, validation: 10000, test: 10000}}"
    workers = f"dataset.workers={int(ahead)}"
    job = job_to_update(prepared([rows, workers, "trainer.num_threads=1"]))
    clock = time.perf_counter if ahead else time.process_time

    def batches() -> Iterator[Any]:
        return job.dataset.batches("train", batch_size=BATCH_SIZE, seed=0)

    kept = list(batches())

    def train(source: Iterator[Any]) -> float:
        job.context.model.train()
        began = clock()
        for _ in kept:
            job.task.train_step(job.context, source)
        return clock() - began

    return _row(
        "training beside memory, a thread reads" if ahead else "training beside tensors in memory",
        0.95,
        num_rows,
        pairs,
        lambda: train(iter(kept)),
        lambda: train(batches()),
    )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--rows", type=int, default=1_000_000)
    words.add_argument("--pairs", type=int, default=12)
    words.add_argument("--only", default="")
    given = words.parse_args()
    only = set(filter(None, given.only.split(",")))
    import torch

    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    keep_freed_memory()  # as in the runner's process, for both sides
    print(machine(1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["RUNNER_CACHE"] = str(folder / "cache")
        path = folder / "rows.parquet"
        write_rows(path, given.rows)
        made = [case for case in schemas().values() if not only or case.name in only]
        rows = [compare(case, path, given.rows, given.pairs) for case in made]
        if not only or "sequences" in only:
            rows.append(sequences(path, given.rows, given.pairs))
        if not only or "CSV" in only:
            rows.append(csv(path, given.rows, max(3, given.pairs // 2)))
        if not only or "training" in only:
            rows += [training(given.rows // 5, given.pairs, ahead=a) for a in (False, True)]
        if rows:
            print(f"\n{given.rows:,} rows, {given.pairs} pairs\n{table(HEADER, rows)}")
    print(
        f"largest memory here: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB"
    )


if __name__ == "__main__":
    main()
