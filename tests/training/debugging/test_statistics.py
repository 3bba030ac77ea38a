"""Statistics of an update against numbers computed by hand and by plain PyTorch."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from runner.batch import TaskSpec
from runner.config.settings import TrainerSettings
from runner.models.deepfm import DeepFM
from runner.models.losses import BCE
from runner.training.debugging import hooks
from runner.training.debugging.formatting import (
    describe_non_finite,
    format_percent,
    format_short_number,
)
from runner.training.debugging.hooks import collect_modules, collect_parameters
from runner.training.debugging.statistics import Moments
from runner.training.debugging.text_tables import count_own_parameters
from runner.training.loops.debug import debug
from runner.training.update.loss_scale import LossScale
from tests.tiny import CPU, SCHEMA, make_context
from tests.tiny_job import Rows, make_job, output


def rows_of(text: str, title: str) -> dict[str, list[str]]:
    """Return the cells of the printed table with this title, by their first column."""
    block = text.split(f"\n{title}", 1)[1].split("\n\n")[0]
    lines = [line.split() for line in block.splitlines()[2:]]
    return {cells[0]: cells[1:] for cells in lines if cells}


def test_moments_are_of_finite_values_and_count_the_others():
    moments = Moments()
    moments.add(torch.tensor([[1.0, -2.0], [0.0, float("nan")]]))
    moments.add(torch.tensor([[4.0, float("inf")]]))
    assert moments.shape == (3, 2)
    assert (moments.count, moments.bad, moments.zeros) == (6, 2, 1)
    assert moments.mean == 3 / 4
    assert moments.std == pytest.approx(math.sqrt(21 / 4 - 9 / 16))
    assert (moments.least, moments.most, moments.abs_max) == (-2, 4, 4)
    assert moments.rms == pytest.approx(math.sqrt(21 / 4))


def test_moments_of_nothing_finite_are_nan():
    moments = Moments()
    moments.add(torch.tensor([float("nan")]))
    assert math.isnan(moments.mean)
    assert math.isnan(moments.std)
    assert math.isnan(moments.abs_max)
    empty = Moments()
    empty.add(torch.empty(0, 3))
    assert (empty.count, empty.shape) == (0, (0, 3))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_activations_are_those_of_all_rows_of_the_update(accumulate):
    context, twin = make_context(), make_context()
    trainer = TrainerSettings(batch_size=32 // accumulate, accumulate=accumulate)
    job = make_job(context, trainer=trainer, max_steps=1, statistics=True)
    assert debug(job).status == "completed"
    table = rows_of(output(job), "activations in step 1")

    batch = next(Rows().batches("train", batch_size=32))
    with torch.no_grad():
        hidden = twin.model.bottom[0](batch.dense_BD)
        pooled = twin.model.embed(batch).pooled_BE
    for name, x in {"bottom.0": hidden, "bottom.1": hidden.relu(), "embedding": pooled}.items():
        x = x.double()
        shape, *numbers, zeros = table[name]
        assert shape == f"32x{x.shape[1]}"
        expected = [x.mean(), x.std(correction=0), x.min(), x.max()]
        assert numbers == [format_short_number(float(value)) for value in expected]
        assert zeros == format_percent(float((x == 0).double().mean()))


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_gradients_are_those_of_plain_pytorch_whatever_the_loss_scale(scale):
    context, twin = make_context(), make_context()
    if scale is not None:
        context.loss_scale = LossScale(CPU, initial=scale)
    weights = {name: p.detach().clone() for name, p in context.model.named_parameters()}
    rates_zero = make_job(context, max_steps=1, statistics=True)
    debug(rates_zero)
    table = rows_of(output(rates_zero), "gradients in step 1")
    tables = rows_of(output(rates_zero), "tables of embedding in step 1")

    batch = next(Rows().batches("train", batch_size=32))
    at_output = {}

    def watch(name, module, inputs, output):  # a ReLU may overwrite what is retained
        output.register_hook(partial(at_output.__setitem__, name))

    for name in ("bottom.0", "top.2"):
        twin.model.get_submodule(name).register_forward_hook(partial(watch, name))
    boundary = twin.model.embed(batch).detached()
    loss_B = twin.loss(twin.model.dense(boundary, batch))["click"]
    (torch.dot(loss_B, batch.weights_B) / batch.weights_B.sum()).backward()
    after = dict(context.model.named_parameters())
    assert at_output.keys() == {"bottom.0", "top.2"}
    for name, grad in at_output.items():
        module = twin.model.get_submodule(name)
        gradient = torch.cat([p.grad.flatten() for p in module.parameters()]).norm()
        own = [after[f"{name}.{n}"].detach().flatten() for n in ("weight", "bias")]
        cells = table[name]
        assert float(cells[0]) == pytest.approx(float(grad.square().mean().sqrt()), rel=0.05)
        assert float(cells[1]) == pytest.approx(float(grad.abs().max()), rel=0.05)
        assert cells[2] == format_percent(float((grad == 0).double().mean()))
        assert float(cells[3]) == pytest.approx(float(torch.cat(own).norm()), rel=0.01)
        assert float(cells[4]) == pytest.approx(float(gradient), rel=0.05)
    assert weights.keys() == after.keys()
    by_table = dict(zip("abm", boundary.pooled_BE.grad.split(4, dim=1), strict=True))
    for name, gradient in by_table.items():
        ids = batch.sparse[name].values()
        num_rows, num_ids, num_read, part, norm_read, norm_gradient = tables[name]
        assert (num_ids, num_read) == (str(len(ids)), str(len(set(ids.tolist()))))
        assert part == format_percent(len(set(ids.tolist())) / int(num_rows))
        read = context.tables.state()[f"{name}/weight"][ids.unique()]
        assert float(norm_read) == pytest.approx(float(read.norm()), rel=0.01)
        assert float(norm_gradient) == pytest.approx(float(gradient.norm()), rel=0.05)


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_norms_count_the_equal_columns_of_a_first_order_weight_once(num_tasks):
    schema = replace(SCHEMA, tasks=tuple(TaskSpec(f"t{n}") for n in range(num_tasks)))
    model = DeepFM(schema, embedding_dim=4, deep=[8], linear_weights="own")
    loss = BCE(schema)
    context, twin = (make_context(model=m, loss=loss) for m in (deepcopy(model), model))
    job = make_job(context, dataset=Rows(schema=schema), max_steps=1, statistics=True)
    assert debug(job).status == "completed"
    tables = rows_of(output(job), "tables of embedding in step 1")
    batch = next(Rows(schema=schema).batches("train", batch_size=32))
    boundary = twin.model.embed(batch).detached()
    loss_B = sum(twin.loss(twin.model.dense(boundary, batch)).values())
    (torch.dot(loss_B, batch.weights_B) / batch.weights_B.sum()).backward()
    equal = 4 // num_tasks
    first_order = boundary.pooled_BE.grad[:, 12::equal].unflatten(1, (3, num_tasks))
    for number, name in enumerate("abm"):
        read = context.tables.state()[f"{name}:linear/weight"][batch.sparse[name].values().unique()]
        *_, norm_read, norm_gradient = tables[f"{name}:linear"]
        assert float(norm_read) == pytest.approx(float(read[:, ::equal].norm()), rel=0.01)
        gradient = first_order[:, number]
        assert float(norm_gradient) == pytest.approx(float(gradient.norm()), rel=0.05)


def test_modules_that_are_never_called_and_weights_of_the_model_itself_are_listed():
    context = make_context()
    context.model.spare = nn.Linear(2, 2)
    context.model.bias = nn.Parameter(torch.ones(3))
    job = make_job(context, statistics=True, summary=True)
    assert debug(job).status == "completed"
    assert rows_of(output(job), "activations")["spare"][:2] == ["not", "called"]
    assert rows_of(output(job), "gradients")["(model)"][-3:] == ["1.73", "-", "-"]
    assert rows_of(output(job), "modules")["(model)"] == ["3"]


def test_the_tables_fit_80_columns():
    job = make_job(make_context(), statistics=True, summary=True)
    debug(job)
    assert max(map(len, output(job).splitlines())) <= 80


class Slow(nn.Module):
    """Takes a given time forward and backward, by the clock of the test."""

    def __init__(self, clock: list[float], forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module = self

        class Wait(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                module.clock[0] += module.forward_s
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                module.clock[0] += module.backward_s
                return gradient.clone()

        return Wait.apply(x)


def test_each_moment_of_an_update_is_counted_once_for_its_innermost_part(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(hooks, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    context = make_context()
    context.model.bottom.append(Slow(clock, 1.0, 2.0))
    context.model.top.insert(0, Slow(clock, 3.0, 4.0))

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            clock[0] += 5.0
            super().step(closure)

    class SlowRows(Rows):
        def batches(self, *args, **how):
            for batch in super().batches(*args, **how):
                clock[0] += 10.0
                yield batch

    context.dense_optimizer = Optimizer(context.dense_parameters, lr=0.1)
    job = make_job(context, dataset=SlowRows(), summary=True, statistics=True, max_steps=4)
    debug(job)
    assert "share of time over 3 updates" in output(job)
    table = rows_of(output(job), "modules")
    assert table["bottom.4"][-2:] == ["4.0%", "8.0%"]
    assert table["top.0"][-2:] == ["12.0%", "16.0%"]
    assert table["(optimizer)"] == ["20.0%", "0%"]
    assert table["(data)"] == ["40.0%", "0%"]
    assert table["an"][-2:] == ["25000.0", "ms"]
    assert table["bottom.0"][-2:] == ["0%", "0%"]


def test_parameters_of_the_summary_add_up_to_the_model():
    context = make_context()
    job = make_job(context, summary=True)
    debug(job)
    in_tables = (50 + 20 + 30) * 4
    dense = sum(p.numel() for p in context.model.parameters())
    modules = collect_modules({"": context.model})
    assert count_own_parameters(modules["embedding"]) == in_tables
    assert rows_of(output(job), "modules")["an"][1] == f"{in_tables + dense:,}"


def test_the_observed_modules_are_those_that_compute_each_once():
    context = make_context()
    context.model.again = context.model.top[0]
    roots = {"": context.model, "(loss)": context.loss, "(task)": object()}
    assert list(collect_modules(roots)) == [
        *("embedding", "embedding_drop", "bottom.0", "bottom.1", "bottom.2", "bottom.3"),
        *("interaction", "top.0", "top.1", "top.2", "(loss)"),
    ]
    context.model.top[0].weight.requires_grad_(False)
    assert "top.0.weight" not in collect_parameters(roots)
    assert "top.0.bias" in collect_parameters(roots)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (None, "-"),
        (float("nan"), "nan"),
        (-float("inf"), "-inf"),
        (-0.012345, "-0.0123"),
        (-0.0012345, "-1.2e-3"),
        (999.4, "999"),
        (-98765.4, "-98765"),
        (123456.0, "1.2e5"),
        (3.4e38, "3.4e38"),
        (999.96, "1000"),
    ],
)
def test_numbers_take_seven_characters_at_most(value, text):
    assert format_short_number(value) == text
    assert len(format_short_number(value)) <= 7


def test_the_share_of_bad_values_names_their_kinds():
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), *[0.0] * 2996])
    assert describe_non_finite(x) == "3 of 3,000 values (0.1%: 1 NaN, 2 infinite)"
