"""loop=tune_batch_size and loop=tune_lr: what they choose, and that they leave no trace."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from runner.config.settings import CheckpointSettings, TrainerSettings
from runner.distributed.ranks import Ranks
from runner.errors import UserError
from runner.models.dlrm import DLRM
from runner.optim.dense import build_dense_optimizer
from runner.training.debugging.fixed_batches import FixedBatches, longest_rows, repeat_rows
from runner.training.job import LearningRates
from runner.training.loops.rollback import restored_after
from runner.training.loops.tune_batch_size import (
    BatchSizeTrial,
    predict_peak_bytes,
    search_batch_size,
    try_size,
)
from runner.training.loops.tune_lr import RangeTestPoint, range_test, suggest_point
from runner.training.loops.tuner import TrialRow, TuningReport, show_report, tune
from runner.training.state import TrainState, checkpoint_tensors
from runner.training.steps import steps
from runner.training.update.parameters import dense_parameters
from runner.training.warm_start import linear_start
from tests.tiers import fast
from tests.tiny import SCHEMA, make_context, random_batch
from tests.tiny_job import Rows, make_job, output
from tests.training.loops.memory_hungry_task import Hungry
from tests.whole.test_online import weights

SMALL = (
    "dataset.max_cardinality=200",
    "dataset.rows={train: 3000, validation: 300, test: 300}",
    "trainer.num_threads=1",
    "trainer.batch_size=32",
    "trainer.log_every=7",
    "trainer.eval_every=11",
    "checkpoint.save_every=5",
    "trainer.max_steps=30",
    "model.net.bottom=[8]",
    "model.net.top=[8]",
    "model.net.embedding_dim=4",
    "model.net.dropout=0.1",
)
TUNE_SIZE = ("loop=tune_batch_size", "loop.start=16", "loop.updates=3", "loop.max_batch_size=64")
TUNE_LR = ("loop=tune_lr", "loop.updates=30")


# speed by size (None: it does not fit), cap, sizes tried, size chosen, why it ended
SEARCHES = {
    "up to the cap": (lambda n: n, 64, [16, 32, 64], 64, "the largest size allowed, 64 rows"),
    "a cap between": (lambda n: n, 50, [16, 32, 50], 50, "the largest size allowed, 50 rows"),
    "falls off": (
        lambda n: n if n <= 64 else 64 - n / 8,
        10_000,
        [16, 32, 64, 128, 96, 80, 72],
        64,
        "a fall in speed",
    ),
    "falls off between two": (
        lambda n: n if n <= 100 else 50,
        10_000,
        [16, 32, 64, 128, 96, 112, 104],
        96,
        "a fall in speed",
    ),
    "a plateau is no fall": (
        lambda n: 100.0,
        128,
        [16, 32, 64, 128],
        16,
        "the largest size allowed, 128 rows",
    ),
    "memory": (
        lambda n: n if n <= 200 else None,
        10_000,
        [16, 32, 64, 128, 256, 192, 224, 208],
        184,  # 208 less a tenth, by eights
        "out of memory",
    ),
    "memory at once": (
        lambda n: n if n <= 5 else None,
        10_000,
        [16, 8, 4, 6, 5],
        5,
        "out of memory",
    ),
}


@pytest.mark.parametrize(
    ("speed", "cap", "expected_trials", "chosen", "end"), SEARCHES.values(), ids=SEARCHES
)
@pytest.mark.parity("L6")
def test_the_search_doubles_stops_and_bisects_back(speed, cap, expected_trials, chosen, end):
    def run_trial(size: int) -> BatchSizeTrial:
        return BatchSizeTrial(size, speed(size), failure="out of memory")

    search = search_batch_size(
        run_trial, start=16, cap=cap, max_trials=16, fall_off=0.05, margin=0.1
    )
    assert [t.size for t in search.trials] == expected_trials
    assert (search.size, search.end_reason) == (chosen, end)


def test_no_more_trials_than_allowed_and_an_error_where_nothing_fits():
    search = search_batch_size(
        lambda n: BatchSizeTrial(n, float(n)),
        start=1,
        cap=1 << 20,
        max_trials=5,
        fall_off=0.1,
        margin=0,
    )
    assert [t.size for t in search.trials] == [1, 2, 4, 8, 16]
    assert (search.size, search.end_reason) == (16, "5 trials")
    with pytest.raises(UserError, match="a batch of 1 rows does not fit into memory"):
        search_batch_size(
            lambda n: BatchSizeTrial(n, None, failure="out of memory"),
            start=16,
            cap=64,
            max_trials=16,
            fall_off=0.1,
            margin=0.1,
        )


def test_memory_is_predicted_from_the_last_two_trials():
    assert predict_peak_bytes([], 4) == predict_peak_bytes([(2, 5.0)], 4) == 0
    assert predict_peak_bytes([(1, 11.0), (2, 12.0), (4, 16.0)], 8) == 16 + 2 * 4
    assert predict_peak_bytes([(2, 12.0), (4, 12.0)], 8) == 12


def test_the_worst_case_is_the_rows_with_the_longest_lists():
    batch = random_batch(40)
    lengths = batch.sparse["m"].lengths()
    order = torch.argsort(lengths, descending=True, stable=True)
    worst = repeat_rows(longest_rows(batch), 100)
    assert worst.size == 100
    assert torch.equal(worst.rows_B, order[torch.arange(100) % 40])
    ids = [x.tolist() for x in batch.sparse["m"].to_dense()]
    assert [x.tolist() for x in worst.sparse["m"].to_dense()] == [ids[r] for r in worst.rows_B]
    assert torch.equal(worst.labels_BT, batch.labels_BT[worst.rows_B])
    first = next(FixedBatches(Rows(), worst, [batch]).batches("train"))
    assert first.size == 100


def with_dropout(kind: str, cls: type, seed: int = 0):
    """A context with dropout and a dense optimizer of a class."""
    context = make_context(kind)
    context.model.top.append(nn.Dropout(0.2))
    parameters = dense_parameters(context.model, context.loss)
    context.dense_optimizer = build_dense_optimizer(cls, {"lr": 0.1}, parameters)
    torch.manual_seed(seed)
    return context


def copy_state(job) -> dict[str, object]:
    held = checkpoint_tensors(job.context, job.train_metrics)
    copies: dict[str, object] = {n: t.clone() for n, t in held.items()}
    copies["torch"] = torch.get_rng_state()
    copies["others"] = (random.getstate(), str(np.random.get_state()))
    copies["rates"] = [g["lr"] for g in job.context.dense_optimizer.param_groups]
    copies["rows"] = job.context.micro_batch_size
    return copies


def are_equal(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[n], b[n]) if isinstance(a[n], torch.Tensor) else a[n] == b[n] for n in a
    )


@pytest.mark.long
@pytest.mark.parametrize("trained", [False, True], ids=["at the start", "after updates"])
@pytest.mark.parametrize(
    "cls", fast(torch.optim.Adam, of=[torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
)
@pytest.mark.parametrize("kind", fast("adam", of=["rowwise_adagrad", "adam", "sgd"]))
@pytest.mark.parity("L6")
def test_trials_leave_no_trace_to_the_last_bit(kind, cls, trained):
    def job_of(context):
        trainer = TrainerSettings(batch_size=16, max_steps=100, max_epochs=None)
        return make_job(context, trainer=trainer, updates=3, margin=0.1)

    job, twin = job_of(with_dropout(kind, cls)), job_of(with_dropout(kind, cls))
    states = []
    for one in (job, twin):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        state = TrainState()
        stream = steps(one, state)
        for _ in range(4 if trained else 0):
            next(stream)
        if one is job:
            before = copy_state(one)
            with restored_after(one):
                try_size(one, 8, longest_rows(random_batch(40)), [])
                range_test(one, low=1, high=50, updates=9, smoothing=0.5, diverged=1e9)
                np.random.rand()
                random.random()
                assert not are_equal(copy_state(one), before)
            assert are_equal(copy_state(one), before)
        for _ in range(4):
            next(stream)
        states.append(copy_state(one))
    assert are_equal(*states)


@pytest.mark.long
def test_a_size_that_torch_cannot_allocate_is_a_trial_that_failed_and_restored():
    job = make_job(with_dropout("sgd", torch.optim.Adam), updates=3, margin=0.1)
    job = replace(job, task=Hungry(20))
    before = copy_state(job)
    pool = longest_rows(random_batch(40))
    with restored_after(job):
        assert try_size(job, 16, pool, []).examples_per_s > 0
        failed = try_size(job, 32, pool, [])
        assert (failed.examples_per_s, failed.failure) == (None, "out of memory")
        foreseen = try_size(job, 64, pool, [(8, 1.0), (16, 1e18)])
        assert foreseen.failure == "would not fit, judging by earlier trials"
    assert are_equal(copy_state(job), before)


@pytest.mark.long
def test_what_a_batch_norm_saw_in_a_trial_that_failed_is_forgotten():
    model = DLRM(SCHEMA, embedding_dim=4, bottom=[8], top=[8], norm="batch")
    job = make_job(make_context(model=model))
    norms = job.context.batch_norms
    assert norms
    with restored_after(job):  # of a trial that goes no further
        for norm in norms:
            norm.train()(1000 + torch.randn(8, len(norm.running_mean)))
        assert None not in [norm.seen for norm in norms]
    assert [norm.seen for norm in norms] == [None] * len(norms)


@pytest.mark.long
def test_an_error_that_is_not_about_memory_is_raised():
    context = make_context()
    context.model.top[0] = nn.Linear(3, 8)
    job = make_job(context, updates=3, margin=0.1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), restored_after(job):
        try_size(job, 16, longest_rows(random_batch(40)), [])


class Lines:
    """A view that keeps its notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.note = self.lines.append


