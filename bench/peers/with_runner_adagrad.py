"""The same DeepFM by this project with the rule of TorchRec's tables, its default."""

from __future__ import annotations

from functools import partial

from bench.peers.measured import LR, TABLES_LR, measure
from bench.peers.with_runner import train

ADAGRAD = (f"optimizer.sparse.lr={TABLES_LR}", f"optimizer.dense.lr={LR}")

if __name__ == "__main__":
    measure(partial(train, optimizer=ADAGRAD))
