"""The models and batches of the benchmark.

B batch, F features (a table each), D embedding width, L ids of a bag.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Schema, SparseFeature, TaskSpec

NUM_DENSE = 13
TOP = (64, 32)


@dataclass(frozen=True)
class Scene:
    """Tables of one size, each looked up with the same number of ids."""

    num_tables: int
    num_rows: int
    dim: int
    pooling: int  # ids of a bag

    @property
    def name(self) -> str:
        size = f"{self.num_tables} tables of {self.num_rows:,} x {self.dim}"
        return f"{size}, {self.pooling} id{'s' * (self.pooling > 1)} each"

    @property
    def schema(self) -> Schema:
        return Schema(
            dense=tuple(f"I{i}" for i in range(NUM_DENSE)),
            sparse=tuple(
                SparseFeature(f"C{i}", self.num_rows, mean_length=float(self.pooling))
                for i in range(self.num_tables)
            ),
            tasks=(TaskSpec("label"),),
        )

    @property
    def weights_bytes(self) -> int:
        return self.num_tables * self.num_rows * self.dim * 4


SCENES = {
    "26": Scene(num_tables=26, num_rows=100_000, dim=16, pooling=1),
    "8": Scene(num_tables=8, num_rows=1_000_000, dim=64, pooling=10),
}


@dataclass(frozen=True)
class Prepared:
    """One batch in all the forms that the contestants take; making them is not timed."""

    batch: Batch
    ids_F: list[Tensor]  # of each feature, [B * L]
    starts_B: Tensor  # where each bag begins, the same in all features
    all_ids: Tensor  # [B * F * L], bag after bag of each row, numbered through one big table
    all_starts: Tensor


def prepared(scene: Scene, size: int, seed: int) -> Prepared:
    """Draw uniform ids: few rows occur twice in a batch, which is expensive for sparse updates."""
    g = torch.Generator().manual_seed(seed)
    shape = (scene.num_tables, size, scene.pooling)
    ids_FBL = torch.randint(0, scene.num_rows, shape, generator=g)
    bags = scene.num_tables * size
    keys = [f.name for f in scene.schema.sparse]
    sparse = KeyedJaggedTensor(
        keys=keys, values=ids_FBL.flatten(), lengths=torch.full((bags,), scene.pooling)
    )
    sparse.offsets()  # once, and not in anyone's time
    first_row_F = torch.arange(scene.num_tables) * scene.num_rows
    batch = Batch(
        dense_BD=torch.rand(size, NUM_DENSE, generator=g),
        sparse=sparse,
        sequences=None,
        labels_BT=(torch.rand(size, 1, generator=g) < 0.25).float(),
        weights_B=torch.ones(size),
        rows_B=torch.arange(size),
        groups_BG=torch.empty(size, 0, dtype=torch.int64),
        cursor=DataPosition(0, size),
    )
    return Prepared(
        batch=batch,
        ids_F=[ids.flatten() for ids in ids_FBL],
        starts_B=torch.arange(size) * scene.pooling,
        all_ids=(ids_FBL + first_row_F[:, None, None]).transpose(0, 1).reshape(-1),
        all_starts=torch.arange(bags) * scene.pooling,
    )
