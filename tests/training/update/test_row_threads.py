"""Parts of an update in threads of their own: the numbers of the same parts one after another."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from runner.distributed.ranks import Ranks
from runner.errors import UserError
from runner.models.layers.dropout import Dropout
from runner.training.builder import threads as policy
from runner.training.builder.threads import thread_rows
from runner.training.update.determinism import UnrepeatableSums
from runner.training.update.gradients import add_gradients
from runner.training.update.row_threads import RowThreads
from runner.training.update.task import Supervised
from tests.models import sequence_scene
from tests.models.scene import SMALL, from_yaml, make_model
from tests.models.test_same_twice import config_of, default_loss, make_loss
from tests.tiny import SCHEMA, make_context, random_batch, snapshot

ROWS = 45  # so that parts differ in size
CONFIG = {
    "model": {"net": {}, "loss": {"_target_": "runner.models.losses.BCE"}},
    "task": {"_target_": "runner.training.update.task.Supervised"},
}
PLENTY = 1 << 40  # multiplications of a row


def threads_of(context, num_threads=2):
    modules = [*context.model.modules(), *context.loss.modules()]
    return RowThreads(modules, num_threads)


def train(context, *, updates=3, rows=ROWS):
    """Return the weights and all losses after some updates."""
    outputs = []
    for step in range(1, updates + 1):
        context.tables.set_lr_and_step(0.1, step)
        outputs.append(Supervised().train_step(context, iter([random_batch(rows, step)])))
        assert outputs[-1].applied
    losses = [torch.cat([loss["click"] for loss in output.losses]) for output in outputs]
    return snapshot(context), torch.cat(losses)


def assert_equal(found, expected):
    assert torch.equal(found[1], expected[1])
    assert [n for n, t in expected[0].items() if not torch.equal(found[0][n], t)] == []


def assert_close(found, expected):
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
    for name, tensor in expected[0].items():
        torch.testing.assert_close(found[0][name], tensor, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_threads_give_the_numbers_of_parts_one_after_another(name):
    torch.set_num_threads(2)
    context = make_context("rowwise_adagrad", model=make_model(name))
    context.row_threads = thread_rows(context, CONFIG, PLENTY, ROWS)
    assert context.row_threads is not None
    assert context.row_threads.are_coupled == bool(context.batch_norms)
    if context.row_threads.are_coupled:  # the sums of its norms are rounded in another order
        whole = make_context("rowwise_adagrad", model=make_model(name))
        assert_close(train(context, updates=1), train(whole, updates=1))
        return
    found = train(context)
    torch.set_num_threads(1)
    in_order = make_context("rowwise_adagrad", model=make_model(name), micro_batch_size=23)
    assert_equal(found, train(in_order))


def test_a_thread_that_is_done_changes_no_gradient_of_another_under_autocast():
    context = make_context("rowwise_adagrad")
    context.amp_dtype, context.row_threads = torch.bfloat16, threads_of(context)
    weight, x = nn.Parameter(torch.randn(16, 16)), torch.randn(64, 16)

    def leave_a_block():
        with context.autocast():
            pass

    def gradient(*others):
        with context.autocast():
            once = x @ weight
            for other in others:  # between two uses of the weight
                other.start()
                other.join()
            twice = once @ weight
        return torch.autograd.grad(twice.float().square().sum(), weight)[0]

    assert torch.equal(gradient(threading.Thread(target=leave_a_block)), gradient())


SEQUENCES = {
    "bert4rec": {"dropout": 0.2, "uniform": 20},
    "bst": {"attention_dropout": 0.1},
    "dien": {"embedding_dropout": 0.1},
    "din": {"embedding_dropout": 0.1},
    "gru4rec": {"dropout": 0.2, "uniform": 20},
    "hstu": {"dropout": 0.2, "uniform": 20},
    "sasrec": {"dropout": 0.2, "uniform": 20},
}


@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_so_do_models_of_histories_under_adam_and_their_parameters_stay(name):
    """With rows and widths for which both threads are at work at once."""
    results = []
    for one_at_a_time in (False, True):
        torch.manual_seed(0)
        model = from_yaml(name, sequence_scene.SCHEMA, embedding_dim=32, **SEQUENCES[name])
        parameters = dict(model.named_parameters())
        loss = make_loss(default_loss(name), sequence_scene.SCHEMA)
        context = make_context("adam", model=model, loss=loss)
        context.dense_optimizer = torch.optim.Adam(context.dense_parameters, fused=True)
        config = config_of(name, default_loss(name))
        torch.set_num_threads(2)
        context.row_threads = thread_rows(context, config, PLENTY, 512)
        assert context.row_threads is not None
        context.row_threads.one_at_a_time = one_at_a_time
        for step in range(1, 6):
            context.tables.set_lr_and_step(0.01, step)
            batch = sequence_scene.batch_of(512, step)
            assert Supervised().train_step(context, iter([batch])).applied
        results.append(snapshot(context))
        assert dict(model.named_parameters()).keys() == parameters.keys()
        assert all(parameters[name] is p for name, p in model.named_parameters())
    different = [n for n, tensor in results[1].items() if not torch.equal(results[0][n], tensor)]
    assert different == []


@pytest.mark.parametrize("num_threads", [2, 3])
@pytest.mark.parametrize("amp", [False, True])
def test_so_do_micro_batches_bf16_and_what_is_added_to_gradients(num_threads, amp):
    """An update has micro-batches of 20, 20 and 5 rows, and each 2 or 3 parts."""
    torch.set_num_threads(1)
    at_a_time = -(-20 // num_threads)
    results = []
    for size in (20, at_a_time):
        context = make_context("adagrad", amp=amp, micro_batch_size=size)
        context.l2_lookups = 0.1
        if size == 20:
            context.row_threads = threads_of(context, num_threads)
        results.append(train(context))
    assert_equal(*results)


def test_they_are_those_of_the_whole_batch_up_to_rounding():
    threaded, whole = make_context("adagrad"), make_context("adagrad")
    threaded.row_threads = threads_of(threaded)
    (ours, losses), (theirs, expected) = train(threaded), train(whole)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(ours, theirs)


def test_every_thread_computes_a_part_and_the_operations_around_have_as_many_threads():
    torch.set_num_threads(2)
    context = make_context()
    context.row_threads = threads_of(context)
    seen, dense, embed = [], context.model.dense, context.model.embed

    def noted(*args):
        seen.append((threading.current_thread().name, torch.get_num_threads(), len(args[1].rows_B)))
        barrier.wait(timeout=30)  # both threads are here at once
        return dense(*args)

    def looked_up(batch):
        seen.append(("embed", torch.get_num_threads(), batch.size))
        return embed(batch)

    barrier = threading.Barrier(2)
    context.model.dense, context.model.embed = noted, looked_up
    Supervised().train_step(context, iter([random_batch(ROWS)]))
    assert torch.get_num_threads() == 2
    assert sorted(seen) == [("MainThread", 1, 23), ("embed", 1, ROWS), ("rows_0", 1, 22)]


@pytest.mark.parametrize("failing", [23, 22])
def test_an_error_of_a_part_ends_the_update_when_all_threads_have_ended(failing):
    context = make_context()
    context.row_threads = threads_of(context)
    dense, ended = context.model.dense, []

    def fails(embeddings, batch):
        if batch.size == failing:
            raise UserError(f"part of {failing} rows")
        prediction = dense(embeddings, batch)
        ended.append(batch.size)
        return prediction

    context.model.dense = fails
    before = snapshot(context)
    with pytest.raises(UserError, match=f"part of {failing} rows"):
        Supervised().train_step(context, iter([random_batch(ROWS)]))
    assert ended == [ROWS - failing]
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot(context).items())


def test_functions_of_one_thread_each_are_all_called_once_and_by_several_threads():
    threads, called = RowThreads([], 2), []
    barrier = threading.Barrier(2)

    def work(number):
        if number < 2:
            barrier.wait(timeout=30)  # both threads are here at once
        called.append((number, threading.current_thread().name))

    threads.run_all(partial(work, number) for number in range(20))
    assert sorted(number for number, _ in called) == list(range(20))
    assert {name for _, name in called} == {"MainThread", "rows_0"}

    def fails(number):
        raise ValueError(number)

    with pytest.raises(ValueError, match="7"):
        threads.run_all([partial(fails, 7)])
    called.clear()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        threads.run_all(partial(work, number) for number in range(2, 20))
    assert {name for _, name in called} == {"MainThread"} and len(called) == 18


def hook_of(kind):
    def hook(context):
        if kind == "module":
            return context.model.top.register_forward_hook(lambda *_: None)
        if kind == "parameter":
            return context.dense_parameters[0].register_hook(lambda grad: None)
        if kind == "accumulated":
            return context.dense_parameters[0].register_post_accumulate_grad_hook(lambda p: None)
        return nn.modules.module.register_module_forward_hook(lambda *_: None)

    return hook


@pytest.mark.parametrize("kind", ["module", "parameter", "accumulated", "everywhere"])
def test_a_hook_is_called_in_one_thread_and_changes_no_number(kind):
    results = []
    for watched in (False, True):
        context = make_context("adagrad")
        context.row_threads = threads_of(context)
        assert context.row_threads.may_run_at_once()
        handle = hook_of(kind)(context) if watched else None
        assert context.row_threads.may_run_at_once() == (not watched)
        results.append(train(context))
        if handle is not None:
            handle.remove()
            assert context.row_threads.may_run_at_once()
    assert_equal(*results)


def test_a_debugger_anomaly_detection_a_profiler_and_modes_see_one_thread():
    threads = RowThreads([nn.Linear(2, 2)], 2)
    with UnrepeatableSums(num_threads=2):
        assert not threads.may_run_at_once()
    with torch.device("cpu"):  # a function mode
        assert not threads.may_run_at_once()
    with torch.autograd.detect_anomaly(check_nan=False):
        assert not threads.may_run_at_once()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert not threads.may_run_at_once()
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        assert not threads.may_run_at_once()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("num_cores", "expected"), [(1, None), (2, (2, 1)), (3, (3, 1)), (8, (4, 2)), (11, (4, 2))]
)
def test_cores_share_parts_and_then_their_operations(num_cores, expected):
    torch.set_num_threads(num_cores)
    found = thread_rows(make_context(), CONFIG, PLENTY, 1)
    assert (found and (found.num_threads, found.num_threads_within)) == expected


def test_operations_of_small_parts_have_one_thread():
    torch.set_num_threads(8)
    for products, within in ((policy.LEAST_WORK - 1, 1), (policy.LEAST_WORK, 2)):
        assert thread_rows(make_context(), CONFIG, products, 4).num_threads_within == within


def test_gradients_of_another_layout_and_of_two_parameters_get_memory_of_their_own():
    context = make_context()
    first, second, *others = context.dense_parameters
    shared = torch.ones(first.shape[::-1]).t()
    gradients = [shared, torch.ones(()).expand(second.shape), *(None for _ in others)]
    add_gradients(context.dense_parameters, gradients)
    assert first.grad.stride() == first.stride() and second.grad.stride() == second.stride()
    add_gradients(context.dense_parameters, gradients)
    assert torch.equal(first.grad, torch.full_like(first, 2.0))
    assert torch.equal(second.grad, torch.full_like(second, 2.0))
    twin = nn.Parameter(torch.zeros_like(others[0]))
    both = torch.ones_like(twin)
    add_gradients([others[0], twin], [both, both])
    assert others[0].grad.data_ptr() != twin.grad.data_ptr()


def test_small_updates_have_fewer_parts():
    torch.set_num_threads(4)
    least, context = policy.LEAST_WORK_OF_PART, make_context()
    assert thread_rows(context, CONFIG, least - 1, 2) is None
    assert thread_rows(context, CONFIG, least, 2).num_threads == 2
    assert thread_rows(context, CONFIG, 3, least).num_threads == 3


class Mine(nn.Linear):
    """Of a user's module."""


