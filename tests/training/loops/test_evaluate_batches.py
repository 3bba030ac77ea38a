"""An evaluation whose batches are computed by several threads is that of one thread."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from runner.batch import Prediction
from runner.config.compose import compose_job
from runner.config.targets import allowed_packages
from runner.errors import ConfigError
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.reporting.console import View
from runner.training.builder import build_job, device
from runner.training.builder import threads as policy
from runner.training.loops import evaluate_split as module
from runner.training.loops.evaluate_split import evaluate_batches, evaluate_split
from runner.training.stop_signal import StopSignal
from runner.training.update.task import Supervised
from tests.tiny import make_context, random_batch

WORDS = (
    "dataset.rows={train: 100, validation: 0, test: 100}",
    "dataset.max_cardinality=50",
    "trainer.batch_size=16",
)


@pytest.fixture
def job(monkeypatch):
    """A job with two threads, however small it is."""
    monkeypatch.setattr(device, "usable_cores", lambda: 2)
    monkeypatch.setattr(policy, "LEAST_WORK_OF_PART", 1)
    config = compose_job(WORDS).config
    return build_job(config, None, view=View(), allowed=allowed_packages(()))


def evaluated(job, monkeypatch, **options):
    """Return the results, and the name of the thread that computed each batch."""
    names, dense = [], job.context.model.dense

    def noted(embeddings, batch):
        assert not torch.is_grad_enabled() and not job.context.model.training
        names.append(threading.current_thread().name)
        return dense(embeddings, batch)

    with monkeypatch.context() as patch:
        patch.setattr(job.context.model, "dense", noted)
        return evaluate_split(job, "test", **options), names


def test_batches_in_two_threads_give_the_same_metrics(job, monkeypatch):
    found, names = evaluated(job, monkeypatch)
    assert sorted(set(names)) == ["MainThread", "rows_0"] and len(names) == 7
    job.context.row_threads = None
    expected, names = evaluated(job, monkeypatch)
    assert found == expected
    assert set(names) == {"MainThread"} and len(names) == 7


def test_some_batches_and_a_signal_are_as_in_one_thread(job, monkeypatch):
    few, _ = evaluated(job, monkeypatch, max_batches=3)
    stop = StopSignal(job.context.ranks)
    stop.prune()
    assert evaluated(job, monkeypatch, stop=stop)[0] is None
    job.context.row_threads = None
    assert few == evaluated(job, monkeypatch, max_batches=3)[0]


def test_notes_of_the_train_split_have_the_name_of_its_metrics(job, monkeypatch):
    module, noted = sys.modules[evaluate_split.__module__], []
    monkeypatch.setattr(module, "reduce_metrics", lambda *_: ({}, ("auc: undefined",)))
    monkeypatch.setattr(job.view, "note", noted.append)
    for split in ("train", "test"):
        evaluate_split(job, split, max_batches=1)
    assert noted == ["train_eval: auc: undefined", "test: auc: undefined"]


@pytest.mark.parametrize("why", ["operations have two threads", "a task of one's own", "a hook"])
def test_one_thread_computes_them_where(job, monkeypatch, why):
    if why == "operations have two threads":
        torch.set_num_threads(2)
    elif why == "a hook":
        job.context.model.register_forward_hook(lambda *_: None)
    else:

        class Mine(Supervised):
            """Of a user's module."""

        object.__setattr__(job, "task", Mine())
    assert set(evaluated(job, monkeypatch)[1]) == {"MainThread"}


@pytest.mark.parametrize(("returned", "kind"), [(None, "NoneType"), ((1, 2), "tuple")])
def test_an_eval_step_that_returns_something_else_is_told(returned, kind):
    class Other(Supervised):
        def eval_step(self, ctx, batch):
            return returned

    said = f"^task: eval_step of Other returned {kind}; it must return a runner.Prediction and the "
    with pytest.raises(ConfigError, match=said):
        list(evaluate_batches(make_context(), Other(), iter([random_batch(8)])))


def test_ranking_all_items_hands_memory_back_after_so_many_scores(monkeypatch):
    context, model, released = make_context(), RetrievalModel.__new__(RetrievalModel), []
    model.items_ID = torch.zeros(100, 4)

    class Known(Supervised):
        def eval_step(self, ctx, batch):
            return Prediction.of(torch.zeros(batch.size, 1), batch), {}

    monkeypatch.setattr(module, "RANKED_BYTES", 4 * 8 * 100)  # of the scores of a batch
    monkeypatch.setattr(module, "release_freed_memory", lambda: released.append(1))
    monkeypatch.setattr(context, "model", model)
    batches = [random_batch(8, seed) for seed in range(5)]
    found = list(evaluate_batches(context, Known(), iter(batches)))
    assert [batch for batch, *_ in found] == batches and len(released) == 2
    model.items_ID = None  # no catalogue is open
    list(evaluate_batches(context, Known(), iter(batches)))
    assert len(released) == 2
