"""Rows without gradient under LARS and LAMB, with a kernel that divides by zero as on CUDA."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.embeddings.cpu_tables import CpuTables
from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.interface import Layout, TableSpec, make_layout
from runner.embeddings.row_updates import STATE_NAMES, UPDATE_RULES, UpdateStep
from runner.embeddings.zero_gradient_rows import NORM_SCALED_KINDS, protect_zero_gradient_rows
from runner.optim.settings import SPARSE_KINDS, SparseSettings
from tests.devices import CPU, DEVICES

SPECS = (TableSpec("shared", 7, 8, ("s1", "s2")), TableSpec("a", 5, 8, ("a",)))
FEATURES = ("s1", "s2", "a")


class DividingKernel(nn.Module):
    """Sum-pooled tables with FBGEMM's interface, as far as it is used.

    Its update is the rule of the CPU, but gives NaN where the CUDA kernel has 0 / 0.
    """

    def __init__(self, layout: Layout, settings: SparseSettings, like: CpuTables) -> None:
        super().__init__()
        self.settings, self.step = settings, 0
        self.feature_table_map = list(layout.table_of)
        state = {name: tensor.clone() for name, tensor in like.state().items()}
        self.weights = [state[f"{t.name}/weight"] for t in layout.tables]
        names = STATE_NAMES[settings.kind]
        self.states = [[state[f"{t.name}/{n}"] for n in names] for t in layout.tables]
        self.anchor = torch.zeros((), requires_grad=True)

    def split_embedding_weights(self) -> list[Tensor]:
        return self.weights

    def split_optimizer_states(self) -> list[list[Tensor]]:
        return self.states

    def forward(self, indices: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        return _LookUp.apply(self.anchor, self, indices, offsets)

    def bags(self, indices: Tensor, offsets: Tensor):
        """Yield the table, the ids, the bag of each id and the batch size of every feature."""
        size = (len(offsets) - 1) // len(self.feature_table_map)
        for f, table in enumerate(self.feature_table_map):
            feature_offsets = offsets[f * size : (f + 1) * size + 1]
            bag_V = torch.repeat_interleave(torch.arange(size), feature_offsets.diff())
            yield table, indices[feature_offsets[0] : feature_offsets[-1]], bag_V, size

    def update(self, grads: list[Tensor], touched: list[Tensor]) -> None:
        for table, (grad, ids_V) in enumerate(zip(grads, touched)):
            rows_U = ids_V.unique()
            weight, states = self.weights[table][rows_U], [s[rows_U] for s in self.states[table]]
            norm_U = grad[rows_U].norm(dim=1)
            if "lamb" in self.settings.kind:
                norm_U = norm_U + states[0].norm(dim=1)
            update = UpdateStep(self.settings, 0.1, self.step)
            UPDATE_RULES[self.settings.kind](weight, states, grad[rows_U], update)
            weight[norm_U == 0] = torch.nan
            if self.settings.kind == "lars_sgd":
                states[0][norm_U == 0] = torch.nan
            for whole, part in zip((self.weights[table], *self.states[table]), (weight, *states)):
                whole[rows_U] = part


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, kernel, indices, offsets):
        ctx.kernel, ctx.ids = kernel, (indices, offsets)
        pooled = [
            torch.zeros(size, 8).index_add_(0, bag_V, kernel.weights[table][ids_V])
            for table, ids_V, bag_V, size in kernel.bags(indices, offsets)
        ]
        return torch.cat(pooled, dim=1)

    @staticmethod
    def backward(ctx, grad_BE):
        kernel = ctx.kernel
        grads = [torch.zeros_like(weight) for weight in kernel.weights]
        touched = [torch.zeros(0, dtype=torch.int64) for _ in kernel.weights]
        found = kernel.bags(*ctx.ids)
        for (table, ids_V, bag_V, _), grad_BD in zip(found, grad_BE.split(8, dim=1)):
            grads[table].index_add_(0, ids_V, grad_BD[bag_V])
            touched[table] = torch.cat((touched[table], ids_V))
        kernel.update(grads, touched)
        return None, None, None, None


def ids(seed: int) -> KeyedJaggedTensor:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (15,), generator=g)
    values = torch.randint(0, 5, (int(lengths.sum()),), generator=g)
    return KeyedJaggedTensor(list(FEATURES), values, lengths=lengths)


@pytest.mark.parametrize("kind", NORM_SCALED_KINDS)
def test_rows_of_examples_without_weight_follow_the_rule_of_the_cpu(kind):
    settings = SparseSettings(kind, 0.1, eps=1e-3)
    layout = make_layout(SPECS, FEATURES, by_dim=False)
    exact = CpuTables(layout, settings, CPU)
    for name, tensor in exact.state().items():
        if name.endswith("/weight"):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)))
    bare, protected = (DividingKernel(layout, settings, exact) for _ in range(2))
    protect_zero_gradient_rows(protected, settings)
    became_nan = False
    for step in (1, 2, 3):
        kjt = ids(step)
        grad = torch.randn(5, 24, generator=torch.Generator().manual_seed(step))
        grad[:4] *= step != 1  # at first one example has a weight, then all of them
        exact.set_lr_and_step(0.1, step)
        expected = exact(kjt)
        expected.backward(grad)
        for kernel in (bare, protected):
            kernel.step = step
            kernel(indices=kjt.values(), offsets=kjt.offsets()).backward(grad)
        with torch.no_grad():
            protected(kjt.values(), kjt.offsets())  # an evaluation updates nothing
        became_nan |= any(bool(weight.isnan().any()) for weight in bare.weights)
        state = exact.state()
        for spec, weight, states in zip(SPECS, protected.weights, protected.states):
            torch.testing.assert_close(weight, state[f"{spec.name}/weight"])
            for name, moment in zip(STATE_NAMES[kind], states):
                torch.testing.assert_close(moment, state[f"{spec.name}/{name}"])
    assert became_nan, "the kernel alone has rows of NaN"


@pytest.mark.parametrize("kind", sorted(set(SPARSE_KINDS) - set(NORM_SCALED_KINDS)))
def test_optimizers_that_divide_by_no_norm_are_left_alone(kind):
    kernel = nn.Linear(1, 1)
    protect_zero_gradient_rows(kernel, SparseSettings(kind, 0.1))
    assert not kernel._forward_hooks


@pytest.mark.parametrize("device", DEVICES)
def test_fbgemm_has_updated_its_tables_when_the_hook_of_its_node_is_called(device):
    """The protection relies on this: nothing lies between the update and the module's output."""
    layout = make_layout(SPECS, FEATURES, by_dim=False)
    tables = FbgemmTables(layout, SparseSettings("adagrad", 0.1), device)
    for tensor in tables.state().values():
        tensor.fill_(1.0)
    moved: list[bool] = []

    def after_look_up(module, args, named, pooled_BE):
        before = {name: tensor.clone() for name, tensor in tables.state().items()}

        def seen(*_) -> None:
            state = tables.state().items()
            moved.extend(not torch.equal(tensor, before[name]) for name, tensor in state)

        pooled_BE.grad_fn.register_hook(seen)

    tables._tbe[0].register_forward_hook(after_look_up, with_kwargs=True)
    tables.set_lr_and_step(0.1, 1)
    tables(ids(1).to(device)).square().sum().backward()
    assert moved == [True] * 4