def test_a_report_shows_a_bar_and_a_mark_beside_each_row():
    job = replace(make_job(make_context()), view=Lines())
    rows = [
        TrialRow(["8", "50"], 50.0),
        TrialRow(["16", "100"], 100.0, mark="chosen"),
        TrialRow(["32", "failed"], 0.0),
    ]
    report = TuningReport("page", ["size", "speed"], rows, 100.0, "8 trials", "", "", {}, {})
    show_report(job, report)
    assert job.view.lines == [
        "size   speed",
        "8         50  " + 15 * "█",
        "16       100  " + 30 * "█" + "  <- chosen",
        "32    failed",
        "ended by: 8 trials",
    ]


def test_the_range_test_sets_rates_evenly_in_logarithm_and_smooths_the_loss():
    seen = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(self.param_groups[0]["lr"])
            return super().step(closure)

    context = make_context()
    context.dense_optimizer = Watched(context.dense_parameters, lr=0.1)
    rates = LearningRates({"dense": 0.1, "sparse": 0.2}, lambda step: 1.0)
    job = make_job(context, rates=rates, trainer=TrainerSettings(batch_size=32))
    points, end = range_test(job, low=0.01, high=10, updates=7, smoothing=0.8, diverged=1e9)
    assert end == "7 updates"
    assert seen == pytest.approx([0.001 * 10 ** (k / 2) for k in range(7)])
    assert [p.factor for p in points] == pytest.approx([0.01 * 10 ** (k / 2) for k in range(7)])
    for n, point in enumerate(points, start=1):  # the weighted mean, written out
        coefficients = [0.8 ** (n - k) for k in range(1, n + 1)]
        mean = sum(w * p.loss for w, p in zip(coefficients, points)) / sum(coefficients)
        assert point.smoothed == pytest.approx(mean)


