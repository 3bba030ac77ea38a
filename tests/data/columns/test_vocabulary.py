"""Vocabularies, against counting and looking up in a dictionary."""

from __future__ import annotations

from collections import Counter as Counts
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.data.columns import vocabulary
from runner.data.columns.vocabulary import (
    FIRST_VALUE_ID,
    MISSING_ID,
    UNKNOWN_ID,
    ValueCounter,
    look_up_ids,
    map_values,
    merge_runs,
)

VALUES = st.lists(st.one_of(st.integers(-3, 6), st.integers(-(2**63), 2**63 - 1)), max_size=30)


@given(st.lists(VALUES, max_size=6), st.integers(1, 4))
def test_it_counts_like_a_dictionary(parts, min_count):
    counter = ValueCounter()
    for part in parts:
        counter.add(np.array(part, np.int64))
    counts = Counts(value for part in parts for value in part)
    expected = sorted(value for value, count in counts.items() if count >= min_count)
    assert counter.frequent_values(min_count).tolist() == expected


def test_merging_on_the_way_changes_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 500, 100) for _ in range(20)]
    counters = []
    for merge_at in (1, 10**9):
        monkeypatch.setattr(vocabulary, "MERGE_AT", merge_at)
        counters.append(ValueCounter())
        for part in parts:
            counters[-1].add(part)
    found = [counter.frequent_values(3).tolist() for counter in counters]
    assert found[0] == found[1]
    assert 0 < len(found[0]) < 500


@given(st.lists(VALUES, max_size=6), st.integers(1, 4), st.integers(1, 20))
def test_runs_on_disk_are_merged_like_a_dictionary(parts, min_count, max_values):
    with TemporaryDirectory() as folder:
        runs = [Path(folder) / str(number) for number in range(len(parts))]
        for part, run in zip(parts, runs):
            counter = ValueCounter()
            counter.add(np.array(part, np.int64))
            counter.spill(run)
            assert counter.num_held == 0
        out = Path(folder) / "merged"
        merge_runs(runs, min_count, out, max_values=max_values)
        counts = Counts(value for part in parts for value in part)
        expected = sorted(value for value, count in counts.items() if count >= min_count)
        assert map_values(out).tolist() == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full, a disk that is full")
def test_a_full_disk_is_told_as_such():
    counter = ValueCounter()
    counter.add(np.arange(5))
    with pytest.raises(OSError, match="No space left"):
        counter.spill(Path("/dev/full"))


@pytest.mark.parametrize("known", [[], [5], [-7, 5, 2**40], [-(2**63), 0, 1, 2, 5, 2**63 - 1]])
@pytest.mark.parametrize("block_values", [0, 1, 2, 4])
def test_it_encodes_like_a_dictionary(known, block_values, monkeypatch):
    if block_values:  # as a large vocabulary
        monkeypatch.setattr(vocabulary, "SORTED_FROM", 0)
        monkeypatch.setattr(vocabulary, "SEARCHED_AT_ONCE", block_values)
    values = np.array([5, -7, 2**40, 0, 6, -(2**63), 2**63 - 1, 5])
    missing = np.arange(8) == 7
    ids = {value: FIRST_VALUE_ID + n for n, value in enumerate(known)}
    expected = [ids.get(value, UNKNOWN_ID) for value in values.tolist()]
    expected[7] = MISSING_ID
    assert look_up_ids(values, np.array(known, np.int64), missing).tolist() == expected
