"""`refit`: the rows of all splits, for as long as the run was getting better."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from runner.cli.refit import _find_table
from runner.errors import UserError
from runner.rundir.json_files import write_json
from runner.rundir.run_files import read_result
from tests.fake_job import FakeResult

SCHEMA = {"labels": {"click": {}}, "categorical": {"item": {"encode": "vocabulary"}}}
ROWS = {"train": 60, "validation": 20, "test": 20}


def write_rows(path: str, count: int = 100, **columns) -> None:
    draw = np.random.default_rng(0).integers
    rows = {"item": draw(0, 9, count), "click": draw(0, 2, count), "day": np.arange(count)}
    pd.DataFrame({**rows, **columns}).to_csv(path, index=False)


@pytest.fixture
def trained(command):
    """Begins a run of a table that was best at update 30 of 40, and has ended."""

    def train(schema, *words, best=30, status="completed"):
        Path("s.yaml").write_text(yaml.safe_dump({"path": "rows.csv", **SCHEMA, **schema}))
        found = {"step": best, "value": 0.5} if best is not None else None
        ended_by = None if status == "completed" else signal.SIGINT
        command.jobs.do = lambda job: FakeResult(status, step=40, best=found, signal=ended_by)
        run = ("dataset=csv", "dataset.schema=s.yaml", "model=mlp", "hydra.run.dir=run")
        code, _, said = command(*run, "trainer.max_epochs=4", *words)
        assert code in (0, 130), said
        write_json(Path("run/data.json"), {"num_rows": ROWS})
        return command

    return train


def test_held_out_rows_are_learnt_for_as_many_updates_a_row(trained):
    write_rows("rows.csv")
    command = trained(
        {"split": {"time": "day", "validation": 0.2, "test": 0.2}},
        *("scheduler.warmup=100", "trainer.early_stop.patience=3", "seed=7"),
    )
    code, _, said = command("refit", "run", "hydra.run.dir=final")
    assert code == 0 and "trainer.max_steps=50" in said
    config = command.jobs.last.config
    assert config["trainer"]["max_steps"] == 50 and config["trainer"]["max_epochs"] is None
    assert config["trainer"]["early_stop"]["patience"] is None
    assert (config["scheduler"]["warmup"], config["seed"]) == (50, 7)
    assert config["dataset"]["split"] == {}
    assert config["dataset"]["path"] == [str(Path("rows.csv").absolute())]
    assert json.loads(Path("final/meta.json").read_text())["kind"] == "train"
    assert "final held out no rows" in command.refused("refit", "final")


def test_smaller_batches_make_more_updates_of_as_many_rows(trained):
    """They learnt an eighth of the rows, and the line said as often as the run."""
    write_rows("rows.csv")
    command = trained({"split": {"random": {"train": 0.6, "validation": 0.2, "test": 0.2}}},
                      "trainer.batch_size=64")  # fmt: skip
    code, _, said = command("refit", "run", "trainer.batch_size=8")
    assert code == 0 and "trainer.max_steps=400" in said  # 8 times 30 updates of 100 rows for 60


def test_another_loop_is_refused(trained):
    """`loop=eval` ended in a TypeError."""
    write_rows("rows.csv")
    command = trained({"split": {"random": {"train": 0.6, "validation": 0.2, "test": 0.2}}})
    assert "loop=eval makes no model to use" in command.refused("refit", "run", "loop=eval")
    refusal = command.refused("refit", "run", "checkpoint.step=1")
    assert "refit reads none: it trains anew; trainer.max_steps=N" in refusal


def test_a_start_that_was_best_is_not_changed(trained):
    write_rows("rows.csv")
    command = trained({"split": {"random": {"train": 0.6, "validation": 0.2, "test": 0.2}}}, best=0)
    assert command("refit", "run")[0] == 0
    optimizer = command.jobs.last.config["optimizer"]
    assert (optimizer["sparse"]["lr"], optimizer["dense"]["lr"]) == (0, 0)
    assert command.jobs.last.config["trainer"]["max_steps"] == 1


@pytest.mark.parametrize("length", ["trainer.max_steps=9", "trainer.max_epochs=2"])
def test_a_length_of_ones_own_is_learnt_at_the_rates_of_the_run(trained, length):
    write_rows("rows.csv")
    command = trained({"split": {"random": {"train": 0.6, "validation": 0.2, "test": 0.2}}}, best=0)
    code, _, said = command("refit", "run", length)
    assert code == 0 and "as often as" not in said
    config = command.jobs.last.config
    assert config["optimizer"]["dense"]["lr"] > 0 and config["optimizer"]["sparse"]["lr"] > 0
    lengths = [f"trainer.{k}={config['trainer'][k]}" for k in ("max_steps", "max_epochs")]
    assert length in lengths and any(word.endswith("=None") for word in lengths)


def test_files_of_splits_are_learnt_together_and_rows_outside_a_split_are_not(trained):
    for name in ("rows.csv", "valid.csv", "test.csv"):
        write_rows(name)
    command = trained({"validation_path": "valid.csv"}, "dataset.test_path=test.csv")
    assert command("refit", "run")[0] == 0
    dataset = command.jobs.last.config["dataset"]
    assert [Path(p).name for p in dataset["path"]] == ["rows.csv", "valid.csv", "test.csv"]
    assert "validation_path" not in dataset["schema"] and dataset["test_path"] is None
    write_rows("rows.csv", fold=["a", "b", "c", "d"] * 25)
    command = trained({"split": {"column": "fold", "train": ["a", "b"], "test": ["d"]}},
                      "hydra.run.dir=other")  # fmt: skip
    write_json(Path("other/data.json"), {"num_rows": ROWS})
    assert command("refit", "other")[0] == 0
    split = command.jobs.last.config["dataset"]["split"]
    assert split == {"column": "fold", "train": ["a", "b", "d"]}


def test_what_is_set_on_the_command_line_wins(trained):
    write_rows("rows.csv")
    command = trained({"split": {"random": {"train": 0.8, "test": 0.2}}})
    assert command("refit", "run", "trainer.max_steps=9", "dataset.split_seed=3")[0] == 0
    config = command.jobs.last.config
    assert (config["trainer"]["max_steps"], config["dataset"]["split_seed"]) == (9, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"best": None}, "run has no best step"),
        (
            {"status": "interrupted"},
            "run is interrupted; finish it first by `python -m runner resume",
        ),
    ],
)
def test_a_run_that_does_not_say_how_long_to_learn_is_refused(trained, given, said):
    write_rows("rows.csv")
    assert said in trained({"split": {"random": {"train": 0.8, "test": 0.2}}}, **given).refused(
        "refit", "run"
    )


def test_a_dataset_with_splits_of_its_own_is_refused(command):
    assert command("hydra.run.dir=run")[0] == 0
    assert "whose splits are fixed; only a run on a table" in command.refused("refit", "run")


def test_a_run_of_a_stream_is_refused_as_one_that_held_out_nothing():
    """It said that the splits of the stream were its own."""
    dataset = {"_target_": "runner.data.streaming.folder.folder", "path": "x"}
    with pytest.raises(
        UserError, match="trained on all rows of a stream, so no rows were held out"
    ):
        _find_table(Path("run"), dataset)


@pytest.mark.long
def test_a_refitted_model_has_seen_the_newest_items_and_is_exported(runner, tmp_path, monkeypatch):
    """Items of the last days are in no train row, and tell of the click as the others do."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(1)
    day = np.sort(draw.integers(0, 10, 4000))
    item = 3 * day + draw.integers(0, 3, 4000)
    click = draw.random(4000) < np.where(item % 3 == 0, 0.9, 0.1)
    pd.DataFrame({"item": item, "click": click * 1, "day": day}).to_csv("rows.csv", index=False)
    split = {"time": "day", "validation": 0.1, "test": 0.1, "input": "seconds"}
    Path("s.yaml").write_text(yaml.safe_dump({"path": "rows.csv", "split": split, **SCHEMA}))
    words = ("model=wide_and_deep", "checkpoint.init_linear=true", "trainer.batch_size=256")
    runner.run("dataset=csv", "dataset.schema=s.yaml", *words, "trainer.max_epochs=2",
               "hydra.run.dir=run", cwd=tmp_path).check()  # fmt: skip
    done = runner.run("refit", "run", "hydra.run.dir=final", cwd=tmp_path).check()
    assert "starts as the logistic regression fitted to 4,000 of 4,000 train rows" in done.text
    exported = runner.run("export", "final", "--out", "model", cwd=tmp_path).check()
    assert "compared with the model on train rows" in exported.text
    assert "pt2: rows of rows.csv: loss" in exported.text  # no test: it has learnt from them
    measured = json.loads(Path("model/metrics.json").read_text())
    assert (measured["rows_from"], measured["rows"]) == (["rows.csv"], 4000)
    assert read_result(tmp_path / "run")["metrics"]["test/auc"] < 0.7
    assert measured["evaluated"]["auc"] > 0.85
    refused = runner.run(
        "export", "final", "--out", "other", "loop.split=train", cwd=tmp_path
    ).check(2)
    assert "stored in random order" in refused.text
    assert "warning: the data" not in done.text
    with open("rows.csv", "a") as file:
        file.write("3,1,9\n")
    changed = runner.run("refit", "run", "hydra.run.dir=newer", cwd=tmp_path).check()
    assert "have changed since the run was trained on them" in changed.text
