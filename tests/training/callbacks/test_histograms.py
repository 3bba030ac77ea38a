"""Histograms of weights and gradients against NumPy's: of tensors, of shards and of whole runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runner.distributed.ranks import SINGLE_PROCESS
from runner.distributed.shards import LocalShard, LocalShards
from runner.errors import ConfigError
from runner.optim.settings import ClipSettings
from runner.reporting.trackers import Histogram
from runner.rundir.checkpoint import open_checkpoint, read_tensors
from runner.training.callbacks.watch.histograms import (
    HISTOGRAM_BINS,
    LastGradients,
    make_histogram,
    make_row_histogram,
)
from runner.training.callbacks.watch.weights import Weights, sample_row_ids
from runner.training.update.task import Supervised
from tests.conftest import TINY
from tests.reporting.trackers.test_tensorboard import histograms
from tests.tiny import CPU, make_context, random_batch
from tests.training.callbacks.test_shipped_callbacks import FakeTraining
from tests.whole.compare_runs import differences


def assert_counts(found: Histogram | None, x: np.ndarray) -> None:
    """The bins are those of NumPy, and so are the counts in them; rounding may move an edge."""
    assert found is not None
    x = np.sort(x[np.isfinite(x)].astype(np.float64).ravel())
    _, edges = np.histogram(x, HISTOGRAM_BINS)
    np.testing.assert_allclose(found.edges, edges, rtol=1e-12, atol=1e-12)
    assert list(found.counts) == np.histogram(x, np.array(found.edges))[0].tolist()
    assert sum(found.counts) == len(x)
    assert found.total == pytest.approx(x.sum(), abs=1e-9)
    assert found.sum_squares == pytest.approx((x**2).sum())


def test_bins_and_sums_are_numpys():
    g = torch.Generator().manual_seed(0)
    for values in (
        torch.randn(1000, generator=g),
        torch.randint(-3, 4, (500,), generator=g).float(),  # many on edges
        torch.zeros(7),
        torch.tensor([5.0]),
        torch.tensor([1.0, float("nan"), 2.0, float("inf"), -float("inf"), 2.0]),
    ):
        assert_counts(make_histogram([values]), values.numpy())
    assert make_histogram([torch.tensor([float("nan")])]) is None
    assert make_histogram([torch.empty(0)]) is None


def test_rows_of_a_sharded_table_have_the_histogram_of_the_whole():
    table = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    rows_N = torch.tensor([0, 7, 19, 20, 33, 49])
    cuts = [
        [(slice(0, 20), slice(0, 8)), (slice(20, 50), slice(0, 8))],
        [(slice(0, 50), slice(0, 4)), (slice(0, 50), slice(4, 8))],
        [(slice(0, 33), slice(0, 8)), (slice(33, 50), slice(0, 2)), (slice(33, 50), slice(2, 8))],
    ]
    assert_counts(make_row_histogram(table, rows_N, SINGLE_PROCESS), table[rows_N].numpy())
    for cut in cuts:
        shards = [LocalShard(table[r, c], (r.start, c.start)) for r, c in cut]
        whole = LocalShards(table.shape, shards, table.dtype, CPU)
        assert_counts(make_row_histogram(whole, rows_N, SINGLE_PROCESS), table[rows_N].numpy())


class FakeTrainingWithHistograms(FakeTraining):
    """Also keeps histograms."""

    shows_histograms = True

    def log_histograms(self, split: str, found: dict[str, Any]) -> None:
        self.rows.append({"split": f"histograms of {split}", **found})


@pytest.mark.parity("E8")
def test_chosen_weights_and_sampled_rows_are_shown_at_the_interval():
    context = make_context()
    watch = Weights(every=2, histograms=[r"dense/top\..*weight", "tables/a"], sample_rows=20)
    training = FakeTrainingWithHistograms(context=context)
    watch.on_run_start(training)
    for _ in range(3):
        training.advance()
        watch.on_update(training, None)
    [row] = [r for r in training.rows if r["split"] == "histograms of weights"]
    assert set(row) == {"split", "dense/top.0.weight", "dense/top.2.weight", "tables/a"}
    assert_counts(row["dense/top.0.weight"], context.model.top[0].weight.detach().numpy())
    table, rows_N = context.tables.state()["a/weight"], sample_row_ids("a", 50, 20)
    assert len(rows_N) < 20 and len(table) == 50
    assert_counts(row["tables/a"], table[rows_N].numpy())


@pytest.mark.parity("E8", "C6")
def test_gradients_are_those_that_the_update_was_made_with():
    """They are clipped, and follow from what SGD does to the weights; a skipped update has none."""
    context = make_context(lr=0.5)
    context.clip = ClipSettings(global_norm=0.01)
    watch = Weights(every=1, gradient_histograms=["dense/top.*weight"])
    training = FakeTrainingWithHistograms(context=context)
    watch.on_run_start(training)
    for spoilt in (False, True):
        before = context.model.top[0].weight.detach().clone()
        batch = random_batch(32)
        batch.dense_BD[0] += float("nan") if spoilt else 0.0
        training.advance()
        watch.on_update(training, Supervised().train_step(context, iter([batch])))
        rows = [r for r in training.rows if r["split"] == "histograms of gradients"]
        training.rows.clear()
        if spoilt:
            assert rows == []
            continue
        [row] = rows
        slope = (before - context.model.top[0].weight.detach()) / 0.5
        found = row["dense/top.0.weight"]
        assert sum(found.counts) == slope.numel()
        assert found.sum_squares == pytest.approx(float(slope.double().square().sum()), rel=1e-3)
        assert found.edges[-1] == pytest.approx(float(slope.max()), rel=1e-3)
        assert 0 < found.sum_squares < 0.01**2
    watch.on_run_end(training, None)
    assert not context.dense_optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"histograms": ["tables/aa"]}, "histograms: 'tables/aa' matches.*nearest: 'tables/a'"),
        ({"histograms": ["("]}, r"histograms: pattern '\('"),
        ({"gradient_histograms": ["tables/a"]}, "gradient_histograms: 'tables/a' matches nothing"),
        ({"histograms": ["q"]}, "'q' matches nothing; a pattern is of whole names, such as dense/"),
    ],
)
def test_a_pattern_that_matches_nothing_is_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        Weights(**settings).on_run_start(FakeTrainingWithHistograms(context=make_context()))


def test_a_tracker_that_shows_none_and_an_optimizer_that_has_none_are_refused():
    training = FakeTrainingWithHistograms(context=make_context())
    training.shows_histograms = False
    with pytest.raises(ConfigError, match="no tracker of this run shows them"):
        Weights(histograms=["tables/a"]).on_run_start(training)
    with pytest.raises(ConfigError, match="LBFGS evaluates gradients several times"):
        LastGradients().attach([torch.optim.LBFGS([torch.nn.Parameter(torch.zeros(2))])])


WITH_HISTOGRAMS = (
    "callbacks=weights",
    "callbacks.weights.every=10",
    "callbacks.weights.histograms=[dense/top.0.weight,tables/C1]",
)


def test_without_a_tracker_that_shows_them_they_are_refused_before_torch_is_imported(runner):
    done = runner.run(*TINY, *WITH_HISTOGRAMS).check(2)
    assert "callbacks.weights.histograms" in done.text and "tracker=tensorboard" in done.text


@pytest.mark.slow
def test_a_killed_and_resumed_run_shows_each_once_and_trains_as_without(runner, tmp_path):
    run, plain = tmp_path / "run", tmp_path / "plain"
    traced = ("--allow", "tests", "task._target_=tests.whole.traced.Traced")
    on = (
        *WITH_HISTOGRAMS,
        "callbacks.weights.gradient_histograms=[dense/top.*]",
        "tracker=tensorboard",
    )
    for kill in ("step:33", ""):
        env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
        done = runner.run(*traced, *TINY, *on, f"hydra.run.dir={run}", env=env)
        assert done.code == (-9 if kill else 0), done.text
    env = {"TRACE_FILE": f"{plain}.trace"}
    runner.run(*traced, *TINY, *WITH_HISTOGRAMS[:2], f"hydra.run.dir={plain}", env=env).check()
    found = [d for d in differences(run, plain) if d != "values: trackers"]
    assert found == []
    read = histograms(run)
    names = {f"dense/top.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")}
    weights = {"weights/dense/top.0.weight", "weights/tables/C1"}
    assert set(read) == weights | {f"gradients/{name}" for name in names}
    assert all([e.step for e in events] == [10, 20, 30, 40] for events in read.values())
    last = read["weights/dense/top.0.weight"][-1].histogram_value
    saved = open_checkpoint(run / "checkpoints" / "step-40")
    x = read_tensors(saved, ["dense/top.0.weight"])["dense/top.0.weight"].double().numpy()
    limits = np.array([last.min, *last.bucket_limit])
    assert list(last.bucket) == np.histogram(x, limits)[0].tolist()
    assert (last.num, last.max) == (x.size, x.max())


@pytest.mark.slow
def test_two_ranks_show_the_histogram_of_one_process(runner, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    on = (*WITH_HISTOGRAMS, "tracker=tensorboard", "trainer.max_steps=10", "trainer.batch_size=32")
    runner.run(*TINY, *on, f"hydra.run.dir={one}").check()
    split = ("trainer.num_processes=2", "trainer.batch_size=16", "sharding=row_wise")
    runner.run(*TINY, *on, *split, f"hydra.run.dir={two}").check()
    ours, theirs = (histograms(folder)["weights/tables/C1"] for folder in (two, one))
    [a], [b] = ([e.histogram_value for e in events] for events in (ours, theirs))
    assert a.num == b.num > 0
    assert (a.min, a.max) == pytest.approx((b.min, b.max), abs=1e-5)
    assert a.sum_squares == pytest.approx(b.sum_squares, rel=1e-4)
    assert sum(abs(x - y) for x, y in zip(a.bucket, b.bucket)) <= 0.02 * a.num
