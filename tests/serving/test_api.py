"""The Python API: the same as the command line, as values, in a process that stays as it was."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import runner as public
from runner.config.targets import allowed_packages
from runner.errors import ConfigError, DataError, UserError
from runner.serving import Scorer
from runner.serving.api import TrainedRun
from runner.serving.export.plan import plan_export
from runner.serving.predict.plan import make_plan
from runner.serving.predict.run import predict_files
from tests.conftest import TINY, Zygote, python
from tests.serving.scene import clicks, train

FULL = (
    "model.net.embedding_dim=8",
    "metrics.eval=[hit_rate@5]",
    "metrics.candidates=full",
    "checkpoint.monitor={metric: validation/hit_rate@5, direction: max}",
)


@pytest.fixture(scope="module")
def trained(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> public.TrainedRun:
    return public.load(train(runner, tmp_path_factory.mktemp("clicks")))


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return clicks(150, 9)


def process_facts() -> list:
    root = logging.getLogger()
    return [
        dict(os.environ),
        os.getcwd(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        list(root.handlers),
        root.level,
        logging.getLogger("runner").level,
        logging.raiseExceptions,
        pa.default_memory_pool().backend_name,
    ]


@pytest.mark.long
def test_importing_composing_and_loading_need_no_torch(trained):
    code = (
        "import sys, runner; runner.compose(['model=dcn']); run = runner.load(sys.argv[1]);"
        "assert run.metrics and run.checkpoints and run.config;"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    )
    python("-c", code, str(trained.dir)).check_returncode()


@pytest.mark.long
def test_a_run_has_its_facts(trained):
    assert trained.config["trainer"]["batch_size"] == 64
    history = trained.history
    assert isinstance(history, pd.DataFrame)
    test = history[history["split"] == "test"]["auc"].item()
    assert f"<td>{test:.5f}</td>" in trained._repr_html_()  # what a notebook shows
    assert test == trained.metrics["test/auc"]
    assert history["loss"].dtype == float
    assert all((folder / "manifest.json").exists() for folder in trained.checkpoints.values())


def test_a_history_with_metrics_that_are_undefined_is_a_table_of_numbers(tmp_path):
    rows = [
        {"split": "train", "step": 1, "loss": 0.5, "auc": "NaN"},
        {"split": "validation", "step": 1, "loss": "Infinity", "auc": 0.5, "rce": "-Infinity"},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    history = TrainedRun(tmp_path).history
    assert history["step"].dtype == np.int64
    found = history[["loss", "auc", "rce"]].to_numpy(float).tolist()
    assert repr(found) == "[[0.5, nan, nan], [inf, 0.5, -inf]]"


@pytest.mark.parity("L22")
def test_tables_of_all_kinds_have_the_scores_of_the_command_line(trained, rows, runner, tmp_path):
    pq.write_table(rows, tmp_path / "rows.parquet")
    words = [trained.dir, tmp_path / "rows.parquet", "--out", tmp_path / "out", "--keep", "id"]
    runner.run("predict", *map(str, words)).check()
    expected = pq.read_table(tmp_path / "out")
    arrow = trained.predict(rows, keep=["id"])
    assert arrow.equals(expected)
    frame = rows.to_pandas().sample(frac=1, random_state=0)
    pandas = trained.predict(frame, keep=["id"])
    assert isinstance(pandas, pd.DataFrame) and pandas.index.equals(frame.index)
    pd.testing.assert_frame_equal(pandas.sort_index(), expected.to_pandas(), rtol=1e-6)
    polars = trained.predict(pl.from_arrow(rows), keep=["id"])
    assert isinstance(polars, pl.DataFrame)
    assert polars["score_click"].to_list() == expected["score_click"].to_pylist()


def test_nothing_of_a_process_changes_and_a_second_call_gives_the_same(trained, rows):
    before = process_facts()
    first = public.load(trained.dir).predict(rows)
    assert process_facts() == before
    assert public.load(trained.dir).predict(rows).equals(first)
    assert not trained.model().training


@pytest.mark.long
def test_what_a_first_training_logs_is_not_printed_again_by_a_handler_of_fbgemm():
    code = (
        "import logging; from runner.serving.process_state import process_restored\n"
        "with process_restored():\n"
        "    import fbgemm_gpu\n"
        "    logging.getLogger('runner').error('told by the view')\n"
        "assert logging.getLogger().handlers == []"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (0, "")
    assert "told by the view" not in done.stderr


def test_bad_rows_that_a_run_skips_have_vectors_of_nan(runner, rows, tmp_path):
    run = public.load(train(runner, tmp_path, "dataset.on_bad_rows=skip"))
    bad_R = np.arange(len(rows)) % 30 == 7
    items = np.where(bad_R, 999, rows["item"].to_numpy())
    place = rows.column_names.index("item")
    vectors_RD = run.embeddings(rows.set_column(place, "item", pa.array(items)))
    assert np.isnan(vectors_RD[bad_R]).all()
    np.testing.assert_allclose(vectors_RD[~bad_R], run.embeddings(rows)[~bad_R], rtol=1e-6)


def test_a_table_without_rows_has_a_result_without_rows(trained, rows):
    """Arrow knows no type of the columns of such a DataFrame."""
    some = trained.predict(rows, keep=["id"])
    assert trained.predict(rows.slice(0, 0), keep=["id"]).equals(some.slice(0, 0))
    frame = trained.predict(rows.to_pandas()[:0].astype(object))
    assert isinstance(frame, pd.DataFrame) and list(frame) == ["score_click"] and not len(frame)
    assert trained.embeddings(rows[:0]).shape == (0, trained.embeddings(rows[:1]).shape[1])
    with pytest.raises(DataError, match="no column 'city'"):
        trained.predict(rows.slice(0, 0).drop(["city"]))


def test_a_schema_that_was_changed_or_deleted_since_the_training_changes_no_score(
    trained, rows, tmp_path
):
    expected = trained.predict(rows)
    path = Path(trained.config["dataset"]["schema"])
    text, other = path.read_text(), tmp_path / "other.yaml"
    changed = json.loads(text)
    changed["categorical"]["device"]["salt"] = 8
    changed["numeric"]["price"]["log1p"] = False
    try:
        path.write_text(json.dumps(changed))
        assert public.load(trained.dir).predict(rows).equals(expected)
        path.rename(other)
        assert public.load(trained.dir).predict(rows).equals(expected)
    finally:
        path.write_text(text)
    given = [f"dataset.schema={other}"]
    assert not trained.predict(rows, overrides=given).equals(expected)


def test_a_damaged_copy_of_the_schema_is_refused_by_name_and_may_be_removed(trained, rows):
    kept, expected = trained.dir / "data" / "schema.yaml", trained.predict(rows)
    whole = kept.read_bytes()
    try:
        for text in (whole.replace(b"salt", b"salf"), whole[: len(whole) // 2], b""):
            kept.write_bytes(text)
            with pytest.raises(UserError, match=r"schema\.yaml: is not what the training has writ"):
                public.load(trained.dir).predict(rows)
        kept.unlink()
        assert public.load(trained.dir).predict(rows).equals(expected)
    finally:
        kept.write_bytes(whole)


def test_a_column_without_a_value_has_the_scores_of_its_type(trained, rows, tmp_path):
    """A DataFrame says no type of it; a column that is kept is named once or twice."""
    places = {name: rows.column_names.index(name) for name in ("words", "user", "price")}
    typed = untyped = rows
    for name, n in places.items():
        typed = typed.set_column(n, name, pa.nulls(150, rows.schema.field(name).type))
        untyped = untyped.set_column(n, name, pa.nulls(150))
    expected = trained.predict(typed, keep=["id"])
    assert trained.predict(untyped, keep=["id", "id"]).equals(expected)
    pq.write_table(untyped, tmp_path / "rows.parquet")
    words: dict[str, Any] = {"out": tmp_path / "out", "keep": ["id"]}
    predict_files(make_plan(trained.dir, [str(tmp_path / "rows.parquet")], **words))
    assert pq.read_table(tmp_path / "out").equals(expected)


def test_files_of_another_format_in_a_folder_are_told(trained, rows, tmp_path, capsys):
    """Nothing was said: a folder's rows of JSON had no scores."""
    folder = tmp_path / "rows"
    folder.mkdir()
    pq.write_table(rows, folder / "a.parquet")
    (folder / "b.jsonl").write_text('{"user": 1}\n')
    predict_files(make_plan(trained.dir, [str(folder)], out=tmp_path / "out"))
    assert pq.read_table(tmp_path / "out").num_rows == rows.num_rows
    told = f"warning: a file of another format than parquet in {folder}, such as b.jsonl, is not"
    assert told in capsys.readouterr().err


