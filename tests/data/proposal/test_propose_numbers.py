"""Numbers that `schema` proposes beside ids, where their order tells more than single values."""

import numpy as np
import pyarrow as pa
import pytest

from runner.data.proposal.columns.column_statistics import compute_statistics
from runner.data.proposal.columns.guess_roles import DOUBT_REASON, ORDER_REASON, UNIQUE_REASON, Role
from runner.data.proposal.columns.judging_sample import draw_judging_sample
from runner.data.proposal.features.numbers import propose_numbers_of_ids, settle_doubts

ROWS, CATEGORICAL = 4_000, Role("categorical")
IN_DOUBT = Role("categorical", DOUBT_REASON)


def settle(
    values: np.ndarray,
    y: np.ndarray,
    kind: dict | None = None,
    role=IN_DOUBT,
    *,
    whole: bool = True,
):
    table = pa.table({"lot": values, "y": y})
    roles = {"lot": role, "y": Role("labels", settings=kind or {})}
    columns = [compute_statistics(table[name], name) for name in table.column_names]
    return settle_doubts(draw_judging_sample(table, roles, is_whole=whole), columns, roles)


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
    assert note == (
        "the order of the values of lot helps to predict the label: also proposed as a number, "
        "lot_number"
    )
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


def test_a_rare_label_makes_no_number_of_ids_by_chance():
    rng = np.random.default_rng(0)
    for _ in range(30):  # by the bound of a label that is 1 in half of the rows, 7 of these
        rare = (rng.random(30_000) < 0.008).astype(int)
        assert propose(rng.integers(0, 600, 30_000), rare) == ({}, [])
    lots = rng.integers(0, 3_000, 30_000)
    rare = (lots / 800 + rng.logistic(size=30_000) > 6).astype(int)
    assert 0.005 < rare.mean() < 0.05 and "lot_number" in propose(lots, rare)[0]


@pytest.mark.parametrize("kind", [{}, {"type": "regression"}])
@pytest.mark.parametrize("curve", [lambda x: x, lambda x: -x, lambda x: x + 3 * (x > 1.5)])
def test_a_column_in_doubt_whose_order_tells_the_label_is_a_quantity(kind, curve):
    rng = np.random.default_rng(5)
    lots = rng.gamma(2.0, 200, ROWS).astype(int)
    noisy = curve(lots / 200 - 2) + rng.logistic(size=ROWS)
    y = noisy if kind else (noisy > 0).astype(int)
    found = settle(lots, y, kind)["lot"]
    assert (found.name, found.reason) == ("numeric", ORDER_REASON)
    assert found.settings == {"standardise": True}
    assert settle(lots, y, kind, Role("categorical", "named like an id")) == {}
    assert settle(lots, y, kind, whole=False) == {}
    more = settle(np.tile(lots, 11), np.tile(y, 11), kind)  # beyond the rows that are judged
    assert more == {}


@pytest.mark.parametrize("count", [9, 10])
def test_many_columns_in_doubt_with_an_order_are_quantities_whatever_their_rows(count):
    rng = np.random.default_rng(3)
    skill = rng.normal(size=ROWS)
    skills = {f"s{n}": np.round(4 * (skill + rng.normal(size=ROWS))) for n in range(count)}
    table = pa.table({n: x.astype(int) for n, x in skills.items()} | {"y": skill})
    roles = dict.fromkeys(skills, IN_DOUBT) | {"y": Role("labels", settings={"type": "regression"})}
    columns = [compute_statistics(table[name], name) for name in table.column_names]
    assert all(f.num_rows >= 50 * f.num_distinct for f in columns[:-1])
    settled = settle_doubts(draw_judging_sample(table, roles, is_whole=True), columns, roles)
    assert list(settled) == (list(skills) if count == 10 else [])


def test_a_quantity_of_few_values_stays_an_id_beside_its_number():
    rng = np.random.default_rng(6)
    months = rng.integers(0, 40, ROWS)
    y = (months / 10 - 2 + rng.logistic(size=ROWS) > 0).astype(int)
    assert settle(months, y) == {}
    assert list(propose(months, y, role=IN_DOUBT)[0]) == ["lot_number"]
    assert propose(months, y) == ({}, [])  # of ids by their name each value tells enough


@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_ids_in_doubt_stay_ids_even_if_their_order_tells_a_part(drift):
    rng = np.random.default_rng(7)
    shops = rng.integers(0, 200, ROWS)
    effects = rng.normal(size=200) + drift * np.linspace(-1, 1, 200)
    y = (1.5 * effects[shops] + rng.logistic(size=ROWS) > 0).astype(int)
    assert settle(shops, y) == {} and propose(shops, y, role=IN_DOUBT) == ({}, [])
    assert settle(rng.integers(0, 900, ROWS), y) == {}  # that tell nothing


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_what_rises_with_the_time_of_the_split_is_no_number(shift):
    rng = np.random.default_rng(9)
    lots = (rng.gamma(2.0, 200, ROWS) + shift * np.arange(ROWS)).astype(int)
    y = ((lots - lots.mean()) / lots.std() + rng.logistic(size=ROWS) > 0).astype(int)
    table = pa.table({"lot": lots, "y": y})
    roles = {"lot": IN_DOUBT, "y": Role("labels")}
    columns = [compute_statistics(table[name], name) for name in table.column_names]
    for seconds in (None, np.arange(ROWS, dtype=float)):
        sample = draw_judging_sample(table, roles, seconds, is_whole=True)
        rises = bool(shift) and seconds is not None
        assert (not settle_doubts(sample, columns, roles)) == rises
        assert (not propose_numbers_of_ids(sample, columns, roles, ())[0]) == rises


def test_several_classes_or_missing_values_change_no_decision():
    rng = np.random.default_rng(8)
    lots = rng.gamma(2.0, 200, ROWS).astype(int)
    y = np.digitize(lots / 200 + rng.logistic(size=ROWS), [1.0, 3.0]).astype(str)
    found = settle(pa.array(lots, mask=rng.random(ROWS) < 0.1), y, {"classes": ["0", "1", "2"]})
    assert found["lot"].settings == {"standardise": True, "default": pytest.approx(335, abs=30)}
    assert settle(lots, np.repeat("0", ROWS), {"classes": ["0", "1", "2"]}) == {}


def test_ids_that_tell_nothing_and_texts_make_no_number():
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, ROWS)
    assert propose(rng.integers(0, 3_000, ROWS), y) == ({}, [])
    assert propose(pa.array([f"s{n}" for n in rng.integers(0, 9, ROWS)]), y) == ({}, [])


@pytest.mark.parametrize("as_texts", [False, True])
def test_a_quantity_whose_values_differ_in_nearly_every_row_is_a_number(as_texts):
    rng, role = np.random.default_rng(3), Role("carried", UNIQUE_REASON)
    driven = rng.gamma(2.0, 30_000, ROWS).astype(int)
    price = 30_000 * np.exp(-driven / 60_000) + rng.normal(0, 3_000, ROWS)
    kind = {"type": "regression"}
    driven = driven.astype(str) if as_texts else driven  # as BigQuery writes integers
    found, _ = propose(driven, price, kind, name="driven", role=role)
    written = {"input": "amount"} if as_texts else {}
    assert found == {"driven_number": {"column": "driven", **written, "standardise": True}}
    codes = np.char.zfill(driven.astype(str), 7)
    for others in (codes, pa.array([b"\xff"] * ROWS)):
        assert propose(others, price, kind, name="driven", role=role) == ({}, [])
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
