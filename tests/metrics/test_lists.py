"""Coverage, novelty and Gini of recommended lists, and levels of popularity, against loops."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from runner.batch import Schema, TaskSpec
from runner.errors import ConfigError
from runner.metrics.factory import make_metrics
from runner.metrics.lists import popularity_levels
from runner.metrics.settings import MetricSettings
from runner.metrics.slices import attach_slice_values
from tests.metrics.test_rankings import CPU, empty, no_loss, part, prediction

NAMES = ("coverage@3", "novelty@3", "gini@3", "coverage@5", "novelty@5", "gini@5", "recall@5")
NUM_ITEMS, ROWS = 30, 400


def lists(seed=0):
    """Return predictions with lists of five items, popular ones more often."""
    rng = np.random.default_rng(seed)
    p = prediction(
        np.zeros(ROWS), rng.integers(0, 2, ROWS), rng.integers(0, 3, ROWS), np.arange(ROWS)
    )
    shares = np.arange(1, NUM_ITEMS + 1) ** -1.5
    top = [
        rng.choice(NUM_ITEMS - 4, 5, replace=False, p=shares[:-4] / shares[:-4].sum())
        for _ in range(ROWS)
    ]
    p.aux["top_BK"] = torch.tensor(np.array(top))
    p.aux["rank_B"] = torch.tensor(rng.integers(1, 30, ROWS)).float()
    p.aux["popularity_I"] = torch.tensor(rng.integers(0, 50, NUM_ITEMS))
    return p


def whole(p, **more):
    metrics = empty(NAMES, candidates="full", **more)
    metrics.update(p, no_loss(p))
    return metrics


def rows_of(p, rows):
    popularity = p.aux.pop("popularity_I")
    cut = part(p, rows)
    p.aux["popularity_I"] = cut.aux["popularity_I"] = popularity
    return cut


@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.parametrize("are_full", [True, False])
def test_metrics_of_lists_equal_their_definitions(k, are_full):
    p = lists()
    if not are_full:  # -1: no item is left
        p.aux["top_BK"].masked_fill_(torch.arange(5) >= torch.arange(ROWS)[:, None] % 6, -1)
    found = whole(p).compute()
    used = ((p.labels_BT[:, 0] == 1) & (p.weights_B > 0)).tolist()
    chosen = [i for top, u in zip(p.aux["top_BK"].tolist(), used) if u for i in top[:k] if i >= 0]
    counts, popularity = Counter(chosen), p.aux["popularity_I"].tolist()
    assert found[f"coverage@{k}"] == pytest.approx(len(counts) / NUM_ITEMS, abs=1e-12)
    bits = [-math.log2(max(popularity[i], 1) / sum(popularity)) for i in chosen]
    assert found[f"novelty@{k}"] == pytest.approx(sum(bits) / len(bits), abs=1e-6)
    # the mean absolute difference of all pairs, over twice the mean
    x = np.array([counts[i] for i in range(NUM_ITEMS)], float)
    gini = np.abs(x[:, None] - x).mean() / (2 * x.mean())
    assert found[f"gini@{k}"] == pytest.approx(gini, abs=1e-9)


def test_metrics_of_lists_may_name_the_task():
    names = [f"{name}/click" for name in NAMES]
    metrics = empty((*names, "gini@5"), candidates="full")  # twice the same
    metrics.update(lists(), no_loss(lists()))
    assert metrics.compute() == whole(lists()).compute()
    assert MetricSettings(eval=names, train=[], candidates="full").list_length == 5


def test_equal_lists_have_the_least_gini_and_one_item_the_most():
    p = lists()
    p.aux["top_BK"] = torch.arange(ROWS * 5).view(ROWS, 5) % NUM_ITEMS
    p = rows_of(p, torch.arange(6 * 10))
    p.labels_BT[:], p.weights_B[:] = 1, 1
    assert whole(p).compute()["gini@5"] == pytest.approx(0, abs=1e-12)
    p.aux["top_BK"][:] = 7
    found = whole(p).compute()
    assert found["gini@5"] == pytest.approx(1 - 1 / NUM_ITEMS)
    assert found["coverage@5"] == pytest.approx(1 / NUM_ITEMS)


def test_any_split_into_ranks_gives_the_same_and_slices_have_no_lists():
    p = lists()
    levels = popularity_levels(p.aux["popularity_I"])[p.aux["top_BK"][:, 0]]
    p = attach_slice_values(p, levels)
    expected = whole(p, slice_by="item_popularity").compute()
    ranks = [empty(NAMES, candidates="full", slice_by="item_popularity") for _ in range(3)]
    for number, rows in enumerate(torch.randperm(ROWS).chunk(8)):
        cut = rows_of(p, rows)
        ranks[number % 2].update(cut, no_loss(cut))  # the third rank has no row
    merged = empty(NAMES, candidates="full", slice_by="item_popularity")
    for one in ranks:
        merged.merge(one.state())
    assert merged.compute() == pytest.approx(expected, nan_ok=True)
    sliced = [name for name in expected if "/" in name and "loss" not in name]
    assert {name.partition("/")[0] for name in sliced} == {"recall@5"}
    cold = [
        (p.aux["rank_B"][i] <= 5).item()
        for i in range(ROWS)
        if levels[i] == 1 and p.labels_BT[i, 0] == 1 and p.weights_B[i] > 0
    ]
    assert expected["recall@5/item_popularity=rare"] == pytest.approx(np.mean(cold), abs=1e-6)


def test_levels_of_popularity_hold_a_third_of_the_occurrences_each():
    popularity = torch.tensor([0, 1, 10, 3, 1, 1, 6, 2, 0, 6])
    # 10 | 6 6 | 3 2 1 1 1: items begin at shares 0, .33, .53, .73, .83, .9 and so on
    assert popularity_levels(popularity).tolist() == [0, 1, 3, 1, 1, 1, 2, 1, 0, 2]
    assert popularity_levels(torch.zeros(3)).tolist() == [0, 0, 0]
    random = torch.randint(0, 90, (1000,), generator=torch.Generator().manual_seed(0))
    levels = popularity_levels(random)
    shares = [float(random[levels == n].sum() / random.sum()) for n in (1, 2, 3)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.005)
    assert random[levels == 3].min() >= random[levels == 2].max()
    assert ((random == 0) == (levels == 0)).all()


def test_metrics_of_lists_need_the_catalogue():
    with pytest.raises(ConfigError, match="'gini@10' is about lists of all items"):
        MetricSettings(eval=["gini@10"], train=[])
    with pytest.raises(ConfigError, match="'coverage' must end in a whole number"):
        MetricSettings(eval=["coverage"], train=[], candidates="full")
    with pytest.raises(ConfigError, match=r"metrics\.train: 'novelty@3' needs all rows"):
        MetricSettings(eval=[], train=["novelty@3"], candidates="full")
    settings = MetricSettings(eval=["gini@10"], train=[], candidates="full")
    task = (TaskSpec("click"),)
    assert math.isnan(make_metrics(Schema((), (), task), CPU, settings, True).compute()["gini@10"])


# what the classes of RecBole 1.2.1 in recbole.evaluator.metrics say of `recbole_lists`
RECBOLE = {
    "recall@5": 0.171875,
    "recall@10": 0.28125,
    "ndcg@5": 0.080392565018,
    "ndcg@10": 0.114257042903,
    "mrr": 0.091106227222,
    "hit_rate@5": 0.171875,
    "hit_rate@10": 0.28125,
    "coverage@5": 0.98,
    "coverage@10": 0.98,
    "gini@5": 0.1905,
    "gini@10": 0.0943125,
}


def recbole_lists():
    """Return the best ten of 50 items for 64 users, by a formula, and each user's right item."""
    user, item = np.arange(64)[:, None], np.arange(50)
    scores = (item + 1) * (user + 3) * 7 % 997  # without ties: 997 is a prime number
    order = np.argsort(-scores, axis=1)
    right = (np.arange(64) * 13 + 5) % 50
    p = prediction(np.zeros(64), np.ones(64), np.ones(64), np.arange(64))
    p.aux["rank_B"] = torch.tensor(np.argmax(order == right[:, None], axis=1) + 1).float()
    p.aux["top_BK"] = torch.tensor(order[:, :10].copy())
    p.aux["popularity_I"] = torch.ones(50, dtype=torch.int64)
    return p


def test_full_rankings_and_lists_equal_recboles():
    p = recbole_lists()
    metrics = empty(tuple(RECBOLE), candidates="full")
    metrics.update(p, no_loss(p))
    found = metrics.compute()
    for name, value in RECBOLE.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
