"""The same DeepFM of TorchRec's tables as a LightningModule, with its Trainer and a DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from bench.peers.measured import LR, Rows, measure
from bench.peers.torchrec_deepfm import DeepFM
from bench.peers.with_torchrec import tensors


class Clicks(lightning.LightningModule):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.model = DeepFM(sizes)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = binary_cross_entropy_with_logits(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.model(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.dense_parameters(), lr=LR)


def train(folder: Path, sizes: list[int], batch_size: int) -> Any:
    module = Clicks(sizes)
    trainer = lightning.Trainer(
        max_epochs=1,
        default_root_dir=folder,
        accelerator="cpu",
        enable_progress_bar=False,
        inference_mode=False,  # in which FBGEMM's look-up of training has no kernel
    )

    def loader(rows: Rows, shuffle: bool) -> DataLoader:
        return DataLoader(TensorDataset(*tensors(rows)), batch_size, shuffle=shuffle)

    trainer.fit(module, loader(Rows.read(folder / "train.parquet"), True))
    return lambda rows: torch.cat(trainer.predict(module, loader(rows, False))).numpy()


if __name__ == "__main__":
    measure(train)
