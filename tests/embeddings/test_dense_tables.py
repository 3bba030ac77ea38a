"""Tables whose every row is updated, against `torch.optim` on nn.EmbeddingBag and a penalty."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from runner.embeddings.factory import build_tables, check_every_row
from runner.embeddings.interface import TableSpec
from runner.errors import ConfigError
from runner.optim.settings import EVERY_ROW_LIMIT, SPARSE_KINDS, SparseSettings
from tests.devices import CPU, DEVICES, tolerance
from tests.embeddings.test_tables import FEATURES, SPECS, Twin, jagged, settings_of

L2 = 0.1
TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3),
}
WIDE = tuple(replace(spec, dim=dim) for spec, dim in zip(SPECS, (10, 4, 7)))


def tables_of(kind, specs, device=CPU, **more):
    settings = replace(settings_of(kind), weight_decay=0.0, every_row=True, l2_tables=L2, **more)
    tables = build_tables(specs, FEATURES, settings, seed=0, device=device)
    torch.manual_seed(1)
    for name, tensor in sorted(tables.state().items()):
        if name.endswith("/weight"):
            tensor.copy_(torch.randn(tensor.shape))
    return tables


def bags_of(tables, specs) -> nn.ModuleDict:
    bags = nn.ModuleDict()
    for spec in specs:
        bag = nn.EmbeddingBag(spec.num_rows, spec.dim, mode=spec.pooling, include_last_offset=True)
        bag.weight.data.copy_(tables.state()[f"{spec.name}/weight"])
        bags[spec.name] = bag
    return bags


def pooled_by(bags, specs, kjt):
    table_of = {name: spec.name for spec in specs for name in spec.features}
    return torch.cat([bags[table_of[f]](kjt[f].values(), kjt[f].offsets()) for f in FEATURES], 1)


def l2_loss(bags) -> torch.Tensor:
    """FuxiCTR's regularization_loss with p = 2: lambda / p * torch.norm(w, p) ** p per table."""
    return sum(L2 / 2 * torch.norm(bag.weight, 2) ** 2 for bag in bags.values())


@pytest.mark.parametrize("specs", [SPECS, WIDE], ids=["multiples of 4", "any width"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", TORCH)
def test_four_steps_equal_torch_optim_with_the_penalty_in_the_loss(kind, device, specs):
    """Rows that no example looks up move, too, and under Adam on what is left of their moments."""
    tables = tables_of(kind, specs, device)
    start = {name: t.clone() for name, t in tables.state().items()}
    bags = bags_of(tables, specs)
    optimizer = TORCH[kind](bags.parameters())
    for step, (seed, size) in enumerate([(1, 5), (2, 2), (3, 3), (4, 1)], start=1):
        kjt = jagged(seed, size)
        optimizer.zero_grad()
        tables.set_lr_and_step(0.05 / step, step)
        optimizer.param_groups[0]["lr"] = 0.05 / step
        ours, theirs = tables(kjt.to(device)), pooled_by(bags, specs, kjt)
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
        grad = torch.randn(ours.shape)
        ours.backward(grad.to(device))
        ((theirs * grad).sum() + l2_loss(bags)).backward()
        optimizer.step()
        for spec in specs:
            weight = tables.state()[f"{spec.name}/weight"].cpu()
            torch.testing.assert_close(
                weight,
                bags[spec.name].weight.detach(),
                rtol=tolerance(device, 2e-5, 1e-4),
                atol=1e-5,
            )
    row = 6  # of a table of 7, whose ids in the batches are below 5
    assert not torch.equal(tables.state()["shared/weight"][row], start["shared/weight"][row])


class EveryRowTwin(Twin):
    """The twin in which every row is touched and the loss has the penalty."""

    def update(self, lr: float, step: int) -> None:
        for name, weight in self.weight.items():
            self.touched[name] = set(range(len(weight)))
            weight.grad += self.settings.l2_tables * weight.detach()
        super().update(lr, step)


@pytest.mark.parametrize("specs", [SPECS, WIDE], ids=["multiples of 4", "any width"])
@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_every_rule_equals_its_float64_twin_on_every_row(kind, specs):
    decay = settings_of(kind).weight_decay
    tables = tables_of(kind, specs)
    tables = build_tables(
        specs, FEATURES, replace(tables.settings, weight_decay=decay), seed=0, device=CPU
    )
    twin = EveryRowTwin(tables.state(), tables.settings, specs)
    for step, (seed, size) in enumerate([(1, 5), (2, 2), (3, 3)], start=1):
        kjt = jagged(seed, size, weighted=True)
        tables.set_lr_and_step(0.05, step)
        ours, theirs = tables(kjt), twin.forward(kjt)
        grad = torch.randn(ours.shape)
        ours.backward(grad)
        theirs.backward(grad.double())
        twin.update(0.05, step)
    for name, weight in twin.weight.items():
        stored = tables.state()[f"{name}/weight"].double()
        torch.testing.assert_close(stored, weight.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["adam", "rowwise_adagrad"])
def test_copying_into_state_resumes_bit_for_bit(kind):
    def train(tables, steps):
        for step in steps:
            tables.set_lr_and_step(0.05, step)
            pooled = tables(jagged(step, weighted=True))
            pooled.backward(torch.full_like(pooled, 0.3) * pooled.detach().sign())

    whole, before, after = (tables_of(kind, WIDE) for _ in range(3))
    train(whole, range(1, 7))
    train(before, range(1, 4))
    for name, tensor in after.state().items():
        tensor.copy_(before.state()[name])
    train(after, range(4, 7))
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, after.state()[name]), name


def test_a_look_up_alone_changes_nothing():
    tables = tables_of("adam", SPECS)
    before = {name: t.clone() for name, t in tables.state().items()}
    with torch.inference_mode():
        tables(jagged(1))
    tables(jagged(1))
    assert all(torch.equal(t, before[name]) for name, t in tables.state().items())


def test_a_table_too_large_for_passes_over_all_rows_is_refused_by_name():
    specs = [TableSpec("user", EVERY_ROW_LIMIT + 1, 4, ("u",)), TableSpec("city", 9, 4, ("c",))]
    check_every_row(specs, SparseSettings("adam", 0.1), "optimizer.sparse")
    with pytest.raises(ConfigError, match=r"optimizer\.sparse\.every_row=true.*10,000,001.*user"):
        check_every_row(specs, SparseSettings("adam", 0.1, every_row=True), "optimizer.sparse")
