"""Metrics follow the kind of the model, and an experiment keeps what fits other choices."""

from __future__ import annotations

import inspect

import pytest

import runner.models
from runner.config.compose import compose_job
from runner.metrics.names import RETRIEVAL_NETS
from runner.models.retrieval.retrieval_model import RetrievalModel


def composed(*words):
    job = compose_job(words)
    assert not job.problems
    config = job.config
    monitor = config["checkpoint"]["monitor"]["metric"]
    return config["metrics"], monitor, " ".join(job.notes)


def test_every_model_that_finds_items_is_measured_by_rankings():
    public = [getattr(runner.models, name) for name in runner.models.__all__]
    found = [c for c in public if inspect.isclass(c) and issubclass(c, RetrievalModel)]
    names = {f"{c.__module__}.{c.__name__}" for c in found if c is not RetrievalModel}
    assert names == set(RETRIEVAL_NETS)


@pytest.mark.parametrize("model", ["bert4rec", "gru4rec", "hstu", "sasrec", "two_tower"])
def test_a_model_that_finds_items_is_measured_over_the_catalogue(model):
    metrics, monitor, notes = composed(f"model={model}")
    assert metrics["eval"] == ["recall@10", "ndcg@10"] and metrics["train"] == []
    assert metrics["candidates"] == "full" and monitor == "validation/recall@10"
    assert "since the model finds items, it is measured by" in notes


@pytest.mark.parametrize(
    "setting",
    ["metrics.leave_history_out=false", "metrics.per_event=true", "metrics.slice_by=item"],
)
def test_what_rankings_leave_out_or_are_sliced_by_does_not_turn_them_off(setting):
    metrics, monitor, notes = composed("model=sasrec", setting)
    assert metrics["eval"] == ["recall@10", "ndcg@10"] and metrics["candidates"] == "full"
    assert (
        monitor == "validation/recall@10"
        and "since the model finds items, it is measured by" in notes
    )


@pytest.mark.parametrize(
    ("setting", "names", "monitored"),
    [
        ("metrics.eval=[ndcg@20,recall@20]", ["ndcg@20", "recall@20"], "ndcg@20"),
        ("metrics.eval=[gini@10,mrr]", ["gini@10", "mrr"], "gini@10"),
        ("checkpoint.monitor.metric=validation/ndcg@10", ["recall@10", "ndcg@10"], "ndcg@10"),
        ("checkpoint.monitor.metric=validation/mrr", ["recall@10", "ndcg@10", "mrr"], "mrr"),
    ],
)
def test_other_metrics_of_rankings_are_over_the_catalogue_too(setting, names, monitored):
    metrics, monitor, _ = composed("model=sasrec", setting)
    assert (metrics["eval"], metrics["candidates"], metrics["train"]) == (names, "full", [])
    assert monitor == f"validation/{monitored}"


@pytest.mark.parametrize(
    "words",
    [
        ("model=din",),
        ("model=sasrec", "metrics.eval=[auc,recall@1]"),
        ("model=sasrec", "metrics.eval=[auc]"),
        ("model=sasrec", "metrics.candidates=rows"),
        ("model=sasrec", "checkpoint.monitor.metric=validation/loss"),
        ("model=sasrec", "checkpoint.monitor={metric: validation/log_loss, direction: min}"),
        ("model=two_tower", "model.net.item=[item,shop]"),
    ],
    ids=" ".join,
)
def test_what_is_set_stays(words):
    metrics, monitor, notes = composed(*words)
    given = dict(word.split("=", 1) for word in words[1:])
    assert metrics["candidates"] == "rows" and "follow the model" not in notes
    assert "auc" in metrics["eval"]
    assert monitor == "validation/auc" or any(k.startswith("checkpoint.monitor") for k in given)


def test_an_experiment_keeps_what_fits_another_dataset_and_says_what_does_not():
    job = compose_job(["experiments=amazon_sasrec", "dataset=parquet"])
    own = compose_job(["dataset=parquet"])
    assert job.config["dataset"] == own.config["dataset"]
    assert job.config["model"]["net"]["uniform"] == 2048
    assert job.config["metrics"]["eval"][0] == "recall@5"
    assert "dataset is table, which has no train_on, no max_length, no negatives" in job.notes[0]


@pytest.mark.long
def test_an_experiment_keeps_what_fits_another_model():
    job = compose_job(["experiments=amazon_sasrec", "model=two_tower"])
    assert job.config["model"]["net"]["uniform"] == 2048
    assert "dropout" in job.config["model"]["net"] and not job.problems
    job = compose_job(["experiments=amazon_two_tower", "model=sasrec"])
    assert "half_life" not in job.config["model"]["net"]
    assert "model.net is SASRec, which has no user_tower, no half_life" in " ".join(job.notes)


def test_a_key_that_the_command_line_adds_is_still_a_mistake():
    job = compose_job(["experiments=amazon_sasrec", "dataset=parquet", "dataset.train_on=last"])
    assert "dataset.train_on" in " ".join(job.problems)
