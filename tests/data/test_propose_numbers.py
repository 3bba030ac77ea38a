"""Numbers that `schema` proposes beside ids, where their order tells more than single values."""

import numpy as np
import pyarrow as pa
import pytest

from runner.data.tabular.column_statistics import compute_statistics
from runner.data.tabular.guess_roles import UNIQUE_REASON, Role
from runner.data.tabular.judging_sample import draw_judging_sample
from runner.data.tabular.propose_numbers import propose_numbers_of_ids

ROWS, CATEGORICAL = 4_000, Role("categorical")


def propose(
    ids: np.ndarray,
    y: np.ndarray,
    kind: dict | None = None,
    taken: tuple[str, ...] = (),
    *,
    name: str = "lot",
    role: Role = CATEGORICAL,
):
    table = pa.table({name: ids, "y": y})
    roles = {name: role, "y": Role("labels", settings=kind or {})}
    columns = [compute_statistics(table[name], name) for name in table.column_names]
    return propose_numbers_of_ids(draw_judging_sample(table, roles), columns, roles, taken)


@pytest.mark.parametrize("kind", [{}, {"type": "regression"}])
@pytest.mark.parametrize("curve", [lambda x: x, lambda x: 3 * np.abs(x) - 2])
def test_the_order_of_many_values_makes_a_number(kind, curve):
    rng = np.random.default_rng(0)
    lots = rng.integers(0, 3_000, ROWS)
    noisy = curve((lots - 1_500) / 800) + rng.logistic(size=ROWS)
    y = noisy if kind else (noisy > 0).astype(int)
    found, [note] = propose(lots, y, kind)
    assert found == {"lot_number": {"column": "lot", "standardise": True}}
    assert note == "values of lot tell more by their order than one by one: lot_number is a number"
    assert propose(lots, y, kind, taken=("lot_number",)) == ({}, [])
    with_gaps = pa.array(lots, mask=rng.random(ROWS) < 0.1)
    assert propose(with_gaps, y, kind)[0]["lot_number"]["default"] == pytest.approx(1_500, abs=100)


def test_values_that_each_tell_of_their_own_make_no_number():
    rng = np.random.default_rng(1)
    shops, effects = rng.integers(0, 40, ROWS), 1.5 * rng.normal(size=40)
    y = (effects[shops] + rng.logistic(size=ROWS) > 0).astype(int)
    assert propose(shops, y) == ({}, [])
    ratings = rng.integers(1, 6, ROWS)  # in order, but each is seen often enough
    y = (ratings - 3 + rng.logistic(size=ROWS) > 0).astype(int)
    assert propose(ratings, y) == ({}, [])


def test_ids_that_tell_nothing_and_texts_make_no_number():
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, ROWS)
    assert propose(rng.integers(0, 3_000, ROWS), y) == ({}, [])
    assert propose(pa.array([f"s{n}" for n in rng.integers(0, 9, ROWS)]), y) == ({}, [])


def test_a_quantity_whose_values_differ_in_nearly_every_row_is_a_number():
    rng, role = np.random.default_rng(3), Role("carried", UNIQUE_REASON)
    driven = rng.gamma(2.0, 30_000, ROWS).astype(int)
    price = 30_000 * np.exp(-driven / 60_000) + rng.normal(0, 3_000, ROWS)
    kind = {"type": "regression"}
    found, _ = propose(driven, price, kind, name="driven", role=role)
    assert found == {"driven_number": {"column": "driven", "standardise": True}}
    other = Role("carried", "free text")
    assert propose(driven, price, kind, name="driven", role=other) == ({}, [])


@pytest.mark.parametrize(
    "sold", ["driven_id", "customer", "updated_at", "in order", "even", "late"]
)
def test_ids_times_and_numbers_of_rows_that_follow_the_label_are_none(sold):
    rng, role = np.random.default_rng(4), Role("carried", UNIQUE_REASON)
    nr = rng.gamma(2.0, 30_000, ROWS).astype(int)
    if sold == "in order":
        nr = np.sort(nr)
    if sold == "even":
        nr = rng.permutation(10 * ROWS)[:ROWS]
    if sold == "late":  # seconds since 1970
        nr = nr + 1_700_000_000
    click = (nr > np.median(nr)).astype(int) ^ (rng.random(ROWS) < 0.2)
    name = sold if sold.isidentifier() and sold not in ("even", "late") else "nr"
    assert propose(nr, click, name=name, role=role) == ({}, [])
    assert propose(nr, click)[0]  # as ids that are no rows' numbers they would have one
