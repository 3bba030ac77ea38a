"""What a training refuses and warns of, with what to do next; each is provoked in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Made
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runner.batch import Schema, SequenceFeature, SparseFeature, TaskSpec
from runner.config.settings import CheckpointSettings, MonitorSettings, TrainerSettings
from runner.distributed.ranks import SINGLE_PROCESS, Ranks
from runner.errors import ConfigError
from runner.metrics.settings import MetricSettings
from runner.reporting.console.view import View
from runner.training import feature_importance
from runner.training.builder.context import set_up_task
from runner.training.builder.growing import check_growth
from runner.training.builder.metrics import check_monitors
from runner.training.builder.own_schedule import OwnSchedule
from runner.training.builder.tables import get_table_lookup
from runner.training.catalogue import check_rankings
from runner.training.health import compare
from runner.training.job import Job, Result
from runner.training.loops import pruning, tune_lr
from runner.training.loops.debug import report_overfit
from runner.training.loops.evaluate_split import select_splits
from runner.training.loops.pinned_checkpoints import PinnedCheckpoints
from runner.training.loops.run_facts import write_warm_start
from runner.training.loops.start import check_metrics
from runner.training.loops.train import finish_completed
from runner.training.state import BestEvaluation, TrainState
from runner.training.update.determinism import warn_of_unrepeatable_sums
from runner.training.update.task import Supervised
from runner.training.warm_start import warm_start
from runner.training.warm_start.linear_start import start_linear
from runner.training.warm_start.source import ValueRows, WarmStartSource
from tests.models.scene import from_yaml, make_model
from tests.tiny import CPU, SCHEMA, make_context
from tests.tiny_job import make_job

HISTORY = Schema(
    dense=(),
    sparse=(SparseFeature("item", 40, table="item"), SparseFeature("user", 9)),
    tasks=(TaskSpec("click"),),
    sequences=(SequenceFeature("history", 40, 6, table="item"),),
)


class OwnWeight(Supervised):
    """A task with a module that it gives no optimizer."""

    def setup(self, ctx):
        ctx.add_module("head", nn.Linear(2, 1))


def monitor(
    trainer: TrainerSettings, metric: str = "validation/auc", schema: Schema = SCHEMA
) -> None:
    dataset = Made(num_rows={"train": 9, "validation": 9}, schema=schema)
    checkpoint = CheckpointSettings(monitor=MonitorSettings(metric, "max"))
    check_monitors(checkpoint, trainer, MetricSettings(["auc", "mae"], []), dataset, ())


def growing_candidates() -> None:
    model = from_yaml("dien", HISTORY, embedding_dim=4, top=[6])
    dataset = Made(growth={"item": 1}, schema=HISTORY)
    check_growth({"metrics": {}, "checkpoint": {}}, dataset, model)


def rank(model: nn.Module, **settings: Any) -> None:
    rows: Any = Made(num_rows={"train": 9, "test": 9}, seen_items=lambda split: None)
    check_rankings(MetricSettings(["auc"], [], **settings), rows, model)


def evaluate(split: str) -> None:
    select_splits(make_job(make_context(), split=split))


def start_from_line(model: str, schema: Schema = SCHEMA, ranks: Ranks = SINGLE_PROCESS) -> None:
    context = Made(model=make_model(model, schema), ranks=ranks)
    start_linear(Made(dataset=Made(schema=schema), context=context))


def map_rows_of_one_vocabulary() -> None:
    values = {"a": ValueRows(np.arange(3), np.arange(3))}
    source = WarmStartSource(Made(), {}, {}, values, None, Path("schema.yaml"))
    source.map_rows("tables/a/weight", "tables/a/weight", 5, 5)


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: set_up_task(OwnWeight(), make_context(), TrainerSettings()),
        "OwnWeight: .*weight has no optimizer: ctx.add_optimizer in setup gives it one, requires_g",
    ),
    (
        lambda: get_table_lookup(nn.ModuleList([make_model("dlrm"), make_model("mlp")])),
        "model.net: ModuleList must hold one TableLookup for all its tables, not 2",
    ),
    (
        lambda: feature_importance.find_cut_features(nn.Linear(2, 1), SCHEMA),
        "importance: Linear has 0 look-ups of tables, not one, so the columns",
    ),
    (growing_candidates, "auxiliary=true: draws items of table item, .*model/loss=bce"),
    (lambda: OwnSchedule("scheduler", 3), r"scheduler \(int\): is no schedule: it has no __call__"),
    (
        lambda: monitor(TrainerSettings(eval_splits=["tset"])),
        "trainer.eval_splits=tset: the dataset has train, validation",
    ),
    (
        lambda: monitor(
            replace(
                TrainerSettings(),
                early_stop=replace(TrainerSettings().early_stop, patience=2, metric="test/auc"),
            )
        ),
        r"early_stop: waits for test/auc, .* are of validation: give the data a test split ",
    ),
    (
        lambda: monitor(TrainerSettings(), "validation/auk"),
        "monitor.metric=validation/auk: is not measured; nearest: 'validation/auc'; there are",
    ),
    (
        lambda: monitor(
            TrainerSettings(), schema=replace(SCHEMA, tasks=(TaskSpec("price", "regression"),))
        ),
        r"there are validation/loss, validation/mae; "
        r'"checkpoint.monitor={metric: validation/loss, direction: min}" is for any task$',
    ),
    (
        lambda: rank(make_model("dlrm"), slice_by="item_popularity"),
        "slice_by=item_popularity: DLRM knows no item; model=sasrec and model=two_tower do",
    ),
    (
        lambda: rank(
            from_yaml("two_tower", HISTORY, embedding_dim=4, item=["item"]),
            leave_seen_out=True,
            candidates="full",
        ),
        "leave_seen_out=true: the dataset does not know what users have seen; one whose schema",
    ),
    (lambda: evaluate("tset"), "loop.split=tset: the dataset has train"),
    (lambda: start_from_line("dlrm"), "init_linear=true: needs a linear and a deep half; wide_and"),
    (
        lambda: start_from_line("wide_and_deep", ranks=Ranks(rank=0, world_size=2)),
        "init_linear=true: works on one rank; trainer.num_processes=1",
    ),
    (
        map_rows_of_one_vocabulary,
        "table 'a' has no vocabulary here, so rows cannot be matched; the same `encode` in both",
    ),
]


@pytest.mark.parametrize(("mistake", "told"), MISTAKES)
def test_a_mistake_is_told_with_what_to_do(mistake, told):
    with pytest.raises(ConfigError, match=told):
        mistake()


def test_a_table_of_another_width_is_told_with_the_width(tmp_path, monkeypatch):
    source = Made(shapes={"tables/user/weight": (9, 16)})
    monkeypatch.setattr(warm_start.WarmStartSource, "open", lambda job, path: source)
    job = make_job(make_context())
    with pytest.raises(ConfigError, match=r"init_tables\.a: is 4 wide, and 'user' .*_dim=16"):
        warm_start._take_table(job, "a", tmp_path, "user")


def job_in(folder: Path, **more: Any) -> Job:
    run: Any = Made(dir=folder, meta={}, metrics=Made(find_damage=lambda *_: "metrics.jsonl: cut"))
    return replace(make_job(make_context(), final_splits=[]), run=run, **more)


def fail(*_: object) -> None:
    raise ValueError("no rows")


def lack_the_best(folder: Path) -> None:
    job, state = job_in(folder, checkpointer=Made()), TrainState(step=9, train_metrics={"loss": 1})
    state.best = BestEvaluation(4, 128, 0.7)
    recorder: Any = Made(
        split="train",
        make_result=lambda *_, **__: Result("completed", 9, 288),
    )
    assert finish_completed(job, state, recorder, Made()).status == "completed"


def accept_damage(folder: Path) -> None:
    settings = CheckpointSettings(accept_damaged_metrics=True)
    saved: Any = Made(values={"metrics_bytes": 3}, step=4)
    check_metrics(job_in(folder, checkpoint=settings), saved)


def pin_what_goes(folder: Path) -> None:
    (folder / "pins").mkdir()
    (folder / "checkpoints" / "step-4").mkdir(parents=True)
    (folder / "checkpoints" / "step-4" / "manifest.json").write_text("{}")

    def removed(*_: object) -> None:  # by the training, after its name was read
        raise FileNotFoundError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.link", removed)
        PinnedCheckpoints(folder / "checkpoints", folder / "pins", View().warn).pin_new()
    assert not [*(folder / "pins").iterdir()]


def suggest_nothing(folder: Path) -> None:
    rates = {"low": 1e4, "high": 1e6, "updates": 5, "smoothing": 0.0, "diverged": 1e9}
    assert tune_lr._suggest_rates(make_job(make_context(), **rates)) == {}


def add_in_any_order(_: Path) -> None:
    weight = nn.Parameter(torch.ones(5, 3))
    loss = type("OwnLoss", (nn.Module,), {"__module__": "mine"})()
    with warn_of_unrepeatable_sums({"loss": loss}, CPU, View().warn):
        weight[torch.tensor([1, 1, 2])].sum().backward()


def measure_nothing(folder: Path) -> None:
    rows: Any = Made(num_rows={"train": 9, "validation": 9})
    job = job_in(folder, dataset=rows)
    result = Result("completed", 0, 0, {"validation/auc": 0.5})
    compare.compare_with_yardstick(job, TrainState(), result)
    assert compare.measure_features(job) == []


WARNINGS: list[tuple[Callable[[Path], object], str]] = [
    (lack_the_best, "the best weights are gone, the last are used instead: "),
    (accept_damage, "metrics.jsonl: cut; accepted: the rows that are left in them are kept"),
    (pin_what_goes, "step-4 was removed before it could be read, so it is left out; a larger"),
    (suggest_nothing, "tune_lr: the loss never fell, so no rate is suggested; try another loop.lo"),
    (
        measure_nothing,
        "the baseline for comparison was not measured: ValueError: no rows; "
        "trainer.yardstick=false",
    ),
    (measure_nothing, "drift of features is not measured: ValueError: no rows; trainer.yardstick"),
    (
        lambda p: report_overfit(make_job(make_context()), [0.7]),
        "loop.overfit_one_batch: one update cannot tell whether the loss falls; loop.max_steps=20",
    ),
    (
        lambda p: write_warm_start(job_in(p / "gone"), "tables/a"),
        "could not be written: No such file or directory; the run goes on",
    ),
    (
        lambda p: pruning.should_prune(job_in(p), 4, Made(local_signal=None)),
        "the sweep did not say within 0 s whether to prune this run; it goes on",
    ),
    (add_in_any_order, "will differ in their last digits: .* a loss of your own, .*num_threads=1"),
]


@pytest.mark.parametrize(("provoke", "told"), WARNINGS)
def test_a_warning_says_what_it_is_about_and_nothing_fails(provoke, told, tmp_path, monkeypatch):
    warned: list[str] = []
    warn = View.warn
    monkeypatch.setattr(View, "warn", lambda view, text: warned.append(text) or warn(view, text))
    monkeypatch.setattr(pruning, "_TIMEOUT_S", 0)
    monkeypatch.setenv("RUNNER_PRUNING", "1")
    for name in ("_get_or_measure", "_cached"):
        monkeypatch.setattr(compare, name, fail)
    torch.set_num_threads(2)
    provoke(tmp_path)
    assert any(re.search(told, text) for text in warned), warned
