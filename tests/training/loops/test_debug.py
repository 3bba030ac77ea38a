"""loop=debug: makes the updates of training, shows them in detail and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from runner.batch import TaskSpec
from runner.config.settings import TrainerSettings
from runner.data.core.dataset import EndOfStream
from runner.models.layers.mlp import mlp
from runner.models.losses import BCE
from runner.optim.lr_schedule import build_schedule
from runner.training.job import LearningRates
from runner.training.loops.debug import debug, mean_losses
from runner.training.rng_state import rng_state_tensors
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.update.loss_scale import LossScale
from tests.conftest import TINY
from tests.tiny import CPU, SCHEMA, make_context, snapshot
from tests.tiny_job import Rows, make_job, output
from tests.training.test_state import save

NAN, INF = float("nan"), float("inf")
EVERYTHING = {"anomaly": True, "statistics": True, "summary": True, "stop_at_nonfinite": True}


class Spoil(nn.Module):
    """Puts a value into some outputs of its n-th call, and otherwise returns its input."""

    def __init__(self, call: int, value: float, rows: slice = slice(0, 4)) -> None:
        super().__init__()
        self.call, self.value, self.rows = call, value, rows
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.call:
            x = x.clone()
            x[self.rows] = self.value
        return x


class SquareRoot(nn.Module):
    """The root of the positive part: its gradient at 0 is infinite, and NaN times 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * (x > 0)).sqrt()


def hooks_left(context) -> int:
    modules = [*context.model.modules(), *context.loss.modules()]
    of_modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)
    of_modules += sum(len(m._backward_hooks) + len(m._backward_pre_hooks) for m in modules)
    of_parameters = sum(
        len(p._post_accumulate_grad_hooks or ()) + len(p._backward_hooks or ())
        for p in context.model.parameters()
    )
    of_all = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    return of_modules + of_parameters + sum(map(len, of_all))


def losses_of(job, num_steps: int) -> list[float]:
    """Make the same updates without observers."""
    job = replace(job, trainer=replace(job.trainer, max_steps=num_steps, max_epochs=None))
    return [sum(mean_losses(out).values()) for out in steps(job, TrainState())]


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adam"])
@pytest.mark.parity("T17")
def test_the_updates_are_those_of_training_to_the_last_bit(kind, options):
    observed, plain = make_context(kind), make_context(kind)
    trainer = TrainerSettings(batch_size=16, accumulate=2, max_epochs=2)
    result = debug(make_job(observed, trainer=trainer, max_steps=7, **options))
    expected = losses_of(make_job(plain, trainer=trainer), 7)
    assert result.status == "completed"
    assert result.step == 7
    assert result.examples == 7 * 32  # 160 rows are 5 full updates an epoch
    assert result.notes["losses"] == expected
    after, twin = snapshot(observed), snapshot(plain)
    assert all(torch.equal(after[name], twin[name]) for name in twin)


def test_from_a_checkpoint_it_repeats_a_training_that_had_grown_its_updates_and_stopped(tmp_path):
    trainer = TrainerSettings(batch_size=16, max_epochs=2)
    rates = LearningRates({"dense": 0.1, "sparse": 0.1}, build_schedule({"kind": "linear"}, 20))
    job, state = make_job(make_context(), trainer=trainer, rates=rates), TrainState()
    for _ in islice(steps(job, state), 3):
        pass
    state.batch_multiplier = 2
    states = rng_state_tensors(CPU, job.context.ranks)
    saved = save(tmp_path, job, replace(state, stopped="early_stop: enough"), states)
    expected = [sum(mean_losses(out).values()) for out in islice(steps(job, state), 3)]
    observed = make_context()
    again = make_job(observed, trainer=trainer, rates=rates)
    result = debug(replace(again, source_checkpoint=saved))
    assert result.notes["losses"] == expected
    after, twin = snapshot(observed), snapshot(job.context)
    assert all(torch.equal(after[name], twin[name]) for name in twin)


class Loader(Rows):
    """Batches that can be iterated over again and again, as those of PyTorch's DataLoader."""

    def batches(self, *args, **more):
        return list(super().batches(*args, **more))


