"""Tables of any width against twins that have this width, and what is left of the padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from runner.embeddings.factory import build_tables
from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.interface import Placement
from runner.embeddings.padded_tables import PaddedTables
from runner.optim.settings import SPARSE_KINDS
from tests.devices import CPU, DEVICES, tolerance
from tests.embeddings.test_tables import (
    FEATURES,
    ROWWISE,
    SPECS,
    Twin,
    jagged,
    settings_of,
    state_names,
)

# 8 is stored as it is; the padding of the others is 2, 3 and 1 columns
ODD = tuple(replace(spec, dim=dim) for spec, dim in zip(SPECS, (10, 5, 7)))
MIXED = tuple(replace(spec, dim=dim) for spec, dim in zip(SPECS, (8, 10, 3)))


def tables_of(kind, specs, device=CPU):
    tables = build_tables(specs, FEATURES, settings_of(kind), seed=0, device=device)
    torch.manual_seed(1)
    for name, tensor in sorted(tables.state().items()):
        if name.endswith("/weight"):
            tensor.copy_(torch.randn(tensor.shape))
    return tables


@pytest.mark.parametrize("specs", [ODD, MIXED], ids=["odd", "mixed"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_three_steps_equal_a_twin_of_the_true_width(kind, device, specs):
    """Row-wise rules take the mean over the true width, LARS and LAMB the norm."""
    settings = settings_of(kind)
    tables = tables_of(kind, specs, device)
    near = {"rtol": tolerance(device, 2e-5, 1e-4), "atol": tolerance(device, 2e-6, 1e-5)}
    twin = Twin(tables.state(), settings, specs)
    for step, (seed, batch_size) in enumerate([(1, 5), (2, 5), (3, 3)], start=1):
        kjt = jagged(seed, batch_size, weighted=True)
        tables.set_lr_and_step(0.05 / step, step)
        ours, theirs = tables(kjt.to(device)), twin.forward(kjt)
        torch.testing.assert_close(ours.double().cpu(), theirs, **near)
        grad = torch.randn(ours.shape)
        ours.backward(grad.to(device))
        theirs.backward(grad.double())
        twin.update(0.05 / step, step)
    state = tables.state()
    assert set(state) == {f"{s.name}/{k}" for s in specs for k in ("weight", *state_names(kind))}
    for spec in specs:
        weight = state[f"{spec.name}/weight"].double().cpu()
        torch.testing.assert_close(weight, twin.weight[spec.name].detach(), **near)
        # the second moment of a row is a mean, which the padding must not make smaller
        key = state_names(kind)[-1:]
        for row, expected in twin.moments[spec.name][len(state_names(kind)) - 1].items():
            stored = state[f"{spec.name}/{key[0]}"][row].double().cpu()
            torch.testing.assert_close(stored, expected.double(), **near)


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_width_10_equals_an_embedding_bag_under_torch_optim(kind):
    [spec] = specs = (replace(ODD[0], features=("s1",)),)
    tables = build_tables(specs, ("s1",), replace(settings_of(kind), eps=1e-10), seed=0, device=CPU)
    bag = nn.EmbeddingBag(spec.num_rows, 10, mode="sum", include_last_offset=True)
    bag.weight.data.copy_(tables.state()["shared/weight"])
    optimizer = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[kind](
        bag.parameters(), lr=0.05
    )
    for step in (1, 2, 3):
        one = jagged(step)["s1"]
        tables.set_lr_and_step(0.05, step)
        ours, theirs = tables(one_feature(one)), bag(one.values(), one.offsets())
        assert ours.shape == (5, 10)
        torch.testing.assert_close(ours, theirs)
        optimizer.zero_grad()
        ours.square().sum().backward()
        theirs.square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(tables.state()["shared/weight"], bag.weight.detach())


def one_feature(jt):
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    return KeyedJaggedTensor(["s1"], jt.values(), lengths=jt.lengths())


@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_the_padding_is_never_trained_and_shows_nowhere(kind):
    tables = tables_of(kind, ODD[:1] + ODD[1:])
    for step in (1, 2):
        tables.set_lr_and_step(0.05, step)
        tables(jagged(step)).square().sum().backward()
    padded = [tables] if isinstance(tables, PaddedTables) else tables._members
    assert (len(padded) > 1) == (kind in ROWWISE)  # each mean needs a rate of its own
    for member in padded:
        for key, stored in member._engine.state().items():
            table = next(s for s in ODD if s.name == key.split("/")[0])
            if stored.dim() == 2:
                assert stored.shape[1] == -(-table.dim // 4) * 4
                assert not stored[:, table.dim :].any(), key
    for key, tensor in tables.state().items():
        table = next(s for s in ODD if s.name == key.split("/")[0])
        assert tensor.shape[1:] in ((table.dim,), ())
    assert tables.output_width == sum(t.dim * len(t.features) for t in ODD)


def test_widths_that_kernels_store_are_built_as_they_always_were():
    tables = build_tables(SPECS, FEATURES, settings_of("sgd"), seed=0, device=CPU)
    assert type(tables) is FbgemmTables


def test_a_shard_of_padding_alone_is_no_shard():
    tables = tables_of("adagrad", ODD)
    shards = [Placement("shared", "column_wise", r, 0, 7, 4 * r, 4) for r in range(3)]
    shards += [Placement("a", "column_wise", r, 0, 5, 4 * r, 4) for r in range(2)]
    tables._engine.placement = lambda: [*shards, Placement("b", "x", 0, 0, 6, 7, 1)]
    kept = [(p.table, p.first_column, p.num_columns) for p in tables.placement()]
    assert kept == [("shared", 0, 4), ("shared", 4, 4), ("shared", 8, 2), ("a", 0, 4), ("a", 4, 1)]


def test_tables_of_one_width_and_of_several_learn_alike():
    """Vectors of one width are cut by another way than columns of several."""
    one_width = tuple(replace(spec, dim=10) for spec in SPECS)
    for kind in ("sgd", "rowwise_adagrad"):
        alike = [tables_of(kind, one_width) for _ in range(2)]
        assert alike[1]._only_width == 10
        alike[1]._only_width = None
        for step in (1, 2):
            for tables in alike:
                tables.set_lr_and_step(0.05, step)
                pooled = tables(jagged(step))
                pooled.backward(pooled.detach().cos())
        for name, tensor in alike[0].state().items():
            assert torch.equal(tensor, alike[1].state()[name]), name
