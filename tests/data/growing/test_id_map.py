"""The map of a growing table, against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.data.growing.id_map import IdMap, nth_smallest, sort_held_rows
from runner.data.growing.index import RowIndex
from runner.data.growing.settings import NO_ID, Eviction, Growth
from runner.data.growing.sketch import CountSketch
from tests.data.growing.reference import DictMap, some_updates

GROWTHS = {
    "plain": Growth(),
    "counted": Growth(min_count=3),
    "lru": Growth(evict=Eviction("lru", every=3, share=0.3)),
    "lfu": Growth(evict=Eviction("lfu", every=4, share=0.5)),
    "counted lru": Growth(min_count=2, evict=Eviction("lru", every=1, share=0.05)),
}
IDS = st.lists(st.one_of(st.integers(-3, 9), st.integers(-(2**63), 2**63 - 1)), max_size=30)


@pytest.mark.parametrize("num_rows", [3, 50, 1000])
@pytest.mark.parametrize("name", GROWTHS)
def test_it_does_what_a_dictionary_does(name, num_rows):
    ours, theirs = IdMap(num_rows, GROWTHS[name]), DictMap(num_rows, GROWTHS[name])
    evictions = 0
    for ids in some_updates(120, seed=num_rows):
        rows, evicted = (found.tolist() for found in ours.observe(ids))
        assert evicted == theirs.observe(ids.tolist())
        assert rows == theirs.look_up(ids.tolist())
        evictions += len(evicted)
        assert ours.look_up(ids).tolist() == theirs.look_up(ids.tolist())
    assert ours.num_held == len(theirs.rows)
    ids, rows_of_ids = sort_held_rows(ours.state["ids"])
    assert dict(zip(ids.tolist(), rows_of_ids.tolist())) == theirs.rows
    if num_rows == 50:
        assert bool(evictions) == (GROWTHS[name].evict is not None)


@given(st.lists(IDS, max_size=6), st.sampled_from(sorted(GROWTHS)), st.integers(3, 20))
def test_it_does_so_for_any_ids(updates, name, num_rows):
    ours, theirs = IdMap(num_rows, GROWTHS[name]), DictMap(num_rows, GROWTHS[name])
    for ids in updates:
        assert ours.observe(np.array(ids, np.int64))[1].tolist() == theirs.observe(ids)
        assert ours.look_up(np.array(ids, np.int64)).tolist() == theirs.look_up(ids)


def test_rows_are_given_out_in_the_order_of_appearance_however_it_is_cut_into_updates():
    ids = np.random.default_rng(0).integers(0, 500, 4000)
    whole, cut = IdMap(1000, Growth()), IdMap(1000, Growth())
    whole.observe(ids)
    for part in np.array_split(ids, 37):
        cut.observe(part)
    assert (whole.state["ids"] == cut.state["ids"]).all()
    assert whole.state["ids"][2:].tolist()[:500] == list(dict.fromkeys(ids.tolist()))


def test_no_two_ids_share_a_row_but_those_beyond_its_size():
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 100_000)
    full = IdMap(90_002, Growth())
    full.observe(ids)
    rows = full.look_up(ids)
    assert sorted(rows[:90_000]) == list(range(2, 90_002))
    assert (rows[90_000:] == 0).all()


@pytest.mark.parametrize("name", GROWTHS)
def test_it_goes_on_equal_from_its_state_alone(name):
    first, second = IdMap(60, GROWTHS[name]), IdMap(60, GROWTHS[name])
    updates = some_updates(80, seed=1)
    for ids in updates[:47]:
        first.observe(ids)
    for key, values in first.state.items():
        second.state[key][...] = values
    second.rebuild()
    for ids in updates[47:]:
        for mine, other in zip(first.observe(ids), second.observe(ids)):
            assert (mine == other).all()
        assert (first.look_up(ids) == second.look_up(ids)).all()
    for key in first.state:
        assert (first.state[key] == second.state[key]).all()


@pytest.mark.parametrize("high", [1, 3, 2**17, 2**31 - 1])
def test_the_nth_smallest_is_that_of_a_sort(high):
    values = np.random.default_rng(high).integers(0, high, 500, endpoint=True).astype(np.int32)
    values[::7] = 2**31 - 1  # what no eviction takes
    found = [nth_smallest(values, n) for n in range(500)]
    assert found == np.sort(values).tolist()


def test_looking_up_changes_nothing():
    ids = IdMap(60, GROWTHS["counted lru"])
    for update in some_updates(20, seed=2):
        ids.observe(update)
    before = {key: values.copy() for key, values in ids.state.items()}
    ids.look_up(np.arange(1000))
    for key, values in before.items():
        assert (ids.state[key] == values).all()


def test_renumbered_rows_are_those_of_a_sorted_vocabulary():
    ids = IdMap(200, GROWTHS["lfu"])
    for update in some_updates(30, seed=3):
        ids.observe(update)
    seen = some_updates(30, seed=3)[-1]
    before, use = ids.look_up(seen), ids.state["use"].copy()
    values, old_rows = ids.renumber()
    assert (np.diff(values) > 0).all()
    after = ids.look_up(seen)
    moved = np.arange(200)
    moved[2 + np.arange(len(values))] = old_rows
    assert (moved[after] == before).all()
    assert (ids.state["use"][2 : 2 + len(values)] == use[old_rows]).all()
    assert ids.look_up(values).tolist() == list(range(2, 2 + len(values)))


@pytest.mark.parametrize("least_recent", [0, 5, 100])
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60))
def test_the_index_finds_what_was_inserted_and_not_removed(least_recent, steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runner.data.growing.index._LEAST_RECENT", least_recent)
        check_index(steps)


def check_index(steps):
    rows, last = {int(i): n for n, i in enumerate(np.arange(5))}, 69
    index = RowIndex(np.arange(5), np.arange(5))
    for value, removes in steps:
        if removes and value in rows:
            index.remove(np.arange(last + 1) == rows.pop(value))
        elif value not in rows:
            free = [row for row in (*range(60), last) if row not in rows.values()]
            rows[value] = free[-1 if value % 2 else 0]  # often the row that it had
            index.insert(np.array([value]), np.array([rows[value]]))
        wanted = [rows.get(i, -1) for i in range(51)]
        assert index.look_up(np.arange(51), absent=-1).tolist() == wanted


def test_the_sketch_counts_never_too_low_and_seldom_too_high():
    """The share of new ids that seem to have been seen is below the 3% that it states."""
    rng = np.random.default_rng(0)
    sketch = CountSketch(1000)
    width = sketch.cells.shape[1]
    ids = rng.integers(0, 2**62, width // 2 - 1)  # to the end of a period
    assert (sketch.add(ids, np.full(len(ids), 1)) >= 1).all()
    counts = sketch.add(ids[:1000], np.full(1000, 2))  # ends the period after it has counted
    assert (counts >= 3).all()
    assert (counts > 3).mean() < 0.03
    assert int(sketch.sightings[0]) == (len(ids) + 2000) // 2
    assert (sketch.add(ids[:1000], np.zeros(1000, int)) >= 1).all()  # 3 sightings, halved
    new = rng.integers(0, 2**62, width // 4)
    assert (sketch.add(new, np.ones(len(new), int)) > 1).mean() < 0.03


def test_a_count_stays_at_what_a_cell_can_hold():
    sketch = CountSketch(1)
    assert sketch.add(np.array([7]), np.array([1000])).tolist() == [255]
    assert sketch.add(np.array([7]), np.array([1])).tolist() == [255]


def test_a_missing_value_has_its_own_row_and_takes_none():
    ids = IdMap(4, Growth())
    ids.observe(np.array([NO_ID, 5, NO_ID, -5, 6]))
    assert ids.look_up(np.array([NO_ID, 5, -5, 6])).tolist() == [1, 2, 3, 0]
    assert ids.num_held == 2
