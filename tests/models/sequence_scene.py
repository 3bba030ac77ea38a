"""Random users, items and histories: batches for the sequence and retrieval models."""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Schema, SequenceFeature, SparseFeature, TaskSpec

NUM_ITEMS, LONGEST = 30, 6
SCHEMA = Schema(
    dense=("age",),
    sparse=(
        SparseFeature("user", 20),
        SparseFeature("item", NUM_ITEMS),
        SparseFeature("genres", 15),
    ),
    tasks=(TaskSpec("click"),),
    sequences=(SequenceFeature("history", NUM_ITEMS, LONGEST, "item"),),
    groups=("user",),
)


def jagged(keys: list[str], lists: list[list[list[int]]]) -> KeyedJaggedTensor:
    """Make a jagged tensor from a list of ids for each row of each key."""
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.tensor([i for rows in lists for row in rows for i in row], dtype=torch.int64),
        lengths=torch.tensor([len(row) for rows in lists for row in rows]),
    )


def ids_of(batch: Batch, name: str) -> list[list[int]]:
    """Return the ids of each row as lists."""
    kjt = batch.sequences if name == "history" else batch.sparse
    return [row.tolist() for row in kjt[name].to_dense()]


def batch_of(size: int = 12, seed: int = 0, *, positive: float = 0.7) -> Batch:
    """Histories of 0 to LONGEST + 2 items, of which the newest LONGEST count."""
    g = torch.Generator().manual_seed(seed)

    def draw(high: int, count: int) -> list[int]:
        return torch.randint(0, high, (count,), generator=g).tolist()

    lengths = draw(LONGEST + 3, size)
    lengths[:3] = [0, 1, LONGEST + 2][:size]
    return Batch(
        dense_BD=torch.randn(size, 1, generator=g),
        sparse=jagged(
            ["user", "item", "genres"],
            [
                [[i] for i in draw(20, size)],
                [[i] for i in draw(NUM_ITEMS, size)],
                [draw(15, count) for count in draw(4, size)],
            ],
        ),
        sequences=jagged(["history"], [[draw(NUM_ITEMS, count) for count in lengths]]),
        labels_BT=(torch.rand(size, 1, generator=g) < positive).float(),
        weights_B=torch.rand(size, generator=g) + 0.5,
        rows_B=torch.arange(size),
        groups_BG=torch.tensor(draw(5, size))[:, None],
        cursor=DataPosition(0, size + 100 * seed),
    )
