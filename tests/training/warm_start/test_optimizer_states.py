"""A warm start with the optimizers' states: its first update is the source's next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from runner.batch import Batch, DataPosition
from runner.config.settings import CheckpointSettings
from runner.embeddings.composite_tables import CompositeTables
from runner.embeddings.factory import build_tables
from runner.embeddings.interface import TableSpec, make_layout
from runner.errors import ConfigError
from runner.optim.settings import parse_sparse
from runner.rundir.checkpoint import Checkpointer, open_checkpoint
from runner.training.job import Job
from runner.training.rng_state import rng_state_tensors
from runner.training.state import (
    TrainState,
    checkpoint_tensors,
    checkpoint_values,
    restore_checkpoint,
)
from runner.training.steps import steps
from runner.training.update.context import Context
from runner.training.warm_start.warm_start import warm_start
from tests.tiny import CPU, make_context, snapshot
from tests.tiny_job import Rows, make_job

MOMENTS = ["adam", "lamb", "partial_rowwise_adam", "partial_rowwise_lamb"]
BATCH = 32


class RowsFromBatch(Rows):
    """Rows from some batch on; nothing was fitted to them."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.first_row = first * BATCH
        self.num_rows = {"train": self.num_rows["train"] - self.first_row}

    def save_fitted_transforms(self, folder: Path) -> None:
        assert folder.is_dir()

    def rows(self, low: int, high: int, end: DataPosition) -> Batch:
        return super().rows(low + self.first_row, high + self.first_row, end)


def job_of(kind: str, *, first: int = 0, spoilt: bool = False, **init) -> Job:
    """A job with dense Adam and tables of a kind; if `spoilt`, its second batch has a NaN."""
    context = make_context(kind, lr=0.02)
    context.dense_optimizer = torch.optim.Adam(context.dense_parameters, lr=0.02, weight_decay=0.1)
    data = RowsFromBatch(first)
    if spoilt:
        data.all.dense_BD[BATCH + 1, 0] = float("nan")
    job = make_job(context, dataset=data)
    return replace(job, checkpoint=CheckpointSettings(**init))


def perturb_weights(context: Context) -> None:
    """Make the initial weights differ from the source's."""
    with torch.no_grad():
        for tensor in (*context.dense_parameters, *context.tables.state().values()):
            tensor.add_(0.01)


def save(job: Job, state: TrainState, folder: Path) -> Path:
    held = checkpoint_tensors(job.context, job.train_metrics) | rng_state_tensors(
        CPU, job.context.ranks
    )
    Checkpointer(folder, keep=9).save(
        state.step, held, checkpoint_values(state, job.context), wait=True
    )
    return folder / f"step-{state.step}"


def train_source(kind: str, folder: Path, number: int = 3, **more) -> tuple[Path, Job, Iterator]:
    """Train a source and save it after some updates; the iterator makes further ones."""
    job, state = job_of(kind, **more), TrainState()
    updates = steps(job, state)
    assert len(list(islice(updates, number))) == number
    return save(job, state, folder), job, updates


def assert_equal(ours: Context, theirs: Context) -> None:
    one, two = snapshot(ours), snapshot(theirs)
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


@pytest.mark.parametrize("kind", [*MOMENTS, "rowwise_adagrad", "adagrad", "lars_sgd", "sgd"])
def test_the_first_update_is_what_the_next_one_of_the_source_would_have_been(tmp_path, kind):
    path, source, updates = train_source(kind, tmp_path)
    job = job_of(kind, first=3, init_from=str(path), init_optimizer=True)
    perturb_weights(job.context)
    report = warm_start(job)
    assert ("moments of 3 tables go on after 3 updates" in report) == (kind in MOMENTS)
    assert_equal(job.context, source.context)
    before = snapshot(job.context)
    next(updates)
    state = TrainState()
    next(steps(job, state))
    assert state.step == 1
    assert_equal(job.context, source.context)
    assert not torch.equal(snapshot(job.context)["tables/a/weight"], before["tables/a/weight"])


def test_an_update_that_the_source_skipped_does_not_count_for_the_moments(tmp_path):
    path, source, updates = train_source("adam", tmp_path, spoilt=True)
    job = job_of("adam", first=3, spoilt=True, init_from=str(path), init_optimizer=True)
    assert "go on after 2 updates" in warm_start(job)
    next(updates)
    next(steps(job, TrainState()))
    assert_equal(job.context, source.context)


@pytest.mark.parametrize("kind", ["adam", "lamb", "partial_rowwise_adam"])
def test_a_warm_start_from_a_warm_start_and_its_resume_count_all_updates(tmp_path, kind):
    """3 updates of a run, 1 of a second one, 1 more of a third run and of the second resumed."""
    path, _, _ = train_source(kind, tmp_path / "a")
    second = job_of(kind, first=3, init_from=str(path), init_optimizer=True)
    warm_start(second)
    state = TrainState()
    updates = steps(second, state)
    next(updates)
    between = save(second, state, tmp_path / "b")
    third = job_of(kind, first=4, init_from=str(between), init_optimizer=True)
    assert "go on after 4 updates" in warm_start(third)
    resumed = job_of(kind, first=3)
    perturb_weights(resumed.context)
    again = restore_checkpoint(resumed, open_checkpoint(between))
    assert resumed.context.prior_table_updates == {"a": 3, "b": 3, "m": 3}
    next(updates)
    next(steps(third, TrainState()))
    assert_equal(third.context, second.context)
    next(steps(resumed, again))
    assert_equal(resumed.context, second.context)


