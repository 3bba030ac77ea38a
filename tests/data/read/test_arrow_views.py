"""Views between NumPy and Arrow equal pyarrow's own conversions, and import no pandas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from runner.data.read.arrow_views import view_as_arrow, view_as_numpy
from tests.conftest import python

TYPES = ["int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("type_", TYPES)
def test_numbers_are_viewed_without_a_copy(type_):
    values = np.arange(7).astype(type_)
    there = view_as_arrow(values)
    assert there.equals(pa.array(values))
    back = view_as_numpy(there[2:6])
    assert (back.dtype, back.tolist()) == (values.dtype, values[2:6].tolist())
    assert np.shares_memory(back, values)


def test_every_second_value_is_copied():
    assert view_as_arrow(np.arange(6)[::2]).to_pylist() == [0, 2, 4]


@pytest.mark.parametrize(
    "values",
    [pa.array([1, None, 3]), pa.array([True, False]), pa.array([], pa.int32()), pa.array(["a"])],
    ids=["missing", "bool", "none", "text"],
)
def test_other_values_are_what_pyarrow_makes_of_them(values):
    expected = values.to_numpy(zero_copy_only=False)
    found = view_as_numpy(values)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_pandas_is_not_imported():
    code = """
import sys
import numpy as np
from runner.data.read.gather import RowGather
out = np.empty(2, np.float32)
RowGather.from_order(np.array([2, 0]), 3).gather_into(out, np.arange(3))
assert out.tolist() == [2, 0], out
assert "pandas" not in sys.modules
"""
    python("-c", code).check_returncode()
