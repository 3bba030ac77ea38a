"""`predict DIR --split NAME`: the rows of a run's own split, with the labels of its evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from runner.errors import UserError
from runner.serving.predict.split import open_split
from tests.conftest import TINY, Zygote
from tests.serving.scene import SCHEMA, SETTINGS, clicks, train

OTHER = ("path", "validation_path", "test_path")


def run_words(runner: Zygote, *words: object, code: int = 0) -> str:
    done = runner.run(*map(str, words)).check(code)
    return done.text


def result_of(run: Path, name: str) -> float:
    return float(json.loads((run / "result.json").read_text())["metrics"][name])


@pytest.mark.long
def test_a_random_split_has_the_auc_of_the_run_and_the_scores_of_its_rows(runner, tmp_path):
    """With a bad row, which has no score, in its place; in parts that do not hold whole chunks."""
    rows, run = clicks(2000, 0), tmp_path / "run"
    label = [*rows["click"].to_pylist()]
    label[5] = label[1500] = 7
    rows = rows.set_column(1, "click", pa.array(label))
    pacsv.write_csv(rows, tmp_path / "all.csv")
    schema = {k: v for k, v in SCHEMA.items() if k not in OTHER} | {"path": "all.csv"}
    schema["split"] = {"random": {"train": 0.5, "validation": 0.2, "test": 0.3}}
    (tmp_path / "clicks.yaml").write_text(json.dumps(schema))
    words = ("dataset=csv", *SETTINGS[1:], f"dataset.schema={tmp_path / 'clicks.yaml'}")
    run_words(runner, *words, "dataset.on_bad_rows=skip", f"hydra.run.dir={run}")
    found, bad = [], 0
    for split in ("train", "validation", "test"):
        keep = ("--keep", "id", "--rows", 128, "--out", tmp_path / split)
        run_words(runner, "predict", run, "--split", split, *keep)
        scored = pq.read_table(tmp_path / split)
        assert scored.column_names == ["id", "label_click", "score_click"]
        found += scored["id"].to_pylist()
        bad += scored["score_click"].null_count
        assert scored["label_click"].null_count == scored["score_click"].null_count
    assert sorted(found) == sorted(rows["id"].to_pylist()) and bad == 2
    good = scored.filter(pc.is_valid(scored["score_click"]))
    auc = roc_auc_score(good["label_click"].to_numpy(), good["score_click"].to_numpy())
    # the run's own sum has a weight for each row, so that its last digit may differ
    assert auc == pytest.approx(result_of(run, "test/auc"), abs=1e-15) and auc > 0.6
    of = dict(zip(rows["id"].to_pylist(), range(rows.num_rows)))
    same = rows.take([of[name] for name in scored["id"].to_pylist()]).drop_columns(["click"])
    pacsv.write_csv(same, tmp_path / "same.csv")
    again = ("--keep", "id", "--rows", 128, "--out", tmp_path / "again")
    run_words(runner, "predict", run, tmp_path / "same.csv", *again)
    alone = pq.read_table(tmp_path / "again").filter(pc.is_valid(scored["score_click"]))
    assert alone["score_click"].equals(good["score_click"])
    text = run_words(runner, "predict", run, "--split", "tets", code=2)
    assert "--split tets: must be one of train, validation, test; nearest: 'test'" in text
    assert "--split test" in run_words(runner, "predict", run, "all.csv", "--split=test", code=2)


@pytest.mark.long
def test_the_rows_of_a_known_data_set_are_its_prepared_ones(runner, tmp_path):
    run = tmp_path / "run"
    run_words(runner, *TINY, "trainer.max_steps=10", f"hydra.run.dir={run}")
    run_words(runner, "predict", run, "--split", "test", "--keep", "C1", "--out", tmp_path / "a")
    scored = pq.read_table(tmp_path / "a")
    assert scored.column_names == ["C1", "label_label", "score_label"]
    auc = roc_auc_score(scored["label_label"].to_numpy(), scored["score_label"].to_numpy())
    assert auc == result_of(run, "test/auc")


@pytest.mark.long
def test_data_that_have_changed_are_told_wherever_the_run_uses_them_again(runner, tmp_path):
    run, test, words = train(runner, tmp_path), tmp_path / "test.parquet", "have changed since"
    pq.write_table(clicks(1000, 5), test)
    uses = (
        ("predict", run, "--split", "test", "--out", tmp_path / "scores"),
        ("loop=eval", f"run={run}", f"hydra.run.dir={tmp_path / 'eval'}"),
        ("export", run, "--out", tmp_path / "model"),
    )
    for use in uses:
        assert f"the data of {tmp_path / 'clicks.yaml'} {words}" in run_words(runner, *use), use
    said = run_words(runner, "resume", run, "trainer.max_epochs=3", code=2)
    assert f"the data of {tmp_path / 'clicks.yaml'} {words}" in said
    assert words not in run_words(runner, "predict", run, test, "--out", tmp_path / "files")
    elsewhere = (*uses[1][:2], f"hydra.run.dir={tmp_path / 'own'}", f"dataset.test_path={test}")
    assert words not in run_words(runner, *elsewhere)


@pytest.mark.long
@pytest.mark.parametrize("column", ["w", "weight"])
def test_the_weight_of_the_rows_is_no_other_column_that_is_kept(runner, tmp_path, column):
    rows, run = clicks(200, 0), tmp_path / "run"
    given = [float(n % 3) for n in range(200)]
    rows = rows.append_column(column, pa.array(given))
    if column == "w":
        rows = rows.append_column("weight", pa.array([70.0] * 200))  # such as kilograms
    pq.write_table(rows, tmp_path / "all.parquet")
    schema = {k: v for k, v in SCHEMA.items() if k not in OTHER}
    schema |= {"path": "all.parquet", "test_path": "all.parquet", "weight": column}
    (tmp_path / "clicks.yaml").write_text(json.dumps(schema))
    words = (*SETTINGS, f"dataset.schema={tmp_path / 'clicks.yaml'}")
    run_words(runner, *words, f"hydra.run.dir={run}")
    out = ("--split", "test", "--out", tmp_path / "scores", "--keep", "weight")
    if column == "w":
        text = run_words(runner, "predict", run, *out, code=2)
        assert "--keep weight: is the name of a column of the result; rename it" in text
        out = out[:-2]
    run_words(runner, "predict", run, *out)
    scored = pq.read_table(tmp_path / "scores")
    assert scored["weight"].to_pylist() == given


def test_rows_that_data_servers_bring_are_no_split_to_score(tmp_path):
    transforms = SimpleNamespace(declared=SimpleNamespace(interactions=None), fitted=None)
    dataset = {"_target_": "runner.data.flight.option.flight", "locations": ["grpc://nobody:1"]}
    with pytest.raises(UserError, match=r"--split: dataset .* gives batches, and no columns"):
        open_split(dataset, transforms, tmp_path, "test", ())