class Declared(Mine):
    rows_in_threads = True


class Derived(Declared):
    """Has to declare it anew."""


@pytest.mark.parametrize(
    ("part", "bears_threads"),
    [
        (Dropout(0.1), True),
        (nn.Dropout(0.5), False),
        (nn.AlphaDropout(0.5), False),
        (nn.RReLU(), False),
        (nn.BatchNorm1d(2), False),
        (nn.GRU(2, 2, num_layers=2, dropout=0.1), False),
        (nn.GRU(2, 2), True),
        (Mine(1, 1), False),
        (Declared(1, 1), True),
        (Derived(1, 1), False),
    ],
)
def test_what_may_not_bear_threads_keeps_those_of_operations(part, bears_threads):
    torch.set_num_threads(2)
    context = make_context()
    context.model.added = part
    assert (thread_rows(context, CONFIG, PLENTY, 1) is not None) == bears_threads


def norms_of(num_threads, net, *, model="deepfm", weights=None, watched=False):
    """Weights, running statistics and losses of a model with batch norms, after two updates."""
    torch.set_num_threads(num_threads)
    settings = {"embedding_dim": 4, "norm": "batch", **net}
    widths = {"din": {"top": [8, 5]}, "finalmlp": {"streams": [[8, 6], [4]], "num_heads": 2}}
    settings |= widths.get(model, {"deep": [8, 5]})
    made = from_yaml(model, sequence_scene.SCHEMA if model == "din" else SCHEMA, **settings)
    context = make_context("rowwise_adagrad", model=made)
    context.row_threads = thread_rows(context, CONFIG, PLENTY, ROWS)
    assert (context.row_threads is None) == (num_threads == 1)
    if watched:
        context.row_threads.one_at_a_time = True
    losses = []
    torch.manual_seed(0)
    for step in (1, 2):
        context.tables.set_lr_and_step(0.1, step)
        batch = (sequence_scene.batch_of if model == "din" else random_batch)(ROWS, step)
        if weights is not None:
            batch = replace(batch, weights_B=weights)
        output = Supervised().train_step(context, iter([batch]))
        context.end_update(applied=output.applied)
        losses += [loss["click"] for loss in output.losses]
    buffers = {name: tensor.clone() for name, tensor in context.model.named_buffers()}
    return {**snapshot(context), **buffers}, torch.cat(losses)