def test_a_rank_without_rows_of_an_update_changes_no_loss_of_the_range_test():
    """Its one row has weight 0, as at the end of an epoch; here it exists only in the exchange."""

    class WithIdleRank(Ranks):
        def all_gather_object(self, value):
            return [value, type(value)((0.0, 0.0)) if isinstance(value, tuple) else 0.0]

    losses = []
    for ranks in (Ranks(), WithIdleRank()):
        job = make_job(make_context(), trainer=TrainerSettings(batch_size=32))
        job.context.ranks = ranks
        points, _ = range_test(job, low=0.1, high=1, updates=3, smoothing=0.5, diverged=1e9)
        losses.append([point.loss for point in points])
    assert losses[0] == losses[1]


def test_the_range_test_stops_where_the_loss_diverges_or_is_not_finite():
    def find_end(diverged: float, high: float):
        job = make_job(make_context(), trainer=TrainerSettings(batch_size=32))
        return range_test(job, low=1, high=high, updates=40, smoothing=0.0, diverged=diverged)

    points, end = find_end(1.5, 1e4)
    assert "diverged at" in end
    assert points[-1].loss > 1.5 * min(p.loss for p in points)
    losses = [p.loss for p in points]
    assert all(x <= 1.5 * min(losses[: n + 1]) for n, x in enumerate(losses[:-1]))
    points, end = find_end(math.inf, 1e60)
    assert "not finite at" in end
    assert all(math.isfinite(p.loss) for p in points)