def test_texts_in_place_of_lists_and_flags_among_the_words_are_refused(trained, rows, tmp_path):
    with pytest.raises(ConfigError, match=r"^overrides='model=dcn': must be a list of texts"):
        public.compose("model=dcn")
    with pytest.raises(
        ConfigError, match=r"^2 mistakes\n.*allow='mine'.*\n.*config_dirs='myconf': mu"
    ):
        public.train(["seed=1", "seed=2"], allow="mine", config_dirs="myconf")
    with pytest.raises(ConfigError, match=r"^allow='mine': must be"):
        public.load("nowhere", allow="mine")
    with pytest.raises(ConfigError, match=r"^overrides=<map object .*: must be a list of texts"):
        public.compose(map(str, ["model=dcn"]))
    with pytest.raises(ConfigError, match=r"^2 mistakes\n.*keep='id': mu.*\n.*overrides='seed=1'"):
        trained.predict(rows, keep="id", overrides="seed=1")
    with pytest.raises(ConfigError, match=r"^overrides='seed=1': must be a list of texts"):
        trained.export(tmp_path / "model", overrides="seed=1")
    with pytest.raises(
        ConfigError, match=r"'--allow': not key=value; .* allow=\[...\] and config_"
    ):
        public.compose(["--allow", "mine"])


