"""The gradient through an inner loop is that of the loss after the user's steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from experiments.meta_learning import MeLU, Meta
from runner.batch import Schema, SparseFeature, TaskSpec

# U users, S support and Q query ratings, E width of a pair's embedding
SCHEMA = Schema(
    dense=(),
    sparse=tuple(SparseFeature(n, 5) for n in ("gender", "age", "occupation", "item")),
    tasks=(TaskSpec("label"),),
)


def loss_after(model: MeLU, meta: Meta, data: dict[str, Tensor]) -> Tensor:
    weights = meta.adapt(model, data["support_USE"], data["liked_US"], data["known_US"])
    logits_UQ = model.decide(weights, data["query_UQE"])
    return functional.binary_cross_entropy_with_logits(logits_UQ, data["asked_UQ"])


@pytest.fixture
def scene():
    torch.manual_seed(0)
    model = MeLU(SCHEMA, embedding_dim=2, hidden=[5, 4]).double()
    data = {
        "support_USE": torch.randn(3, 4, 8, dtype=torch.double),
        "liked_US": (torch.rand(3, 4) < 0.5).double(),
        "known_US": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool(),
        "query_UQE": torch.randn(3, 6, 8, dtype=torch.double),
        "asked_UQ": (torch.rand(3, 6) < 0.5).double(),
    }
    return model, data


@pytest.mark.parity("C3")
def test_the_gradient_is_the_slope_of_the_loss_after_the_inner_loop_second_order_and_all(scene):
    model, data = scene
    parameters = list(model.layers.parameters())
    meta = Meta(inner_steps=2, inner_lr=0.5)
    found = torch.autograd.grad(loss_after(model, meta, data), parameters)
    ways = [torch.randn_like(p) for p in parameters]
    slope = sum((g * w).sum() for g, w in zip(found, ways))

    def moved(by: float) -> Tensor:
        with torch.no_grad():
            for p, way in zip(parameters, ways):
                p += by * way
        loss = loss_after(model, meta, data).detach()
        with torch.no_grad():
            for p, way in zip(parameters, ways):
                p -= by * way
        return loss

    step = 1e-6
    measured = (moved(step) - moved(-step)) / (2 * step)
    assert slope.item() == pytest.approx(measured.item(), rel=1e-6)
    # what leaves the second order out is something else by far more than that
    first = first_order(model, meta, data)
    assert abs(sum((g * w).sum() for g, w in zip(first, ways)) - measured) > 1e-3


def first_order(model: MeLU, meta: Meta, data: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The gradient as if the inner loop's own steps did not depend on the shared weights."""
    weights = meta.adapt(model, data["support_USE"], data["liked_US"], data["known_US"])
    own = [w.detach().requires_grad_() for w in weights]
    logits_UQ = model.decide(own, data["query_UQE"])
    loss = functional.binary_cross_entropy_with_logits(logits_UQ, data["asked_UQ"])
    slopes = torch.autograd.grad(loss, own)
    shared = list(model.layers.parameters())
    return tuple(s.sum(0).view_as(p) for s, p in zip(slopes, shared, strict=True))


def test_each_user_steps_on_his_own_ratings_alone(scene):
    """Beside a loop over users in plain PyTorch, whose padded ratings are left out by hand."""
    model, data = scene
    weights = Meta(inner_steps=1, inner_lr=0.5).adapt(
        model, data["support_USE"], data["liked_US"], data["known_US"]
    )
    shared = [p.detach() for p in model.layers.parameters()]
    for user, known in enumerate(data["known_US"]):
        own = [p.clone().requires_grad_() for p in shared]
        x = data["support_USE"][user][known]
        for i in range(0, len(own), 2):
            x = functional.linear(x, own[i], own[i + 1])
            x = x.relu() if i + 2 < len(own) else x
        liked = data["liked_US"][user][known]
        loss = functional.binary_cross_entropy_with_logits(x[:, 0], liked)
        slopes = torch.autograd.grad(loss, own)
        for ours, p, slope in zip(weights, own, slopes):
            torch.testing.assert_close(ours[user].view_as(p), p.detach() - 0.5 * slope)
