"""DeepFM of TorchRec's tables in the plainest loop, over rows that lie in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from bench.peers.measured import LR, NAMES, Rows, measure
from bench.peers.torchrec_deepfm import DeepFM


def tensors(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    ids_NF = torch.from_numpy(np.stack([rows.ids[name] for name in NAMES], axis=1).astype(np.int64))
    return ids_NF, torch.from_numpy(rows.labels)


def train(folder: Path, sizes: list[int], batch_size: int) -> Any:
    model = DeepFM(sizes)
    optimizer = torch.optim.Adam(model.dense_parameters(), lr=LR)
    ids_NF, labels_N = tensors(Rows.read(folder / "train.parquet"))
    for places in torch.randperm(len(labels_N)).split(batch_size):
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(ids_NF[places]), labels_N[places]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return lambda rows: torch.cat(
            [model(part).detach() for part in tensors(rows)[0].split(batch_size)]
        ).numpy()


if __name__ == "__main__":
    measure(train)
