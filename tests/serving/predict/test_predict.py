"""Predictions of files: what is scored is what was evaluated, in parts that survive a kill."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from runner.errors import UserError
from runner.rundir.json_files import read_json
from runner.serving.predict.parts import (
    MANIFEST_FILE,
    SUMMARY_FILE,
    await_output,
    check_output,
    check_parts,
    open_output,
    summarize_parts,
    write_part,
    write_summary,
)
from tests.conftest import Zygote
from tests.serving.scene import clicks, train


@pytest.fixture(scope="module")
def run(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(runner, tmp_path_factory.mktemp("clicks"))


def predict(runner: Zygote, run: Path, *words: object) -> str:
    done = runner.run("predict", str(run), *map(str, words)).check()
    return done.text


def refused(runner: Zygote, run: Path, *words: object) -> str:
    done = runner.run("predict", str(run), *map(str, words)).check(2)
    return done.text


def parts(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("part-*"))}


def write_csv(table: pa.Table, path: Path, delimiter: str = ",") -> Path:
    pacsv.write_csv(table, path, pacsv.WriteOptions(delimiter=delimiter))
    return path


@pytest.mark.long
@pytest.mark.parity("E10")
def test_the_scores_of_the_test_split_have_the_auc_of_the_evaluation(runner, run, tmp_path):
    test = run.parent / "test.parquet"
    predict(runner, run, test, "--out", tmp_path / "out", "--keep", "click,id")
    scored = pq.read_table(tmp_path / "out")
    assert scored.column_names == ["click", "id", "score_click"]
    assert scored["id"].equals(pq.read_table(test)["id"])
    auc = roc_auc_score(scored["click"].to_numpy(), scored["score_click"].to_numpy())
    expected = json.loads((run / "result.json").read_text())["metrics"]["test/auc"]
    assert auc == expected > 0.6


@pytest.mark.long
def test_labels_are_not_needed_and_logits_are_those_of_the_probabilities(runner, run, tmp_path):
    bare = clicks(200, 9).drop(["click", "id"])
    pq.write_table(bare, tmp_path / "bare.parquet")
    predict(runner, run, tmp_path / "bare.parquet", "--out", tmp_path / "a")
    predict(runner, run, tmp_path / "bare.parquet", "--out", tmp_path / "b", "--logits")
    score = pq.read_table(tmp_path / "a")["score_click"].to_numpy()
    logit = pq.read_table(tmp_path / "b")["logit_click"].to_numpy()
    assert logit.dtype == np.float32
    assert np.array_equal(score, 1 / (1 + np.exp(-logit.astype(float))))


def test_a_file_that_is_named_twice_is_scored_once_as_in_a_training(runner, run, tmp_path):
    pq.write_table(clicks(200, 9), tmp_path / "b.parquet")
    pq.write_table(clicks(0, 9), tmp_path / "a.parquet")  # an empty part beside it
    text = predict(
        runner,
        run,
        tmp_path,
        tmp_path / "b.parquet",
        f"{tmp_path}/*.parquet",
        "--out",
        tmp_path / "o",
    )
    assert "scored 200 rows" in text


@pytest.mark.long
@pytest.mark.parametrize("format_", ["csv", "tsv"])
def test_text_files_give_the_scores_of_the_same_rows_in_parquet(runner, run, tmp_path, format_):
    """Users are integers in the training's Parquet, cities texts: in CSV both are read so."""
    rows = clicks(300, 9)
    pq.write_table(rows, tmp_path / "rows.parquet")
    (tmp_path / "texts").mkdir()
    delimiter = "\t" if format_ == "tsv" else ","
    for n in range(3):  # a folder, in the order of names
        write_csv(rows.slice(n * 100, 100), tmp_path / "texts" / f"{n}.{format_}", delimiter)
    predict(runner, run, tmp_path / "rows.parquet", "--out", tmp_path / "a", "--keep", "id")
    predict(runner, run, tmp_path / "texts", "--out", tmp_path / "b", "--keep", "id")
    assert pq.read_table(tmp_path / "b").equals(pq.read_table(tmp_path / "a"))


