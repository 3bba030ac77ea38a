"""Vectorised transforms of whole columns."""

from __future__ import annotations

import numpy as np

from runner.data.core.columns import NumericColumn

PIECE = 16_384  # numbers: too few for PyTorch to use several threads

# of a mean to the standard deviation in float32, whose steps are then at most 1/8,192 of the latter
LARGEST_RATIO = 1024


def as_float32(values: np.ndarray) -> np.ndarray:
    """Return the values as batches hold them; a number that is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def transform_numeric(column: NumericColumn, values: np.ndarray) -> np.ndarray:
    """Clip, take log1p and standardise: [R] numbers without missing ones -> [R] float32."""
    in_double = needs_double(column.mean, column.std)
    x = values.astype(np.float64) if in_double else as_float32(values)
    if column.clip_min is not None or column.clip_max is not None:
        np.clip(x, column.clip_min, column.clip_max, out=x)
    if column.log1p:
        _log1p_in_place(x)
    if column.mean or column.std != 1:
        x -= x.dtype.type(column.mean)
        x *= x.dtype.type(1 / column.std)
    return as_float32(x) if in_double else x


def needs_double(mean: float, std: float) -> bool:
    """Return whether float32 is too coarse for numbers this far from 0, as for times of a day."""
    return abs(mean) > LARGEST_RATIO * std


def _log1p_in_place(values: np.ndarray) -> None:
    """Take log1p of [R] floats by PyTorch.

    NumPy has vector instructions for it on CPUs with AVX-512 alone: elsewhere it takes 14 ns a
    number and PyTorch 1.7, which is also closer to the exact value (0.6 units in the last place).
    Where PyTorch is not installed, as for an ONNX file, NumPy's double precision is as close.
    """
    try:
        import torch  # the rest of this module works without it
    except ImportError:
        values[:] = np.log1p(values, dtype=np.float64)
        return
    tensor = torch.from_numpy(values)
    for start in range(0, len(values), PIECE):  # longer pieces would start OpenMP's threads
        tensor[start : start + PIECE].log1p_()


def splitmix64(values: np.ndarray, salt: int) -> np.ndarray:
    """Return splitmix64 (Steele et al. 2014) of [R] uint64, a bijection for every salt."""
    mixed = values + np.uint64((salt + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    shifted = np.empty_like(mixed)  # used three times: new memory costs as much as a step
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= np.right_shift(mixed, np.uint64(bits), out=shifted)
        mixed *= np.uint64(factor)
    mixed ^= np.right_shift(mixed, np.uint64(31), out=shifted)
    return mixed


def hash_ids(values: np.ndarray, num_rows: int, salt: int) -> np.ndarray:
    """Map any integers [R] to [0, num_rows), int64: splitmix64, then multiply-shift.

    The 32 high bits choose the row, so a table may have at most 2**32 rows.
    """
    mixed = splitmix64(values.astype(np.int64).view(np.uint64), salt)
    # Multiply-shift needs no division: a quarter of the cost of `mixed % num_rows`.
    mixed >>= np.uint64(32)
    mixed *= np.uint64(num_rows)
    mixed >>= np.uint64(32)
    return mixed.view(np.int64)
