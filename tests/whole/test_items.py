"""Models of sequences and items in whole runs: ranks, resume, full rankings; what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from runner.rundir.checkpoint import open_checkpoint, read_tensors, tensor_shapes
from tests.whole.compare_runs import (
    assert_resumes_exactly,
    newest_checkpoint,
    read_result,
    read_rows,
)

NUM_ITEMS = 40
SETTINGS = (
    "dataset=amazon_beauty",
    "dataset.max_length=5",
    "trainer.num_threads=1",
    "trainer.max_steps=12",
    "trainer.batch_size=32",
    "trainer.log_every=1",
    "trainer.eval_every=5",
    "checkpoint.save_every=4",
    "model.net.embedding_dim=4",
    "trainer.rank_timeout_s=60",
)
FULL = (
    "dataset.negatives={train: 0, validation: 0, test: 0}",
    "metrics.eval=[recall@5,ndcg@5,hit_rate@5,mrr]",
    "metrics.train=[]",
    "metrics.candidates=full",
    "checkpoint.monitor.metric=validation/recall@5",
)
MODELS = {
    "sasrec": (
        "model=sasrec",
        "model.net.uniform=9",
        "model.net.popularity=5",
        "model.loss.corrected=true",
        *FULL,
    ),
    "sasrec, all items": ("model=sasrec", "model.net.every=true", "model.net.uniform=0", *FULL),
    "bert4rec": ("model=bert4rec", "model.net.uniform=9", *FULL),
    "gru4rec": ("model=gru4rec", "model.net.uniform=9", *FULL),
    "hstu": ("model=hstu", "model.net.uniform=9", *FULL),
    "bst": ("model=bst",),
    "dien": ("model=dien",),
    "two_tower": ("model=two_tower", "model.net.uniform=3", *FULL),
    "two_tower, every negative": (
        "model=two_tower",
        "model.net.uniform=6",
        "model.net.exclude_known=true",
        "model.net.user=user",
        "model.net.hardest=20",
        "model.net.memory=100",
        "model.net.memory_warmup=3",
        "model.net.learn_temperature=true",
        *FULL,
    ),
    "two_tower, drawn": (
        "model=two_tower",
        "model.net.in_batch=false",
        "model.net.uniform=3",
        "model.net.exclude_known=true",
        "model.net.hardest=2",
        "model/loss=sampled_softmax",
        *FULL,
    ),
    "din": ("model=din",),
}


@pytest.fixture(scope="module")
def beauty(tmp_path_factory) -> str:
    """90 users whose next item is, mostly, the one after."""
    random, lines = np.random.default_rng(0), []
    for user in range(1, 91):
        items = [int(random.integers(1, NUM_ITEMS))]
        for _ in range(random.integers(3, 9)):
            step = 1 if random.random() < 0.8 else int(random.integers(1, NUM_ITEMS))
            items.append((items[-1] + step - 1) % (NUM_ITEMS - 1) + 1)
        lines.append(" ".join(map(str, (user, *items))))
    path = tmp_path_factory.mktemp("beauty") / "Beauty.txt"
    path.write_text("\n".join(lines) + "\n")
    return f"dataset.path={path}"


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "sasrec",
        "sasrec, all items",
        "bert4rec",
        "gru4rec",
        "hstu",
        "two_tower, drawn",
        "din",
        "bst",
        "dien",
    ],
)
def test_two_ranks_with_micro_batches_learn_what_one_process_does(runner, beauty, tmp_path, name):
    one, two = tmp_path / "one", tmp_path / "two"
    words = (*SETTINGS, beauty, *MODELS[name], "optimizer=sgd")  # Adagrad blows up zeros
    drop = (
        () if name in ("bst", "dien", "din") else ("model.net.dropout=0",)
    )  # ranks draw their own
    parts = ("trainer.batch_size=8", "trainer.accumulate=2", "trainer.num_processes=2")
    for run, more in ((one, ()), (two, parts)):
        runner.run(*words, *drop, *more, f"hydra.run.dir={run}").check()
    assert_same_training(one, two)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_sasrec_on_two_ranks_stays_within_a_millionth_of_one_rank(
    runner, beauty, tmp_path, optimizer
):
    """No weight whose true gradient is zero makes steps of rounding: these were 3e-4."""
    words = (*SETTINGS, beauty, "model=sasrec", *FULL, f"optimizer={optimizer}")
    words += ("model.net.uniform=30", "model.net.dropout=0", "model.net.embedding_dim=8")
    words += ("trainer.max_steps=30", "trainer.eval_every=100", "checkpoint.save_every=30")
    parts = ("trainer.batch_size=16", "trainer.num_processes=2")
    one, two = tmp_path / "one", tmp_path / "two"
    for run, more in ((one, ()), (two, parts)):
        runner.run(*words, *more, f"hydra.run.dir={run}").check()
    ours, theirs = ([row["loss"] for row in read_rows(run, "train")] for run in (one, two))
    assert len(ours) == 30
    assert theirs == pytest.approx(ours, abs=1e-6)
    first, second = open_checkpoint(newest_checkpoint(one)), open_checkpoint(newest_checkpoint(two))
    names = [n for n in tensor_shapes(first) if n.startswith(("tables/", "dense/"))]
    a, b = read_tensors(first, names), read_tensors(second, names)
    for tensor in names:
        torch.testing.assert_close(b[tensor], a[tensor], rtol=1e-6, atol=1e-6, msg=tensor)


CUTS = {"one rank": ("trainer.accumulate=2",), "two ranks": ("trainer.num_processes=2",)}


@pytest.mark.long
def test_rows_compared_within_micro_batches_are_the_same_on_one_rank_and_on_two(
    runner, beauty, tmp_path
):
    within = ("model.loss.within=micro_batch", "trainer.batch_size=16", "optimizer=sgd")
    # the two rows of an epoch's end are one micro-batch, or one on each rank
    words = (*SETTINGS, beauty, *MODELS["two_tower"], *within, "dataset.rest=drop")
    runs = {name: tmp_path / name for name in ("whole", *CUTS)}
    whole = ("trainer.batch_size=32", "model.loss.within=update")
    for name, cut in {"whole": whole, **CUTS}.items():
        runner.run(*words, *cut, f"hydra.run.dir={runs[name]}").check()
    assert_same_training(*(runs[name] for name in CUTS))
    first = {name: read_rows(run)[0]["loss"] for name, run in runs.items()}
    assert first["whole"] > first["one rank"] + 0.1, "fewer rows to be told from"
    signatures = {json.loads((r / "meta.json").read_text())["signature"] for r in runs.values()}
    assert len(signatures) == 3
    for name, other in (("one rank", "two ranks"), ("two ranks", "one rank")):
        told = runner.run(*words, *CUTS[other], f"hydra.run.dir={runs[name]}")
        assert told.code == 2 and "holds another run" in told.text, told.text
        assert "trainer.num_processes: " in told.text and "trainer.accumulate: " in told.text
    for cut in ("trainer.num_processes=1", "trainer.accumulate=2"):
        told = runner.run("resume", str(runs["two ranks"]), "trainer.max_steps=20", cut)
        assert told.code == 2 and "rows of each micro-batch of each rank" in told.text, told.text
        assert f"{cut.split('=')[0]}: " in told.text


def assert_same_training(one: Path, two: Path) -> None:
    """Logs and weights to rounding; rankings of ties aside."""
    ours, theirs = read_rows(one), read_rows(two)
    assert [(row["split"], row["step"]) for row in ours] == [
        (row["split"], row["step"]) for row in theirs
    ]
    for a, b in zip(ours, theirs):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4) or a["split"] != "train"
        for key in ("mrr", "recall@5"):
            assert a.get(key) == pytest.approx(b.get(key), abs=0.03)
    first, second = open_checkpoint(newest_checkpoint(one)), open_checkpoint(newest_checkpoint(two))
    names = [n for n in tensor_shapes(first) if n.startswith(("tables/", "dense/"))]
    a, b = read_tensors(first, names), read_tensors(second, names)
    for tensor in names:
        torch.testing.assert_close(a[tensor], b[tensor], rtol=1e-3, atol=1e-4, msg=tensor)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_killed_run_equals_one_never_killed(runner, beauty, tmp_path, name):
    words = (*SETTINGS, beauty, *MODELS[name], "optimizer=adam", "trainer.amp=true")
    assert_resumes_exactly(runner, words, tmp_path / "killed", tmp_path / "whole", "step:7")


@pytest.mark.long
@pytest.mark.parametrize("name", ["sasrec", "two_tower"])
def test_the_next_item_is_found_among_all_and_an_evaluation_says_the_same(
    runner, beauty, tmp_path, name
):
    words = (*SETTINGS, beauty, *MODELS[name], "optimizer=adam", "trainer.max_steps=120")
    words = (*words, "model.net.embedding_dim=16", "optimizer.sparse.lr=0.02")
    run, again = tmp_path / "run", tmp_path / "again"
    runner.run(*words, "optimizer.dense.lr=0.01", f"hydra.run.dir={run}").check()
    found = read_result(run)["metrics"]
    # of chance: 5 / 40. An average of a history does not tell which item was the last
    assert found["test/recall@5"] > {"sasrec": 0.5, "two_tower": 0.25}[name]
    assert found["test/recall@5"] == found["test/hit_rate@5"] >= found["test/ndcg@5"]
    judged = {metric: value for metric, value in found.items() if metric.startswith("test/")}
    runner.run("loop=eval", f"run={run}", f"hydra.run.dir={again}").check()
    assert read_result(again)["metrics"] == judged
    if name == "sasrec":  # whose loss takes each row by itself, against the same drawn items
        smaller = (f"hydra.run.dir={tmp_path / 'smaller'}", "trainer.eval_batch_size=7")
        runner.run("loop=eval", f"run={run}", *smaller).check()
        assert read_result(tmp_path / "smaller")["metrics"] == pytest.approx(judged, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("loss", ["sampled_softmax", "bpr", "sampled_bce", "bce"])
def test_a_loss_is_chosen_and_slices_and_rankings_of_rows_are_measured(
    runner, beauty, tmp_path, loss
):
    runner.run(
        *SETTINGS,
        beauty,
        "model=sasrec",
        f"model/loss={loss}",
        "model.net.uniform=9",
        "dataset.negatives={train: 1, validation: 4, test: 4}",
        "metrics.eval=[auc,recall@1,mrr,ece]",
        "metrics.slice_by=item",
        "checkpoint.monitor.metric=validation/mrr",
        f"hydra.run.dir={tmp_path / 'run'}",
    ).check()
    found = read_result(tmp_path / "run")["metrics"]
    assert 0.2 < found["test/mrr"] < 1
    assert 0 <= found["test/ece"] < 1
    assert [key for key in found if key.startswith("test/auc/item=")]


REFUSED = {
    "ranks with a memory each": (
        (
            "model=two_tower",
            "model.net.memory=9",
            "trainer.num_processes=2",
            "trainer.batch_size=16",
        )
        + ("model.loss.within=micro_batch",),
        "trainer.num_processes=2: each rank would remember the items of its own rows only",
    ),
    "a warm-up of nothing": (
        ("model=two_tower", "model.net.memory_warmup=9"),
        "model.net.memory_warmup: has no effect without model.net.memory",
    ),
    "fewer than none": (
        ("model=two_tower", "model.net.hardest=-1"),
        "model.net.hardest=-1: must be",
    ),
    "a column that is none": (
        ("model=two_tower", "model.net.hard_negatives=histoy"),
        "hard_negatives=histoy: the dataset has no such sequence; nearest: 'history'",
    ),
    "no sequence": (("dataset=synthetic", "model=sasrec"), "SASRec: needs a sequence of ids"),
    "no sequence for din": (("dataset=synthetic", "model=din"), "DIN: needs a sequence"),
    "no loss over candidates": (
        ("model=din", "model/loss=bpr"),
        "BPR needs candidates, which DIN does not score; model=sasrec and model=two_tower",
    ),
    "no items of the batch": (
        ("model=sasrec", "model.net.uniform=5", "model/loss=in_batch_softmax"),
        "InBatchSoftmax needs the items of the other rows.*SASRec",
    ),
    "full rankings of a model of rows": (
        ("model=din", *FULL),
        "metrics.candidates=full: DIN scores rows, not all items; model=sasrec",
    ),
    "items with features": (
        ("model=two_tower", *FULL, "model.net.item=[item,user]"),
        r"metrics.candidates=full: the vector of an item depends on user.*model.net.item=\[item\]",
    ),
    "more than there are items": (
        ("model=sasrec", "model.net.uniform=5", *FULL, "metrics.eval=[recall@5,ndcg@41]"),
        r"'ndcg@41' asks for the first 41 of 40 items \(item\); at most ndcg@40",
    ),
    "more of a task than there are items": (
        ("model=sasrec", "model.net.uniform=5", *FULL, "metrics.eval=[recall@5,ndcg@41/label]"),
        r"'ndcg@41/label' asks for the first 41 of 40 items \(item\); at most ndcg@40",
    ),
    "a metric that is not measured": (
        ("model=din", "metrics.eval=[recall@5]", "checkpoint.monitor.metric=validation/recall@50"),
        "validation/recall@50: metrics.eval does not list it; nearest: 'recall@5'",
    ),
    "a metric without its number": (("metrics.eval=[ndcg]",), "'ndcg' must end in a whole number"),
    "no group column": (
        ("dataset=synthetic", "model=dlrm", "metrics.eval=[auc,mrr]"),
        "'mrr' needs a group column, and the dataset has none",
    ),
    "a slice it lacks": (
        ("model=din", "metrics.slice_by=usr"),
        "metrics.slice_by=usr: no group column and no column of ids; nearest: 'user'",
    ),
    "too many slices": (
        ("model=din", "metrics.slice_by=user"),
        "metrics.slice_by=user: has more than 50 values in the validation split",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_before_training(runner, beauty, tmp_path, words, message):
    first = [beauty] if "dataset=synthetic" not in words else ["dataset.rows.train=3000"]
    settings = SETTINGS if first == [beauty] else ()
    done = runner.run(*settings, *first, *words, f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert re.search(message, done.text.replace("\n", " ")), done.text
