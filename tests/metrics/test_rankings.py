"""Rankings, calibration error and slices against plain computations and known libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score
from torchmetrics.classification import BinaryCalibrationError
from torchmetrics.retrieval import (
    RetrievalHitRate,
    RetrievalMRR,
    RetrievalNormalizedDCG,
    RetrievalRecall,
)

from runner.batch import Prediction, Schema, TaskSpec
from runner.errors import ConfigError
from runner.metrics.factory import make_metrics
from runner.metrics.ranking import compute_ranking_metrics
from runner.metrics.settings import MetricSettings
from runner.metrics.slices import attach_slice_values, escape

CPU = torch.device("cpu")
RANKINGS = ("ndcg@1", "ndcg@5", "recall@5", "hit_rate@5", "mrr", "ndcg@1000")
ONE = (TaskSpec("click"),)
TWO = (*ONE, TaskSpec("buy"), TaskSpec("stars", "regression"))


def schema(tasks=ONE, groups=("user",)) -> Schema:
    return Schema((), (), tasks, groups=groups)


def empty(names=(*RANKINGS, "ece"), tasks=ONE, groups=("user",), **more):
    settings = MetricSettings(eval=list(names), train=[], **more)
    return make_metrics(schema(tasks, groups), CPU, settings, True)


def prediction(logits, labels, weights=None, users=None, ranks=None) -> Prediction:
    logits, labels = (torch.as_tensor(np.asarray(x), dtype=torch.float32) for x in (logits, labels))
    logits, labels = (x if x.ndim == 2 else x[:, None] for x in (logits, labels))
    weights = np.ones(len(logits)) if weights is None else weights
    users = np.zeros(len(logits)) if users is None else users
    aux = {} if ranks is None else {"rank_B": torch.as_tensor(ranks, dtype=torch.float32)}
    return Prediction(
        logits,
        labels,
        torch.as_tensor(np.asarray(weights), dtype=torch.float32),
        torch.as_tensor(np.asarray(users), dtype=torch.int64)[:, None],
        aux,
    )


def part(whole: Prediction, rows) -> Prediction:
    aux = {name: tensor[rows] for name, tensor in whole.aux.items()}
    tensors = (whole.logits_BT, whole.labels_BT, whole.weights_B, whole.groups_BG)
    return Prediction(*(tensor[rows] for tensor in tensors), aux)


def no_loss(p: Prediction):
    return {"click": torch.zeros(len(p.weights_B))}


def measured(p: Prediction, **settings) -> dict[str, float]:
    metrics = empty(**settings)
    metrics.update(p, no_loss(p))
    return metrics.compute()


def random_rows(seed: int, num_rows=700, *, ties=False, num_users=40, rate=0.2, tasks=1):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(num_rows, tasks)).astype(np.float32)
    logits = np.round(logits) if ties else logits
    labels = random.random((num_rows, tasks)) < rate
    weights = random.integers(0, 3, num_rows)
    return prediction(logits, labels, weights, random.integers(0, num_users, num_rows))


def plain(names, users, scores, labels) -> dict[str, float]:
    """Compute rankings by a sort for each user; equal scores with label 0 come first."""
    values = {name: [] for name in names}
    for user in set(users):
        own = sorted((-s, y) for u, s, y in zip(users, scores, labels) if u == user)
        ranks = [place for place, (_, y) in enumerate(own, start=1) if y]
        if not ranks:
            continue
        for name in names:
            kind, _, k = name.partition("@")
            k = int(k or 0)
            gain = sum(1 / math.log2(r + 1) for r in ranks if r <= k)
            best = sum(1 / math.log2(r + 1) for r in range(1, min(k, len(ranks)) + 1))
            inside = sum(r <= k for r in ranks)
            value = {
                "ndcg": gain / (best or 1),
                "recall": inside / len(ranks),
                "hit_rate": float(inside > 0),
                "mrr": 1 / ranks[0],
            }[kind]
            values[name].append(value)
    return {name: float(np.mean(v)) if v else math.nan for name, v in values.items()}


def columns(p: Prediction, task=0):
    there = p.weights_B > 0
    return (
        p.groups_BG[there, 0].tolist(),
        p.logits_BT[there, task].tolist(),
        (p.labels_BT[there, task] > 0.5).tolist(),
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.98, 0.0, 1.0])
def test_rankings_of_a_users_rows_equal_a_plain_sort(ties, rate):
    for seed in range(3):
        p = random_rows(seed, ties=ties, rate=rate)
        found, expected = measured(p), plain(RANKINGS, *columns(p))
        for name in RANKINGS:
            assert found[name] == pytest.approx(expected[name], nan_ok=True), name


@pytest.mark.parametrize("seed", range(3))
def test_rankings_equal_scikit_learns_and_torchmetrics(seed):
    p = random_rows(seed, num_users=30)
    users, scores, labels = (torch.tensor(x) for x in columns(p))
    found = measured(p)
    library = {
        "ndcg@5": RetrievalNormalizedDCG("skip", top_k=5),
        "recall@5": RetrievalRecall("skip", top_k=5),
        "hit_rate@5": RetrievalHitRate("skip", top_k=5),
        "mrr": RetrievalMRR("skip"),
    }
    for name, metric in library.items():
        assert found[name] == pytest.approx(float(metric(scores, labels, indexes=users)), abs=1e-6)
    each = [
        ndcg_score([labels[own].float().tolist()], [scores[own].tolist()], k=5)
        for own in (users == user for user in users.unique())
        if labels[own].any() and own.sum() > 1
    ]
    assert found["ndcg@5"] == pytest.approx(np.mean(each))


@pytest.mark.parametrize("seed", range(3))
def test_calibration_error_equals_torchmetrics_and_a_weight_is_so_many_rows(seed):
    p = random_rows(seed)
    found = measured(p)["ece"]
    times = p.weights_B.long()
    library = BinaryCalibrationError(n_bins=15, norm="l1")
    logits, labels = (t[:, 0].repeat_interleave(times) for t in (p.logits_BT, p.labels_BT))
    assert found == pytest.approx(float(library(logits.sigmoid(), labels.long())), abs=1e-5)
    few = measured(p, ece_bins=1)["ece"]
    assert few == pytest.approx(float((logits.sigmoid() - labels).mean().abs()), abs=1e-6)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("num_parts", [1, 2, 7, 700])
def test_any_split_into_batches_and_ranks_gives_the_same(full, num_parts):
    names = (*RANKINGS, "ece", "auc", "log_loss")
    settings = {"names": names, "candidates": "full" if full else "rows", "slice_by": "user"}
    whole = random_rows(0, num_users=5)
    ranks = torch.arange(700.0) % 37 + 1
    whole = attach_slice_values(part(whole, torch.arange(700)), whole.groups_BG[:, 0])
    whole.aux["rank_B"] = ranks
    expected = measured(whole, **settings)
    shuffled = torch.randperm(700, generator=torch.Generator().manual_seed(1))
    several = [empty(**settings) for _ in range(2)]
    for number, rows in enumerate(shuffled.chunk(num_parts)):
        p = part(whole, rows)
        several[number % 2].update(p, no_loss(p))
    merged = empty(**settings)
    for one in several:
        merged.merge({name: t.clone() for name, t in one.state().items()})
    assert list(merged.compute()) == list(expected)
    for name, value in merged.compute().items():
        if name.partition("/")[0] in RANKINGS:
            assert value == expected[name], name  # to the last bit
        assert value == pytest.approx(expected[name], rel=1e-9, nan_ok=True), name


def test_full_rankings_are_those_of_the_models_ranks_and_a_user_is_the_mean_of_its_lists():
    #  user 1: items at ranks 1 and 4; user 2: at 3; user 3: label 0; user 4: weight 0
    ranks = [4.0, 1.0, 3.0, math.nan, 1.0]
    p = prediction(np.zeros(5), [1, 1, 1, 0, 1], [1, 1, 1, 1, 0], [1, 1, 2, 3, 4], ranks)
    found = measured(p, candidates="full", names=(*RANKINGS, "recall@3", "hit_rate@3"))
    assert found["ndcg@5"] == pytest.approx(((1 / math.log2(5) + 1) / 2 + 1 / math.log2(4)) / 2)
    assert found["ndcg@1"] == pytest.approx((1 / 2 + 0) / 2)
    assert (found["recall@5"], found["hit_rate@5"]) == (1, 1)
    assert found["recall@3"] == found["hit_rate@3"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["mrr"] == pytest.approx(((1 / 4 + 1) / 2 + 1 / 3) / 2)
    alone = measured(p, candidates="full", groups=())  # each row by itself
    assert alone["mrr"] == pytest.approx((1 / 4 + 1 + 1 / 3) / 3)
    assert measured(p, candidates="full", per_event=True) == pytest.approx(alone, nan_ok=True)


def test_full_rankings_that_are_all_perfect_are_one_however_many_events_a_user_has():
    p = prediction(np.zeros(6), np.ones(6), users=[1, 1, 1, 2, 2, 3], ranks=np.ones(6))
    found = measured(p, candidates="full")
    assert {found[name] for name in RANKINGS} == {1.0}


def test_full_rankings_of_users_with_one_event_are_those_of_one_list_to_the_last_bit():
    random = np.random.default_rng(0)
    ranks = np.append(random.integers(1, 30, 998).astype(float), [math.inf, math.inf])
    users = random.permutation(1000)
    lists, alone = (
        compute_ranking_metrics(RANKINGS, users, ranks, np.ones(1000), one_list=one_list)
        for one_list in (True, False)
    )
    assert lists == alone


def test_what_is_undefined_or_broken_is_nan():
    for p in (
        prediction([], []),
        prediction([1.0, 2.0], [0, 0]),
        prediction([1.0, 2.0], [1, 0], [0, 0]),
    ):
        found = measured(p)
        assert all(math.isnan(found[name]) for name in RANKINGS)
    assert math.isnan(measured(prediction([], []))["ece"])
    assert measured(prediction([0.0, 0.0], [0, 0]))["ece"] == 0.5
    for p in (prediction([1.0, math.nan], [1, 0]), prediction([1.0, 2.0], [1, math.nan])):
        assert all(math.isnan(measured(p)[name]) for name in (*RANKINGS, "ece"))
    absent = prediction([1.0, math.nan], [1, math.nan], [1, 0])
    assert measured(absent)["mrr"] == 1
    assert measured(absent)["ece"] == pytest.approx(1 - 1 / (1 + math.exp(-1)), abs=1e-6)
    infinite = prediction([math.inf, -math.inf, math.inf], [1, 0, 0])
    assert measured(infinite)["mrr"] == 0.5  # a tie counts against it


def test_each_binary_task_has_rankings_of_its_own():
    p = random_rows(3, tasks=3)
    found = measured(p, tasks=TWO)
    for place, name in enumerate(("click", "buy")):
        expected = plain(RANKINGS, *columns(p, place))
        for metric in RANKINGS:
            assert found[f"{metric}/{name}"] == pytest.approx(expected[metric])
        assert 0 < found[f"ece/{name}"] < 1
    assert not [key for key in found if key.endswith("/stars")]


def test_beyond_the_limit_rankings_are_undefined_and_a_note_says_so():
    p = random_rows(0)
    metrics = empty(exact_auroc_rows=699)
    metrics.update(p, no_loss(p))
    assert math.isnan(metrics.compute()["mrr"])
    assert "ndcg@1, " in metrics.notes()[-1]
    assert "undefined beyond 699 rows" in metrics.notes()[-1]
    halves = [empty(exact_auroc_rows=699), empty(exact_auroc_rows=699)]
    for half, rows in zip(halves, torch.arange(700).chunk(2)):
        half.update(part(p, rows), no_loss(part(p, rows)))
    halves[0].merge(halves[1].state())
    assert math.isnan(halves[0].compute()["mrr"])


def test_a_slice_has_the_metrics_of_its_rows_alone():
    p = random_rows(0, num_users=4)
    names = ("auc", "mrr", "ece", "log_loss", "accuracy")
    found = measured(attach_slice_values(p, p.groups_BG[:, 0]), names=names, slice_by="user")
    for user in range(4):
        own = measured(part(p, p.groups_BG[:, 0] == user), names=names)
        for name in names:
            assert found[f"{name}/user={user}"] == pytest.approx(own[name]), name
    assert found["auc"] == measured(p, names=names)["auc"]


def test_slices_have_the_names_of_their_values_whichever_rank_has_seen_them():
    p = random_rows(0, num_users=4)
    p = attach_slice_values(p, p.groups_BG[:, 0])
    names = {9: "nobody", 2: "a/b=c", 0: "red"}
    settings = MetricSettings(eval=["auc", "log_loss"], train=[], slice_by="user")

    def ranks(name_values, count=2):
        made = [
            make_metrics(schema(), CPU, settings, True, name_values=name_values)
            for _ in range(count)
        ]
        for rank in range(2):  # each has two of the users
            own = part(p, p.groups_BG[:, 0] % 2 == rank)
            made[rank % count].update(own, no_loss(own))
        for other in made[1:]:
            made[0].merge(other.state())
        return made[0].compute()

    found, plain = ranks(lambda column, values: names), ranks(None)
    of = {"a%2Fb%3Dc": 2, "red": 0, "1": 1, "3": 3}
    assert [key for key in found if key.startswith("auc/")] == [f"auc/user={name}" for name in of]
    for name, value in of.items():
        assert found[f"auc/user={name}"] == plain[f"auc/user={value}"]
    assert ranks(lambda column, values: names, count=1) == pytest.approx(found)


def test_names_of_values_are_escaped_where_keys_are_divided_and_stay_different():
    given = ["a/b", "a%2Fb", "x=y", "new\nline", "Zürich 1", "\u2028", "[red]", "", "a b"]
    escaped = [escape(name) for name in given]
    assert escaped[:5] == ["a%2Fb", "a%252Fb", "x%3Dy", "new%0Aline", "Zürich 1"]
    assert len(set(escaped)) == len(given)
    assert all(not set(name) & set("/=\n\u2028") for name in escaped)


def test_train_metrics_keep_live_states_of_one_shape():
    settings = MetricSettings(eval=[], train=["ece", "auc"])
    metrics = make_metrics(schema(), CPU, settings, False)
    before = {name: (tensor.shape, tensor.data_ptr()) for name, tensor in metrics.state().items()}
    p = random_rows(0)
    metrics.update(p, no_loss(p))
    assert {n: (t.shape, t.data_ptr()) for n, t in metrics.state().items()} == before
    other = make_metrics(schema(), CPU, settings, False)
    other.merge(metrics.state())
    assert other.compute() == metrics.compute()
    metrics.reset()
    assert math.isnan(metrics.compute()["ece"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eval": ["ndcg"]}, "'ndcg' must end in a whole number from 1.*'ndcg@10'"),
        ({"eval": ["recall@0"]}, "'recall@0' must end in a whole number"),
        ({"eval": ["recal@10"]}, "unknown metric 'recal@10'; nearest: 'recall@10'"),
        ({"train": ["mrr"]}, "metrics.train: 'mrr' needs all rows.*metrics.eval"),
        (
            {"candidates": "ful"},
            "metrics.candidates=ful: must be one of rows, full; nearest: 'full'",
        ),
        ({"leave_seen_out": True}, "metrics.leave_seen_out=true: .*metrics.candidates=full"),
        ({"per_event": True}, "metrics.per_event=true: .*metrics.candidates=full"),
        ({"max_slices": 0}, "metrics.max_slices=0"),
        ({"ece_bins": 0}, "metrics.ece_bins=0"),
    ],
)
def test_mistakes_name_key_value_and_rule(values, message):
    with pytest.raises(ConfigError, match=message):
        MetricSettings(**({"eval": [], "train": []} | values))


def test_rankings_of_rows_need_a_group_column():
    with pytest.raises(ConfigError, match="'mrr' needs a group column"):
        empty(names=("mrr",), groups=())
    assert empty(names=("mrr",), groups=(), candidates="full").names() == ["loss", "mrr"]