@pytest.mark.long
def test_a_prediction_that_was_killed_goes_on_on_other_ranks_with_the_same_files(
    runner, run, tmp_path
):
    test = run.parent / "test.parquet"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    predict(runner, run, test, "--rows", 30, "--out", whole)
    process = runner.start("predict", str(run), str(test), "--rows", "30", "--out", str(killed))
    deadline = time.monotonic() + 60
    while len(parts(killed)) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill(signal.SIGKILL)
    process.wait()
    there = parts(killed)
    assert there
    for name in list(there)[1::2]:  # as if other ranks had been slower
        (killed / name).unlink()
    predict(runner, run, test, "--rows", 30, "--out", killed, "trainer.num_processes=2")
    assert parts(killed) == parts(whole)
    assert len(parts(whole)) == 34
    assert pq.read_table(killed).num_rows == 1000
    assert "is complete already" in predict(runner, run, test, "--rows", 30, "--out", killed)


@pytest.mark.long
def test_rows_are_divided_in_any_way_where_the_loss_or_a_norm_compares_them(runner, tmp_path):
    """A prediction takes no loss, and a norm in evaluation mode the statistics of the training."""
    settings = ("model/loss=jrc", "model.net.norm=batch", "trainer.max_epochs=1")
    run = train(runner, tmp_path / "rows", *settings)
    test = run.parent / "test.parquet"
    predict(runner, run, test, "--out", tmp_path / "whole")
    whole = pq.read_table(tmp_path / "whole")["score_click"].to_numpy()
    for words in (["trainer.num_processes=2"], ["trainer.batch_size=1"]):
        predict(runner, run, test, "--out", tmp_path / words[0], *words)
        divided = pq.read_table(tmp_path / words[0])["score_click"].to_numpy()
        np.testing.assert_allclose(divided, whole, atol=1e-6)


@pytest.mark.long
def test_another_prediction_in_the_same_folder_is_refused_with_what_differs(runner, run, tmp_path):
    test, out = run.parent / "test.parquet", tmp_path / "out"
    predict(runner, run, test, "--rows", 128, "--out", out)
    before = parts(out)
    assert "rows_per_part: 128 -> 64" in refused(runner, run, test, "--rows", 64, "--out", out)
    other = refused(runner, run, run.parent / "train.parquet", "--rows", 128, "--out", out)
    assert "input:" in other
    text = refused(
        runner, run, test, "--rows", 128, "--out", out, "checkpoint.step=last", "--logits"
    )
    assert "outputs.logits: False -> True" in text
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert "thesis.tex" in refused(runner, run, test, "--out", tmp_path / "mine")
    assert parts(out) == before


@pytest.mark.long
def test_a_bad_row_is_an_error_with_its_place_or_has_no_score_in_its_place(runner, run, tmp_path):
    rows = clicks(120, 9)
    path = write_csv(rows, tmp_path / "rows.csv")
    lines = path.read_text().splitlines()
    names = lines[0].replace('"', "").split(",")
    cells = lines[50].split(",")
    cells[names.index("item")] = "77"  # its table has 40 rows
    lines[50] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")
    text = refused(runner, run, path, "--out", tmp_path / "a")
    assert "rows.csv: line 51, column 'item': value 77: its table has the rows 0 to 39" in text
    lines[91] += ",one more"
    path.write_text("\n".join(lines) + "\n")
    out = tmp_path / "b"
    text = predict(
        runner, run, path, "--out", out, "--keep", "id", "--rows", 50, "dataset.on_bad_rows=skip"
    )
    assert "2 bad rows are skipped" in text
    assert "line 51, column 'item': value 77" in text and "line 92: 11 values, not 10" in text
    scored = pq.read_table(out)
    assert scored.num_rows == 120
    assert np.flatnonzero(scored["score_click"].is_null()).tolist() == [49, 90]
    assert scored["id"].to_pylist() == [
        None if n == 90 else f"row{n}" for n in range(120)
    ]  # the line that cannot be read has no id either
    good = np.delete(np.arange(120), [49, 90])
    pq.write_table(rows.take(good), tmp_path / "good.parquet")
    predict(runner, run, tmp_path / "good.parquet", "--out", tmp_path / "c")
    expected = pq.read_table(tmp_path / "c")["score_click"].to_numpy()
    np.testing.assert_allclose(scored["score_click"].to_numpy()[good], expected, rtol=1e-6)


