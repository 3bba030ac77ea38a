"""What each library's training is measured by, within the library's own interpreter.

Nothing of the runner is imported here, since the environment of a peer lacks it. An update is seen
by torch's own hook after each step of an optimizer, which all of these trainings call.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sklearn.metrics import roc_auc_score
from torch.optim.optimizer import register_optimizer_step_post_hook

NAMES = [f"C{n}" for n in range(1, 27)]
LR = 0.001
TABLES_LR = 0.02  # of row-wise Adagrad
WIDTH = 16
HIDDEN = [400, 400, 400]


@dataclass
class Updates:
    """Counts updates, and takes the times of the first and of the newest."""

    count: int = 0
    first: tuple[float, float] = (0.0, 0.0)
    newest: tuple[float, float] = (0.0, 0.0)
    began: float = field(default_factory=time.time)

    def note(self, *_: object) -> None:
        self.count += 1
        self.newest = (time.perf_counter(), time.process_time())
        if self.count == 1:
            self.first, self.first_at = self.newest, time.time()

    def result(self, batch_size: int) -> dict[str, float]:
        """Return the rows a second between the first update and the last one, and the peak."""
        wall_s, cpu_s = (b - a for a, b in zip(self.first, self.newest))
        rows = (self.count - 1) * batch_size
        return {
            "updates": self.count,
            "first_at": self.first_at,
            "wall": rows / wall_s,
            "cpu": rows / cpu_s,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


@dataclass(frozen=True)
class Rows:
    """One split in memory: a column of ids for each feature, and the labels."""

    ids: dict[str, np.ndarray]
    labels: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Rows:
        table = pq.read_table(path)
        ids = {name: table[name].to_numpy() for name in NAMES}
        return cls(ids, table["label"].to_numpy().astype(np.float32))

    def table(self) -> pa.Table:
        return pa.table({**self.ids, "label": self.labels.astype(np.int8)})


def measure(train: Callable[[Path, list[int], int], Callable[[Rows], np.ndarray]]) -> None:
    """Run `train` on the folder and batch size of the command line; print what was measured.

    Args:
        train: is given the folder, the number of rows of each table and the batch size, makes one
            pass over `train.parquet` and returns what scores rows.
    """
    folder, batch_size = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    np.random.seed(0)
    updates = Updates()
    register_optimizer_step_post_hook(updates.note)
    score = train(folder, json.loads((folder / "sizes.json").read_text()), batch_size)
    found = updates.result(batch_size)
    test = Rows.read(folder / "test.parquet")
    found["auc"] = float(roc_auc_score(test.labels, score(test)))
    print("measured", json.dumps(found))