def test_bad_input_is_an_exception_with_its_place(trained, rows):
    with pytest.raises(DataError, match="the table: no column 'city'"):
        trained.predict(rows.drop(["city"]))
    with pytest.raises(DataError, match="expected a DataFrame"):
        trained.predict(3)
    for one in (rows["city"].to_pandas(), pl.Series(["Bern"])):
        with pytest.raises(DataError, match="the table: a Series; expected a DataFrame"):
            trained.predict(one)
    twice = rows.to_pandas()
    twice = pd.concat([twice, twice[["city"]]], axis=1)
    with pytest.raises(DataError, match="the table: Duplicate column names"):
        trained.predict(twice)
    with pytest.raises(ConfigError, match=r"checkpoint\.step=1:"):
        trained.predict(rows, step=1)
    wrong = rows.set_column(rows.column_names.index("item"), "item", pa.array([*range(149), 1]))
    with pytest.raises(DataError, match=r"the table: row 40, column 'item': value 40"):
        trained.predict(wrong)
    scores = trained.predict(
        wrong,
        overrides=["dataset.on_bad_rows=skip"],
        outputs=public.Outputs(embeddings=("pooled",)),
    )
    assert scores["score_click"].null_count == scores["embedding_pooled"].null_count == 109
    with pytest.raises(UserError, match="no such run directory"):
        public.load("outputs/nothing")


@pytest.mark.long
def test_an_export_is_that_of_the_command_line_and_scores_what_the_run_predicts(
    trained, rows, runner, tmp_path
):
    before = process_facts()
    artifact = trained.export(tmp_path / "api")
    assert process_facts() == before
    runner.run("export", str(trained.dir), "--out", str(tmp_path / "cli")).check()
    measured, expected = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("api", "cli")
    )
    assert measured["formats"]["pt2"]["metrics"] == expected["formats"]["pt2"]["metrics"]
    assert measured["evaluated"]["auc"] == trained.metrics["test/auc"]
    assert (tmp_path / "api" / "schema.json").read_bytes() == (
        tmp_path / "cli" / "schema.json"
    ).read_bytes()
    scores = Scorer.load(artifact.path).score(rows)["click"]
    np.testing.assert_allclose(scores, trained.predict(rows)["score_click"].to_numpy(), rtol=1e-5)
    with pytest.raises(UserError, match="exists already"):
        trained.export(tmp_path / "api")
    with pytest.raises(UserError, match=r"--quantise int7.*nearest: 'int8'"):
        trained.export(tmp_path / "x", public.ExportSettings(quantise="int7"))
    with pytest.raises(ConfigError, match=r"checkpoint\.step=1:"):
        trained.export(tmp_path / "x", step=1)
    assert process_facts() == before
    assert {path.name for path in tmp_path.iterdir()} == {"api", "cli"}


def test_a_folder_stands_for_its_newest_training(trained, tmp_path):
    import shutil

    for name in ("first", "second"):
        shutil.copytree(trained.dir, tmp_path / "runs" / name)
    os.utime(tmp_path / "runs" / "first" / "meta.json", (0, 0))
    assert public.load(tmp_path / "runs").dir == tmp_path / "runs" / "second"
    (tmp_path / "latest").symlink_to("runs/first")
    assert public.load(tmp_path / "latest").metrics == trained.metrics


