"""`predict` beside loop=eval on the same rows, in turns, and its memory by the size of the input.

    python -m bench.predict [--rows 2000000] [--pairs 6] [--folder DIR]

Both score the test split of generated Parquet files by a DLRM with default sizes. What counts is
processor time, which neighbours on the machine do not change much. A prediction also loads the
model: that of a tenth of the rows is taken away from that of all. Files and run are kept in the
folder and found again there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from bench.jobs import job_in, prepared
from bench.paired import SHOWN, Stopwatch, alternate, machine, note, ratio, shown, table
from runner.serving.predict.parts import open_output
from runner.serving.predict.plan import make_plan
from runner.serving.predict.run import score_missing_parts

TARGET = 0.9  # of the rows a second of loop=eval


def main(argv: list[str] | None = None) -> int:
    """Print a table of speeds, then one of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        run = prepare(folder, given.rows, given.overrides)
        small = write_tenth(folder, given.rows)
        compare(run, folder, small, given.pairs, given.threads)
        show_memory(run, folder, small)
    return 0


def prepare(folder: Path, num_rows: int, overrides: list[str]) -> Path:
    """Write the rows and train a few updates, unless that was done before."""
    data, run = folder / "data", folder / "run"
    rows = f"dataset.rows={{train: 100000, validation: 10000, test: {num_rows}}}"
    few = ["trainer.max_steps=20", "report=false"]
    if not (data / "schema.yaml").exists():
        runner(f"dataset.write_to={data}", rows, f"hydra.run.dir={folder / 'generate'}", *few)
    if not (run / "result.json").exists():
        schema = f"dataset.schema={data / 'schema.yaml'}"
        runner("dataset=parquet", schema, f"hydra.run.dir={run}", *few, *overrides)
    return run


def runner(*words: str) -> int:
    """Run a command line; return the peak of its memory in bytes.

    Raises:
        RuntimeError: if it fails.
    """
    command = [sys.executable, "-m", "runner", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{' '.join(command)}\n{said}")
    return usage.ru_maxrss * 1024


def write_tenth(folder: Path, num_rows: int) -> Path:
    """Write the first tenth of the test rows into a file of its own."""
    small = folder / "small.parquet"
    [whole, *_] = sorted((folder / "data" / "test").glob("*.parquet"))
    with pq.ParquetFile(whole) as file, pq.ParquetWriter(small, file.schema_arrow) as writer:
        for number, batch in enumerate(file.iter_batches(8192)):
            if number * 8192 < num_rows // 10:
                writer.write_batch(batch)
    return small


def compare(run: Path, folder: Path, small: Path, pairs: int, threads: int) -> None:
    """Print the rows a second of processor time of both, and their ratio."""
    number = f"trainer.num_threads={threads}"
    composed = prepared([f"run={run}", "loop=eval", number])
    out = folder / "scores"

    def predict_one(path: Path) -> float:
        shutil.rmtree(out, ignore_errors=True)
        plan = make_plan(run, [str(path)], out=out, overrides=[number])
        open_output(out, plan.manifest)
        return processor_seconds(lambda: score_missing_parts(plan, 0, 1, threads))

    def predict() -> float:
        """Return the seconds of as many rows as the split has, without those of loading."""
        taken = predict_one(folder / "data" / "test") - predict_one(small)
        return taken / (1 - pq.read_metadata(small).num_rows / num_rows)

    with job_in(folder / "eval", composed) as job:
        from runner.training.loops.evaluate_split import evaluate_split
        from runner.training.state import restore_weights

        assert job.source_checkpoint is not None
        restore_weights(job.context, job.source_checkpoint)

        num_rows = job.dataset.num_rows["test"]
        ours, theirs = alternate(
            predict, lambda: processor_seconds(lambda: evaluate_split(job, "test")), pairs
        )
    speeds = ratio(theirs, ours)
    note("predict / loop=eval, rows a second", speeds, is_cost=False)
    print(f"{machine(threads)}\n{num_rows:,} rows, {pairs} pairs")
    medians = [num_rows / sorted(times)[len(times) // 2] for times in (ours, theirs)]
    rows = [
        ["predict / loop=eval, rows a second", *shown(speeds)],
        ["predict, rows a second", f"{medians[0]:,.0f}", "", ""],
        ["loop=eval, rows a second", f"{medians[1]:,.0f}", "", ""],
    ]
    print(table(["", *SHOWN], rows))
    print(f"target: at least {TARGET}: {ratio(ours, theirs).verdict(at_most=1 / TARGET)}\n")


def processor_seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call, of all threads."""
    watch = Stopwatch()
    watch.start()
    call()
    watch.stop()
    return watch.cpu_s


def show_memory(run: Path, folder: Path, small: Path) -> None:
    """Print the peak of a process that scores a tenth of the rows, and of one that scores all."""
    peaks = []
    for inputs, name in ((small, "small"), (folder / "data" / "test", "all")):
        out = folder / f"scores_{name}"
        shutil.rmtree(out, ignore_errors=True)
        peak = runner("predict", str(run), str(inputs), "--out", str(out))
        rows = pq.read_table(out, columns=[]).num_rows
        peaks.append([f"{rows:,} rows", f"{peak / 2**20:,.0f} MB"])
    print(table(["", "peak of memory"], peaks))


if __name__ == "__main__":
    sys.exit(main())
