"""Ids that `schema` makes of numbers: buckets, and whether a value is missing."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from runner.data.proposal.columns.column_statistics import compute_statistics
from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import draw_judging_sample
from runner.data.proposal.columns.label_leaks import rank_auc
from runner.data.proposal.features.number_ids import propose_number_ids

ROWS = 4000
KINDS = ({}, {"type": "regression"})


def propose(
    columns: dict, kind: dict, ids: tuple[str, ...] = (), seconds: np.ndarray | None = None
):
    """Propose ids for a table whose label is y; all columns but y and `ids` are numbers."""
    table = pa.table({name: pa.array(x, from_pandas=True) for name, x in columns.items()})
    roles = {name: Role("categorical" if name in ids else "numeric") for name in columns}
    roles["y"] = Role("labels", settings=kind)
    statistics = [compute_statistics(table[name], name) for name in columns]
    return propose_number_ids(draw_judging_sample(table, roles, seconds), statistics, roles)


def as_label(z: np.ndarray, kind: dict) -> np.ndarray:
    """Return labels that follow z with noise: numbers, or 0 and 1."""
    noisy = z + np.random.default_rng(1).logistic(size=len(z))
    return noisy if kind else (noisy > 0).astype(float)


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_has_buckets_where_its_order_does_not_tell_the_label(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 30))
    columns = {f"x{i}": x[:, i] for i in range(30)}
    y = as_label(2 * np.abs(x[:, 3]) - 1.6 + x[:, 4], kind)
    found, notes = propose({**columns, "y": y}, kind)
    buckets = {"column": "x3", "encode": "bucketise", "buckets": 30}
    assert (found, notes) == ({"x3_bucket": buckets}, [])
    found, _ = propose({**columns, "y": as_label(x[:, 4], kind)}, kind)
    assert len(found) == 1  # most models need ids


def test_of_classes_only_the_number_that_gains_most_has_buckets():
    x = np.random.default_rng(0).normal(size=(3, ROWS))
    z = 2 * np.abs(x[1]) + 3 * np.abs(x[2])
    columns = {f"x{i}": x[i] for i in range(3)}
    found, _ = propose({**columns, "y": as_label(z - 4, {})}, {})
    assert list(found) == ["x1_bucket", "x2_bucket"]
    found, _ = propose({**columns, "y": np.digitize(z, [3, 5])}, {"classes": ["0", "1", "2"]})
    assert list(found) == ["x2_bucket"]


def test_of_a_grade_a_step_has_buckets_and_a_line_has_none():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(ROWS, 30))
    skewed = np.exp(2 * rng.normal(size=ROWS))
    steps = 2.0 * (x[:, 3] > 0.5) + 2.0 * (x[:, 6] > -0.5)
    y = steps + x[:, 4] + np.log1p(skewed) + rng.logistic(size=ROWS)
    grade = np.clip(np.rint(y) + 8, 0, 22)
    columns = {f"x{i}": x[:, i] for i in range(30)} | {"skewed": skewed}
    roles = {name: Role("numeric") for name in columns} | {"y": Role("labels", settings=KINDS[1])}
    roles["skewed"] = Role("numeric", settings={"log1p": True})
    chosen = []
    for label in (grade, y):
        table = pa.table({**columns, "y": label})
        statistics = [compute_statistics(table[name], name) for name in table.column_names]
        sample = draw_judging_sample(table, roles)
        chosen.append(list(propose_number_ids(sample, statistics, roles)[0]))
    assert chosen[0] == ["x3_bucket", "x6_bucket"] and len(chosen[1]) == 1


def test_a_table_with_ids_has_no_buckets_and_one_without_a_label_those_of_one_number():
    x = np.random.default_rng(0).normal(size=ROWS)
    y = as_label(2 * np.abs(x) - 1.6, {})
    assert propose({"x": x, "z": x, "item": x.round(), "y": y}, {}, ids=("item",)) == ({}, [])
    found, _ = propose({"x": x, "z": x, "y": np.ones(ROWS)}, {})
    assert list(found) == ["x_bucket"]


@pytest.mark.parametrize("kind", KINDS)
def test_whether_a_value_is_missing_is_an_id_only_where_it_tells_of_the_label(kind):
    rng = np.random.default_rng(0)
    x, noise, item = rng.normal(size=ROWS), rng.normal(size=ROWS), rng.integers(0, 9, ROWS)
    is_missing = rng.random(ROWS) < 0.2
    y = as_label(x + is_missing, kind)
    columns = {
        "x": np.where(is_missing, np.nan, x),
        "noise": np.where(rng.random(ROWS) < 0.2, np.nan, noise),
        "whole": x,
        "item": item,
        "y": y,
    }
    found, [note] = propose(columns, kind, ids=("item",))
    lowest = x[~is_missing].min()
    settings = {"column": "x", "encode": "bucketise", "boundaries": [lowest]}
    assert found == {"x_missing": settings}
    assert note == "whether x is missing helps to predict the label: proposed as x_missing"
    assert propose({**columns, "x_missing": item}, kind, ids=("item",)) == ({}, [])


def test_the_auc_of_ranks_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, y = rng.normal(size=500).round(1), rng.integers(0, 2, 500)
    assert rank_auc(scores, y) == pytest.approx(roc_auc_score(y, scores))


def test_a_hill_that_moves_is_no_reason_for_buckets_where_the_split_is_by_time():
    rng = np.random.default_rng(7)
    x, z = rng.normal(size=(2, ROWS))
    days = rng.permutation(ROWS) / 100
    for top, by_time in ((np.where(days < 20, -1, 1), ["z_bucket"]), (0.0, ["x_bucket"])):
        hill = 4 * np.exp(-(((x - top) / 0.5) ** 2))
        columns = {"z": z, "x": x, "y": as_label(hill + z - 1, {})}
        assert [*propose(columns, {})[0]] == ["x_bucket"]
        assert [*propose(columns, {}, seconds=days)[0]] == by_time
