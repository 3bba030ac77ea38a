"""Warm start: weights of another run, step 0, and a report of what matched."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from runner.data.core.fitted import FittedTransforms
from runner.rundir.checkpoint import open_checkpoint, read_tensors
from tests.conftest import TINY, python
from tests.whole.compare_runs import assert_resumes_exactly, newest_checkpoint


def first_loss(run) -> float:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return next(row["loss"] for row in rows if row["split"] == "train")


@pytest.mark.long
@pytest.mark.parity("T7")
def test_it_takes_the_weights_that_match_and_reports_the_rest(runner, tmp_path):
    source, warm, cold = tmp_path / "source", tmp_path / "warm", tmp_path / "cold"
    settings = (*TINY, "trainer.max_steps=80", "trainer.log_every=1")
    runner.run(*settings, f"hydra.run.dir={source}").check()
    runner.run(*settings, f"hydra.run.dir={cold}", "seed=5", "model.net.top=[6]").check()
    done = runner.run(
        *settings,
        f"hydra.run.dir={warm}",
        "seed=5",
        "model.net.top=[6]",
        f"checkpoint.init_from={source}",
    ).check()
    assert "warm start" in done.text
    assert "shape differs: dense/top.0.weight" in done.text
    assert json.loads((warm / "result.json").read_text())["step"] == 80
    assert first_loss(warm) < first_loss(cold)


@pytest.mark.long
def test_with_nothing_learnt_it_is_the_source(runner, tmp_path):
    source, warm = tmp_path / "source", tmp_path / "warm"
    settings = (*TINY, "optimizer=sgd")
    runner.run(*settings, f"hydra.run.dir={source}").check()
    step = json.loads((source / "result.json").read_text())["best"]["step"]
    frozen = ("optimizer.sparse.lr=0", "optimizer.dense.lr=0", "trainer.max_steps=1", "seed=9")
    done = runner.run(
        *settings, *frozen, f"hydra.run.dir={warm}", f"checkpoint.init_from={source}"
    ).check()
    best = json.loads((warm / "result.json").read_text())["best"]
    value = json.loads((source / "result.json").read_text())["best"]["value"]
    assert best == {"step": 0, "value": pytest.approx(value)}  # evaluated before the first update
    assert "the weights of the source were best on validation" in done.text
    ours = open_checkpoint(newest_checkpoint(warm))
    theirs = open_checkpoint(source / "checkpoints" / f"step-{step}")
    names = ["dense/top.0.weight", "tables/C1/weight"]
    a, b = read_tensors(ours, names), read_tensors(theirs, names)
    assert all((a[n] == b[n]).all() for n in names)


@pytest.mark.long
def test_a_source_of_another_model_is_refused(runner, tmp_path):
    source = tmp_path / "source"
    runner.run(*TINY, f"hydra.run.dir={source}").check()
    other = ("model.net.embedding_dim=8", "model.net.bottom=[9]", "model.net.top=[9]")
    done = runner.run(
        *TINY, *other, f"checkpoint.init_from={source}", f"hydra.run.dir={tmp_path / 'x'}"
    ).check(2)
    assert "init_from" in done.text


def clicks_of(folder: Path, items: list[str], seed: int) -> list[str]:
    """A table of clicks whose `item` has a vocabulary: these names; words that train on it."""
    rng = np.random.default_rng(seed)
    rows = pa.table(
        {
            "click": rng.integers(0, 2, 600),
            "item": rng.choice(items, 600),
            "age": rng.normal(size=600),
        }
    )
    folder.mkdir()
    pq.write_table(rows, folder / "x.parquet")
    schema = {
        "labels": {"click": {}},
        "numeric": {"age": {}},
        "categorical": {"item": {"encode": "vocabulary"}},
        "split": {"random": {"train": 0.9, "validation": 0.1}},
    }
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema))
    tiny = [w for w in TINY if not w.startswith("dataset.")]
    words = ["dataset=parquet", f"dataset.path={folder / 'x.parquet'}"]
    return [*tiny, *words, f"dataset.schema={folder / 'schema.yaml'}"]


FROZEN = ("optimizer.sparse.lr=0", "optimizer.dense.lr=0", "trainer.max_steps=1")


def rows_by_value(run: Path, tensor: str = "weight") -> dict[int, torch.Tensor]:
    """Number that stands for a text -> its row of the item table."""
    [vocabulary] = FittedTransforms.load(run / "data").vocabularies.values()
    saved = open_checkpoint(newest_checkpoint(run))
    rows = read_tensors(saved, [f"tables/item/{tensor}"])[f"tables/item/{tensor}"]
    assert len(rows) == len(vocabulary) + 2
    return {-1: rows[0], -2: rows[1], **dict(zip(vocabulary.tolist(), rows[2:]))}


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["init_from", "init_tables"])
@pytest.mark.parity("T8")
def test_rows_are_taken_for_the_values_they_stand_for(runner, tmp_path, how, ranks):
    """Other values in another order: a row number means another item, in tables of other sizes."""
    old = [f"item-{n}" for n in range(20)]
    new = [f"item-{n}" for n in range(10, 27)]
    a, b = clicks_of(tmp_path / "a", old, 0), clicks_of(tmp_path / "b", new, 1)
    source, warm, cold = (tmp_path / name for name in ("source", "warm", "cold"))
    runner.run(*a, "checkpoint.step=last", f"hydra.run.dir={source}").check()
    asked = {"init_from": source, "init_tables": f"{{item: {{from: {source}}}}}"}
    given = (f"checkpoint.{how}={asked[how]}", "checkpoint.init_optimizer=true")
    on = (f"trainer.num_processes={ranks}", "sharding=row_wise") if ranks > 1 else ()
    done = runner.run(*b, *FROZEN, *given, *on, f"hydra.run.dir={warm}").check()
    assert "tables/item/weight: 12 of 19 rows are in the source" in done.text
    assert "10 values of the source are not in the data of this run" in done.text
    runner.run(*b, *FROZEN, f"hydra.run.dir={cold}").check()
    best = json.loads((source / "result.json").read_text())["best"]["step"]
    for name in set(source.glob("checkpoints/step-*")) - {source / f"checkpoints/step-{best}"}:
        shutil.rmtree(name)
    theirs, fresh, ours = (rows_by_value(run) for run in (source, cold, warm))
    assert len(set(ours) & set(theirs)) == 12 and len(ours) == 19
    for value, row in ours.items():
        assert row.equal(theirs.get(value, fresh[value])), value
    sums = [rows_by_value(run, "sum") for run in (source, warm)]
    for value in set(ours) & set(theirs):  # one update more, of whatever size
        assert (sums[0][value] <= sums[1][value] and sums[0][value] > 0) or value < 0


@pytest.mark.long
@pytest.mark.parity("T7")
def test_names_are_mapped_and_parts_left_out(runner, tmp_path):
    source, warm = tmp_path / "source", tmp_path / "warm"
    runner.run(*TINY, f"hydra.run.dir={source}").check()
    names = "{dense/bottom: null, tables/C1/weight: tables/C2/weight, dense/top.0: dense/top.0}"
    words = (*TINY, *FROZEN, "seed=7", f"checkpoint.init_from={source}")
    done = runner.run(*words, f"checkpoint.init_names={names}", f"hydra.run.dir={warm}").check()
    assert "left as it is: dense/bottom.0.weight" in done.text
    best = json.loads((source / "result.json").read_text())["best"]["step"]
    ours, theirs = (
        open_checkpoint(newest_checkpoint(warm)),
        open_checkpoint(source / f"checkpoints/step-{best}"),
    )
    kept = ("dense/bottom.0.weight", "dense/top.0.weight", "tables/C2/weight")
    mine, there = read_tensors(ours, kept), read_tensors(theirs, kept)
    assert [mine[n].equal(there[n]) for n in kept] == [False, True, True]
    for number, (wrong, says) in enumerate(
        (
            ("{dense/botom: null}", "init_names.dense/botom: no weight; nearest: 'dense/bottom"),
            ("{dense/top: dense/over}", "init_names.dense/top=dense/over: .* has no such weight"),
        )
    ):
        run = f"hydra.run.dir={tmp_path / str(number)}"
        done = runner.run(*words, f"checkpoint.init_names={wrong}", run)
        assert done.code == 2 and re.search(says, done.text), done.text


@pytest.mark.long
@pytest.mark.parity("E18")
def test_states_of_the_optimizers_are_taken_where_they_are_the_same(runner, tmp_path):
    source = tmp_path / "source"
    runner.run(*TINY, f"hydra.run.dir={source}").check()
    best = json.loads((source / "result.json").read_text())["best"]["step"]
    theirs = open_checkpoint(source / f"checkpoints/step-{best}")
    names = ["tables/C1/sum", "dense_optimizer/top.0.weight/exp_avg"]
    for optimizer, same in (("rowwise_adagrad", True), ("sgd", False)):
        run = tmp_path / optimizer
        words = (*TINY, f"optimizer={optimizer}", "optimizer.sparse.lr=0", "optimizer.dense.lr=0")
        asked = (f"checkpoint.init_from={source}", "checkpoint.init_optimizer=true")
        done = runner.run(*words, *asked, "trainer.max_steps=1", f"hydra.run.dir={run}").check()
        saved = open_checkpoint(newest_checkpoint(run))
        if not same:
            assert "optimizer's: 0 states taken" in done.text
            continue
        ours, there = read_tensors(saved, names), read_tensors(theirs, names)
        assert (ours[names[0]] >= there[names[0]]).all()  # a row-wise sum grows, it is never afresh
        assert ours[names[1]].sub(there[names[1]]).abs().max() <= there[names[1]].abs().max()
        step = read_tensors(saved, ["dense_optimizer/top.0.weight/step"])
        assert next(iter(step.values())).item() == best + 1


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("lamb", marks=pytest.mark.slow)])
def test_moments_that_go_on_do_so_over_a_kill_bit_for_bit(runner, tmp_path, optimizer):
    source, run = tmp_path / "source", tmp_path / "run"
    words = (*TINY, f"optimizer={optimizer}")
    runner.run(*words, "trainer.max_steps=20", f"hydra.run.dir={source}").check()
    behind = json.loads((source / "result.json").read_text())["best"]["step"]
    warm = (*words, "seed=3", f"checkpoint.init_from={source}", "checkpoint.init_optimizer=true")
    assert_resumes_exactly(runner, warm, run, tmp_path / "quiet", "step:13", "step:9")
    counts = open_checkpoint(newest_checkpoint(run)).values["table_updates"]
    assert len(counts) == 26 and set(counts.values()) == {behind}
    assert f"go on after {behind} updates" in (run / "log.txt").read_text()


@pytest.mark.slow
def test_moments_go_on_alike_on_two_ranks(runner, tmp_path):
    source, one, two = (tmp_path / name for name in ("source", "one", "two"))
    words = (*TINY, "optimizer=adam", "trainer.log_every=1", "trainer.max_steps=12")
    runner.run(*words, f"hydra.run.dir={source}").check()
    warm = (*words, f"checkpoint.init_from={source}", "checkpoint.init_optimizer=true", "seed=3")
    runner.run(*warm, f"hydra.run.dir={one}").check()
    shared = ("trainer.num_processes=2", "trainer.batch_size=16", "sharding=row_wise")
    runner.run(*warm, *shared, f"hydra.run.dir={two}").check()
    ours, theirs = (
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (two, one)
    )
    assert len(ours) > 12 and ours == pytest.approx(theirs, abs=2e-6)
    counts = [open_checkpoint(newest_checkpoint(run)).values["table_updates"] for run in (two, one)]
    assert counts[0] == counts[1] and min(counts[0].values()) > 0


@pytest.mark.long
def test_averages_of_the_source_are_told_of_and_taken_if_asked_for(runner, tmp_path):
    """It evaluated its averages, so that they are what its numbers are of."""
    source, cold = tmp_path / "source", tmp_path / "cold"
    kept = ("trainer.ema.decay=0.8",)
    runner.run(*TINY, *kept, f"hydra.run.dir={source}").check()
    best = json.loads((source / "result.json").read_text())["best"]
    theirs = open_checkpoint(source / f"checkpoints/step-{best['step']}")
    names = ["dense/top.0.weight", "ema/top.0.weight", "tables/C1/weight"]
    there = read_tensors(theirs, names)
    assert not there[names[0]].equal(there[names[1]])
    words = (*TINY, *FROZEN, "seed=7", f"checkpoint.init_from={source}")
    said = {False: "moving averages of 8 dense weights", True: "taken for 8 of 8 dense weights"}
    for asked in (False, True):
        run = tmp_path / str(asked)
        done = runner.run(
            *words, f"checkpoint.init_average={asked}", f"hydra.run.dir={run}"
        ).check()
        assert said[asked] in done.text and ("init_average=true" in done.text) is not asked
        ours = read_tensors(open_checkpoint(newest_checkpoint(run)), [names[0], names[2]])
        assert ours[names[0]].equal(there[names[1] if asked else names[0]])
        assert ours[names[2]].equal(there[names[2]])
        measured = json.loads((run / "result.json").read_text())["metrics"]["validation/auc"]
        assert (measured == best["value"]) is asked
    runner.run(*TINY, f"hydra.run.dir={cold}", "trainer.max_steps=11").check()
    without = (*TINY, f"checkpoint.init_from={cold}", "checkpoint.init_average=true")
    refused = runner.run(*without, f"hydra.run.dir={tmp_path / 'refused'}")
    assert refused.code == 2 and "holds no moving average" in refused.text


def test_own_averages_begin_at_the_weights_that_were_taken(runner, tmp_path):
    source, warm = tmp_path / "source", tmp_path / "warm"
    runner.run(*TINY, f"hydra.run.dir={source}").check()
    kept = ("seed=7", "trainer.ema={decay: 0.9, warmup: false}")
    given = (f"checkpoint.init_from={source}", f"hydra.run.dir={warm}")
    runner.run(*TINY, *FROZEN, *kept, *given).check()
    names = ["dense/top.0.weight", "ema/top.0.weight"]
    ours = read_tensors(open_checkpoint(newest_checkpoint(warm)), names)
    torch.testing.assert_close(ours[names[1]], ours[names[0]])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("checkpoint.init_average=true",),
            "takes the averages of checkpoint.init_from, which is not set",
        ),
        (("checkpoint.init_names={a: b}",), "init_from, which is not set"),
        (("checkpoint.init_optimizer=true",), "what checkpoint.init_from or init_tables name"),
        (("checkpoint.init_tables={C1: x}",), "write {from: DIR}"),
        (
            ("checkpoint.init_tables={C1: {from: /nowhere}}",),
            "init_tables.C1.from=/nowhere: no such",
        ),
        (("checkpoint.init_tables={C1: {from: /tmp, tabel: x}}",), "nearest: 'table'"),
    ],
)
def test_mistakes_of_a_warm_start_are_told_before_it(runner, tmp_path, words, says):
    done = runner.run(*TINY, *words, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.code == 2 and says in done.text, done.text
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_begun_asks_for_no_start(runner, tmp_path):
    """What it started from may be gone, and as many ranks may go on as there are."""
    words = [w for w in clicks_of(tmp_path / "data", ["a", "b", "c"], 0) if "model" not in w]
    words += ["model=wide_and_deep", "model.net.embedding_dim=4", "model.net.deep=[4]"]
    rows, source, warm = tmp_path / "data" / "x.parquet", tmp_path / "source", tmp_path / "warm"
    linear = "checkpoint.init_linear=true"
    runner.run(*words, linear, "trainer.max_steps=4", f"hydra.run.dir={source}").check()
    again = [*words, "trainer.max_steps=4", f"hydra.run.dir={warm}"]
    again.append(f"checkpoint.init_from={source}")
    runner.run(*again).check()
    ranks = "trainer.num_processes=2"
    runner.run("predict", str(source), str(rows), "--out", str(tmp_path / "a"), ranks).check()
    assert "works on one rank" in runner.run("refit", str(source), ranks).check(2).text
    source.rename(tmp_path / "moved")
    assert "is done already" in runner.run(*again).check().text
    runner.run("predict", str(warm), str(rows), "--out", str(tmp_path / "b")).check()
    runner.run("resume", str(warm), "trainer.max_steps=6").check()
    assert json.loads((warm / "result.json").read_text())["step"] == 6
    gone = f"checkpoint.init_from={source}: no such folder"
    assert gone in runner.run("reproduce", str(warm)).check(2).text
    shutil.rmtree(warm / "checkpoints")
    assert gone in runner.run("resume", str(warm), "trainer.max_steps=8").check(2).text


@pytest.mark.long
def test_a_table_that_the_source_lacks_is_told_before_torch_and_makes_no_folder(runner, tmp_path):
    source, run = tmp_path / "source", tmp_path / "run"
    runner.run(*TINY, "trainer.max_steps=2", f"hydra.run.dir={source}").check()
    for more, asked in ((", table: C100", "C100"), ("", "U")):
        given = f"{{from: {source}{more}}}"
        words = [*TINY, f"checkpoint.init_tables={{U: {given}}}", f"hydra.run.dir={run}"]
        told = python("-X", "importtime", "-m", "runner", *words)
        assert told.returncode == 2, told.stderr
        assert f"checkpoint.init_tables.U.table={asked}: no table '{asked}'" in told.stderr
        assert f"{source} has C1, C10, C11" in told.stderr
        assert re.search(r"\|\s+yaml\n", told.stderr), "imports are told"
        assert not re.search(r"\|\s+torch\n", told.stderr)
        assert not run.exists()