def test_the_suggestion_is_where_the_loss_falls_steepest_before_its_least():
    factors = np.logspace(-3, 3, 61)

    def points(loss) -> list[RangeTestPoint]:
        return [RangeTestPoint(f, loss(f), loss(f)) for f in factors]

    def curve(f: float) -> float:  # a logistic fall around 0.1, and a rise from 10 on
        return 1 / (1 + f / 0.1) + (math.log10(f / 10) ** 2 if f > 10 else 0)

    chosen = suggest_point(points(curve))
    assert chosen is not None
    assert chosen.factor == pytest.approx(0.1)
    assert suggest_point(points(lambda f: 1.0 + f)) is None
    assert suggest_point(points(lambda f: 1.0)[:2]) is None


def read_tuned(run) -> dict:
    return json.loads((run / "tuned.json").read_text())


def read_metrics(run) -> bytes:
    return (run / "metrics.jsonl").read_bytes()


@pytest.mark.long
def test_then_train_goes_on_as_a_training_with_the_size_found(runner, tmp_path):
    tuned, plain = tmp_path / "tuned", tmp_path / "plain"
    done = runner.run(*SMALL, *TUNE_SIZE, "loop.then=train", f"hydra.run.dir={tuned}").check()
    assert "<- chosen" in done.text
    assert "examples a second" in (tuned / "tune_batch_size.html").read_text()
    size = read_tuned(tuned)["batch_size"]
    assert size in (16, 24, 32, 40, 48, 56, 64)
    runner.run(*SMALL, f"trainer.batch_size={size}", f"hydra.run.dir={plain}").check()
    assert weights(tuned) == weights(plain)
    assert read_metrics(tuned) == read_metrics(plain)
    result = json.loads((tuned / "result.json").read_text())
    assert result["step"] == 30
    assert result["examples"] == 30 * size

    other = 16 if size != 16 else 24  # as another speed of the machine would have found
    found = read_tuned(tuned) | {"batch_size": other, "update_rows": other}
    (tuned / "tuned.json").write_text(json.dumps(found))
    done = runner.run("reproduce", str(tuned), f"hydra.run.dir={tmp_path / 'again'}")
    assert "already tuned" in done.text
    assert json.loads((tmp_path / "again" / "result.json").read_text())["examples"] == 30 * other


@pytest.mark.long
def test_then_train_goes_on_with_the_rates_found_and_a_resumed_run_does_not_search_again(
    runner, tmp_path
):
    tuned, plain = tmp_path / "tuned", tmp_path / "plain"
    words = (
        *("--allow", "tests", "task._target_=tests.whole.traced.Traced"),
        *(*SMALL, *TUNE_LR, "loop.then=train", f"hydra.run.dir={tuned}"),
    )
    env = {"TRACE_FILE": f"{tuned}.trace"}
    killed = runner.run(*words, env={**env, "TRACE_KILL": "step:47"}).check(-9)
    assert "<- suggested" in killed.text
    rates = read_tuned(tuned)
    assert "already tuned" in runner.run(*words, env=env).check().text
    assert read_tuned(tuned) == rates
    own = [f"optimizer.{side}.lr={rates[f'{side}_lr']!r}" for side in ("dense", "sparse")]
    runner.run(*SMALL, *own, f"hydra.run.dir={plain}").check()
    assert weights(tuned) == weights(plain)
    assert read_metrics(tuned) == read_metrics(plain)


@pytest.mark.long
def test_alone_a_tuner_reports_its_result_and_trains_nothing(runner, tmp_path):
    run = tmp_path / "run"
    runner.run(*SMALL, *TUNE_LR, f"hydra.run.dir={run}").check()
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["step"]) == ("completed", 0)
    assert result["tuned"] == read_tuned(run)
    assert result["metrics"]["tune/factor"] == read_tuned(run)["factor"]
    assert not list((run / "checkpoints").glob("step-*"))
    page = (run / "tune_lr.html").read_text()
    assert "<head><title>range test: " in page
    assert all(f'"{name}"' in page for name in ("loss", "smoothed", "times the configured rates"))