@pytest.mark.long
def test_mistakes_are_told_with_the_nearest_right_name(runner, run, tmp_path):
    test = run.parent / "test.parquet"
    assert "nearest: 'id'" in refused(runner, run, test, "--keep", "idd")
    assert "no such path" in refused(runner, run, tmp_path / "nothing.parquet")
    assert "nearest: '--keep'" in refused(runner, run, test, "--kep", "id")
    assert "--rows 0" in refused(runner, run, test, "--rows", 0)
    assert "nearest: 'pooled'" in refused(runner, run, test, "--embeddings", "poled")
    assert "checkpoint.step=7:" in refused(runner, run, test, "checkpoint.step=7")
    assert "trainer.batch_size" in refused(runner, run, test, "trainer.batchsize=7")
    assert "--out for its result" in refused(runner, run, test, "hydra.run.dir=x")
    assert "name a run" in refused(runner, run)
    embeddings = refused(runner, run, test, "--embeddings", "user,pooled", "--out", tmp_path / "x")
    assert "--embeddings user: DLRM scores rows and has no vector" in embeddings
    assert not (tmp_path / "x").exists()  # it is known late, once the model is there
    assert "has no vector of a user" in refused(
        runner, run, test, "--top-k", 3, "--out", tmp_path / "x"
    )
    twice = refused(runner, run, test, run.parent / "clicks.csv", "--out", tmp_path / "x")
    assert "several formats" in twice
    (tmp_path / "empty.csv").write_text(",".join(pq.read_schema(test).names) + "\n")
    for _ in range(2):
        text = refused(runner, run, tmp_path / "empty.csv", "--out", tmp_path / "y")
        assert "empty.csv: has no rows" in text
    city = pa.array([True] * 5)
    wrong = clicks(5, 0).drop(["city"]).append_column("city", city)
    pq.write_table(wrong, tmp_path / "wrong.parquet")
    text = refused(runner, run, tmp_path / "wrong.parquet", "--out", tmp_path / "x")
    assert "row 0, column 'city': value True: not a text, as in the training" in text


