"""DeepFM by torch-rechub: its model, its generator of batches, its trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader
from torch_rechub.basic.features import SparseFeature
from torch_rechub.models.ranking import DeepFM
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import TorchDataset

from bench.peers.measured import HIDDEN, LR, NAMES, WIDTH, Rows, measure


def train(folder: Path, sizes: list[int], batch_size: int) -> Any:
    features = [SparseFeature(name, size, WIDTH) for name, size in zip(NAMES, sizes)]
    model = DeepFM(features, features, mlp_params={"dims": HIDDEN, "activation": "relu"})
    trainer = CTRTrainer(model, optimizer_params={"lr": LR}, n_epoch=1, model_path=str(folder))

    def loader(rows: Rows, shuffle: bool) -> DataLoader:
        return DataLoader(TorchDataset(rows.ids, rows.labels), batch_size, shuffle=shuffle)

    trainer.fit(loader(Rows.read(folder / "train.parquet"), True))
    return lambda rows: np.array(trainer.predict(model, loader(rows, False)))


if __name__ == "__main__":
    measure(train)
