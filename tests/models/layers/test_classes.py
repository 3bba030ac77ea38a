"""Logits of classes against the rest, whose sigmoid is the softmax, and what they allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from runner.batch import TaskSpec, class_columns, columns_by_label
from runner.models import DeepFM, WideAndDeep
from runner.models.layers.recommender import one_against_rest
from tests.models.scene import SCHEMA

CLASSES = tuple(TaskSpec(f"colour.{n}", one_of="colour") for n in "rgb")
OF_CLASSES = replace(SCHEMA, tasks=CLASSES)


@pytest.mark.parametrize("num_classes", [2, 3, 20])
def test_their_sigmoid_is_the_softmax(num_classes):
    x_BK = 4 * torch.randn(100, num_classes, generator=torch.Generator().manual_seed(1))
    found = one_against_rest(x_BK, (slice(0, num_classes),))
    torch.testing.assert_close(found.sigmoid(), x_BK.softmax(1), rtol=1e-5, atol=1e-7)


def test_other_columns_stay_as_they_are():
    x_BT = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    found = one_against_rest(x_BT, (slice(1, 3), slice(4, 7)))
    assert torch.equal(found[:, [0, 3]], x_BT[:, [0, 3]])
    torch.testing.assert_close(found[:, 4:7].sigmoid(), x_BT[:, 4:7].softmax(1))
    torch.testing.assert_close(found[:, 1:3].sigmoid(), x_BT[:, 1:3].softmax(1))


def test_logits_far_apart_and_equal_ones_have_finite_gradients():
    x_BK = torch.tensor([[500.0, -500.0, 0.0], [2.0, 2.0, 2.0], [-3e4, -3e4, 3e4]])
    x_BK.requires_grad_()
    found = one_against_rest(x_BK, (slice(0, 3),))
    expected = torch.tensor([[500.0, -1000.0, -500.0], [-0.6931] * 3, [-6e4, -6e4, 6e4]])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    torch.nn.functional.softplus(-found).sum().backward()
    assert x_BK.grad.isfinite().all()


def test_the_gradient_of_the_loss_is_that_of_torch():
    x_BK = torch.randn(40, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    class_B = torch.arange(40) % 4
    ours, theirs = x_BK.clone().requires_grad_(), x_BK.clone().requires_grad_()
    own_BK = one_against_rest(ours, (slice(0, 4),))
    torch.nn.functional.softplus(-own_BK[torch.arange(40), class_B]).sum().backward()
    torch.nn.functional.cross_entropy(theirs, class_B, reduction="sum").backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_columns_by_label_need_classes_side_by_side():
    tasks = (TaskSpec("click"), *CLASSES, TaskSpec("buy"))
    assert list(columns_by_label(tasks)) == ["click", "colour", "buy"]
    assert class_columns(tasks) == {"colour": slice(1, 4)}
    with pytest.raises(ValueError, match="the classes of colour must stand side by side"):
        columns_by_label((CLASSES[0], TaskSpec("click"), *CLASSES[1:]))


def test_a_shared_linear_half_is_refused_since_a_softmax_ignores_it():
    with pytest.raises(ValueError, match="changes none of their probabilities; linear_weights=own"):
        WideAndDeep(OF_CLASSES, embedding_dim=4, deep=[8], linear_weights="shared")


@pytest.mark.parametrize(
    "make",
    [
        lambda schema: WideAndDeep(
            schema, embedding_dim=4, deep=[8], pairs=True, linear_weights="own"
        ),
        lambda schema: DeepFM(schema, embedding_dim=4, deep=[8], linear_weights="own"),
    ],
)
def test_dot_products_are_weighed_by_each_class(make):
    """What is the same to all classes would change no probability; one label has no weights."""
    model = make(OF_CLASSES)
    x_BND = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(4))
    dots = [x_BND[:, a] * x_BND[:, b] for a in range(3) for b in range(a)]
    expected = sum(dots) @ model.pairs.weights.weight.t()
    torch.testing.assert_close(model.pairs(x_BND), expected)
    assert make(SCHEMA).pairs.weights is None
    torch.testing.assert_close(make(SCHEMA).pairs(x_BND), sum(dots).sum(1, keepdim=True))
