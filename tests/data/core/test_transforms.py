from __future__ import annotations

import math

import numpy as np
import pytest

from runner.data.core.columns import NumericColumn
from runner.data.core.transforms import hash_ids, transform_numeric


def splitmix(value: int, num_rows: int, salt: int) -> int:
    """Compute the same hash with Python's integers."""
    mask = 2**64 - 1
    z = (value + (salt + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 32) * num_rows >> 32


@pytest.mark.parametrize("num_rows", [1, 2, 1000, 2**31, 2**32])
def test_hash_equals_splitmix64_in_python(num_rows):
    values = [0, 1, -1, 17, 2**31, 2**63 - 1, -(2**63)]
    for salt in (0, 3):
        found = hash_ids(np.array(values), num_rows, salt).tolist()
        assert found == [splitmix(v & (2**64 - 1), num_rows, salt) for v in values]
        assert all(0 <= f < num_rows for f in found)


def test_hash_does_not_depend_on_the_width_of_the_integers():
    values = np.array([0, 5, 100])
    wide = hash_ids(values, 1000, 0).tolist()
    for dtype in (np.int8, np.uint16, np.int32, np.uint64):
        assert hash_ids(values.astype(dtype), 1000, 0).tolist() == wide


def test_hash_spreads_neighbours_evenly():
    counts = np.bincount(hash_ids(np.arange(200_000), 100, 0), minlength=100)
    chi_square = ((counts - 2000) ** 2 / 2000).sum()
    assert chi_square < 150  # 99 degrees of freedom: 99 expected, 150 once in a thousand


def test_salts_are_independent():
    same = hash_ids(np.arange(10_000), 100, 0) == hash_ids(np.arange(10_000), 100, 1)
    assert 50 < same.sum() < 150


def test_numbers_are_clipped_before_the_logarithm():
    column = NumericColumn("x", log1p=True, clip_min=0.0, clip_max=99.0)
    found = transform_numeric(column, np.array([-5, 0, 1, 99, 1000]))
    expected = [0.0, 0.0, math.log(2), math.log(100), math.log(100)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


def test_a_logarithm_is_exact_to_a_unit_and_does_not_depend_on_the_rows_around_it():
    values = np.random.default_rng(0).lognormal(0, 4, 40_001).astype(np.float32) - np.float32(0.5)
    values = np.concatenate([values[values > -1], np.float32([0, 1e-30, 1e-7, 3e38])])
    column = NumericColumn("x", log1p=True)
    whole = transform_numeric(column, values)
    exact = np.log1p(values.astype(np.float64))
    assert (np.abs(whole - exact) <= np.spacing(np.abs(exact).astype(np.float32))).all()
    for count in (1, 2, 3, 5, 7, 9, 15, 17, 31, 33):
        for start in (0, 1, 16_383, len(values) - 33):
            part = transform_numeric(column, values[start : start + count])
            assert part.tobytes() == whole[start : start + count].tobytes()
    strided = transform_numeric(column, values[::3])
    assert strided.tobytes() == whole[::3].tobytes()


def test_a_logarithm_of_minus_one_or_less_is_not_finite():
    found = transform_numeric(NumericColumn("x", log1p=True), np.array([-1.0, -2.0, np.inf]))
    assert not np.isfinite(found).any()