@pytest.mark.long
def test_the_default_folder_is_found_again_by_the_same_command(runner, run, tmp_path):
    test = run.parent / "test.parquet"
    for expected in ("scored 1,000 rows", "is complete already"):
        done = runner.run("predict", str(run), str(test), cwd=tmp_path)
        assert done.code == 0 and expected in done.text, done.text
    [folder] = (tmp_path / "outputs" / "predict").iterdir()
    assert folder.name.startswith("run_") and pq.read_table(folder).num_rows == 1000
    [part] = folder.glob("part-*")
    written = bytearray(part.read_bytes())
    written[len(written) // 2] ^= 1  # among the scores
    part.write_bytes(written)
    done = runner.run("predict", str(run), str(test), cwd=tmp_path)
    assert done.code == 2 and f"{part.name}: is not what was written" in done.text, done.text
    part.unlink()
    done = runner.run("predict", str(run), str(test), cwd=tmp_path)
    assert done.code == 0 and "scored 1,000 rows" in done.text, done.text


def test_a_damaged_checkpoint_is_passed_over_with_a_warning_of_one_line(runner, run, tmp_path):
    damaged = tmp_path / "run"
    shutil.copytree(run, damaged)
    *_, newest = sorted(damaged.glob("checkpoints/step-*"))
    shutil.copytree(newest, newest.with_name("step-999999"))
    (newest.with_name("step-999999") / "state.json").write_text("")
    text = predict(runner, damaged, run.parent / "test.parquet", "--out", tmp_path / "out")
    [line] = (line for line in text.splitlines() if "passed over" in line)
    assert line.startswith("warning: checkpoint of step 999999 is passed over: ")


def test_a_prediction_that_has_begun_keeps_its_folder_before_it_has_a_part(tmp_path, monkeypatch):
    out, first, second = tmp_path / "out", {"keep": ["user"]}, {"keep": ["item"]}
    lock = open_output(out, first)
    with pytest.raises(UserError, match="another prediction is writing here: process"):
        open_output(out, second)
    assert read_json(out / MANIFEST_FILE) == first
    monkeypatch.setattr("runner.serving.predict.parts.OPENING_S", 0)
    with pytest.raises(UserError, match="rank 0 has not opened it"):
        await_output(out, second)  # a second rank of the refused one writes no part, either
    lock.release()
    open_output(out, second).release()
    await_output(out, second)
    assert read_json(out / MANIFEST_FILE) == second
    (out / "part-000000.parquet").touch()
    with pytest.raises(UserError, match="holds another prediction"):
        open_output(out, first)
    assert read_json(out / MANIFEST_FILE) == second


def test_a_prediction_is_not_complete_while_a_part_is_written_anew(tmp_path):
    for number in range(2):
        write_part(tmp_path, number, pa.table({"x": [0.5]}), 0, ())
    write_summary(tmp_path, summarize_parts(tmp_path))
    check_parts(tmp_path)
    assert (tmp_path / SUMMARY_FILE).exists()
    (tmp_path / "part-000001.parquet").unlink()
    check_parts(tmp_path)  # as the command begins that may be killed then
    assert not (tmp_path / SUMMARY_FILE).exists()


def test_damaged_files_of_a_prediction_are_told_with_what_to_do(tmp_path):
    for name in (SUMMARY_FILE, MANIFEST_FILE):
        (tmp_path / name).write_text("{")
    with pytest.raises(UserError, match=r"_result\.json: cannot be read: .*; after `rm .*_result"):
        check_parts(tmp_path)
    with pytest.raises(UserError, match=r"_manifest\.json: cannot be read: .*; another --out sta"):
        check_output(tmp_path, {})
    os.mkfifo(tmp_path / "part-000000.parquet")
    with pytest.raises(UserError, match=r"part-000000\.parquet: is not what was written \(it is n"):
        summarize_parts(tmp_path)


def test_a_part_for_which_the_disk_has_no_room_leaves_nothing(tmp_path, monkeypatch):
    def fill(rows: object, file: BinaryIO, **more: object) -> None:
        file.write(b"PAR1")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq, "write_table", fill)
    with pytest.raises(OSError, match="No space left"):
        write_part(tmp_path, 0, pa.table({"click": [0.5]}), 0, [])
    assert list(tmp_path.iterdir()) == []


def test_kept_values_of_every_nested_type_that_repeat_are_written_once(tmp_path):
    words = [["a", "b"]] * 100
    columns = {
        "large": pa.array(words, pa.large_list(pa.string())),
        "nested": pa.array([[w] for w in words], pa.list_(pa.list_(pa.string()))),
        "struct": pa.array([{"text": "a", "number": 1.5}] * 100),
        "floats": pa.array([[1.5]] * 100, pa.large_list(pa.float32())),
    }
    write_part(tmp_path, 0, pa.table(columns), 0, [])
    group = pq.read_metadata(tmp_path / "part-000000.parquet").row_group(0)
    leaves = [group.column(n) for n in range(group.num_columns)]
    plain = [leaf.path_in_schema for leaf in leaves if not leaf.has_dictionary_page]
    assert plain == ["struct.number", "floats.list.element"]


def test_a_folder_with_files_of_another_kind_is_refused_and_gets_no_lock(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="thesis"):
        open_output(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.long
def test_a_column_of_ids_that_the_model_does_not_know_is_told(runner, run, tmp_path):
    """All rows have scores, since one column may well hold new values."""
    rows = clicks(300, 9)
    other = pa.array([f"{city}.0" if city else None for city in rows["city"].to_pylist()])
    at = rows.schema.get_field_index("city")
    pq.write_table(rows, tmp_path / "known.parquet")
    pq.write_table(rows.set_column(at, "city", other), tmp_path / "other.parquet")
    said = {
        name: predict(runner, run, tmp_path / f"{name}.parquet", "--out", tmp_path / name)
        for name in ("known", "other")
    }
    told = "note: city: 100% of the values are unknown to the model"
    assert "unknown to the model" not in said["known"] and told in said["other"]
    assert pq.read_table(tmp_path / "other").num_rows == 300
