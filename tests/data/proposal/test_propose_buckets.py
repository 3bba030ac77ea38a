"""Buckets of numbers that `schema` proposes beside ids, where lines do not tell the label."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import draw_judging_sample
from runner.data.proposal.features.buckets import propose_buckets
from runner.data.proposal.features.crosses import add_effects

ROWS, USERS = 12_000, 60
KINDS = ({}, {"type": "regression"})


def propose(
    columns: dict,
    y: np.ndarray,
    kind: dict | None = None,
    taken: tuple[str, ...] = (),
    seconds: np.ndarray | None = None,
):
    """Propose for a table of the id `user`, numbers and the label y."""
    table = pa.table({n: pa.array(x, from_pandas=True) for n, x in {**columns, "y": y}.items()})
    roles = {n: Role("categorical" if n == "user" else "numeric") for n in columns}
    roles["y"] = Role("labels", settings=kind or {})
    return propose_buckets(draw_judging_sample(table, roles, seconds), roles, taken)


def draw(seed: int) -> tuple[np.random.Generator, dict[str, np.ndarray], np.ndarray]:
    """Return columns, and what the user adds to the logit."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, USERS, ROWS)
    columns = {"user": user, "age": rng.uniform(15, 80, ROWS), "price": rng.gamma(2, 20, ROWS)}
    return rng, columns | {"noise": rng.normal(size=ROWS)}, rng.normal(size=USERS)[user]


def as_label(logits: np.ndarray, rng: np.random.Generator, kind: dict) -> np.ndarray:
    noisy = logits + rng.logistic(size=len(logits))
    return noisy if kind else (noisy > 0).astype(int)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_numbers_on_which_a_label_depends_by_hills_have_buckets(kind, missing):
    rng, columns, of_user = draw(0)
    hill = 4 * np.exp(-(((columns["age"] - 30) / 8) ** 2))
    y = as_label(of_user + hill + 0.03 * columns["price"] - 2, rng, kind)
    columns["age"] = np.where(rng.random(ROWS) < missing, np.nan, columns["age"])
    found, [note] = propose(columns, y, kind)
    assert found == {"age_bucket": {"column": "age", "encode": "bucketise", "buckets": 30}}
    assert note == (
        "the label does not rise or fall evenly with age: age_bucket, in 30 buckets, is proposed "
        "as well"
    )
    assert propose(columns, y, kind, taken=("age_bucket",)) == ({}, [])


def test_of_classes_there_are_none():
    rng, columns, of_user = draw(0)
    hill = 4 * np.exp(-(((columns["age"] - 30) / 8) ** 2))
    y = np.digitize(of_user + hill + rng.logistic(size=ROWS), [0, 2])
    assert [*propose(columns, (y > 0).astype(int))[0]] == ["age_bucket"]
    assert propose(columns, y, {"classes": ["0", "1", "2"]}) == ({}, [])


def test_hills_of_a_rare_label_are_found_too():
    rng, columns, of_user = draw(1)
    hill = 4 * np.exp(-(((columns["age"] - 30) / 8) ** 2))
    y = as_label(of_user + hill + 3 * (columns["price"] < 15) - 7, rng, {})
    assert y.mean() < 0.05
    assert [*propose(columns, y)[0]] == ["age_bucket", "price_bucket"]


@pytest.mark.parametrize("kind", KINDS)
def test_lines_and_effects_of_ids_are_no_reason_for_buckets(kind):
    rng, columns, of_user = draw(2)
    columns["age"] = 40 + 10 * of_user + columns["noise"]  # whose order the user tells
    y = as_label(2 * of_user + 0.05 * columns["price"] - 2, rng, kind)
    assert propose(columns, y, kind) == ({}, [])
    assert propose(columns, np.ones(ROWS), kind) == ({}, [])


def test_a_hill_that_moves_in_time_is_no_reason_where_the_split_is_by_time():
    rng, columns, of_user = draw(5)
    days = rng.permutation(np.arange(ROWS) / 100)

    def found(top: np.ndarray, seconds: np.ndarray | None) -> list[str]:
        y = as_label(of_user + 4 * np.exp(-(((columns["age"] - top) / 8) ** 2)) - 2, rng, {})
        return [*propose(columns, y, seconds=seconds)[0]]

    moving = np.where(days < 60, 30, 60)
    assert found(moving, None) == ["age_bucket"] and found(moving, days) == []
    assert found(np.array(30), days) == ["age_bucket"]


def test_tables_without_ids_or_numbers_have_none():
    rng, columns, _ = draw(3)
    y = as_label(np.abs(columns["noise"]) * 3 - 2, rng, {})
    assert [*propose(columns, y)[0]] == ["noise_bucket"]
    del columns["user"]
    assert propose(columns, y) == ({}, [])
    assert propose({"user": draw(3)[1]["user"]}, y) == ({}, [])


def test_the_additive_model_with_numbers_ranks_as_logistic_regression_does():
    rng, columns, of_user = draw(4)
    x = np.stack([columns["noise"], (columns["price"] - 40) / 28], axis=1)
    y = as_label(of_user + x @ [1.0, -0.5] - 1, rng, {})
    ours = add_effects([columns["user"]], y, np.arange(0, ROWS, 2), x)
    wide = np.concatenate([x, np.eye(USERS)[columns["user"]]], axis=1)
    other = LogisticRegression(C=0.5).fit(wide[::2], y[::2]).decision_function(wide)
    aucs = [roc_auc_score(y[1::2], scores[1::2]) for scores in (ours, other)]
    assert aucs[0] == pytest.approx(aucs[1], abs=0.002)
    assert np.corrcoef(ours, other)[0, 1] > 0.99