@pytest.mark.parametrize("one_batch", [False, True])
def test_batches_may_be_a_loader_in_place_of_an_iterator(one_batch):
    jobs = [
        make_job(make_context("sgd"), dataset=kind(), overfit_one_batch=one_batch)
        for kind in (Rows, Loader)
    ]
    assert debug(jobs[0]).notes["losses"] == debug(jobs[1]).notes["losses"]


def test_nan_in_a_row_of_weight_0_is_neither_told_nor_learnt():
    clean, with_nan = Rows(), Rows()
    for data in (clean, with_nan):
        data.all.weights_B[::7] = 0
    with_nan.all.labels_BT[::7] = with_nan.all.dense_BD[::7] = float("nan")
    jobs = [make_job(make_context("sgd"), dataset=data) for data in (clean, with_nan)]
    assert debug(jobs[0]).notes["losses"] == debug(jobs[1]).notes["losses"]


def test_a_line_for_each_update_shows_loss_gradient_and_speed():
    context, twin = make_context(), make_context()
    job = make_job(context, max_steps=2)
    result = debug(job)
    lines = [line for line in output(job).splitlines() if line.startswith("step ")]
    number = r"[\d.]+"
    pattern = rf"step (\d+)  loss ({number})  gradient ({number})  [\d,]+ examples/s"
    matches = [re.fullmatch(pattern, line) for line in lines]
    assert [m[1] for m in matches] == ["1", "2"]
    assert [float(m[2]) for m in matches] == pytest.approx(result.notes["losses"], abs=1e-5)

    batch = next(Rows().batches("train", batch_size=32))
    prediction = twin.model.dense(twin.model.embed(batch).detached(), batch)
    loss_B = twin.loss(prediction)["click"]
    (torch.dot(loss_B, batch.weights_B) / batch.weights_B.sum()).backward()
    norm = torch.cat([p.grad.flatten() for p in twin.dense_parameters]).norm()
    assert float(matches[0][3]) == pytest.approx(float(norm), rel=1e-3)


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_several_tasks_autocast_and_accumulation_work(amp, accumulate):
    schema = replace(SCHEMA, tasks=(TaskSpec("click"), TaskSpec("buy")))
    context = make_context(amp=amp)
    torch.manual_seed(1)
    context.model.top = mlp(10, [8, 2], last="linear")
    context.dense_optimizer = torch.optim.Adam(context.model.parameters(), lr=0.01)
    context.__post_init__()
    context.loss = BCE(schema)
    trainer = TrainerSettings(batch_size=24, accumulate=accumulate, max_epochs=1)
    job = make_job(context, dataset=Rows(schema=schema), trainer=trainer, **EVERYTHING)
    result = debug(job)
    assert result.status == "completed"
    assert result.step == 3
    assert re.search(r"loss [\d.]+ \(click [\d.]+, buy [\d.]+\)", output(job))


def test_layers_that_work_in_place_can_be_observed():
    context = make_context()
    context.model.bottom[1] = nn.ReLU(inplace=True)
    assert debug(make_job(context, **EVERYTHING)).status == "completed"


@pytest.mark.parity("T17")
def test_a_nan_weight_is_named_with_its_module():
    context = make_context()
    with torch.no_grad():
        context.model.top[2].weight[0, 3] = NAN
    before = snapshot(context)
    result = debug(make_job(context))
    assert (result.status, result.step) == ("failed", 0)
    assert result.error.startswith("step 1: module top.2 (Linear) made the first non-finite value")
    assert "its output holds 32 of 32 values (100%: 32 NaN)" in result.error
    assert "its weight holds 1 of 8 values (12.5%: 1 NaN)" in result.error
    assert re.search(r"called at runner/models/dlrm\.py:\d+, in dense", result.error)
    after = snapshot(context)
    assert all(torch.equal(after[n].nan_to_num(), before[n].nan_to_num()) for n in before)


def test_a_bad_activation_is_named_with_its_step_and_share():
    context = make_context()
    context.model.bottom.append(Spoil(call=3, value=INF))
    result = debug(make_job(context, max_steps=5))
    assert (result.status, result.step) == ("failed", 2)
    assert result.error.startswith("step 3: module bottom.4 (Spoil) made the first")
    assert "its output holds 16 of 128 values (12.5%: 16 infinite); its inputs are finite" in (
        result.error
    )


