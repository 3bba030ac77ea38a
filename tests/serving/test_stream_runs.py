"""A run that has learnt from a stream is exported, evaluated and predicted with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.metrics import roc_auc_score

import runner as public
from runner.errors import UserError
from runner.serving import Scorer
from tests.conftest import Zygote
from tests.data.streaming.files import arrive
from tests.tiers import fast
from tests.whole.test_online import MODEL, STREAM

PLAIN = {
    "labels": {"click": {}},
    "numeric": {"price": {"log1p": True, "default": 0.0}},
    "categorical": {"user": {"encode": "hash", "num_rows": 100}, "item": {"num_rows": 90}},
}
ENCODED = {
    **PLAIN,
    "numeric": {"price": {"standardise": True, "default": 0.0}},
    "categorical": {
        "user": {"encode": "vocabulary"},
        "both": {"cross": ["user", "item"], "num_rows": 500},
    },
}


def rows(num_rows: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    user = random.integers(0, 60, num_rows)
    return pa.table(
        {
            "click": (random.random(num_rows) < 0.2 + 0.5 * (user % 2)).astype(np.int8),
            "price": random.gamma(2, 9, num_rows),
            "user": user,
            "item": random.integers(0, 90, num_rows),
        }
    )


def folder_words(folder: Path) -> tuple[str, ...]:
    (folder / "files").mkdir()
    for n in range(2):
        arrive(folder / "files", f"{n}.parquet", rows(1500, n))
    return (*STREAM, f"dataset.path={folder / 'files'}")


def topic_words(folder: Path) -> tuple[str, ...]:
    pytest.importorskip("confluent_kafka", reason="the extra `kafka` is not installed")
    from tests.data.streaming.test_kafka import Broker

    broker = Broker()
    broker.send("clicks", rows(3000, 0).to_pylist())
    request = ("loop=online", "dataset=kafka", "dataset.topic=clicks", "dataset.idle_timeout_s=2")
    BROKERS.append(broker)  # it ends with this object
    return (*request, f"dataset.servers='{broker.servers}'")


BROKERS: list[object] = []
SCHEMAS = {"plain": PLAIN, "encoded": ENCODED, "kafka": PLAIN}


@pytest.fixture(scope="module", params=fast("encoded", "kafka", of=SCHEMAS))
def run(request, runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its stream is gone, as a stream's rows are."""
    folder = tmp_path_factory.mktemp("stream")
    (folder / "schema.yaml").write_text(yaml.safe_dump(SCHEMAS[request.param]))
    pq.write_table(rows(400, 9), folder / "test.parquet")
    pacsv.write_csv(rows(400, 9), folder / "test.csv")
    words = (topic_words if request.param == "kafka" else folder_words)(folder)
    place = (f"dataset.schema={folder / 'schema.yaml'}", f"hydra.run.dir={folder / 'run'}")
    runner.run(*words, *MODEL, *place, "report=false").check()
    BROKERS.clear()
    shutil.rmtree(folder / "files", ignore_errors=True)
    return folder / "run"


@pytest.mark.long
@pytest.mark.parametrize("ending", fast("parquet", of=["parquet", "csv"]))
def test_labelled_rows_are_what_its_artifact_is_held_against(runner, run, tmp_path, ending):
    test = run.parent / f"test.{ending}"
    model = tmp_path / "model"
    runner.run("export", str(run), "--out", str(model), "--rows-from", str(test)).check()
    measured = json.loads((model / "metrics.json").read_text())
    assert measured["formats"]["pt2"]["metrics"] == pytest.approx(measured["evaluated"], rel=1e-6)
    assert (measured["rows"], measured["rows_from"]) == (400, [f"test.{ending}"])
    scored = rows(400, 9)
    scores = Scorer.load(model).score(scored.drop(["click"]))["click"]
    auc = roc_auc_score(scored["click"].to_numpy(), scores)
    assert auc == pytest.approx(measured["evaluated"]["auc"], abs=1e-6) and auc > 0.6
    runner.run("predict", str(run), str(test), "--out", str(tmp_path / "scores")).check()
    predicted = pq.read_table(tmp_path / "scores")["score_click"].to_numpy()
    np.testing.assert_allclose(predicted, scores, rtol=1e-5)
    schema = run.parent / "schema.yaml"
    words = [f"dataset={ending}", f"dataset.schema={schema}", f"hydra.run.dir={tmp_path / 'eval'}"]
    words += [f"dataset.{key}={test}" for key in ("path", "test_path")]
    runner.run("loop=eval", f"run={run}", *words).check()
    found = json.loads((tmp_path / "eval" / "result.json").read_text())["metrics"]
    assert found["test/auc"] == measured["evaluated"]["auc"]


def test_without_labelled_rows_it_is_refused_with_what_to_name(run, tmp_path):
    with pytest.raises(UserError, match=r"learnt from a stream.*--rows-from FILE"):
        public.load(run).export(tmp_path / "model")
    settings = public.ExportSettings(rows_from=(str(tmp_path / "nothing.parquet"),))
    with pytest.raises(UserError, match=r"nothing\.parquet: no such path"):
        public.load(run).export(tmp_path / "model", settings)
    assert not list(tmp_path.iterdir())
