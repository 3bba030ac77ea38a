"""Joins matrices row by row, without a copy where they lie one behind the other in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of all parts as one tensor: a view of their memory if they are its pieces.

    Args:
        parts: [R, ...] of each, equal in all but R; at least one.
    """
    first, storage = parts[0], parts[0].untyped_storage().data_ptr()
    starts = [part.data_ptr() for part in parts]
    ends = [part.data_ptr() + part.nbytes for part in parts]
    are_pieces = all(
        part.is_contiguous() and part.untyped_storage().data_ptr() == storage for part in parts
    )
    if not are_pieces or starts[1:] != ends[:-1]:
        return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