HALF = torch.arange(ROWS) % 2.0  # every second row does not count
ZEROS_FIRST = (torch.arange(ROWS) >= 20).float()  # all but a few rows of the first part do not


@pytest.mark.parametrize(
    "given",
    [
        {"net": {}},
        {"net": {"norm_place": "after_activation", "dropout": 0.3}},
        {"net": {"activation": "dice"}},
        {"net": {"activation": "gelu"}, "weights": HALF},
        {"net": {"activation": "dice"}, "weights": ZEROS_FIRST},
        {"model": "din", "net": {"activation": "dice"}},
        {"model": "finalmlp", "net": {"embedding_dropout": 0.2}},
    ],
    ids=lambda given: "-".join(map(str, [given.get("model"), *given["net"], "weights" in given])),
)
@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_of_a_batch_norm_find_the_statistics_of_all_rows(given, num_threads):
    found = norms_of(num_threads, **given)
    assert_close(found, norms_of(1, **given))
    assert_equal(norms_of(num_threads, **given), found)


def test_where_it_is_watched_one_thread_normalises_all_rows():
    given = {"net": {"dropout": 0.3}}
    assert_equal(norms_of(2, **given, watched=True), norms_of(1, **given))


@pytest.mark.parametrize("failing", [23, 22])
def test_an_error_of_a_part_ends_the_waiting_of_the_others_and_is_the_one_that_is_raised(failing):
    torch.set_num_threads(2)
    model = make_model("deepfm", norm="batch")
    context = make_context(model=model)
    context.row_threads = thread_rows(context, CONFIG, PLENTY, ROWS)
    dense = context.model.dense

    def fails(embeddings, batch):
        prediction = dense(embeddings, batch)
        if batch.size == failing:  # while the other part waits in its backward
            raise UserError(f"part of {failing} rows")
        return prediction

    context.model.dense = fails
    with pytest.raises(UserError, match=f"part of {failing} rows"):
        Supervised().train_step(context, iter([random_batch(ROWS)]))
    context.model.dense = dense
    assert Supervised().train_step(context, iter([random_batch(ROWS)])).applied


