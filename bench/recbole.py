"""Training rows/s of our SASRec beside RecBole's, on the same events, in turns.

    python -m bench.recbole PYTHON [--events 100000] [--batch-size 512] [--pairs 6]

PYTHON is an interpreter of an environment of its own that has RecBole (pip install recbole
"numpy<2" "pandas<2.2" "setuptools<80"). Both train a row for each event on its full softmax over
all items: width 64, 2 blocks, 2 heads, inner width 64, dropout 0.2, histories of up to 50, dense
Adam in RecBole, ours on the rows of the tables. Ours is a whole run of the runner; RecBole's is its
trainer's own epoch. Processor times on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.histories import draw_events
from bench.jobs import prepared
from bench.paired import SHOWN, estimate, machine, ratio, shown, table
from bench.turns import run_in_turns
from runner.config.compose import ComposedConfig
from runner.errors import UserError

SHAPE = {"n_layers": 2, "n_heads": 2, "hidden_size": 64, "inner_size": 64}
DROPOUT, LENGTH, CHUNK = 0.2, 50, 10


def write_events(events: pa.Table, folder: Path) -> None:
    """Write the events for both: RecBole holds out two of a user, so it gets two more of each."""
    pq.write_table(events, folder / "events.parquet")
    users, first = np.unique(events["user"].to_numpy(), return_index=True)
    item, end = events["item"].to_numpy()[first], int(events["time"].to_numpy().max())
    more = [
        pa.table({"user": users, "item": item, "time": np.full(len(users), end + number)})
        for number in (1, 2)
    ]
    names = [f"{name}:{'float' if name == 'time' else 'token'}" for name in events.column_names]
    (folder / "events").mkdir()
    with (folder / "events" / "events.inter").open("w") as file:
        file.write("\t".join(names) + "\n")
        columns = pa.concat_tables([events, *more]).to_pydict().values()
        file.writelines("\t".join(map(str, row)) + "\n" for row in zip(*columns))


class RecBole:
    """A process that trains RecBole's model.

    Args:
        python: an interpreter.
        folder: of `write_events`.
        batch_size: in rows.

    Raises:
        UserError: if it ends, with the last line that it wrote.
    """

    def __init__(self, python: str, folder: Path, batch_size: int) -> None:
        settings = {**SHAPE, "MAX_ITEM_LIST_LENGTH": LENGTH, "train_batch_size": batch_size}
        settings |= {"hidden_dropout_prob": DROPOUT, "attn_dropout_prob": DROPOUT, "threads": 1}
        self._errors = (folder / "recbole.log").open("w+")
        # -I: the folder of this file is no place to import from, where `recbole` is this module
        script = Path(__file__).with_name("recbole_child.py")
        try:
            self._process = subprocess.Popen(
                [python, "-I", str(script), str(folder), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise UserError(f"{python}: {error.strerror}") from None
        self.built = self._answer()
        self.measured: list[dict[str, float]] = []

    def turns(self) -> Iterator[None]:
        """Train CHUNK updates for each step of the iterator."""
        assert self._process.stdin is not None
        while True:
            self._process.stdin.write(f"{CHUNK}\n")
            self._process.stdin.flush()
            self.measured.append(self._answer())
            yield

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            last = [text for text in self._errors.read().splitlines() if text.strip()][-1:]
            raise UserError(f"RecBole's process ended with {code}: {' '.join(last)}")
        found: dict[str, Any] = json.loads(line)
        return found


def words_of_ours(folder: Path, batch_size: int, updates: int) -> list[str]:
    events = f"{{user: user, item: item, time: time, max_length: {LENGTH}}}"
    ids = "{user: {encode: vocabulary}, item: {encode: vocabulary}}"
    return [
        "dataset=parquet",
        f"dataset.path={folder / 'events.parquet'}",
        f"dataset.schema={{interactions: {events}, categorical: {ids}}}",
        *("model=sasrec", "model.net.every=true", "model.net.uniform=0", "optimizer=adam"),
        *("model.net.every_place=false", f"model.net.dropout={DROPOUT}"),
        *(f"trainer.batch_size={batch_size}", f"trainer.max_steps={updates}"),
        *("trainer.num_threads=1", f"trainer.log_every={updates}", f"trainer.eval_every={updates}"),
    ]


def measure(composed: ComposedConfig, theirs: RecBole, pairs: int) -> tuple[list[float], ...]:
    """Return the rows per second of processor time of each run: ours, theirs."""
    trainer = composed.config["trainer"]
    updates, size = trainer["max_steps"], trainer["batch_size"]
    ours, others = [], []
    for _ in range(pairs + 1):
        theirs.measured.clear()
        watches = run_in_turns(
            composed, {"theirs": theirs.turns()}, chunk=CHUNK, updates=updates, check=lambda _: None
        )
        ours.append(size * updates / watches["ours"].cpu_s)
        spent = [sum(turn[key] for turn in theirs.measured) for key in ("rows", "cpu_s")]
        others.append(spent[0] / spent[1])
    return ours[1:], others[1:]  # the first pair warms up


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", help="an interpreter that has RecBole")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--updates", type=int, default=20, help=f"of a run, in turns of {CHUNK}")
    parser.add_argument("--pairs", type=int, default=6)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["RUNNER_CACHE"] = str(folder / "cache")
        write_events(draw_events(given.events), folder)
        try:
            composed = prepared(words_of_ours(folder, given.batch_size, given.updates))
            theirs = RecBole(given.python, folder, given.batch_size)
            print(machine(1), f"recbole: {theirs.built}", sep="\n", flush=True)
            ours, others = measure(composed, theirs, given.pairs)
            theirs.close()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    rows = [
        ["ours, rows/s", *shown(estimate(ours), digits=0)],
        ["RecBole, rows/s", *shown(estimate(others), digits=0)],
        ["ours / RecBole", *shown(ratio(ours, others))],
    ]
    title = f"batch size {given.batch_size}, {given.pairs} pairs of {given.updates} updates"
    print(table((title, *SHOWN), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
