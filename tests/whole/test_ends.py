"""A run that learnt nothing, or whose results are no numbers, does not end as a completed one."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.conftest import TINY, Finished, Zygote
from tests.data.clicks import SCHEMA, clicks
from tests.whole.compare_runs import assert_resumes_exactly, read_result

POISONED = ("--allow", "tests", "task._target_=tests.whole.poisoned.Poisoned", *TINY)
PAIR = ("trainer.num_processes=2", "trainer.batch_size=16")


def train(runner: Zygote, run: Path, *words: str, **env: str) -> Finished:
    return runner.run(*POISONED, f"hydra.run.dir={run}", *words, env=env)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [(), PAIR], ids=["1 rank", "2 ranks"])
def test_a_run_whose_updates_were_all_skipped_has_failed(runner, tmp_path, ranks):
    run = tmp_path / "run"
    done = train(runner, run, *ranks, POISON_UPDATES="1-99").check(1)
    assert read_result(run)["status"] == "failed"
    assert "all 40 updates were skipped" in read_result(run)["error"]
    assert "all 40 updates were skipped" in done.text
    assert "7 of the last 7 updates were skipped up to step 7: a gradient was not" in done.text
    assert read_result(run)["skipped_updates"] == 40
    again = train(runner, run, *ranks, POISON_UPDATES="1-99")  # it isn't done already
    assert again.code == 1 and "done already" not in again.text


@pytest.mark.long
@pytest.mark.parametrize("ranks", [(), PAIR], ids=["1 rank", "2 ranks"])
def test_many_skipped_updates_in_a_row_end_the_run_where_they_are(runner, tmp_path, ranks):
    run = tmp_path / "run"
    limit = "trainer.max_skipped=9"
    done = train(runner, run, *ranks, limit, POISON_UPDATES="12-99").check(1)
    assert read_result(run)["status"] == "failed" and read_result(run)["step"] == 20
    assert "9 updates in a row were skipped up to step 20" in done.text
    # the state is saved; it counts on, and goes on once updates work again
    again = train(runner, run, *ranks, limit, POISON_UPDATES="1-99").check(1)
    assert "10 updates in a row were skipped up to step 21" in again.text
    train(runner, run, *ranks, limit).check()
    assert read_result(run)["status"] == "completed" and read_result(run)["step"] == 40


@pytest.mark.long
def test_fewer_than_the_limit_are_told_and_do_not_fail(runner, tmp_path):
    run = tmp_path / "run"
    done = train(runner, run, "trainer.max_skipped=9", POISON_UPDATES="10-17").check()
    assert "5 of the last 7 updates were skipped up to step 14" in done.text
    assert "\n3 updates skipped" not in done.text  # rather: 3 updates of 7, as a note of its own
    assert "3 updates skipped up to step 21" in done.text
    train(runner, tmp_path / "two", "trainer.max_skipped=null", POISON_UPDATES="2-39").check()


def test_metrics_that_are_removed_during_a_run_are_told_with_the_next_checkpoint(runner, tmp_path):
    run = tmp_path / "run"
    task = "task._target_=tests.whole.poisoned.Removing"
    rows = run / "metrics.jsonl"
    done = train(runner, run, task, "trainer.log_every=5", REMOVE_FILE=str(rows)).check(0)
    assert f"warning: {rows} is gone, with the " in done.text


def test_a_limit_below_one_is_refused(runner, tmp_path):
    done = train(runner, tmp_path / "run", "trainer.max_skipped=0")
    assert done.code == 2 and "trainer.max_skipped=0: must be at least 1" in done.text


@pytest.mark.long
@pytest.mark.parametrize("ranks", [(), PAIR], ids=["1 rank", "2 ranks"])
@pytest.mark.parametrize(
    ("poison", "says"),
    [
        ("all", "validation/loss is nan"),
        ("scores", "validation/auc, the monitored metric, is NaN although the loss is finite"),
    ],
)
def test_final_metrics_that_are_no_numbers_are_a_failure(runner, tmp_path, ranks, poison, says):
    run = tmp_path / "run"
    words = [*ranks, "trainer.max_steps=12"]
    done = train(runner, run, *words, POISON_EVALUATION=poison).check(1)
    assert read_result(run)["status"] == "failed" and says in read_result(run)["error"]
    assert says in done.text


@pytest.mark.long
def test_an_evaluation_whose_loss_is_no_number_has_failed(runner, tmp_path):
    run, own = tmp_path / "run", tmp_path / "eval"
    train(runner, run, "trainer.max_steps=12").check()
    words = ("--allow", "tests", "loop=eval", f"run={run}", f"hydra.run.dir={own}")
    runner.run(*words, env={"POISON_EVALUATION": "all"}).check(1)
    assert (
        read_result(own)["status"] == "failed" and "test/loss is nan" in read_result(own)["error"]
    )


def test_one_bad_batch_at_the_end_is_no_failure_where_evaluations_are_fine(runner, tmp_path):
    run = tmp_path / "run"
    train(runner, run, POISON_UPDATES="40-40").check()
    assert read_result(run)["metrics"]["train/loss"] == "NaN"
    assert math.isfinite(read_result(run)["metrics"]["test/loss"])


@pytest.mark.long
def test_a_stream_is_judged_by_its_last_window(runner, tmp_path):
    run = tmp_path / "run"
    own = ("loop=online", "trainer.max_steps=28", "trainer.eval_every=null")
    train(runner, run, *own, POISON_EVALUATION="all").check(1)
    assert "progressive/loss is nan" in read_result(run)["error"]
    stuck = train(runner, tmp_path / "stuck", *own, "trainer.max_skipped=9", POISON_UPDATES="5-28")
    assert stuck.code == 1 and "9 updates in a row were skipped up to step 13" in stuck.text
    fine = train(runner, tmp_path / "fine", *own, POISON_UPDATES="15-28")
    assert fine.code == 0 and "7 of the last 7 updates were skipped" in fine.text, fine.text


@pytest.mark.long
def test_torchrun_ends_with_the_result_of_rank_0(runner, tmp_path):
    run = tmp_path / "run"
    words = [w for w in POISONED if not w.startswith("trainer.batch_size")]
    env = {**os.environ, "POISON_UPDATES": "1-99", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", "runner", *words, "trainer.batch_size=16", "trainer.max_steps=8",
        f"hydra.run.dir={run}",
    ]  # fmt: skip
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "all 8 updates were skipped" in read_result(run)["error"]
    assert read_result(run)["skipped_updates"] == 8


@pytest.mark.long
@pytest.mark.parametrize("label", [0, 1])
def test_an_auc_of_rows_with_one_label_is_undefined_with_its_reason(runner, tmp_path, label):
    rows = clicks(900)
    column = rows.column_names.index("click")
    one_class = rows.slice(600).set_column(column, "click", pa.array([label] * 300))
    for name, table in (("train", rows.slice(0, 600)), ("test", one_class)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    schema = {**SCHEMA, "labels": {"click": {}}}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    words = [w for w in POISONED if not w.startswith("dataset.")]
    run = tmp_path / "run"
    done = runner.run(
        *words,
        "dataset=parquet",
        f"dataset.schema={tmp_path}/schema.yaml",
        f"dataset.path={tmp_path}/train.parquet",
        f"dataset.validation_path={tmp_path}/test.parquet",
        f"hydra.run.dir={run}",
        "trainer.max_steps=12",
    ).check()
    told = re.search(r"validation: (.*): undefined, since all labels are (.)$", done.text, re.M)
    assert told is not None, done.text
    numbers = {n: v for n, v in read_result(run)["metrics"].items() if n.startswith("validation/")}
    explained = {f"validation/{name}" for name in told[1].split(", ")}
    assert explained == {name for name, value in numbers.items() if value == "NaN"}
    assert told[2] == str(label)
    assert read_result(run)["metrics"]["validation/auc"] == "NaN"
    (undefined,) = read_result(run)["undefined"]
    assert undefined.endswith(f": undefined, since all labels are {label}")
    assert undefined.startswith("validation/auc, validation/")
    no_best = (
        "no best checkpoint: validation/auc, which chooses it, was undefined at every evaluation, "
        f"since all labels are {label}; checkpoint.monitor names another metric; the results are "
        "those of the last weights"
    )
    assert read_result(run)["no_best"] == no_best
    table = done.text.rpartition("\nmetric ")[2]
    assert undefined in table and no_best in table
    runner.run("report", str(run), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert undefined in page and no_best in page


@pytest.mark.parametrize(("monitor", "direction"), [("auc", "max"), ("log_loss", "min")])
def test_a_run_killed_after_its_last_save_knows_its_last_evaluation(
    runner, tmp_path, monitor, direction
):
    """Without a best, validation is not evaluated and written again; its reasons are kept."""
    rows = clicks(900)
    column = rows.column_names.index("click")
    one_class = rows.slice(600, 100).set_column(column, "click", pa.array([1] * 100))
    splits = {"train": rows.slice(0, 600), "validation": one_class, "test": rows.slice(700)}
    for name, table in splits.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    schema = {**SCHEMA, "labels": {"click": {}}}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    words = (
        *[w for w in TINY if not w.startswith("dataset.")],
        "dataset=parquet",
        f"dataset.schema={tmp_path}/schema.yaml",
        f"dataset.path={tmp_path}/train.parquet",
        f"dataset.validation_path={tmp_path}/validation.parquet",
        f"dataset.test_path={tmp_path}/test.parquet",
        f"checkpoint.monitor={{metric: validation/{monitor}, direction: {direction}}}",
        "trainer.max_steps=12",
    )
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert_resumes_exactly(runner, words, killed, whole, "eval:10")  # 2 x 4 validate
    undefined = read_result(whole)["undefined"]
    assert undefined[0].startswith("validation/auc, ")
    assert read_result(killed)["undefined"] == undefined


@pytest.mark.long
def test_a_sweep_counts_such_a_job_as_failed(runner, tmp_path):
    sweep = tmp_path / "sweep"
    done = runner.run(
        *POISONED,
        "-m",
        "seed=0,1",
        "trainer.max_steps=8",
        "launcher.retries=0",
        f"hydra.sweep.dir={sweep}",
        env={"POISON_UPDATES": "1-99"},
    ).check(1)
    assert "2 failed" in done.text
    assert "all 8 updates were skipped" in done.text
