"""MetricSet against scikit-learn and hand calculations, on random and hostile rows."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from runner.batch import Prediction, TaskSpec
from runner.metrics import MetricSet
from runner.metrics.curves import _order_by_group, group_by_score, roc_auc
from runner.metrics.names import METRICS
from runner.metrics.settings import MetricSettings

CPU = torch.device("cpu")
BINARY = [name for name, metric in METRICS.items() if metric.kind == "binary"]
SUMMED = [name for name in BINARY if METRICS[name].needs == "sums"]
SETTINGS = MetricSettings(
    eval=[*BINARY, "mae", "mse"], train=["auc", "pr_auc", *SUMMED, "mae", "mse"]
)
CLICK = [TaskSpec("click")]


def metric_set(tasks=CLICK, *, exact=True, settings=SETTINGS, groups=("user",)) -> MetricSet:
    return MetricSet(tasks, exact=exact, device=CPU, settings=settings, groups=groups)


def prediction(logits, labels, weights=None, groups=None) -> Prediction:
    logits = torch.as_tensor(np.asarray(logits), dtype=torch.float32)
    labels = torch.as_tensor(np.asarray(labels), dtype=torch.float32)
    num_rows = len(logits)
    weights = np.ones(num_rows) if weights is None else weights
    groups = np.zeros(num_rows) if groups is None else groups
    return Prediction(
        logits if logits.ndim == 2 else logits[:, None],
        labels if labels.ndim == 2 else labels[:, None],
        torch.as_tensor(np.asarray(weights), dtype=torch.float32),
        torch.as_tensor(np.asarray(groups), dtype=torch.int64)[:, None],
    )


def no_loss(num_rows: int) -> dict[str, torch.Tensor]:
    return {"click": torch.zeros(num_rows)}


def measured(*columns, exact=True, settings=SETTINGS) -> dict[str, float]:
    metrics = metric_set(exact=exact, settings=settings)
    metrics.update(prediction(*columns), no_loss(len(columns[0])))
    return metrics.compute()


def rows(seed: int, num_rows: int = 3000, *, ties: bool = False, num_groups: int = 40):
    """Draw logits, labels, weights (a tenth of them 0) and groups."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 1.5, num_rows).astype(np.float32)
    if ties:
        logits = np.round(logits)
    labels = (random.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    weights = random.random(num_rows).astype(np.float32) * (random.random(num_rows) > 0.1)
    return logits, labels, weights, random.integers(0, num_groups, num_rows)


def by_scikit_learn(logits, labels, weights, groups) -> dict[str, float]:
    weights = weights.astype(np.float64)
    chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
    rate = np.average(labels, weights=weights)
    entropy = sklearn_metrics.log_loss(
        labels, np.full(len(labels), rate), sample_weight=weights, labels=[0, 1]
    )
    log_loss = sklearn_metrics.log_loss(labels, chances, sample_weight=weights, labels=[0, 1])
    areas, sizes = [], []
    for group in np.unique(groups):
        own = (groups == group) & (weights > 0)
        if len(np.unique(labels[own])) == 2:
            areas.append(
                sklearn_metrics.roc_auc_score(labels[own], logits[own], sample_weight=weights[own])
            )
            sizes.append(weights[own].sum())
    return {
        "auc": sklearn_metrics.roc_auc_score(labels, logits, sample_weight=weights),
        "pr_auc": sklearn_metrics.average_precision_score(labels, logits, sample_weight=weights),
        "gauc": np.average(areas, weights=sizes),
        "gauc_unweighted": np.mean(areas),
        "log_loss": log_loss,
        "normalized_entropy": log_loss / entropy,
        "rce": 100 * (1 - log_loss / entropy),
        "calibration": (weights * chances).sum() / (weights * labels).sum(),
        "accuracy": sklearn_metrics.accuracy_score(labels, logits > 0, sample_weight=weights),
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ties", [False, True])
def test_binary_metrics_equal_scikit_learn(seed, ties):
    columns = rows(seed, ties=ties)
    found, expected = measured(*columns), by_scikit_learn(*columns)
    assert set(expected) == set(BINARY)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name


def test_unit_weights_give_the_exact_share_of_ordered_pairs():
    logits, labels = [0.5, 0.5, 2.0, -1.0, 0.7], [1, 0, 1, 0, 0]
    # pairs: 0.5>-1 win, 0.5=0.5 half, 0.5<0.7 loss; 2.0 wins three
    assert measured(logits, labels)["auc"] == 4.5 / 6


def measure_by(settings, tasks, exact, of):
    metrics = metric_set(tasks, exact=exact, settings=settings)
    metrics.update(of, {"rating": torch.zeros(len(of.weights_B))})
    return metrics.compute()


def test_regression_metrics_equal_numpy_and_scikit_learn():
    random = np.random.default_rng(0)
    outputs, labels = random.normal(size=(2, 500)).astype(np.float32)
    weights = random.random(500).astype(np.float32)
    settings = MetricSettings(eval=["mae", "mse", "rmse", "r2"], train=["mse", "r2"])
    tasks = [TaskSpec("rating", "regression")]
    found, in_training = (
        measure_by(settings, tasks, exact, prediction(outputs, labels, weights))
        for exact in (True, False)
    )
    assert in_training == {name: found[name] for name in ("loss", "mse", "r2")}
    error = outputs.astype(np.float64) - labels
    assert set(found) == {"loss", "mae", "mse", "rmse", "r2"}
    assert found["mae"] == pytest.approx(np.average(np.abs(error), weights=weights))
    assert found["mse"] == pytest.approx(np.average(error**2, weights=weights))
    assert found["rmse"] == pytest.approx(found["mse"] ** 0.5)
    r2 = sklearn_metrics.r2_score(labels, outputs.astype(np.float64), sample_weight=weights)
    assert found["r2"] == pytest.approx(r2, abs=1e-9)
    one = measure_by(settings, tasks, True, prediction([1.0, 2.0], [3.0, 3.0]))
    assert math.isnan(one["r2"]) and one["rmse"] == pytest.approx(2.5**0.5)


@pytest.mark.parametrize("label", [0.1, 0.7, 1e-9, -3.3e8])
@pytest.mark.parametrize("num_rows", [3, 700, 4099])
def test_r2_is_undefined_where_only_rounding_tells_the_labels_apart(label, num_rows):
    random = np.random.default_rng(0)
    weights = random.random(num_rows).astype(np.float32)
    rows = prediction(random.normal(size=num_rows), np.full(num_rows, label), weights)
    settings = MetricSettings(eval=["r2"], train=[])
    found = measure_by(settings, [TaskSpec("rating", "regression")], True, rows)
    assert math.isnan(found["r2"])


@pytest.mark.parametrize("exact", [True, False])
def test_several_tasks_of_both_kinds_equal_each_alone(exact):
    tasks = [TaskSpec("click"), TaskSpec("rating", "regression"), TaskSpec("buy")]
    first, second = rows(1), rows(2)
    both = metric_set(tasks, exact=exact)
    logits = np.stack([first[0], first[0], second[0]], 1)
    labels = np.stack([first[1], first[1], second[1]], 1)
    both.update(prediction(logits, labels, first[2], first[3]), no_loss(3000))
    found = both.compute()
    alone = {
        "click": measured(*first, exact=exact),
        "buy": measured(*second[:2], *first[2:], exact=exact),
    }
    for task, expected in alone.items():
        for name in set(expected) - {"loss"}:
            assert found[f"{name}/{task}"] == pytest.approx(expected[name], rel=1e-12), (name, task)
    error = np.abs(first[0].astype(np.float64) - first[1])
    assert found["mae/rating"] == pytest.approx(np.average(error, weights=first[2]))
    assert "auc/rating" not in found
    assert "mae/click" not in found
    assert found["auc"] == pytest.approx((found["auc/click"] + found["auc/buy"]) / 2)
    assert found["mae"] == found["mae/rating"], "the mean over the tasks that have it"
    assert list(found) == both.names() + [n for n in found if n.startswith("loss/")]


def test_loss_is_the_weighted_mean_of_the_sum_of_its_parts():
    metrics = metric_set()
    zeros = prediction([0.0] * 3, [0, 1, 0], weights=[1, 3, 0])
    metrics.update(
        zeros, {"click": torch.tensor([1.0, 2.0, 99.0]), "norm": torch.tensor([0.5, 0.0, math.nan])}
    )
    found = metrics.compute()
    assert found["loss"] == (1.5 + 3 * 2) / 4
    assert found["loss/click"] == 7 / 4
    assert found["loss/norm"] == 0.5 / 4


def test_parts_of_the_loss_that_change_are_refused():
    metrics = metric_set()
    metrics.update(prediction([0.0], [1]), {"click": torch.zeros(1)})
    with pytest.raises(ValueError, match="same at every update"):
        metrics.update(prediction([0.0], [1]), {"clik": torch.zeros(1)})


@pytest.mark.parametrize("exact", [True, False])
def test_rows_of_weight_zero_are_not_there_even_if_they_hold_nan(exact):
    logits, labels, weights, groups = rows(3)
    present = weights > 0
    hostile = np.where(present, logits, np.nan).astype(np.float32)
    hostile_labels = np.where(present, labels, np.nan).astype(np.float32)
    with_them = measured(hostile, hostile_labels, weights, groups, exact=exact)
    kept = [column[present] for column in (logits, labels, weights, groups)]
    for name, value in measured(*kept, exact=exact).items():
        assert with_them[name] == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("label", "defined"), [(0, {"accuracy", "log_loss"}), (1, None)])
def test_one_class_leaves_areas_and_entropy_undefined(exact, label, defined):
    found = measured([0.3, -0.2, 1.0], [label] * 3, exact=exact)
    undefined = {name for name, value in found.items() if math.isnan(value)}
    assert undefined >= {"auc", "normalized_entropy"}
    if exact:
        assert undefined >= {"gauc", "gauc_unweighted"}
    if label == 0:
        assert undefined >= {"pr_auc", "calibration"}
        assert not undefined & {"accuracy", "log_loss"}
    else:
        assert found["pr_auc"] == 1.0


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("weights", [[], [0.0, 0.0]])
def test_no_rows_leave_everything_undefined(exact, weights):
    zeros = np.zeros(len(weights))
    found = measured(zeros, zeros, weights, exact=exact)
    assert found
    assert all(math.isnan(value) for value in found.values())


def test_a_set_that_saw_no_batch_is_undefined():
    assert all(math.isnan(value) for value in metric_set().compute().values())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("column", ["logits", "labels"])
def test_a_nan_makes_every_metric_of_its_task_nan_and_of_no_other(exact, column):
    tasks = [TaskSpec("click"), TaskSpec("buy")]
    metrics = metric_set(tasks, exact=exact)
    logits, labels = np.stack([rows(1)[0], rows(2)[0]], 1), np.stack([rows(1)[1], rows(2)[1]], 1)
    {"logits": logits, "labels": labels}[column][17, 0] = np.nan
    metrics.update(prediction(logits, labels), no_loss(3000))
    for name, value in metrics.compute().items():
        assert math.isnan(value) == (name != "loss" and not name.endswith("/buy")), name


@pytest.mark.parametrize("exact", [True, False])
def test_infinite_logits_are_ordered_and_a_right_one_costs_nothing(exact):
    found = measured([math.inf, -math.inf, 1.0, -1.0], [1, 0, 1, 0], exact=exact)
    assert found["auc"] == 1.0
    assert found["log_loss"] == pytest.approx(math.log1p(math.exp(-1)) / 2)
    wrong = measured([math.inf, -math.inf, 1.0, -1.0], [0, 0, 1, 0], exact=exact)
    assert wrong["auc"] < 1.0
    assert wrong["log_loss"] > 1e20


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("sizes", [[1, 2999], [1500, 1500], [999, 1001, 1000], [7] * 428 + [4]])
def test_any_split_into_batches_gives_the_same_numbers(exact, sizes):
    logits, labels, _, groups = rows(5)
    weights = np.ones(3000)
    whole = measured(logits, labels, weights, groups, exact=exact)
    metrics = metric_set(exact=exact)
    for start, size in zip(np.cumsum([0, *sizes]), sizes):
        part = slice(start, start + size)
        metrics.update(
            prediction(logits[part], labels[part], weights[part], groups[part]), no_loss(size)
        )
    found = metrics.compute()
    for name, value in whole.items():
        if METRICS.get(name) and METRICS[name].needs != "sums":
            assert found[name] == value, name  # whole weights: not even the last digit moves
        else:
            assert found[name] == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("exact", [True, False])
def test_a_state_cut_in_the_middle_and_restored_equals_to_the_last_digit(exact):
    def batch(k):
        return prediction(*rows(k, 500)), {"click": torch.rand(500), "norm": torch.rand(500)}

    torch.manual_seed(0)
    batches = [batch(k) for k in range(6)]
    uncut, first, second = (metric_set(exact=exact) for _ in range(3))
    for k, (rows_seen, losses) in enumerate(batches):
        uncut.update(rows_seen, losses)
        if k == 3:
            saved = {name: tensor.clone() for name, tensor in first.state().items()}
            second.update(*batches[0])  # what was in it before must be gone
            if exact:
                second.reset()
                second.merge(saved)
            else:  # as a checkpoint does
                for name, tensor in second.state().items():
                    tensor.copy_(saved[name])
        (first if k < 3 else second).update(rows_seen, losses)
    assert second.compute() == uncut.compute()
    assert "loss/norm" in uncut.compute()


@pytest.mark.parametrize("exact", [True, False])
def test_two_ranks_merged_equal_one(exact):
    halves = [metric_set(exact=exact), metric_set(exact=exact)]
    columns = rows(6)
    for half, part in zip(halves, (slice(0, 1200), slice(1200, 3000))):
        own = [column[part] for column in columns]
        half.update(prediction(*own), no_loss(len(own[0])))
    halves[0].merge(halves[1].state())
    found = halves[0].compute()
    for name, value in measured(*columns, exact=exact).items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("exact", [True, False])
def test_reset_forgets_everything_and_keeps_the_tensors(exact):
    metrics = metric_set(exact=exact)
    before = metrics.state()
    metrics.update(prediction(*rows(7)), no_loss(3000))
    metrics.reset()
    if not exact:
        assert all(tensor is before[name] for name, tensor in metrics.state().items())
    metrics.update(prediction(*rows(8)), no_loss(3000))
    assert metrics.compute() == measured(*rows(8), exact=exact)


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_beyond_the_row_limit_areas_are_within_the_bound_that_the_note_states(scale):
    logits, labels, weights, groups = rows(9)
    logits = (logits * scale).astype(np.float32)
    settings = MetricSettings(eval=["auc", "pr_auc", "gauc"], train=[], exact_auroc_rows=2000)
    metrics = metric_set(settings=settings)
    for part in (slice(0, 1500), slice(1500, 1900), slice(1900, 3000)):
        assert "beyond" not in str(metrics.notes())
        own = [column[part] for column in (logits, labels, weights, groups)]
        metrics.update(prediction(*own), no_loss(len(own[0])))
    found, exact = metrics.compute(), by_scikit_learn(logits, labels, weights, groups)
    notes = dict(note.split(": ", 1) for note in metrics.notes())
    for name in ("auc", "pr_auc"):
        assert "beyond 2,000 rows" in notes[name]
        bound = float(notes[name].split("±")[1])
        assert abs(found[name] - exact[name]) <= bound < 0.02
        assert found[name] == pytest.approx(exact[name], abs=1e-3)
    assert math.isnan(found["gauc"])
    assert "undefined" in notes["gauc"]
    metrics.reset()
    assert "beyond" not in str(metrics.notes())


def test_train_areas_are_near_the_exact_ones_and_say_nothing():
    columns = rows(10)
    metrics = metric_set(exact=False)
    metrics.update(prediction(*columns), no_loss(3000))
    exact = by_scikit_learn(*columns)
    assert metrics.compute()["auc"] == pytest.approx(exact["auc"], abs=1e-4)
    assert metrics.compute()["pr_auc"] == pytest.approx(exact["pr_auc"], abs=1e-3)
    assert metrics.notes() == ()


def test_half_precision_logits_are_taken_as_they_are():
    logits, labels, weights, groups = rows(11)
    half = prediction(logits, labels, weights, groups)
    rounded = half.logits_BT.bfloat16()
    metrics = metric_set()
    metrics.update(
        Prediction(rounded, half.labels_BT, half.weights_B, half.groups_BG), no_loss(3000)
    )
    expected = by_scikit_learn(rounded[:, 0].float().numpy(), labels, weights, groups)
    assert metrics.compute()["auc"] == pytest.approx(expected["auc"], abs=1e-9)


def test_a_batch_may_be_overwritten_after_it_was_counted():
    batch = prediction(*rows(12))
    metrics = metric_set()
    metrics.update(batch, no_loss(3000))
    metrics.state()
    for tensor in (batch.logits_BT, batch.labels_BT, batch.weights_B, batch.groups_BG):
        tensor.zero_()
    assert metrics.compute() == measured(*rows(12))


@pytest.mark.parametrize("exact", [True, False])
def test_rows_that_wait_do_not_keep_what_else_a_model_returned(exact):
    scores = torch.zeros(16, 1000)  # of candidates
    kept = weakref.ref(scores)
    metrics = metric_set(exact=exact)
    metrics.update(replace(prediction(*rows(4, 16)), aux={"candidates_PC": scores}), no_loss(16))
    del scores
    assert kept() is None


def test_rows_that_wait_are_counted_whenever_someone_looks():
    sizes = [6000, 5000, 5000, 400, 40_000, 16_384, 1]  # beyond the buffer, and exactly full
    whole = [np.concatenate(c) for c in zip(*(rows(k, n) for k, n in enumerate(sizes)))]
    metrics = metric_set(exact=False)
    at = 0
    for size in sizes:
        part = [column[at : at + size] for column in whole]
        metrics.update(prediction(*part), no_loss(size))
        at += size
        seen = measured(*(column[:at] for column in whole), exact=False)
        halfway = metric_set(exact=False)
        halfway.merge(metrics.state())
        for name, value in seen.items():
            assert halfway.compute()[name] == pytest.approx(value, rel=1e-9), (name, at)


def test_a_restored_set_counts_the_losses_that_waited():
    metrics, restored = metric_set(exact=False), metric_set(exact=False)
    metrics.update(prediction(*rows(3, 100)), {"click": torch.rand(100)})
    for name, tensor in restored.state().items():
        tensor.copy_(metrics.state()[name])
    assert restored.compute()["loss"] == metrics.compute()["loss"]


def test_a_restored_set_names_the_parts_of_the_loss_until_an_update_has_others():
    metrics, restored = metric_set(exact=False), metric_set(exact=False)
    assert metrics.loss_parts() == ()
    metrics.update(prediction(*rows(3, 100)), {"click": torch.rand(100), "l2": torch.rand(100)})
    for name, tensor in restored.state().items():
        tensor.copy_(metrics.state()[name])
    restored.restore_loss_parts(metrics.loss_parts())
    assert restored.loss_parts() == ("click", "l2")
    assert restored.compute() == metrics.compute()
    restored.reset()  # as at each row of the log
    restored.update(prediction(*rows(3, 100)), {"click": torch.rand(100), "l1": torch.rand(100)})
    assert restored.loss_parts() == ("click", "l1")
    assert "loss/l1" in restored.compute()


def losses_of_parts(num_parts, num_rows=100):
    rng = torch.Generator().manual_seed(num_parts)
    return {f"part_{p}": torch.rand(num_rows, generator=rng) for p in range(num_parts)}


@pytest.mark.parametrize("num_parts", [16, 17, 41])
def test_any_number_of_parts_of_the_loss_is_counted_restored_and_merged(num_parts):
    losses, (metrics, restored, merged) = (
        losses_of_parts(num_parts),
        (metric_set(exact=False) for _ in range(3)),
    )
    metrics.update(prediction(*rows(3, 100)), losses)
    weights = torch.from_numpy(rows(3, 100)[2])
    means = {f"loss/{n}": float((x @ weights) / weights.sum()) for n, x in losses.items()}
    state = metrics.state()
    restored.restore_loss_parts(metrics.loss_parts(), room=len(state["losses"]) - 1)
    assert {n: t.shape for n, t in restored.state().items()} == {
        n: t.shape for n, t in state.items()
    }
    for name, tensor in restored.state().items():
        tensor.copy_(state[name])
    merged.merge(state)
    merged.merge(metric_set(exact=False).state())  # of a rank that has not seen a row
    merged.restore_loss_parts(metrics.loss_parts())
    for found in (metrics, restored, merged):
        assert found.compute()["loss"] == pytest.approx(sum(means.values()), rel=1e-6)
        assert {n: found.compute()[n] for n in means} == pytest.approx(means, rel=1e-6)


def test_up_to_16_parts_of_the_loss_have_the_shapes_that_checkpoints_have():
    for num_parts in (1, 16):
        metrics = metric_set(exact=False)
        before = {name: tensor.shape for name, tensor in metrics.state().items()}
        metrics.update(prediction(*rows(3, 100)), losses_of_parts(num_parts))
        assert {name: tensor.shape for name, tensor in metrics.state().items()} == before
        assert (before["losses"], before["pending"][0]) == ((17,), 19)


def test_scores_of_plain_rows_are_sorted_like_any_others():
    rng = np.random.default_rng(0)
    scores_N = rng.normal(size=1000).round(1).astype(np.float32)
    scores_N[:7] = [-0.0, 0.0, np.inf, -np.inf, 1e-45, -1e-45, -0.0]
    labels_N = (rng.random(1000) < 0.3).astype(np.float64)
    labels_N[:2] = [1, 0]  # whose scores tie
    levels = group_by_score(scores_N, labels_N, 1 - labels_N)
    of_any_rows = group_by_score(scores_N.astype(np.float64), labels_N, 1 - labels_N)
    np.testing.assert_array_equal(levels, of_any_rows)
    finite_N = scores_N.clip(-9, 9)  # scikit-learn takes no infinity
    auc = sklearn_metrics.roc_auc_score(labels_N, finite_N)
    assert roc_auc(*levels) == pytest.approx(auc, abs=1e-12)


@pytest.mark.parametrize("are_weighted", [True, False])
@pytest.mark.parametrize("size", [256, 250])
def test_batches_counted_together_give_the_bits_of_batches_one_by_one(size, are_weighted):
    tasks = [TaskSpec("click"), TaskSpec("price", "regression"), TaskSpec("buy")]
    together, one_by_one = metric_set(tasks), metric_set(tasks)
    generator = torch.Generator().manual_seed(size)
    for num_rows in [size] * 70 + [13]:
        logits, labels = torch.randn(2, num_rows, 3, generator=generator)
        weights = torch.rand(num_rows, generator=generator) if are_weighted else None
        groups = torch.randint(9, (num_rows,), generator=generator)
        batch = prediction(logits, (labels > 0).float(), weights, groups)
        losses = {name: torch.rand(num_rows, generator=generator) for name in ("a", "b")}
        for metrics in (together, one_by_one):
            metrics.update(batch, losses)
        one_by_one.state()  # counts what waits
    assert together.compute() == one_by_one.compute()


def test_the_state_of_training_does_not_depend_on_who_looked_before():
    looked_at, other = metric_set(exact=False), metric_set(exact=False)
    for seed in range(9):
        batch = prediction(*rows(seed, 4096))
        for metrics in (looked_at, other):
            metrics.update(batch, {"click": torch.arange(4096.0)})
        looked_at.state()
    for name, tensor in other.state().items():
        assert torch.equal(looked_at.state()[name], tensor), name


@pytest.mark.parametrize(
    "groups",
    [
        np.arange(1000) % 3,
        np.arange(1000) % 90_000 * 77,
        np.array([-(2**63), 2**63 - 1, 0, -1] * 250),
        np.full(1000, -5),
    ],
    ids=["few", "many", "hashed", "one"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_ordered_by_group_and_score_and_ties_stay_as_they_stand(groups, dtype):
    rng = np.random.default_rng(0)
    scores = rng.choice([-np.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 0.5, 1, np.inf], 1000)
    for given in (scores, np.where(rng.random(1000) < 0.1, np.nan, scores)):
        given, shuffled = given.astype(dtype), rng.permutation(groups).astype(np.int64)
        expected = np.lexsort((given, shuffled))
        assert _order_by_group(shuffled, given).tolist() == expected.tolist()
