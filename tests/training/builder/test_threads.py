"""A small update takes one thread, a large one all, and a number that is asked for stays."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch.utils.flop_counter import FlopCounterMode

from runner.config.compose import compose_job
from runner.config.targets import allowed_packages
from runner.data.read import block_dataset
from runner.models.dlrm import DLRM
from runner.reporting.console import View
from runner.training.builder import build_job, device
from runner.training.builder.threads import (
    LEAST_WORK,
    choose_threads,
    count_products,
    limit_threads,
)
from runner.training.update.parameters import dense_parameters
from tests.models.scene import SMALL, batch_of, make_model
from tests.tiny import SCHEMA, make_context

ROWS = 8


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)


def weights_of(model):
    return dense_parameters(model, None).values()


@pytest.mark.parametrize("name", sorted(SMALL))
def test_no_product_is_left_out(name):
    model = make_model(name)
    make_context(model=model)  # gives the model its tables
    batch = batch_of(SCHEMA, ROWS)
    embeddings = model.embed(batch).detached()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.dense(embeddings, batch)
    aten = torch.ops.aten
    counts = counter.get_flop_counts()["Global"]
    counted = sum(counts.get(op, 0) for op in (aten.mm, aten.addmm)) / 2  # it counts additions, too
    assert ROWS * count_products(model, weights_of(model), SCHEMA, 4) >= counted


def test_shared_matrices_count_for_each_member_and_waves_for_their_number_alone():
    schema = replace(SCHEMA, dense=tuple(f"n{n}" for n in range(40)))
    settings = {"pairs": False, "deep": [64, 64], "members": 8, "periodic": True}
    model = make_model("wide_and_deep members", schema, **settings)
    products = 8 * (4 * len(schema.sparse) + 4 * 40 + 64) * 64 + 40 * 16 * 4  # of the deep half
    counted = count_products(model, weights_of(model), schema, 4)
    assert products < counted < 1.2 * products


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(1, 1), (LEAST_WORK // 200, 1), (LEAST_WORK, 2)]
)
def test_small_updates_take_one_thread(two_threads, num_rows, expected):
    model = DLRM(SCHEMA, embedding_dim=4, bottom=[8], top=[8])
    assert (products := count_products(model, weights_of(model), SCHEMA, 4)) < 200
    assert limit_threads(model, products, num_rows) == (expected == 1)
    assert torch.get_num_threads() == expected


def test_a_model_of_ones_own_keeps_its_threads(two_threads):
    class Mine(DLRM):
        """Of a user's module."""

    model = Mine(SCHEMA, embedding_dim=4, bottom=[8], top=[8])
    assert not limit_threads(model, 100, 1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("words", "num_threads", "reads_ahead"),
    [
        ((), 1, True),
        (("dataset.workers=0",), 1, False),
        (("trainer.num_threads=1",), 1, False),
        (("trainer.num_threads=2",), 2, False),
        (("trainer.num_threads=2", "dataset.workers=1"), 2, True),
        (("trainer.batch_size=65536",), 2, False),
        (("trainer.compile=true",), 2, False),
    ],
)
def test_a_job_has_the_threads_that_pay(two_threads, monkeypatch, words, num_threads, reads_ahead):
    """The core that a training leaves reads ahead, unless a number of threads was asked for."""
    monkeypatch.setattr(device, "usable_cores", lambda: 2)
    monkeypatch.setattr(block_dataset, "BURST_ROWS", 1)
    rows = ["dataset.rows={train: 100, validation: 0, test: 0}", "dataset.window_rows=10"]
    config = compose_job([*rows, "dataset.max_cardinality=50", *words]).config
    job = build_job(config, None, view=View(), allowed=allowed_packages(()))
    assert torch.get_num_threads() == num_threads
    batches = job.dataset.batches("train", batch_size=4)
    next(batches)
    assert any(t.name.startswith("window") for t in threading.enumerate()) == reads_ahead
    assert sum(batch.size for batch in batches) == 96


@pytest.mark.parametrize(
    ("cores", "ranks", "share", "threads"),
    [(16, 1, None, 3), (16, 4, None, 2), (8, 8, None, 1), (16, 1, 4, 2), (16, 1, 1, 1)],
)
def test_for_a_gpu_a_process_reads_with_some_of_the_cores_of_its_rank(
    monkeypatch, cores, ranks, share, threads
):
    asked = []
    there = SimpleNamespace(read_in_process=asked.append)
    older = SimpleNamespace(read_ahead=lambda: asked.append("thread"))
    monkeypatch.setattr("runner.training.builder.threads.usable_cores", lambda: cores)
    context = SimpleNamespace(
        device=torch.device("cuda", 0), ranks=SimpleNamespace(local_world_size=ranks)
    )
    for dataset in (there, older, SimpleNamespace()):
        choose_threads(context, {"trainer": {"num_threads": share}}, 1, 1, dataset)
    assert asked == [threads, "thread"]


def test_products_of_numpy_have_one_thread_in_a_training(two_threads):
    words = ["dataset=synthetic", "dataset.rows={train: 8, validation: 8, test: 8}", "run=null"]
    with threadpool_limits(2, user_api="blas"):
        build_job(compose_job(words).config, None, view=View(), allowed=allowed_packages(()))
        numpys = [library for library in threadpool_info() if "numpy" in library["filepath"]]
        assert all(library["num_threads"] == 1 for library in numpys)
