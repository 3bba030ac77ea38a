"""Rankings of labels that are grades, against scikit-learn and calculations by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from runner.batch import Prediction, Schema, TaskSpec
from runner.errors import ConfigError
from runner.metrics.factory import make_metrics
from runner.metrics.protocol import Metrics
from runner.metrics.settings import MetricSettings

RELEVANCE, CLICK = TaskSpec("relevance", "regression"), TaskSpec("click")
NAMES = ("ndcg@1", "ndcg@3", "ndcg@10", "ndcg@1000", "mrr", "recall@3", "hit_rate@3")


def make(names=NAMES, tasks=(RELEVANCE,), **settings) -> Metrics:
    schema = Schema((), (), tasks, groups=("qid",))
    given = MetricSettings(eval=list(names), train=[], **settings)
    return make_metrics(schema, torch.device("cpu"), given, True)


def prediction(scores, grades, queries, weights=None) -> Prediction:
    scores_BT, grades_BT = (
        torch.tensor(np.asarray(x, np.float32)).reshape(len(queries), -1) for x in (scores, grades)
    )
    weights_B = torch.ones(len(queries)) if weights is None else torch.tensor(weights).float()
    return Prediction(scores_BT, grades_BT, weights_B, torch.tensor(queries)[:, None])


def measured(p: Prediction, **settings) -> dict[str, float]:
    metrics = make(**settings)
    metrics.update(p, {})
    return metrics.compute()


def random_rows(seed: int, num_rows=600, num_queries=50) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    queries = random.integers(0, num_queries, num_rows)
    grades = random.choice(5, num_rows, p=[0.5, 0.25, 0.15, 0.07, 0.03])
    return random.normal(size=num_rows) + grades / 2, grades, queries


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 3, 10, 1000])
def test_ndcg_of_grades_is_scikit_learns_of_two_to_the_grade_less_one(seed, k):
    scores, grades, queries = random_rows(seed)
    lists = [queries == query for query in np.unique(queries)]
    each = [
        ndcg_score([2.0 ** grades[own] - 1], [scores[own]], k=k)
        for own in lists
        if grades[own].any()
    ]
    found = measured(prediction(scores, grades, queries))
    assert found[f"ndcg@{k}"] == pytest.approx(np.mean(each), abs=1e-12)


def test_a_list_by_hand_where_equal_scores_count_against_it():
    #  in their order: 0.9: grade 1; then at 0.5 the lower grades first: 0, 2, 3
    p = prediction([0.5, 0.9, 0.5, 0.5], [3, 1, 0, 2], [7, 7, 7, 7])
    dcg = 1 / 1 + 0 / math.log2(3) + 3 / math.log2(4) + 7 / math.log2(5)
    best = 7 / 1 + 3 / math.log2(3) + 1 / math.log2(4)
    found = measured(p)
    assert found["ndcg@10"] == pytest.approx(dcg / best)
    assert found["ndcg@1"] == pytest.approx(1 / 7)
    #  from grade 1 on, the right ones are at ranks 1, 3 and 4
    assert (found["mrr"], found["hit_rate@3"]) == (1, 1)
    assert found["recall@3"] == pytest.approx(2 / 3)
    #  from grade 2 on: at ranks 3 and 4, since they tie with a row that is not right
    found = measured(p, relevant_from=2)
    assert found["ndcg@10"] == pytest.approx(dcg / best)
    assert (found["mrr"], found["recall@3"]) == (pytest.approx(1 / 3), 1 / 2)


def test_fractions_are_grades_and_a_query_without_any_is_left_out():
    p = prediction([1, 2, 3, 4, 5], [1.5, 3, 0, 0, 0.5], [1, 1, 2, 2, 3])
    gains = [2.0**1.5 - 1, 7.0]
    first = (gains[1] + gains[0] / math.log2(3)) / (gains[1] + gains[0] / math.log2(3))
    found = measured(p)
    assert found["ndcg@10"] == pytest.approx((first + 1) / 2)
    assert found["mrr"] == 1  # of query 1 alone: in query 3 no row is from 1 on


@pytest.mark.parametrize("seed", range(3))
def test_grades_of_zero_and_one_have_the_numbers_of_a_binary_label_to_the_last_bit(seed):
    scores, grades, queries = random_rows(seed)
    weights = np.random.default_rng(seed).integers(0, 3, len(queries))
    p = prediction(np.round(scores), grades > 1, queries, weights)
    found, binary = measured(p), measured(p, tasks=(CLICK,))
    assert {name: found[name] for name in NAMES} == {name: binary[name] for name in NAMES}


@pytest.mark.parametrize("num_parts", [2, 7])
def test_any_split_into_batches_and_ranks_gives_the_same_to_the_last_bit(num_parts):
    scores, grades, queries = random_rows(0)
    scores = np.round(scores)
    expected = measured(prediction(scores, grades, queries))
    ranks = [make(), make()]
    order = np.random.default_rng(1).permutation(len(queries))
    for number, rows in enumerate(np.array_split(order, num_parts)):
        ranks[number % 2].update(prediction(scores[rows], grades[rows], queries[rows]), {})
    merged = make()
    for one in ranks:
        merged.merge({name: t.clone() for name, t in one.state().items()})
    assert {n: merged.compute()[n] for n in NAMES} == {n: expected[n] for n in NAMES}


def test_beside_a_binary_task_grades_are_ranked_where_their_task_is_named():
    scores, grades, queries = random_rows(0)
    p = prediction(np.stack([scores, -scores], 1), np.stack([grades > 1, grades], 1), queries)
    tasks = (CLICK, RELEVANCE)
    plain = measured(p, tasks=tasks, names=("ndcg@10",))
    assert set(plain) == {"loss", "ndcg@10/click", "ndcg@10"}
    named = measured(p, tasks=tasks, names=("ndcg@10/relevance", "mrr/click"))
    assert set(named) == {"loss", "ndcg@10/relevance", "ndcg@10", "mrr/click", "mrr"}
    alone = measured(prediction(-scores, grades, queries), names=("ndcg@10",))
    assert named["ndcg@10/relevance"] == alone["ndcg@10"]
    with pytest.raises(ConfigError, match="'auc/relevance': relevance is a regression task"):
        make(names=("auc/relevance",), tasks=tasks)


@pytest.mark.parametrize(
    ("grades", "ndcg", "others"),
    [
        ([0, 0], "no row has a label above 0", "no row has a label from 1 on"),
        ([0.5, 0], "", "no row has a label from 1 on"),
        ([-1, 2], "a label is no grade from 0 to 30", ""),
        ([31, 2], "a label is no grade from 0 to 30", ""),
        ([30, 2], "", ""),
    ],
)
def test_what_is_undefined_is_nan_and_has_its_reason(grades, ndcg, others):
    metrics = make()
    metrics.update(prediction([1, 2], grades, [1, 1]), {})
    reasons = {
        name: note.partition("since ")[2]
        for note in metrics.notes()
        for name in note.partition(":")[0].split(", ")
    }
    for name in NAMES:
        reason = ndcg if name.startswith("ndcg") else others
        assert reasons.get(name, "") == reason
        assert math.isnan(metrics.compute()[name]) == bool(reason)


def test_metrics_of_probabilities_leave_out_a_table_whose_labels_are_all_numbers():
    scores, grades, queries = random_rows(0)
    names = ("ece", "precision@0.5", "mae", "ndcg@10")
    found = measured(prediction(scores, grades, queries), names=names)
    assert set(found) == {"loss", "mae", "ndcg@10"}


def test_a_grade_whose_item_is_ranked_among_all_items_has_a_list_of_its_own():
    p = prediction([0.0, 0.0, 0.0], [3, 2, 0], [1, 1, 2])
    p.aux["rank_B"] = torch.tensor([1.0, 3.0, 9.0])
    found = measured(p, candidates="full")
    assert found["ndcg@10"] == pytest.approx((1 + 1 / math.log2(4)) / 2)
    assert found["mrr"] == pytest.approx((1 + 1 / 3) / 2)