@pytest.mark.long
@pytest.mark.parity("L6")
def test_ranks_agree_on_the_size(runner, tmp_path):
    run = tmp_path / "run"
    words = (*SMALL, *TUNE_SIZE, "trainer.num_processes=2", "sharding=row_wise", "loop.then=train")
    runner.run(*words, f"hydra.run.dir={run}").check()
    size = read_tuned(run)["batch_size"]
    result = json.loads((run / "result.json").read_text())
    per_epoch = -(-3000 // (2 * size))  # the last batch of an epoch is shorter
    epochs, rest = divmod(30, per_epoch)
    assert result["examples"] == 3000 * epochs + 2 * size * rest


@pytest.mark.long
def test_a_resume_on_other_ranks_keeps_the_rows_of_an_update_that_were_found(runner, tmp_path):
    run = tmp_path / "run"
    words = ("trainer.batch_size=30", "loop.start=64", "trainer.max_steps=4", "loop.then=train")
    runner.run(*SMALL, *TUNE_SIZE, *words, f"hydra.run.dir={run}").check()
    assert read_tuned(run)["update_rows"] == 64
    done = runner.run("resume", str(run), "trainer.num_processes=2", "trainer.max_steps=8").check()
    assert "keeps its 64 tuned rows: trainer.batch_size=32" in done.text
    assert "keeps its 30" not in done.text
    assert json.loads((run / "result.json").read_text())["examples"] == 8 * 64
    words = ("trainer.num_processes=1", "trainer.accumulate=3", "trainer.max_steps=9")
    refused = runner.run("resume", str(run), *words).check(2)
    assert "has 64 rows, which 3 ranks and micro-batches cannot share evenly" in refused.text
    assert "accumulate: 3" not in (run / "config.yaml").read_text()


@pytest.mark.long
def test_a_size_below_the_one_that_ran_out_of_memory_is_chosen(runner, tmp_path):
    run = tmp_path / "run"
    hungry = (
        "--allow",
        "tests",
        "task._target_=tests.training.loops.memory_hungry_task.Hungry",
        "+task.most_rows=60",
    )
    more = ("loop.max_batch_size=1000", "loop.fall_off=0.9")
    done = runner.run(*hungry, *SMALL, *TUNE_SIZE, *more, f"hydra.run.dir={run}").check()
    assert "64 rows: out of memory" in done.text
    assert read_tuned(run)["batch_size"] <= 56
    assert "ended by: out of memory" in done.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("loop=tune_batch_size", "loop.margin=1"), "loop.margin=1: must be at least 0"),
        (("loop=tune_batch_size", "loop.then=trian"), "one of train; nearest: 'train'"),
        (("loop=tune_batch_size", "loop.start=99", "loop.max_batch_size=9"), "is above loop.max_"),
        (("loop=tune_lr", "loop.low=5", "loop.high=2.0"), "must be below loop.high=2.0"),
        (("loop=tune_lr", "loop.diverged=0.5"), "must be above 1"),
        (("loop=tune_lr", "loop.updates=1"), "must be at least 3; fewer tell nothing"),
        (("loop=tune_lr", "loop.updats=10"), "nearest: 'loop.updates'"),
    ],
)
def test_wrong_settings_are_named(runner, words, message):
    assert message in runner.run(*words).check(2).text


@pytest.mark.long
def test_modules_optimizers_and_logged_means_of_a_task_are_restored_too():
    context = make_context()
    module = context.add_module("own", nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    optimizer = context.add_optimizer("own", torch.optim.Adam(module.parameters(), lr=0.1))
    context.log("norm", 3.0)
    job = make_job(context)
    before = copy_state(job)
    with restored_after(job):
        context.log("norm", 5.0)
        module(torch.randn(8, 2)).square().sum().backward()
        optimizer.step()
        assert not are_equal(copy_state(job), before)
    assert are_equal(copy_state(job), before)
    assert optimizer.state == {}
    assert all(p.grad is None for p in module.parameters())
    assert context.logged_means.state() == {"norm": [3.0, 1]}


def test_trials_begin_as_the_training_will_from_a_linear_start_too(monkeypatch):
    monkeypatch.setattr(linear_start, "start_linear", lambda job: "starts as the regression")
    job = make_job(make_context(), then="none")
    job = replace(job, checkpoint=CheckpointSettings(init_linear=True))
    result = tune(job, lambda job: {"said": output(job)}, lambda job, tuned: job)
    assert "starts as the regression" in result.notes["tuned"]["said"]
