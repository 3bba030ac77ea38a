"""DeepFM by DeepCTR-Torch: its model, its `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import DeepFM

from bench.peers.measured import HIDDEN, NAMES, WIDTH, Rows, measure


def train(folder: Path, sizes: list[int], batch_size: int) -> Any:
    features = [SparseFeat(name, size, embedding_dim=WIDTH) for name, size in zip(NAMES, sizes)]
    model = DeepFM(features, features, dnn_hidden_units=HIDDEN, l2_reg_embedding=0, l2_reg_linear=0)
    model.compile("adam", "binary_crossentropy", metrics=[])
    rows = Rows.read(folder / "train.parquet")
    model.fit(dict(rows.ids), rows.labels, batch_size=batch_size, epochs=1, verbose=0)
    return lambda test: model.predict(dict(test.ids), batch_size)[:, 0]


if __name__ == "__main__":
    measure(train)
