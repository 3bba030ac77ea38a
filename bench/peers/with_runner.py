"""DeepFM by this project: the whole command with shuffling, train metrics, log and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import runner
from bench.peers.measured import HIDDEN, LR, NAMES, WIDTH, measure

ADAM = ("optimizer=adam", f"optimizer.sparse.lr={LR}", f"optimizer.dense.lr={LR}")


def train(folder: Path, sizes: list[int], batch_size: int, optimizer: Sequence[str] = ADAM) -> Any:
    columns = ", ".join(f"{name}: {{num_rows: {size}}}" for name, size in zip(NAMES, sizes))
    run = runner.train(
        [
            "model=deepfm",
            f"model.net.deep={HIDDEN}",
            f"model.net.embedding_dim={WIDTH}",
            *optimizer,
            "dataset=parquet",
            f"dataset.path={folder}/train.parquet",
            f"dataset.schema={{labels: [label], categorical: {{{columns}}}}}",
            f"trainer.batch_size={batch_size}",
            f"trainer.num_threads={torch.get_num_threads()}",
            f"hydra.run.dir={folder}/run-{os.getpid()}",
            "report=false",
        ]
    )
    return lambda rows: run.predict(rows.table())["score_label"].to_numpy()


if __name__ == "__main__":
    measure(train)
