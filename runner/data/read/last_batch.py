"""What becomes of the rows at the end of a training epoch that fill no whole batch.

short: a shorter last batch. drop: they are left out, others in every epoch. pad: it is filled up
with rows of weight 0. All ranks make the same number of updates under each.
"""

from __future__ import annotations

from dataclasses import replace

from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch


def pad_batch(batch: Batch, batch_size: int) -> Batch:
    """Filled up to `batch_size` rows of weight 0, number -1 and no id, so that they touch no table."""
    missing = batch_size - batch.size
    if missing <= 0:
        return batch
    below, after = (0, 0, 0, missing), (0, missing)
    sequences = None if batch.sequences is None else _longer(batch.sequences, batch.size, missing)
    return replace(
        batch,
        dense_BD=functional.pad(batch.dense_BD, below),
        sparse=_longer(batch.sparse, batch.size, missing),
        sequences=sequences,
        labels_BT=functional.pad(batch.labels_BT, below),
        weights_B=functional.pad(batch.weights_B, after),
        rows_B=functional.pad(batch.rows_B, after, value=-1),
        groups_BG=functional.pad(batch.groups_BG, below),
    )


def drop_ids(batch: Batch) -> Batch:
    """The batch of a rank that has no row left: of weight 0, it must touch no table either, or a
    stateful optimizer would step where no other number of ranks does."""
    sequences = None if batch.sequences is None else _longer(batch.sequences, 0, batch.size)
    return replace(batch, sparse=_longer(batch.sparse, 0, batch.size), sequences=sequences)


def _longer(kjt: KeyedJaggedTensor, kept: int, missing: int) -> KeyedJaggedTensor:
    """`kept`, all or 0, of its rows, and `missing` empty ones."""
    weights = kjt.weights_or_none()
    lengths_FB = kjt.lengths().view(len(kjt.keys()), -1)[:, :kept]
    return KeyedJaggedTensor(
        keys=kjt.keys(),
        values=kjt.values() if kept else kjt.values()[:0],
        weights=weights if kept or weights is None else weights[:0],
        lengths=functional.pad(lengths_FB, (0, missing)).flatten(),
        stride=kept + missing,
    )
