"""A run that has written its rows with `dataset.write_to` is used like any other."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import yaml

from runner.serving import Scorer
from tests.conftest import TINY, Zygote
from tests.data.files.test_formats import MODULE


@pytest.mark.long
def test_a_run_that_wrote_its_rows_is_resumed_evaluated_exported_and_predicted_with(
    runner: Zygote, tmp_path
):
    rows, run = tmp_path / "rows", tmp_path / "run"
    words = (*TINY, f"dataset.write_to={rows}", f"hydra.run.dir={run}", "trainer.max_steps=10")
    words += ("trainer.num_processes=2",)  # the ranks write it once
    runner.run(*words).check()
    assert sorted(path.name for path in rows.iterdir()) == [
        "schema.yaml", "test", "train", "validation",
    ]  # fmt: skip
    assert yaml.safe_load((run / "config.yaml").read_text())["dataset"]["write_to"] is None
    written = (rows / "schema.yaml").stat().st_mtime_ns
    one = "trainer.num_processes=1"
    for command in (
        words,  # again: it is done
        ("resume", str(run), "trainer.max_steps=12", one),
        ("loop=eval", f"run={run}", f"hydra.run.dir={tmp_path / 'eval'}", one),
        ("export", str(run), "--out", str(tmp_path / "model")),
        ("predict", str(run), str(rows / "test"), "--out", str(tmp_path / "scores"), one),
    ):
        done = runner.run(*command)
        assert done.code == 0, (command, done.text)
    assert (rows / "schema.yaml").stat().st_mtime_ns == written
    measured = json.loads((tmp_path / "model" / "metrics.json").read_text())
    evaluated = json.loads((tmp_path / "eval" / "result.json").read_text())["metrics"]
    assert measured["evaluated"]["auc"] == evaluated["test/auc"]
    assert pq.read_table(tmp_path / "scores").num_rows == 500


@pytest.mark.long
def test_other_rows_are_not_written_into_the_same_folder(runner: Zygote, tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "thesis.tex").write_text("x")
    few = (*TINY, "trainer.max_steps=1", f"dataset.write_to={rows}")
    done = runner.run(*few, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.code == 2 and "is not empty; nothing was written" in done.text, done.text
    (rows / "thesis.tex").unlink()
    runner.run(*few, f"hydra.run.dir={tmp_path / 'run'}").check()
    done = runner.run(*few, "dataset.data_seed=5", f"hydra.run.dir={tmp_path / 'other'}")
    assert done.code == 2 and "is not empty; nothing was written" in done.text, done.text


@pytest.mark.long
def test_a_run_on_rows_of_a_program_is_exported_and_predicted_with(runner: Zygote, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rows.py").write_text(MODULE)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    node = "_target_: mine.rows.numbers\ncount: 800\nlearnt: null\n"
    (tmp_path / "conf" / "dataset" / "numbers.yaml").write_text(node)
    words = ("--config-dir", "conf", "--allow", "mine", "dataset=numbers", "report=false")
    few = ("trainer.batch_size=64", "trainer.max_steps=12", "model=dcn", "hydra.run.dir=run")
    rows = [{"user": n % 9, "city": "abcd"[n % 4]} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = "".join(json.dumps({**row, "click": n % 2}) + "\n" for n, row in enumerate(rows))
    (tmp_path / "labelled.jsonl").write_text(labelled)
    mine = ("--allow", "mine")
    for command in (
        (*words, *few),
        ("export", "run", *mine, "--out", "model"),
        ("predict", "run", "rows.jsonl", *mine, "--out", "scores"),
        ("export", "run", *mine, "--rows-from", "labelled.jsonl", "--out", "other"),
        ("importance", "run", *mine, "--keep", "1", "--out", "best.yaml"),
    ):
        runner.run(*command, cwd=tmp_path).check()
    measured = json.loads((tmp_path / "model" / "metrics.json").read_text())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert measured["evaluated"]["auc"] == result["metrics"]["validation/auc"]
    predicted = pq.read_table(tmp_path / "scores")["score_click"].to_numpy()
    assert Scorer.load(tmp_path / "model").score(rows)["click"] == pytest.approx(predicted, 1e-5)
    measured = json.loads((tmp_path / "other" / "metrics.json").read_text())
    assert measured["rows_from"] == ["labelled.jsonl"]
    kept = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert kept["labels"] == ["click"] and len(kept["categorical"]) == 1 and "path" not in kept
