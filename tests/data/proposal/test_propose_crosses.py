"""Crosses that `schema` proposes of ids whose pairs tell of the label what neither does."""

import numpy as np
import pyarrow as pa
import pytest

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import draw_judging_sample
from runner.data.proposal.features.crosses import propose_crosses

ROWS, VALUES = 12_000, 30


def propose(
    ids: dict,
    y: np.ndarray,
    kind: dict | None = None,
    taken: tuple[str, ...] = (),
    seconds: np.ndarray | None = None,
):
    roles = {name: Role("categorical") for name in ids} | {"y": Role("labels", settings=kind or {})}
    sample = draw_judging_sample(pa.table({**ids, "y": y}), roles, seconds)
    return propose_crosses(sample, roles, taken)


def draw(seed: int, num_values: int = VALUES) -> tuple[np.random.Generator, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return rng, {name: rng.integers(0, num_values, ROWS) for name in ("shop", "product", "day")}


def as_label(logits: np.ndarray, rng: np.random.Generator, kind: dict) -> np.ndarray:
    noisy = logits + rng.logistic(size=len(logits))
    return noisy if kind else (noisy > 0).astype(int)


@pytest.mark.parametrize("kind", [{}, {"type": "regression"}])
def test_two_ids_are_crossed_where_their_pairs_tell_the_label(kind):
    rng, ids = draw(0)
    pairs = rng.normal(size=(VALUES, VALUES))
    y = as_label(pairs[ids["shop"], ids["product"]], rng, kind)
    named = {**ids, "shop": np.array([f"s{n}" for n in ids["shop"]])}
    found, [note] = propose(named, y, kind)
    assert found == {"shop_product": {"cross": ["shop", "product"], "num_rows": 4096}}
    assert note == (
        "shop and product predict more together than each alone: their pairs are proposed as "
        "shop_product"
    )
    assert propose(named, y, kind, taken=("shop_product",)) == ({}, [])


def test_effects_of_single_ids_are_no_reason_for_a_cross_however_the_ids_hang_together():
    rng, ids = draw(1)
    ids["product"] = np.where(rng.random(ROWS) < 0.7, ids["shop"], ids["product"])
    effects = 1.5 * rng.normal(size=(2, VALUES))
    y = as_label(effects[0, ids["shop"]] + effects[1, ids["product"]], rng, {})
    assert propose(ids, y) == ({}, [])


def test_tastes_that_embeddings_learn_are_no_reason_for_a_cross():
    rng, ids = draw(2, 3 * VALUES)
    tastes = rng.normal(size=(2, 3 * VALUES, 2))
    y = as_label(1.5 * (tastes[0, ids["shop"]] * tastes[1, ids["product"]]).sum(1), rng, {})
    assert propose(ids, y) == ({}, [])


def test_labels_of_one_value_and_columns_of_lists_have_no_crosses():
    _, ids = draw(3)
    assert propose(ids, np.ones(ROWS, int)) == ({}, [])
    roles = {"tags": Role("categorical", settings={"list": True}), "y": Role("labels")}
    table = pa.table({"tags": [[1, 2]] * 200, "y": [0, 1] * 100})
    assert propose_crosses(draw_judging_sample(table, roles), roles, ()) == ({}, [])


def test_a_cross_that_tells_of_single_days_is_none_where_the_split_is_by_time():
    rng, ids = draw(4)
    days = np.arange(ROWS) * VALUES // ROWS  # each has other effects of shops
    ids["day"] = days
    pairs = 2 * rng.normal(size=(VALUES, VALUES))
    y = as_label(pairs[ids["shop"], ids["day"]], rng, {})
    assert [*propose(ids, y)[0]] == ["shop_day"]
    assert propose(ids, y, seconds=86400.0 * days) == ({}, [])
    y = as_label(pairs[ids["shop"], ids["product"]], rng, {})
    assert [*propose(ids, y, seconds=86400.0 * days)[0]] == ["shop_product"]


def test_where_most_rows_have_the_last_time_others_judge():
    rng, ids = draw(5)
    pairs = 2 * rng.normal(size=(VALUES, VALUES))
    y = as_label(pairs[ids["shop"], ids["product"]], rng, {})
    seconds = np.where(np.arange(ROWS) < ROWS // 3, 0.0, 1e6)
    assert [*propose(ids, y, seconds=seconds)[0]] == ["shop_product"]
