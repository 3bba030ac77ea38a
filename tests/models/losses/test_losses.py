"""Every loss against its formula, by hand or in plain Python in double precision."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from runner.batch import Prediction, Schema, TaskSpec
from runner.models.layers.recommender import one_against_rest
from runner.models.losses import BCE, JRC, MSE, ByKind, Focal, SelfDistillation, Uncertainty

CLICK = Schema(dense=(), sparse=(), tasks=(TaskSpec("click"),), groups=("user", "session"))
BOTH = replace(CLICK, tasks=(TaskSpec("click"), TaskSpec("stars", "regression")))
TWO = replace(CLICK, tasks=(TaskSpec("click"), TaskSpec("like")))
LOGITS = [-30.0, -2.0, 0.0, 0.7, 3.0, 30.0, -0.4, 1.5]
LABELS = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]


def predicted(logits=LOGITS, labels=LABELS, weights=None, groups=None) -> Prediction:
    logits_BT, labels_BT = torch.tensor(logits), torch.tensor(labels)
    if logits_BT.ndim == 1:
        logits_BT, labels_BT = logits_BT[:, None], labels_BT[:, None]
    size = len(logits_BT)
    return Prediction(
        logits_BT,
        labels_BT,
        torch.ones(size) if weights is None else torch.tensor(weights),
        torch.zeros(size, 2, dtype=torch.int64) if groups is None else torch.tensor(groups),
    )


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > -30 else x


def assert_rows(found, expected):
    torch.testing.assert_close(
        found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("given", "weight"), [(None, 1.0), (3.0, 3.0), ({"click": 0.5}, 0.5)])
def test_cross_entropy_is_its_formula(smoothing, given, weight):
    found = BCE(CLICK, label_smoothing=smoothing, pos_weight=given)(predicted())
    expected = []
    for x, label in zip(LOGITS, LABELS):
        y = (1 - smoothing) * label + smoothing / 2
        expected.append(-weight * y * log_sigmoid(x) - (1 - y) * log_sigmoid(-x))
    assert list(found) == ["click"]
    assert_rows(found["click"], expected)


def test_cross_entropy_by_hand():
    # log 4 - log 3 and log 4: s(log 3) = 3/4
    found = BCE(CLICK)(predicted([math.log(3)] * 2, [1.0, 0.0]))["click"]
    assert_rows(found, [math.log(4 / 3), math.log(4)])
    found = BCE(CLICK, label_smoothing=0.5, pos_weight=2.0)(predicted([math.log(3)], [1.0]))[
        "click"
    ]
    assert_rows(found, [2 * 0.75 * math.log(4 / 3) + 0.25 * math.log(4)])


def test_a_weight_of_positives_left_out_is_one():
    loss = BCE(TWO, pos_weight={"like": 4.0})
    found = loss(predicted([[0.0, 0.0]], [[1.0, 1.0]]))
    assert_rows(torch.stack(list(found.values()))[:, 0], [math.log(2), 4 * math.log(2)])


@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_its_formula(gamma, alpha):
    found = Focal(CLICK, gamma=gamma, alpha=alpha)(predicted())["click"]
    expected = []
    for x, label in zip(LOGITS, LABELS):
        q, others = (sigmoid(x), sigmoid(-x)) if label else (sigmoid(-x), sigmoid(x))
        log_q = log_sigmoid(x if label else -x)
        share = 1.0 if alpha is None else (alpha if label else 1 - alpha)
        assert q + others == pytest.approx(1)
        expected.append(-share * others**gamma * log_q)
    assert_rows(found, expected)


def test_focal_by_hand_and_its_gradient_far_out():
    # s(log 3) = 3/4: (1/4)^2 log(4/3) and (3/4)^2 log 4
    found = Focal(CLICK)(predicted([math.log(3)] * 2, [1.0, 0.0]))["click"]
    assert_rows(found, [math.log(4 / 3) / 16, 9 / 16 * math.log(4)])
    prediction = predicted([-500.0, 500.0, 500.0], [1.0, 1.0, 0.0])
    prediction.logits_BT.requires_grad_()
    Focal(CLICK)(prediction)["click"].sum().backward()
    assert_rows(prediction.logits_BT.grad[:, 0], [-1.0, 0.0, 1.0])


def test_focal_without_focus_is_cross_entropy():
    a, b = Focal(CLICK, gamma=0.0)(predicted()), BCE(CLICK)(predicted())
    assert_rows(a["click"], b["click"].double().tolist())


def test_squared_error_by_hand():
    stars = replace(CLICK, tasks=(TaskSpec("stars", "regression"),))
    assert_rows(MSE(stars)(predicted([1.0, -2.0, 4.5], [3.0, -2.0, 4.0]))["stars"], [4, 0, 0.25])


@pytest.mark.parity("L20", "C4")
def test_each_task_has_the_loss_of_its_kind_times_its_weight():
    prediction = predicted([[0.0, 1.0], [math.log(3), 5.0]], [[1.0, 3.0], [0.0, 4.0]])
    found = ByKind(BOTH)(prediction)
    assert_rows(found["click"], [math.log(2), math.log(4)])
    assert_rows(found["stars"], [4, 1])
    found = ByKind(BOTH, weights={"stars": 0.25})(prediction)
    assert_rows(found["click"], [math.log(2), math.log(4)])
    assert_rows(found["stars"], [1, 0.25])
    assert_rows(ByKind(BOTH, weights=2.0)(prediction)["stars"], [8, 2])


@pytest.mark.parity("L20")
def test_uncertainty_by_hand_and_its_best_variance():
    loss = Uncertainty(BOTH, initial=math.log(2))
    prediction = predicted([[0.0, 1.0], [math.log(3), 5.0]], [[1.0, 3.0], [0.0, 4.0]])
    found = loss(prediction)
    half = math.log(2) / 2
    assert_rows(found["click"].detach(), [math.log(2) / 2 + half, math.log(4) / 2 + half])
    assert_rows(found["stars"].detach(), [4 / 4 + half, 1 / 4 + half])
    # the mean of exp(-s) L + s / 2 is least at s = log(2 mean L), of exp(-s) L / 2 + s / 2 at log L
    mean_click, mean_stars = (math.log(2) + math.log(4)) / 2, 2.5
    with torch.no_grad():
        loss.log_variances.copy_(torch.tensor([2 * mean_click, mean_stars]).log())
    sum(part.mean() for part in loss(prediction).values()).backward()
    torch.testing.assert_close(loss.log_variances.grad, torch.zeros(2), rtol=0, atol=1e-6)


def test_blocks_learn_from_the_models_own_probability_and_it_not_from_them():
    blocks = [[0.3, -1.0, 2.0], [0.9, -2.0, 0.0]]
    blocks_K3 = torch.tensor(blocks, requires_grad=True)
    logits_3 = blocks_K3.mean(0)
    labels_31 = torch.tensor([1.0, 0.0, 1.0])[:, None]
    aux = {"blocks_KBT": blocks_K3[..., None]}
    prediction = replace(predicted([0.0] * 3), logits_BT=logits_3[:, None], labels_BT=labels_31)
    losses = SelfDistillation(CLICK, weight=0.5)(replace(prediction, aux=aux))
    own = [sigmoid((a + b) / 2) for a, b in zip(*blocks)]
    expected = []
    for row, (x, y) in enumerate(zip(logits_3.tolist(), [1, 0, 1])):
        loss = -y * log_sigmoid(x) - (1 - y) * log_sigmoid(-x)
        for block in blocks:
            q, z = own[row], block[row]
            loss += 0.5 * (-q * log_sigmoid(z) - (1 - q) * log_sigmoid(-z))
        expected.append(loss)
    assert list(losses) == ["click"]
    assert_rows(losses["click"], expected)
    losses["click"].sum().backward()
    for k, block in enumerate(blocks):  # half of the mean's own gradient, and s(x_k) - s(x)
        slopes = [(q - y) / 2 + 0.5 * (sigmoid(z) - q) for q, y, z in zip(own, [1, 0, 1], block)]
        assert_rows(blocks_K3.grad[k], slopes)


def plain_jrc(alpha, logits, labels, groups, weights):
    """Row by row, a sum over the rows of the same context that weigh something."""
    calibration, ranking = [], []
    for i, (x, y) in enumerate(zip(logits, labels)):
        calibration.append(-alpha * log_sigmoid(x if y else -x))
        if weights[i] <= 0:
            ranking.append(0.0)
            continue
        sign = 0.5 if y else -0.5
        total = sum(
            math.exp(sign * z)
            for z, g, w in zip(logits, groups, weights)
            if g == groups[i] and w > 0
        )
        ranking.append((1 - alpha) * -math.log(math.exp(sign * x) / total))
    return calibration, ranking


@pytest.mark.parametrize("group", [None, "session"])
def test_joint_ranking_and_calibration_is_its_formula(group):
    groups = [[9, 5], [8, 5], [7, -3], [6, 5], [5, -3], [4, 11], [3, 11], [2, 8]]
    weights = [1.0, 2.0, 0.5, 0.0, 1.0, 0.0, 0.0, 1.0]  # context 11 has no row that counts
    prediction = predicted(weights=weights, groups=groups)
    prediction.logits_BT.requires_grad_()
    found = JRC(CLICK, alpha=0.3, group=group)(prediction)
    assert list(found) == ["calibration/click", "ranking/click"]
    contexts = [g[1] if group else 0 for g in groups]
    calibration, ranking = plain_jrc(0.3, LOGITS, LABELS, contexts, weights)
    assert_rows(found["calibration/click"].detach(), calibration)
    assert_rows(found["ranking/click"].detach(), ranking)
    found["ranking/click"].sum().backward()
    grad_B = prediction.logits_BT.grad[:, 0]
    assert torch.isfinite(grad_B).all()
    absent = torch.tensor(weights) == 0
    assert torch.equal(grad_B[absent], torch.zeros(3))
    # moving all logits of a context changes nothing in the rows' shares of one label each
    step = 1e-3
    for i in torch.nonzero(~absent)[:, 0].tolist():
        moved = [list(LOGITS), list(LOGITS)]
        moved[0][i] += step
        moved[1][i] -= step
        up, down = (sum(plain_jrc(0.3, m, LABELS, contexts, weights)[1]) for m in moved)
        assert float(grad_B[i]) == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-4)


def test_joint_ranking_and_calibration_by_hand():
    # f_1 = x / 2: of logits 0 and log 9 the second has share 3/4, and of f_0 the first
    found = JRC(CLICK, alpha=0.5)(predicted([0.0, math.log(9)], [0.0, 1.0]))
    assert_rows(found["ranking/click"], [0.5 * math.log(4 / 3)] * 2)
    assert_rows(found["calibration/click"], [0.5 * math.log(2), 0.5 * math.log(10 / 9)])


@pytest.mark.parametrize("group", [None, "user"])
def test_a_batch_whose_rows_all_weigh_nothing_has_no_ranking_and_no_nan(group):
    prediction = predicted(weights=[0.0] * 8)
    prediction.logits_BT.requires_grad_()
    losses = JRC(CLICK, group=group)(prediction)
    assert_rows(losses["ranking/click"].detach(), [0.0] * 8)
    sum(part.sum() for part in losses.values()).backward()
    assert torch.isfinite(prediction.logits_BT.grad).all()


AMOUNT = (TaskSpec("spend", "regression", link="log"),)
REFUSED = [
    (BCE, BOTH, {}, "BCE needs binary tasks; 'stars' is regression.*by_kind"),
    (BCE, replace(BOTH, tasks=BOTH.tasks[1:]), {}, "for numbers: model/loss=mse"),
    (
        BCE,
        replace(BOTH, tasks=AMOUNT),
        {},
        "'spend' is regression .for numbers: model/loss=by_kind",
    ),
    (Focal, BOTH, {}, "Focal needs binary tasks"),
    (JRC, BOTH, {}, "JRC needs binary tasks"),
    (SelfDistillation, BOTH, {}, "SelfDistillation needs binary tasks"),
    (SelfDistillation, CLICK, {"weight": -1.0}, "weight=-1.0"),
    (MSE, BOTH, {}, "MSE needs regression tasks; 'click' is binary"),
    (BCE, CLICK, {"label_smoothing": 1.0}, "label_smoothing=1.0"),
    (BCE, CLICK, {"pos_weight": {"clik": 1.0}}, "no task 'clik'; nearest: 'click'"),
    (BCE, CLICK, {"pos_weight": -1.0}, "pos_weight=-1.0: must not be negative"),
    (BCE, CLICK, {"pos_weight": math.nan}, "pos_weight=nan: must be at least 0 and finite"),
    (BCE, CLICK, {"pos_weight": {"click": "2"}}, "pos_weight.click=2: expected number"),
    (Focal, CLICK, {"gamma": -1.0}, "gamma=-1.0"),
    (Focal, CLICK, {"alpha": 1.0}, "alpha=1.0"),
    (JRC, CLICK, {"alpha": 1.5}, "alpha=1.5"),
    (JRC, CLICK, {"group": "sesion"}, "group=sesion.*nearest: 'session'; there are user, session"),
    (JRC, replace(CLICK, groups=()), {"group": "user"}, "group=user.*it has none"),
    (ByKind, BOTH, {"weights": {"star": 1.0}}, "no task 'star'; nearest: 'stars'"),
    (ByKind, BOTH, {"weights": 0.0}, "at least one task must have a weight"),
    *((loss, replace(CLICK, tasks=()), {}, "needs a task") for loss in (BCE, ByKind, Uncertainty)),
]


@pytest.mark.parametrize(("loss", "schema", "settings", "message"), REFUSED)
def test_what_does_not_fit_is_refused_while_building(loss, schema, settings, message):
    with pytest.raises(ValueError, match=message):
        loss(schema, **settings)


THREE = replace(CLICK, tasks=tuple(TaskSpec(f"colour.{n}", one_of="colour") for n in "rgb"))
MIXED = replace(CLICK, tasks=(TaskSpec("click"), *THREE.tasks, TaskSpec("stars", "regression")))


def draw_classes(num_rows=50):
    """Return logits, the class of each row, and the prediction of a model of classes."""
    generator = torch.Generator().manual_seed(0)
    x_BK = 3 * torch.randn(num_rows, 3, generator=generator)
    class_B = torch.randint(0, 3, (num_rows,), generator=generator)
    logits_BT = one_against_rest(x_BK, (slice(0, 3),))
    found = predicted([[0.0]] * num_rows, [[0.0]] * num_rows)
    y_BK = torch.nn.functional.one_hot(class_B, 3).float()
    return x_BK, class_B, replace(found, logits_BT=logits_BT, labels_BT=y_BK)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("given", [None, {"colour.g": 2.5}])
def test_cross_entropy_of_classes_is_that_of_torch(smoothing, given):
    x_BK, class_B, prediction = draw_classes()
    weights = torch.tensor([1.0, 2.5 if given else 1.0, 1.0])
    expected = torch.nn.functional.cross_entropy(
        x_BK, class_B, weights, label_smoothing=smoothing, reduction="none"
    )
    found = BCE(THREE, label_smoothing=smoothing, pos_weight=given)(prediction)
    assert list(found) == ["colour"]
    torch.testing.assert_close(found["colour"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [ByKind, Uncertainty])
def test_a_label_of_classes_is_one_part_beside_others(kind):
    x_BK, class_B, of_classes = draw_classes()
    more = torch.linspace(-2, 2, len(x_BK))[:, None]
    labels_BT = torch.cat(((more > 0).float(), of_classes.labels_BT, more + 1), dim=1)
    logits_BT = torch.cat((more, of_classes.logits_BT, more), dim=1)
    found = kind(MIXED)(replace(of_classes, logits_BT=logits_BT, labels_BT=labels_BT))
    assert list(found) == ["click", "colour", "stars"]
    expected = torch.nn.functional.cross_entropy(x_BK, class_B, reduction="none")
    torch.testing.assert_close(found["colour"], expected, rtol=1e-5, atol=1e-6)
    half = 0.5 if kind is Uncertainty else 1.0  # of a squared error
    torch.testing.assert_close(found["stars"], torch.full((len(x_BK),), half))


def test_a_weight_is_that_of_a_label_of_classes():
    *_, prediction = draw_classes()
    one, half = (ByKind(THREE, weights=w)(prediction)["colour"] for w in (None, {"colour": 0.5}))
    torch.testing.assert_close(half, one / 2)
    with pytest.raises(ValueError, match="weights: the dataset has no task 'colour"):
        ByKind(THREE, weights={"colour.r": 1.0})


@pytest.mark.parametrize("kind", [Focal, JRC, SelfDistillation])
def test_losses_of_two_values_refuse_classes(kind):
    with pytest.raises(ValueError, match="'colour' has classes, which model/loss=bce, by_kind"):
        kind(THREE)
