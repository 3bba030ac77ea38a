"""NumPy's views of Arrow's numbers and back, without pandas.

`pa.array` and `to_numpy` do the same, but first import pandas, if it is installed: 0.4 s of
every run before its first update.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def view_as_arrow(values: np.ndarray) -> pa.Array:
    """Return an array of numbers as Arrow's, without a copy if it is contiguous."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def view_as_numpy(values: pa.Array) -> np.ndarray:
    """Return Arrow's values as an array that may be read-only; without a copy for numbers.

    Values that are not numbers, and missing ones, are converted as `to_numpy` does.
    """
    type_ = values.type
    if values.null_count or not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    buffer = values.buffers()[1]
    if buffer is None:  # no values
        return np.empty(0, type_.to_pandas_dtype())
    dtype = np.dtype(type_.to_pandas_dtype())
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)
