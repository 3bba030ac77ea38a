"""What a task may do with its context: step optimizers with and without closure, add modules."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from runner.distributed.ranks import SINGLE_PROCESS, Ranks
from runner.errors import ConfigError, UserError
from runner.optim.settings import ClipSettings
from runner.training.update.logged_means import RunningMeans
from runner.training.update.loss_scale import LossScale
from runner.training.update.task import Supervised, check_closure_optimizers
from tests.tiny import CPU, make_context, random_batch, snapshot


def frozen_tables(**settings):
    """A context whose dense half is trained by L-BFGS and whose tables are frozen."""
    context = make_context(micro_batch_size=settings.pop("micro", 1 << 20))
    context.table_groups = {}
    inner = context.tables._pool

    def pool(kjt):
        with torch.no_grad():
            return inner(kjt)

    context.tables._pool = pool  # type: ignore[method-assign]
    context.dense_optimizer = torch.optim.LBFGS(context.dense_parameters, **settings)
    return context


@pytest.mark.parametrize(
    ("line_search", "micro"),
    [(None, 64), (None, 7), ("strong_wolfe", 64)],  # a line search amplifies rounding
)
@pytest.mark.parity("L1")
def test_lbfgs_makes_the_steps_of_plain_pytorch(line_search, micro):
    settings = {"lr": 0.5, "max_iter": 5, "history_size": 4, "line_search_fn": line_search}
    context, twin = frozen_tables(micro=micro, **settings), frozen_tables(**settings)
    for seed in range(3):
        batch = random_batch(64, seed)
        output = Supervised().train_step(context, iter([batch]))
        assert output.applied
        seen = []

        def closure(batch=batch, seen=seen):
            twin.dense_optimizer.zero_grad()
            loss_B = twin.loss(twin.model(batch))["click"]
            loss = torch.dot(loss_B, batch.weights_B) / batch.weights_B.sum()
            loss.backward()
            seen.append(loss_B.detach())
            return loss

        twin.dense_optimizer.step(closure)
        first = torch.cat([losses["click"] for losses in output.losses])
        torch.testing.assert_close(first, seen[0], rtol=0, atol=2e-5)
    ours, theirs = snapshot(context), snapshot(twin)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=2e-4, msg=name)


def test_lbfgs_takes_the_same_steps_wherever_in_memory_the_weights_of_rows_begin():
    settings = {"lr": 0.5, "max_iter": 5, "line_search_fn": "strong_wolfe"}
    contexts = [frozen_tables(**settings) for _ in range(4)]
    for begin, context in enumerate(contexts):  # as where a resume reads from its position on
        for seed in range(3):
            batch = random_batch(64, seed)
            weights_B = torch.cat((torch.zeros(begin), batch.weights_B))[begin:]
            Supervised().train_step(context, iter([replace(batch, weights_B=weights_B)]))
    first, *others = map(snapshot, contexts)
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


@pytest.mark.parametrize("at", [1, 3])
def test_a_closure_that_is_not_finite_leaves_everything_as_it_was(at):
    context = frozen_tables(lr=0.5, max_iter=6)
    Supervised().train_step(context, iter([random_batch(64, 0)]))
    before = snapshot(context)
    states = dict(next(iter(context.dense_optimizer.state.values())))
    directions = [d.clone() for d in states["old_dirs"]]
    calls = []

    def closure():
        calls.append(1)
        loss = sum(p.square().sum() for p in context.dense_parameters)
        loss = loss * (math.nan if len(calls) == at else 1.0)
        context.backward(loss)
        return loss

    assert not context.step(context.dense_optimizer, closure)
    assert len(calls) == at
    after = snapshot(context)
    assert all(torch.equal(after[n], before[n]) for n in before)
    now = next(iter(context.dense_optimizer.state.values()))
    assert [d.tolist() for d in now["old_dirs"]] == [d.tolist() for d in directions]
    assert now["n_iter"] == states["n_iter"]


def test_every_evaluation_of_a_closure_draws_the_same_numbers():
    context, drawn = frozen_tables(lr=0.1, max_iter=3), []

    def closure():
        drawn.append(torch.rand(2).tolist())
        loss = sum(p.square().sum() for p in context.dense_parameters)
        context.backward(loss)
        return loss

    context.step(context.dense_optimizer, closure)
    assert len(drawn) > 1 and len({tuple(d) for d in drawn}) == 1


def test_a_closure_is_refused_where_it_would_compute_something_else():
    context = make_context()
    check_closure_optimizers(context)
    context.dense_optimizer = torch.optim.LBFGS(context.dense_parameters)
    with pytest.raises(ConfigError, match="updated inside every backward; freeze them"):
        check_closure_optimizers(context)
    context.table_groups = {}
    check_closure_optimizers(context)
    context.clip = ClipSettings(value=1.0)
    with pytest.raises(ConfigError, match=r"clip would make another one; set its bounds to"):
        check_closure_optimizers(context)
    with pytest.raises(ConfigError, match=r"gradients are not clipped; set trainer.clip"):
        context.step(context.dense_optimizer, lambda: None)
    context.clip = ClipSettings()
    context.loss_scale = LossScale(CPU)
    with pytest.raises(ConfigError, match=r"fp16 scaling would make another one; trainer.amp"):
        check_closure_optimizers(context)
    with pytest.raises(ConfigError, match=r"gradients are not scaled; trainer.amp_dtype=bf16"):
        context.step(context.dense_optimizer, lambda: None)
    context.loss_scale = None
    context.part_optimizers = {"biases": torch.optim.SGD([context.dense_parameters[0]], lr=0.1)}
    with pytest.raises(ConfigError, match="own all that is trained"):
        check_closure_optimizers(context)


@pytest.mark.parity("C1")
def test_two_players_step_in_turn_and_neither_moves_the_other():
    context = make_context()
    other = context.add_module("other", nn.Linear(3, 1))
    optimizer = context.add_optimizer("other", torch.optim.SGD(other.parameters(), lr=0.5))
    assert context.root_modules() == [context.model, other]
    before, weight = snapshot(context), other.weight.detach().clone()
    x = torch.randn(4, 3)
    context.backward(other(x).mean())
    assert context.step(optimizer)
    torch.testing.assert_close(other.weight, weight - 0.5 * x.mean(0, keepdim=True))
    assert all(p.grad is None for p in other.parameters())
    after = snapshot(context)
    assert all(torch.equal(after[n], before[n]) for n in before)
    held = other.weight.detach().clone()
    context.tables.set_lr_and_step(0.1, 1)
    Supervised().train_step(context, iter([random_batch(8)]))
    assert torch.equal(other.weight, held)
    context.backward(other(x).sum() * math.nan)
    assert not context.step(optimizer)
    assert torch.equal(other.weight, held)
    context.backward(other(x).sum())
    context.zero_grad()
    assert all(p.grad is None for p in other.parameters())


def test_names_and_parameters_have_one_owner():
    context = make_context()
    other = context.add_module("other", nn.Linear(3, 1))
    with pytest.raises(ConfigError, match="not taken yet"):
        context.add_module("other", nn.Linear(3, 1))
    with pytest.raises(ConfigError, match="not taken yet"):
        context.add_optimizer("dense", torch.optim.SGD(other.parameters(), lr=0.5))
    with pytest.raises(ConfigError, match="has an optimizer already"):
        context.add_optimizer("mine", torch.optim.SGD(context.model.parameters(), lr=0.5))
    groups = [{"params": [other.weight], "lr": 0.1}, {"params": [other.bias], "lr": 0.2}]
    with pytest.raises(ConfigError, match="has several rates"):
        context.add_optimizer("mine", torch.optim.SGD(groups, lr=0.5))


def test_numbers_are_means_over_updates_and_ranks_and_survive_a_resume():
    one, two = RunningMeans(), RunningMeans()
    for value in (1.0, 2.0):
        one.add("x", torch.tensor(value))
    two.add("x", 6.0)
    two.add("y", 1)
    both = [one.state(), two.state()]
    on_one = RunningMeans()
    on_one.load_state_for_rank(both, SINGLE_PROCESS)
    assert on_one.means(SINGLE_PROCESS) == {"x": 3.0, "y": 1.0}
    again = RunningMeans()
    again.load_state_for_rank(both, Ranks(rank=1, world_size=2))
    assert again.state() == two.state()
    again.load_state_for_rank([*both, both[0]], Ranks(rank=1, world_size=2))
    assert again.state() == {}


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_updates_before_and_after_a_resume_on_other_ranks_count_alike(num_ranks):
    before = [RunningMeans(), RunningMeans()]
    for means in before:
        means.add("x", 2.0)
    after = RunningMeans()
    after.load_state_for_rank([m.state() for m in before], Ranks(rank=0, world_size=num_ranks))
    for _ in range(num_ranks):  # the next update, of all ranks
        after.add("x", 4.0)
    assert after.means(SINGLE_PROCESS) == {"x": 3.0}


def test_a_look_up_that_reads_the_dense_half_is_refused():
    context = make_context()
    inner, bias = context.model.embed, context.dense_parameters[0]

    def embed(batch):
        found = inner(batch)
        return replace(found, pooled_BE=found.pooled_BE + bias.sum())

    context.model.embed = embed
    with pytest.raises(AssertionError, match="reads parameters of the dense half"):
        Supervised().train_step(context, iter([random_batch(8, 0)]))


@pytest.mark.parametrize("value", [torch.ones(2, 3), np.ones(3), "high", None])
def test_what_is_logged_and_no_number_is_told_by_its_name(value):
    context = make_context()
    context.log("slope", torch.ones(1))
    with pytest.raises(UserError, match=r"^task: ctx.log\('slope', ...\) takes one number, not "):
        context.log("slope", value)


def test_an_update_for_which_nothing_went_backward_is_refused():
    class Forgetful(Supervised):
        def forward_backward(self, ctx, batch, embeddings, total_weight, capture):
            capture.boundaries.append(embeddings.detached())

    with pytest.raises(UserError, match=r"^task: ctx\.update without a gradient; ctx\.backward"):
        Forgetful().train_step(make_context(), iter([random_batch(8, 0)]))
