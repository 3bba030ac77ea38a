"""The callbacks that ship, against sequences and numbers that are computed another way."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runner.batch import DataPosition, Prediction, TaskSpec
from runner.config.intervals import Progress, is_due
from runner.distributed.ranks import SINGLE_PROCESS
from runner.distributed.shards import LocalShard, LocalShards
from runner.errors import ConfigError
from runner.machine.free_memory import available_memory_share
from runner.models.deepfm import DeepFM
from runner.models.losses import BCE
from runner.reporting.console import View
from runner.training.callbacks import check_callback
from runner.training.callbacks.loss_guard import LossGuard
from runner.training.callbacks.watch.memory import Memory
from runner.training.callbacks.watch.throughput import Throughput
from runner.training.callbacks.watch.time_limit import TimeLimit
from runner.training.callbacks.watch.weights import Weights, row_norms, sample_row_ids
from runner.training.update.task import StepOutput
from tests.tiny import CPU, SCHEMA, make_context

NAN = float("nan")


@dataclass
class FakeTraining:
    """Stands for a `TrainingHandle`, and keeps what a callback asks for and writes."""

    context: Any = None
    state: Any = field(default_factory=lambda: SimpleNamespace(examples=0))
    before: Progress = field(default_factory=Progress)
    now: Progress = field(default_factory=Progress)
    requests: list[tuple[int, str, str]] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    ranks: Any = SINGLE_PROCESS

    @property
    def step(self) -> int:
        return self.now.step

    def due(self, interval: Any) -> bool:
        return is_due(interval, self.before, self.now)

    def advance(self, *, seconds: float = 0.1, rows: int = 10) -> None:
        at = self.now
        self.before = at
        self.now = Progress(at.step + 1, at.examples + rows, 0, at.active_s + seconds)
        self.state.examples += rows

    def stop(self, reason: str) -> None:
        self.requests.append((self.step, "stop", reason))

    def pause(self, reason: str) -> None:
        self.requests.append((self.step, "pause", reason))

    def warn(self, text: str) -> None:
        View(io.StringIO()).warn(text)  # as a job does
        self.requests.append((self.step, "warn", text))

    def log(self, split: str, numbers: dict[str, float]) -> None:
        self.rows.append({"split": split, **numbers})

    log_speed = lambda self, numbers: self.rows.append(dict(numbers))


def make_update(loss: float | dict[str, float], *, applied: bool = True) -> StepOutput:
    """Rows of weight 1 and 3 whose weighted mean is the loss, and a NaN of weight 0."""
    losses = loss if isinstance(loss, dict) else {"click": loss}
    rows = {n: torch.tensor([x - 0.3, x + 0.1, NAN]) for n, x in losses.items()}
    prediction = Prediction(
        torch.zeros(3, 1), torch.zeros(3, 1), torch.tensor([1.0, 3.0, 0.0]), torch.empty(3, 0)
    )
    return StepOutput((prediction,), (rows,), torch.arange(3), DataPosition(0, 3), applied)


def run_guard(losses, *, applied=(), **settings):
    """Run a guard on these losses; return (update, request) of its requests, and the training."""
    training, guard = FakeTraining(), LossGuard(**settings)
    for number, loss in enumerate(losses, start=1):
        training.advance()
        guard.on_update(training, make_update(loss, applied=number not in applied))
    return [(step, what) for step, what, _ in training.requests], training


# the median of [1, 2, 3, 4] is 2.5; deviations are 1.5, .5, .5, 1.5, their median is 1, times 1.48
FOUR = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("losses", "settings", "expected"),
    [
        ([*FOUR, 2.5 + 1.4826 * 5 - 0.01], {"spike": 5, "window": 4}, []),
        ([*FOUR, 2.5 + 1.4826 * 5 + 0.01], {"spike": 5, "window": 4}, [(5, "warn")]),
        ([*FOUR, 99.0], {"spike": 5, "window": 5}, []),  # the window is not full yet
        ([*FOUR, 99.0, 99.0, 1.0, 99.0], {"spike": 5, "window": 4}, [(5, "warn")]),
        ([*FOUR, 99.0], {"spike": 5, "window": 4, "on_spike": "stop"}, [(5, "stop")]),
        ([*FOUR, 99.0], {"spike": 5, "window": 4, "on_spike": "pause"}, [(5, "pause")]),
        ([*FOUR, 99.0], {"spike": 5, "window": 4, "on_spike": "ignore"}, []),
        ([2.0, 2.0, 2.0, 2.0, 99.0], {"spike": 5, "window": 4}, []),  # nothing to measure it by
        ([1.0, NAN, 1.0], {}, [(2, "stop")]),
        ([1.0, float("inf")], {"on_nonfinite": "pause"}, [(2, "pause")]),
        ([NAN, NAN, 1.0, NAN], {"on_nonfinite": "warn"}, [(1, "warn"), (4, "warn")]),
        ([NAN], {"on_nonfinite": "ignore"}, []),
        # uncertainty weighting makes losses below 0
        ([-1.0, -2.0, -3.0, -4.0, 8.0], {"spike": 5, "window": 4}, [(5, "warn")]),
    ],
)
def test_the_guard_acts_where_a_loss_is_not_finite_or_far_above_the_others(
    losses, settings, expected
):
    assert run_guard(losses, **settings)[0] == expected


def test_the_guard_counts_updates_that_were_skipped_in_a_row():
    skipped = {2, 3, 5, 6, 7}
    found, training = run_guard([1.0] * 8, applied=skipped, max_skipped=3)
    assert found == [(7, "stop")]
    assert "3 updates in a row were skipped" in training.requests[0][2]
    assert run_guard([1.0] * 8, applied=skipped, max_skipped=None)[0] == []


def test_the_guard_names_the_parts_of_a_loss_that_is_not_finite():
    _, training = run_guard([{"click": 0.5, "like": NAN}])
    assert "the loss is nan (click 0.5, like nan)" in training.requests[0][2]


def test_a_guard_that_was_saved_in_between_goes_on_as_one_that_was_not():
    losses = [*FOUR, 99.0, 3.0, 2.0, 99.0]
    whole = run_guard(losses, spike=5, window=4)[0]
    training, guard = FakeTraining(), LossGuard(spike=5, window=4)
    for loss in losses:
        training.advance()
        guard.on_update(training, make_update(loss))
        saved, guard = guard.state(), LossGuard(spike=5, window=4)
        guard.load_state(saved)
    assert (
        [(step, what) for step, what, _ in training.requests] == whole == [(5, "warn"), (8, "warn")]
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LossGuard(on_spike="halt"),
            "on_spike=halt: must be one of stop, pause, warn, ignore",
        ),
        (lambda: LossGuard(spike=0.0), "spike=0.0: must be above 0"),
        (lambda: LossGuard(window=0), "window=0: must be at least 1"),
        (lambda: Throughput(every="5 parsecs"), "every=5 parsecs: not an interval"),
        (
            lambda: Throughput(warn_below=2.0),
            "warn_below=2.0: must be at least 0 and at most 1; 0: never",
        ),
        (lambda: Memory(every="30s"), "every=30s: must not be a time: this key changes the result"),
        (lambda: TimeLimit(limit="100"), "limit=100: must be a time, such as"),
        (lambda: TimeLimit(limit="1ep"), "limit=1ep: must be a time, such as"),
        (lambda: TimeLimit(limit="1min", margin="1min"), "margin=1min: must be less than limit"),
        (lambda: Weights(sample_rows=0), "sample_rows=0: must be at least 1; null: all rows"),
        (
            lambda: Weights(tables=[{"pattern": ".*", "statistics": ["nrom"]}]),
            r"tables.statistics\[0\]=nrom: must be one of norm, .*; nearest: 'norm'",
        ),
        (lambda: Weights(tables=[{"pattern": "("}]), "must be {pattern"),
        (
            lambda: Weights(parameters=[{"pattern": "(", "statistics": ["norm"]}]),
            "parameters: pattern '\\('",
        ),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_all_that_ship_pass_the_check():
    limit = TimeLimit(limit="1h")
    for callback in (LossGuard(), Throughput(), Memory(), limit, Weights()):
        check_callback("it", callback)


def test_throughput_is_examples_over_the_time_of_updates():
    training, watch = FakeTraining(), Throughput(every=4, warn_below=0.5)
    watch.on_run_start(training)
    for seconds in (0.1, 0.1, 0.2, 0.4, 0.2, 0.2, 0.2, 0.2, 1.0, 1.0, 1.0, 1.0):
        training.advance(seconds=seconds)
        watch.on_update(training, None)
    first, second, third = training.rows
    assert first["throughput/examples_per_s"] == pytest.approx(40 / 0.8)
    assert first["throughput/updates_per_s"] == pytest.approx(4 / 0.8)
    assert first["throughput/update_s_median"] == pytest.approx(0.15)
    assert first["throughput/update_s_max"] == pytest.approx(0.4)
    assert second["throughput/examples_per_s"] == pytest.approx(50)
    assert third["throughput/examples_per_s"] == pytest.approx(10)
    [(step, what, text)] = training.requests
    assert (step, what) == (12, "warn")
    assert "10 examples/s, 20% of the best so far (50); trainer.profile.updates=20" in text


@pytest.mark.parity("L17")
def test_memory_is_logged_at_its_interval_and_a_warning_comes_before_it_runs_out():
    training = FakeTraining(context=SimpleNamespace(device=CPU))
    watch = Memory(every=2, warn_free_below=1.0)
    for _ in range(4):
        training.advance()
        watch.on_update(training, None)
    assert len(training.rows) == 2
    assert training.rows[0]["memory/peak_bytes"] >= training.rows[0]["memory/bytes"] > 50e6
    assert 0 < training.rows[0]["memory/host_free"] < 1
    assert [(step, what) for step, what, _ in training.requests] == [(2, "warn"), (4, "warn")]


def test_no_warning_comes_where_the_pages_of_files_fill_a_container(tmp_path, monkeypatch):
    read = partial(available_memory_share, tmp_path, tmp_path)
    monkeypatch.setattr("runner.training.callbacks.watch.memory.available_memory_share", read)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 500 kB\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("990\n")
    training = FakeTraining(context=SimpleNamespace(device=CPU))
    watch = Memory(every=1, warn_free_below=0.05)
    for pages in (440, 0):
        (tmp_path / "memory.stat").write_text(f"inactive_file {pages}\nactive_file 0\n")
        training.advance()
        watch.on_update(training, None)
    assert [row["memory/host_free"] for row in training.rows] == [0.45, 0.01]
    [(step, what, text)] = training.requests
    assert (step, what) == (2, "warn") and "1.0% of the host's memory is free" in text


@pytest.mark.parametrize(
    ("gaps_s", "end_step"),
    [
        # limit 100 s, margin 10 s; after each update: left <= 10 + the longest gap so far?
        ([1] * 100, 89),  # at 89: 11 left <= 10 + 1
        ([20, 20, 20, 20], 4),  # at 60: 40 > 30; at 80: 20
        ([1, 1, 1, 30] + [1] * 60, 31),  # one took 30: 41 left at 30, 40 at 31
        ([89, 1], 1),
    ],
)
def test_the_time_limit_leaves_time_for_the_longest_gap(gaps_s, end_step):
    clock = SimpleNamespace(now_s=1000.0)
    limit = TimeLimit(limit="100s", margin="10s", clock=lambda: clock.now_s)
    training = FakeTraining()
    limit.on_run_start(training)
    for gap in gaps_s:
        clock.now_s += gap
        training.advance()
        limit.on_update(training, None)
    assert training.requests[0][:2] == (end_step, "pause")


@pytest.mark.parity("T12")
def test_statistics_of_weights_are_those_of_numpy():
    context = make_context()
    context.model.top[0].bias.data[:3] = 0
    every = ["norm", "rms", "mean", "std", "min", "max", "zeros"]
    watch = Weights(
        every=2,
        parameters=[
            {"pattern": r"top\.0\..*", "statistics": every},
            {"pattern": ".*bias", "statistics": ["mean"]},
        ],
        tables=[{"pattern": "a|b", "statistics": ["mean", "max"]}],
    )
    training = FakeTraining(context=context)
    watch.on_run_start(training)
    for _ in range(2):
        training.advance()
        watch.on_update(training, None)
    [row] = training.rows
    assert row.pop("split") == "weights"
    x = context.model.top[0].bias.detach().double().numpy()
    expected = {
        "norm": np.sqrt((x**2).sum()),
        "rms": np.sqrt((x**2).mean()),
        "mean": x.mean(),
        "std": x.std(),
        "min": x.min(),
        "max": x.max(),
        "zeros": 3 / 8,
    }
    for name, value in expected.items():
        assert row[f"dense/top.0.bias/{name}"] == pytest.approx(value, abs=1e-12)
    table = context.tables.state()["a/weight"].double().numpy()
    norms = np.linalg.norm(table, axis=1)
    assert row["tables/a/row_norm_mean"] == pytest.approx(norms.mean())
    assert row["tables/a/row_norm_max"] == pytest.approx(norms.max())
    assert "tables/m/row_norm_max" not in row
    assert "dense/bottom.0.bias/mean" in row and "dense/bottom.0.weight/mean" not in row


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_norms_of_rows_are_those_of_the_weights_for_which_equal_columns_stand(num_tasks):
    schema = replace(SCHEMA, tasks=tuple(TaskSpec(f"t{n}") for n in range(num_tasks)))
    model = DeepFM(schema, embedding_dim=4, deep=[8], linear_weights="own")
    context = make_context(model=model, loss=BCE(schema))
    weight_RD = context.tables.state()["a:linear/weight"]
    weight_RT = torch.randn(len(weight_RD), num_tasks)
    weight_RD.copy_(weight_RT.repeat_interleave(4 // num_tasks, dim=1))
    watch = Weights(every=1, tables=[{"pattern": "a:linear", "statistics": ["max"]}])
    training = FakeTraining(context=context)
    watch.on_run_start(training)
    training.advance()
    watch.on_update(training, None)
    largest = float(weight_RT.norm(dim=1).max())
    assert training.rows[0]["tables/a:linear/row_norm_max"] == pytest.approx(largest)


def test_a_pattern_that_matches_nothing_is_an_error_naming_the_nearest():
    watch = Weights(tables=[{"pattern": "aa", "statistics": ["mean"]}])
    with pytest.raises(ConfigError, match="tables: 'aa' matches nothing; nearest: 'a'"):
        watch.on_run_start(FakeTraining(context=make_context()))


def test_the_same_rows_of_a_large_table_are_sampled_every_time():
    rows_N = sample_row_ids("item", 1_000_000, 5_000)
    assert torch.equal(rows_N, sample_row_ids("item", 1_000_000, 5_000))
    assert not torch.equal(rows_N[:50], sample_row_ids("user", 1_000_000, 5_000)[:50])
    assert 4_900 < len(rows_N) <= 5_000 and int(rows_N.max()) < 1_000_000
    assert abs(float(rows_N.double().mean()) / 500_000 - 1) < 0.03  # from everywhere in it
    assert torch.equal(sample_row_ids("item", 10, 5_000), torch.arange(10))


def test_norms_of_rows_add_up_over_shards_of_any_shape():
    table = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    rows_N = torch.tensor([0, 7, 19, 20, 33, 49])
    expected = table[rows_N].double().norm(dim=1)
    cuts = [
        [(slice(0, 20), slice(0, 8)), (slice(20, 50), slice(0, 8))],
        [(slice(0, 50), slice(0, 4)), (slice(0, 50), slice(4, 8))],
        [(slice(0, 33), slice(0, 8)), (slice(33, 50), slice(0, 2)), (slice(33, 50), slice(2, 8))],
    ]
    for cut in cuts:
        shards = [LocalShard(table[r, c], (r.start, c.start)) for r, c in cut]
        whole = LocalShards(table.shape, shards, table.dtype, CPU)
        torch.testing.assert_close(row_norms(whole, rows_N, SINGLE_PROCESS), expected)
    torch.testing.assert_close(row_norms(table, rows_N, SINGLE_PROCESS), expected)