def test_a_sweep_stands_for_the_job_that_its_leaderboard_has_first(trained, tmp_path, capsys):
    import shutil

    for name in ("old", "newest"):
        shutil.copytree(trained.dir, tmp_path / name)
    os.utime(tmp_path / "old" / "meta.json", (0, 0))
    (tmp_path / "study.db").touch()
    board, head = tmp_path / "leaderboard.csv", "lr,status,validation/auc,test/auc,folder"
    board.write_text(f"{head}\n1,failed,,,newest\n")
    with pytest.raises(UserError, match=f"no job has a result yet.*folder: {tmp_path}/newest, "):
        public.load(tmp_path)
    board.unlink()
    with pytest.raises(UserError, match="csv is gone, or cannot be read; `python"):
        public.load(tmp_path)
    rows = "1,completed,.9,,../gone\n2,completed,.8,.1,old\n3,completed,.7,.9,newest\n"
    board.write_text(f"{head}\n{rows}")
    assert public.load(tmp_path).dir == tmp_path / "old"
    told = capsys.readouterr().err
    assert f"best is taken: {tmp_path}/old, validation/auc 0.8; to take another" in told
    out, allowed = str(tmp_path / "out"), allowed_packages(())
    planned = plan_export(str(tmp_path), out, public.ExportSettings(), (), allowed)
    assert planned.config["run"] == str(tmp_path / "old")


@pytest.mark.long
def test_training_is_that_of_the_command_line_twice_in_a_process(runner, tmp_path):
    before = process_facts()
    words = (*TINY, "trainer.max_steps=12", "hydra.run.dir=")
    runner.run(*words[:-1], f"hydra.run.dir={tmp_path / 'cli'}").check()
    expected = public.load(tmp_path / "cli").metrics
    for name in ("a", "b"):
        run = public.train([*words[:-1], f"hydra.run.dir={tmp_path / name}"])
        assert run.metrics == expected
    assert process_facts() == before
    for more, message in (
        (["trainer.num_processes=2"], "processes of their own"),
        (["trainer.max_stepz=2"], "nearest: 'trainer.max_steps'"),
        ([f"run={tmp_path / 'cli'}", "loop=eval"], "load opens one"),
    ):
        with pytest.raises(ConfigError, match=message):
            public.train(more)


def test_trainings_in_threads_are_those_of_the_main_one(tmp_path):
    before = process_facts()
    words = [*TINY, "trainer.max_steps=2", "report=false"]
    with ThreadPoolExecutor(2) as threads:
        folders = [[f"hydra.run.dir={tmp_path / name}"] for name in ("a", "b")]
        runs = list(threads.map(lambda folder: public.train([*words, *folder]), folders))
    assert process_facts() == before
    expected = public.train([*words, f"hydra.run.dir={tmp_path / 'main'}"]).metrics
    assert [run.metrics for run in runs] == [expected] * 2


@pytest.mark.long
@pytest.mark.parametrize("own", ["two_tower model.net.item=[item]", "sasrec model.net.uniform=8"])
def test_vectors_make_the_logit_and_top_items_are_those_of_a_search_by_hand(
    runner, tmp_path, rows, own
):
    run = public.load(train(runner, tmp_path, *f"model={own}".split(), *FULL))
    outputs = public.Outputs(logits=True, embeddings=("user", "item"), top_k=4)
    result = run.predict(rows, outputs=outputs)
    user_RD, item_RD = run.embeddings(rows, "user"), run.embeddings(rows, "item")
    logit_R = result["logit_click"].to_numpy()
    np.testing.assert_allclose((user_RD * item_RD).sum(1), logit_R, rtol=1e-4, atol=1e-5)
    # the vector of each item, from rows of which each has another item
    every = rows.slice(0, 40).set_column(
        rows.column_names.index("item"), "item", pa.array(range(40))
    )
    scores_RI = user_RD @ run.embeddings(every, "item").T
    for row, history in enumerate(rows["history"].to_pylist()):
        newest = [int(i) for i in history.split("|")[-3:] if i]
        scores_RI[row, newest] = -np.inf
    best_RK = np.argsort(-scores_RI, axis=1)[:, :4]
    found_RK = np.array(result["top_items"].to_pylist())
    scores_RK = np.array(result["top_scores"].to_pylist())
    np.testing.assert_allclose(
        scores_RK, np.take_along_axis(scores_RI, best_RK, 1), rtol=1e-4, atol=1e-5
    )
    assert (found_RK == best_RK).mean() > 0.99  # equal scores may change places
