"""Policies for the rows at the end of a training epoch that fill no batch.

short: the last batch is shorter. drop: these rows are left out, others in each epoch. pad: the last
batch is filled up with rows of weight 0. Under each, all ranks make the same number of updates.
"""

from __future__ import annotations

from dataclasses import replace

from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch


def pad_batch(batch: Batch, batch_size: int) -> Batch:
    """Fill a batch up to `batch_size` rows.

    The added rows have weight 0, number -1 and no ids, so that they touch no table.
    """
    missing = batch_size - batch.size
    if missing <= 0:
        return batch
    below, after = (0, 0, 0, missing), (0, missing)
    sequences = None if batch.sequences is None else _pad_kjt(batch.sequences, batch.size, missing)
    return replace(
        batch,
        dense_BD=functional.pad(batch.dense_BD, below),
        sparse=_pad_kjt(batch.sparse, batch.size, missing),
        sequences=sequences,
        labels_BT=functional.pad(batch.labels_BT, below),
        weights_B=functional.pad(batch.weights_B, after),
        rows_B=functional.pad(batch.rows_B, after, value=-1),
        groups_BG=functional.pad(batch.groups_BG, below),
    )


def drop_ids(batch: Batch) -> Batch:
    """Remove all ids from the batch of a rank that has no row left.

    Its weight is 0, and it must touch no table either: otherwise a stateful optimizer would take a
    step that it does not take on another number of ranks.
    """
    sequences = None if batch.sequences is None else _pad_kjt(batch.sequences, 0, batch.size)
    return replace(batch, sparse=_pad_kjt(batch.sparse, 0, batch.size), sequences=sequences)


def _pad_kjt(kjt: KeyedJaggedTensor, num_kept: int, num_empty: int) -> KeyedJaggedTensor:
    """Keep `num_kept` rows, which must be all or 0, and append `num_empty` rows without ids."""
    weights = kjt.weights_or_none()
    lengths_FB = kjt.lengths().view(len(kjt.keys()), kjt.stride())[:, :num_kept]
    return KeyedJaggedTensor(
        keys=kjt.keys(),
        values=kjt.values() if num_kept else kjt.values()[:0],
        weights=weights if num_kept or weights is None else weights[:0],
        lengths=functional.pad(lengths_FB, (0, num_empty)).flatten(),
        stride=num_kept + num_empty,
    )
