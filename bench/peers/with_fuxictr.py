"""DeepFM by FuxiCTR's layers, loader and training loop."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel

from bench.peers.measured import HIDDEN, LR, NAMES, WIDTH, Rows, measure


class DeepFM(BaseModel):
    """As in its model zoo, which its package does not hold."""

    def __init__(self, feature_map: FeatureMap, folder: Path) -> None:
        super().__init__(
            feature_map, model_id="DeepFM", verbose=0, metrics=["AUC"], model_root=f"{folder}/"
        )
        self.embedding_layer = FeatureEmbedding(feature_map, WIDTH)
        self.fm = FactorizationMachine(feature_map)
        self.mlp = MLP_Block(input_dim=len(NAMES) * WIDTH, output_dim=1, hidden_units=HIDDEN)
        self.compile("adam", "binary_crossentropy", LR)
        self.reset_parameters()

    def forward(self, inputs: Any) -> dict[str, Any]:
        x = self.get_inputs(inputs)
        embedded = self.embedding_layer(x)
        logit = self.fm(x, embedded) + self.mlp(embedded.flatten(start_dim=1))
        return {"y_pred": self.output_activation(logit)}


def train(folder: Path, sizes: list[int], batch_size: int) -> Any:
    features = FeatureMap("rows", str(folder))
    features.labels, features.num_fields, features.default_emb_dim = ["label"], len(NAMES), WIDTH
    features.features = OrderedDict(
        (name, {"type": "categorical", "source": "", "vocab_size": size, "padding_idx": None})
        for name, size in zip(NAMES, sizes)
    )
    features.set_column_index()

    def loader(rows: Rows, name: str, shuffle: bool) -> NpzDataLoader:
        path = folder / f"{name}.npz"
        if not path.exists():
            np.savez(path, label=rows.labels, **rows.ids)
        return NpzDataLoader(features, str(path), batch_size, shuffle=shuffle, num_workers=0)

    model = DeepFM(features, folder)
    model._max_gradient_norm, model._eval_steps = 10.0, 1 << 60
    model._total_steps, model._stop_training = 0, False
    model.train_epoch(loader(Rows.read(folder / "train.parquet"), "train", True))
    return lambda rows: model.predict(loader(rows, "test", False))


if __name__ == "__main__":
    measure(train)