def test_a_bad_value_that_a_module_only_receives_is_not_blamed_on_it(monkeypatch):
    context = make_context()
    interaction = type(context.model.interaction)
    forward = interaction.forward
    # the sum of squares is made by the interaction, but its input is what is bad
    monkeypatch.setattr(torch, "cat", _make_spoiling_cat(torch.cat))
    result = debug(make_job(context, max_steps=1))
    assert interaction.forward is forward
    assert result.error.startswith(
        "step 1: the first non-finite value was made outside any module, after bottom.3 and before "
        "interaction (DotInteraction)"
    )
    assert re.search(r"called at runner/models/dlrm\.py:\d+, in dense", result.error)


def _make_spoiling_cat(cat):
    def spoil(tensors, dim=0):
        joined = cat(tensors, dim=dim)
        called_by = sys._getframe(1).f_code.co_filename
        return joined / 0.0 if called_by.endswith("dlrm.py") else joined

    return spoil


def test_a_bad_row_of_a_table_is_named():
    context = make_context()
    batch = next(Rows().batches("train", batch_size=32))
    row = int(batch.sparse["b"].values()[5])
    context.tables.state()["b/weight"][row, 1] = NAN
    result = debug(make_job(context))
    assert result.error == (
        "step 1: module embedding (TableLookup) made the first non-finite value, from its "
        f"weights: table 'b', row {row}"
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda b: b.dense_BD[40:, 1].fill_(INF), "dense 'd1' of row 40 of the split is inf"),
        (lambda b: b.labels_BT[33].fill_(NAN), "label 'click' of row 33 of the split is nan"),
        (lambda b: b.weights_B[50].fill_(NAN), "weight of row 50 of the split is nan"),
    ],
)
def test_a_bad_value_in_the_data_is_named_with_its_column_and_row(spoil, message):
    dataset = Rows()
    spoil(dataset.all)
    result = debug(make_job(make_context(), dataset=dataset))
    assert (result.status, result.step) == ("failed", 1)
    assert result.error.startswith("step 2: the batch holds the first non-finite value: " + message)


def test_a_module_that_makes_a_bad_gradient_is_named():
    context = make_context()
    context.model.bottom[1] = SquareRoot()  # of 8 hidden units, some are below zero
    result = debug(make_job(context))
    assert (result.status, result.step) == ("failed", 1)
    assert result.error.startswith(
        "step 1: module bottom.1 (SquareRoot) made the first non-finite gradient, at its input: "
    )
    assert result.notes["skipped_updates"] == 1