def test_moments_of_a_group_whose_tables_have_different_counts_are_left_out_with_a_reason(tmp_path):
    short, _, _ = train_source("adam", tmp_path / "short", 2)
    long, _, _ = train_source("adam", tmp_path / "long", 4)
    one = {"init_from": str(long), "init_optimizer": True}
    job = job_of("adam", **one, init_tables={"b": {"from": str(short)}})
    report = warm_start(job)
    assert "moments of tables" in report and "there is: a and 1 other 4, b 2;" in report
    assert "optimizer.parts gives" in report
    assert job.context.prior_table_updates == {}
    state = job.context.tables.state()
    assert not any(t.any() for name, t in state.items() if "exp_avg" in name)
    assert job.context.dense_optimizer.state_dict()["state"][0]["step"] == 4

    left_out = job_of("adam", **one, init_names={"tables/m": None})
    assert "there is: a and 1 other 4, m afresh;" in warm_start(left_out)
    assert left_out.context.prior_table_updates == {}

    same = job_of("adam", **one, init_tables={"b": {"from": str(long), "table": "b"}})
    assert "go on after 4 updates" in warm_start(same)


def test_if_one_moment_does_not_fit_none_is_taken(tmp_path):
    """A first moment without its second one would make steps of arbitrary size."""
    path, _, _ = train_source("partial_rowwise_adam", tmp_path)
    job = job_of("adam", init_from=str(path), init_optimizer=True)
    report = warm_start(job)
    assert report.count("optimizer's, not there: tables/") == 3
    assert "optimizer's, not there: tables/a/exp_avg_sq" in report
    state = job.context.tables.state()
    assert not any(t.any() for name, t in state.items() if "exp_avg" in name)
    assert job.context.prior_table_updates == {}


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "fused": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}),
        (torch.optim.Adadelta, {}),
        (torch.optim.Adafactor, {}),  # keeps other states of a matrix than of a bias
    ],
)
def test_states_of_every_dense_optimizer_are_continued(tmp_path, optimizer, settings):
    def dense(job: Job) -> Job:
        job.context.dense_optimizer = optimizer(job.context.dense_parameters, lr=0.02, **settings)
        return job

    source, state = dense(job_of("sgd")), TrainState()
    updates = steps(source, state)
    assert len(list(islice(updates, 3))) == 3
    path = save(source, state, tmp_path)
    job = dense(job_of("sgd", first=3, init_from=str(path), init_optimizer=True))
    perturb_weights(job.context)
    assert "of another kind" not in warm_start(job)
    next(updates)
    next(steps(job, TrainState()))
    assert_equal(job.context, source.context)


def in_two_groups(kind: str, first: int, **init) -> Job:
    """A job whose table `b` has a rate of its own, as with optimizer.parts."""
    job = job_of(kind, first=first, **init)
    context, lookup = job.context, job.context.model.embedding
    settings = parse_sparse({"kind": kind, "lr": 0.02})

    def tables_of(specs: list[TableSpec]):
        names = {f for spec in specs for f in spec.features}
        order = [f for f in lookup.features if f in names]
        return build_tables(specs, order, settings, seed=0, device=CPU)

    own = tables_of([s for s in lookup.specs if s.name == "b"])
    rest = tables_of([s for s in lookup.specs if s.name != "b"])
    layout = make_layout(lookup.specs, lookup.features, by_dim=False)
    context.tables = CompositeTables(layout, settings, [rest, own], device=CPU)
    context.table_groups = {"sparse": rest, "part": own}
    lookup.attach_tables(context.tables)
    rates = replace(job.learning_rates, base={**job.learning_rates.base, "part": 0.1})
    return replace(job, learning_rates=rates)


def test_each_group_goes_on_from_its_own_count(tmp_path):
    short, _, _ = train_source("adam", tmp_path / "short", 2)
    long, _, _ = train_source("adam", tmp_path / "long", 3)
    init = {"init_from": str(long), "init_optimizer": True}
    job = in_two_groups("adam", 3, **init, init_tables={"b": {"from": str(short)}})
    report = warm_start(job)
    assert "moments of 2 tables go on after 3 updates" in report
    assert "moments of 1 table go on after 2 updates" in report
    assert job.context.prior_table_updates == {"a": 3, "m": 3, "b": 2}
    state = TrainState()
    for _ in islice(steps(job, state), 2):
        numbers = {
            name: group._next_update.step for name, group in job.context.table_groups.items()
        }
        assert numbers == {"sparse": 3 + state.step, "part": 2 + state.step}
    path = save(job, state, tmp_path / "both")
    with pytest.raises(ConfigError, match="a and 1 other 3, b 2; put the tables"):
        restore_checkpoint(job_of("adam"), open_checkpoint(path))