def test_norms_of_micro_batches_of_code_of_ones_own_or_in_bf16_keep_the_threads_of_operations():
    torch.set_num_threads(2)

    def may_thread(change=lambda context: None, task="runner.Task", **net):
        context = make_context(model=make_model("deepfm", norm="batch", **net))
        change(context)
        config = {**CONFIG, "task": {"_target_": task}}
        return thread_rows(context, config, PLENTY, ROWS) is not None

    assert may_thread()
    assert not may_thread(task="mine.Task")
    assert not may_thread(norm_scope="micro_batch")
    assert not may_thread(lambda context: setattr(context, "amp_dtype", torch.bfloat16))
    assert not may_thread(lambda context: setattr(context, "ranks", Ranks(0, 2)))
    assert not may_thread(lambda context: setattr(context.model, "added", Declared(1, 1)))


def test_a_loss_that_compares_rows_keeps_all_rows_together():
    torch.set_num_threads(2)
    for loss in ("JRC", "InBatchSoftmax"):
        node = {"_target_": f"runner.models.losses.{loss}"}
        assert thread_rows(make_context(), {"model": {"loss": node}}, PLENTY, 1) is None


def test_a_loss_of_ones_own_keeps_the_threads_of_operations():
    torch.set_num_threads(2)
    context = make_context()
    context = replace(context, loss=lambda prediction: {"click": prediction.logits_BT.sum(1)})
    assert thread_rows(context, CONFIG, PLENTY, 1) is None