class Outer(nn.Module):
    """The sum of parts that all read the same input."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(part(x) for part in self.parts.values())


def test_the_innermost_of_nested_modules_is_named():
    context = make_context()
    context.model.bottom[1] = Outer(root=SquareRoot())
    result = debug(make_job(context))
    assert "module bottom.1.parts.root (SquareRoot) made the first" in result.error


def test_modules_that_read_the_same_tensor_are_all_named():
    context = make_context()
    context.model.bottom[1] = Outer(same=nn.Identity(), root=SquareRoot())
    result = debug(make_job(context))
    assert re.search(
        r"module bottom\.1\.parts\.same \(Identity\) or bottom\.1\.parts\.root \(SquareRoot\) made",
        result.error,
    )


def test_a_bad_gradient_of_a_parameter_is_blamed_on_its_module():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return x * (1 + self.factor.sqrt())

    context = make_context()
    context.model.top.append(Scale())
    context.dense_optimizer = torch.optim.SGD(context.model.parameters(), lr=0.1)
    context.__post_init__()
    result = debug(make_job(context))
    assert result.error.startswith(
        "step 1: module top.3 (Scale) made the first non-finite gradient, of top.3.factor: "
        "1 of 1 values (100%: 1 infinite)"
    )


def test_a_bad_gradient_from_outside_any_module_is_not_blamed_on_one():
    context = make_context()
    loss = context.loss
    # the square root of zero; finite forward, and no module: not even the loss is one here
    context.loss = lambda p: {
        "click": loss(p)["click"] + (p.logits_BT - p.logits_BT.detach())[:, 0].abs().sqrt()
    }
    result = debug(make_job(context))
    assert result.error.startswith(
        "step 1: the first non-finite gradient was made outside any module, after top.2 (Linear)"
    )


def test_a_bad_loss_that_is_not_a_module_is_named():
    context = make_context()
    context.loss = lambda p: {"odd": p.logits_BT[:, 0].abs().neg().log()}
    result = debug(make_job(context))
    assert result.error.startswith("step 1: the loss 'odd' is the first non-finite value")


class Exploding(torch.optim.SGD):
    def step(self, closure=None):
        with torch.no_grad():
            self.param_groups[0]["params"][0].fill_(INF)


def test_weights_that_an_update_makes_infinite_are_named():
    context = make_context()
    context.dense_optimizer = Exploding(context.dense_parameters, lr=0.1)
    result = debug(make_job(context))
    assert (result.status, result.step) == ("failed", 1)
    assert result.error.startswith(
        "step 1: the update made bottom.0.weight non-finite from finite gradients: "
        "16 of 16 values (100%: 16 infinite); the learning rate may be too high"
    )


def test_table_rows_that_an_update_makes_infinite_are_named():
    context = make_context()
    rates = LearningRates({"dense": 0.0, "sparse": 3e38}, lambda step: 1.0)
    scaled = Rows()
    scaled.all.dense_BD.mul_(1e4)
    result = debug(make_job(context, dataset=scaled, rates=rates))
    assert result.status == "failed"
    assert re.match(
        r"step 1: the update made rows of table 'a' non-finite from finite gradients: "
        r"\d+ of the rows read \(\d+, \d+, \d+, \.\.\.\); the learning rate",
        result.error,
    )


def test_with_the_option_off_a_bad_value_stops_nothing():
    context = make_context()
    context.model.bottom.append(Spoil(call=2, value=NAN))
    job = make_job(context, stop_at_nonfinite=False)
    result = debug(job)
    assert (result.status, result.step) == ("completed", 3)
    assert result.notes["skipped_updates"] == 1
    assert "step 2  loss nan  gradient nan" in output(job)
    assert output(job).count("skipped: a gradient is not finite") == 1


class Ending(Rows):
    """A stream that ends after two batches."""

    def batches(self, *args, **more):
        yield from islice(super().batches(*args, **more), 2)
        raise EndOfStream("the stream has ended")


def test_where_a_stream_ends_the_tables_are_of_the_last_update():
    jobs = [
        make_job(make_context(), dataset=rows, statistics=True, max_steps=max_steps)
        for rows, max_steps in ((Ending(), 5), (Rows(), 2))
    ]
    ended, whole = (debug(job) for job in jobs)
    assert (ended.status, ended.step, ended.notes) == ("completed", 2, whole.notes)
    assert "the stream has ended" in output(jobs[0])
    ours, theirs = (output(job).partition("\n\n")[2] for job in jobs)
    assert "step 2" in ours and ours == theirs


def test_an_overflow_under_a_loss_scale_is_not_an_error():
    context, twin = make_context(), make_context()
    context.loss_scale = LossScale(CPU, initial=2.0**130)
    job = make_job(context, max_steps=8, statistics=True)
    result = debug(job)
    assert result.status == "completed"
    assert 0 < result.notes["skipped_updates"] < 8
    plain = make_job(twin, max_steps=1)
    debug(plain)
    first_applied = result.notes["skipped_updates"] + 1
    gradient = re.search(rf"step {first_applied}  .*?gradient ([\d.e-]+)", output(job))[1]
    assert float(gradient) < 10  # unscaled


@pytest.mark.parametrize("before", [False, True])
def test_anomaly_detection_names_the_line_and_is_restored(before):
    context = make_context()
    context.model.bottom[1] = SquareRoot()
    shown = warnings.showwarning
    with torch.autograd.set_detect_anomaly(before):
        result = debug(make_job(context, anomaly=True, stop_at_nonfinite=False))
        assert torch.is_anomaly_enabled() is before
    assert warnings.showwarning is shown
    assert result.status == "failed"
    line = SquareRoot.forward.__code__.co_firstlineno + 1
    assert result.error == (
        "step 1: Function 'SqrtBackward0' returned nan values in its 0th output; "
        f"called at tests/training/loops/test_debug.py:{line}, in forward"
    )


def test_an_error_of_the_model_is_raised_unchanged():
    context = make_context()
    context.model.top[0] = nn.Linear(3, 8)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        debug(make_job(context, **EVERYTHING))
    assert hooks_left(context) == 0
    assert not torch.is_anomaly_enabled()


@pytest.mark.parametrize("spoilt", [False, True], ids=["completed", "failed"])
def test_no_hook_is_left(spoilt):
    context = make_context()
    if spoilt:
        context.model.bottom.append(Spoil(call=2, value=NAN))
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert debug(make_job(context, **EVERYTHING)).status == ("failed" if spoilt else "completed")
    assert hooks_left(context) == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


@pytest.mark.parametrize("on", [False, True])
def test_modules_are_hooked_only_if_an_observer_needs_them(on):
    context = make_context()
    layer, seen = context.model.top[0], []
    context.model.top[2].register_forward_pre_hook(
        lambda module, inputs: seen.append(len(layer._forward_hooks))
    )
    debug(make_job(context, max_steps=1, stop_at_nonfinite=on))
    assert seen == [int(on)]


@pytest.mark.parity("T17")
def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = make_job(make_context(), **EVERYTHING)

    class Forbidden:
        def __getattr__(self, name):
            raise AssertionError(f"debug used {name} of a run directory or checkpointer")

    assert debug(replace(job, run=Forbidden())).status == "completed"
    assert list(tmp_path.iterdir()) == []


def test_overfitting_one_batch_sees_only_that_batch_and_says_that_the_loss_fell():
    context = make_context(lr=1.0)
    seen = []
    context.model.bottom[0].register_forward_hook(lambda m, i, o: seen.append(i[0].clone()))
    rates = LearningRates({"dense": 1.0, "sparse": 1.0}, lambda step: 1.0)
    job = make_job(context, rates=rates, max_steps=60, overfit_one_batch=True)
    result = debug(job)
    first = next(Rows().batches("train", batch_size=32)).dense_BD
    assert len(seen) == 60
    assert all(torch.equal(x, first) for x in seen)
    losses = result.notes["losses"]
    assert losses[-1] < 0.8 * losses[0]
    assert f"the loss fell from {losses[0]:.5f} to {losses[-1]:.5f}" in output(job)


def test_a_loss_that_does_not_fall_is_reported(capsys):
    rates = LearningRates({"dense": 0.0, "sparse": 0.0}, lambda step: 1.0)
    result = debug(make_job(make_context(), rates=rates, overfit_one_batch=True))
    assert result.status == "completed"
    assert "warning: the loss did not fall" in capsys.readouterr().err


def test_a_signal_ends_the_loop_after_the_update():
    context = make_context()

    def interrupt(module, inputs, outputs):
        if context.calls == 2:
            os.kill(os.getpid(), signal.SIGINT)

    context.calls = 0
    context.model.top[0].register_forward_pre_hook(
        lambda m, i: setattr(context, "calls", context.calls + 1)
    )
    context.model.top[0].register_forward_hook(interrupt)
    result = debug(make_job(context, max_steps=50))
    assert (result.status, result.signal, result.step) == ("interrupted", signal.SIGINT, 2)


@pytest.mark.long
def test_the_command_writes_no_run_and_its_exit_code_is_the_outcome(runner, tmp_path):
    tiny = [*TINY, "loop=debug", "loop.summary=true", "trainer.amp=true", "tracker=tensorboard"]
    good = runner.run(*tiny, cwd=tmp_path).check()
    assert "step 5  loss" in good.text
    assert "TableLookup" in good.text
    bad = runner.run(*tiny, "optimizer=sgd", "optimizer.dense.lr=1e38", cwd=tmp_path).check(1)
    assert re.search(r"step \d: .*(made the first non-finite value|non-finite from)", bad.text)
    assert list(tmp_path.iterdir()) == []
