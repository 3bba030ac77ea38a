"""What a run with growing tables is for: a stream, a warm start, predictions, an export."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from runner.data.core.fitted import FittedTransforms
from runner.data.growing.settings import NO_ID
from runner.rundir.checkpoint import open_checkpoint, read_tensors
from runner.serving.scorer import Scorer
from runner.training.builder.pipeline import find_sparse_dist_obstacle
from tests.conftest import Zygote
from tests.data.growing import drifting
from tests.data.streaming.files import arrive
from tests.whole.compare_runs import TRACED, differences, newest_checkpoint, read_result
from tests.whole.test_growing import EPOCH, SCHEMAS, WIDE, maps, slow, train
from tests.whole.test_online import STREAM

FROZEN = ("optimizer.sparse.lr=0", "optimizer.dense.lr=0", "trainer.max_steps=1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    folder = tmp_path_factory.mktemp("data")
    return {name: drifting.write(folder / name, schema) for name, schema in SCHEMAS.items()}


@pytest.mark.long
@pytest.mark.parity("L14")
@pytest.mark.parametrize("name", ["direct", slow("rewritten")])
def test_a_stream_grows_and_resumes_bit_for_bit(runner, tmp_path, name):
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SCHEMAS[name]))
    (tmp_path / "files").mkdir()
    rows = drifting.table(900)
    for n in range(3):
        arrive(tmp_path / "files", f"{n}.parquet", rows.slice(300 * n, 300))
    words = (f"dataset.path={tmp_path / 'files'}", f"dataset.schema={tmp_path / 'schema.yaml'}")
    words = (*TRACED, *STREAM, *words, *drifting.MODEL, *([WIDE] if name == "direct" else []))
    run, quiet, two = tmp_path / "run", tmp_path / "quiet", tmp_path / "two"
    train(runner, quiet, *words, TRACE_FILE=f"{quiet}.trace")
    train(runner, run, *words, code=1, TRACE_FILE=f"{run}.trace", TRACE_KILL="step:13")
    train(runner, run, *words, TRACE_FILE=f"{run}.trace")
    assert differences(run, quiet) == []
    assert read_result(run)["step"] == 28
    ranks = ("trainer.num_processes=2", "trainer.batch_size=16")
    train(runner, two, *words, *ranks, TRACE_FILE=f"{two}.trace")
    assert all(torch.equal(maps(two)[key], values) for key, values in maps(quiet).items())


def schema_of(**user: object) -> dict[str, object]:
    return {"labels": ["click"], "numeric": ["x"], "categorical": {"user": user}}


def rows_by_value(run: Path, tensor: str) -> dict[int, torch.Tensor]:
    """Id -> its row of the user's table."""
    saved = open_checkpoint(newest_checkpoint(run))
    [rows] = read_tensors(saved, [f"tables/{tensor}"]).values()
    fitted = FittedTransforms.load(run / "data").vocabularies
    if "user" in fitted:
        ids = [0, 1, *fitted["user"].tolist()]
    else:
        ids = [0, 1, *read_tensors(saved, ["growing/user/ids"])["growing/user/ids"].tolist()[2:]]
    return {i: row for i, row in zip(ids, rows) if i != NO_ID}


VOCABULARY = {"encode": "vocabulary", "default": 1}
GROWING = {"encode": "growing", "num_rows": 600, "min_count": 2}
LARGER = {"encode": "growing", "num_rows": 900, "evict": {"by": "lru", "every": 50}}
SMALLER = {"encode": "growing", "num_rows": 200}


@pytest.mark.parity("E16")
@pytest.mark.parametrize(
    ("source", "ours"),
    [
        (GROWING, SMALLER),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in ((GROWING, LARGER), (VOCABULARY, LARGER), (GROWING, VOCABULARY))
        ),
    ],
)
def test_a_warm_start_takes_rows_by_the_ids_that_they_stand_for(runner, tmp_path, source, ours):
    words = drifting.write(tmp_path / "a", schema_of(**source))
    run = train(runner, tmp_path / "source", *words, WIDE, *EPOCH, "checkpoint.step=last")
    words = drifting.write(tmp_path / "b", schema_of(**ours), num_rows=600)
    warm = ("checkpoint.init_from=" + str(run), "checkpoint.init_optimizer=true")
    warm = train(runner, tmp_path / "warm", *words, WIDE, *FROZEN, *warm)
    theirs, mine = (rows_by_value(r, "user/weight") for r in (run, warm))
    shared = theirs.keys() & mine.keys()
    free = 198 if ours is SMALLER else len(theirs)
    assert len(shared) >= (free if ours is not VOCABULARY else 150)
    assert all(torch.equal(mine[i], theirs[i]) for i in shared)
    linear = [rows_by_value(r, "user:linear/weight") for r in (run, warm)]
    assert all(torch.equal(linear[0][i], linear[1][i]) for i in shared)
    assert any((linear[0][i] != 0).any() for i in shared)


@pytest.mark.long
@pytest.mark.parity("E16")
@pytest.mark.parametrize("name", [slow("direct"), "rewritten"])
def test_predictions_and_an_export_are_what_was_evaluated(runner, data, tmp_path, name):
    """An id that the training never saw is read as the shared row."""
    model = {"direct": WIDE, "rewritten": "model=din"}[name]
    run = train(runner, tmp_path / "run", *data[name], model, *EPOCH)
    out = tmp_path / "model"
    runner.run("export", str(run), "--out", str(out)).check()
    rows = drifting.table(300, first_row=1200, seed=2).drop_columns(["click"])
    strange = drifting.user_ids(np.arange(10**6, 10**6 + 300))
    mixed = np.where(np.arange(300) % 2, strange, rows["user"].fill_null(5).to_numpy())
    rows = rows.set_column(rows.column_names.index("user"), "user", pa.array(mixed))
    pq.write_table(rows, tmp_path / "rows.parquet")
    words = ("predict", str(run), str(tmp_path / "rows.parquet"))
    runner.run(*words, "--out", str(tmp_path / "predicted")).check()
    predicted = pq.read_table(tmp_path / "predicted")
    [column] = [c for c in predicted.column_names if "click" in c]
    scored = Scorer.load(out).score(rows)["click"]
    np.testing.assert_allclose(predicted[column].to_numpy(), scored, atol=1e-6)
    graph = json.loads((out / "schema.json").read_text())
    held = len(maps(run)["growing/user/ids"]) - (maps(run)["growing/user/ids"] == NO_ID).sum()
    assert graph["fitted"]["num_rows"]["user"] == 2 + held  # rows without an id are left out


def test_what_needs_rows_before_the_training_is_refused(runner: Zygote, tmp_path):
    words = drifting.write(tmp_path / "a", schema_of(**SMALLER), num_rows=300)
    more = ("model=wide_and_deep", "metrics.slice_by=user", "checkpoint.init_linear=true", *EPOCH)
    done = runner.run(*words, *more, f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert "metrics.slice_by=user: is growing" in done.text
    assert "checkpoint.init_linear: fits weights to ids before the training" in done.text


def test_the_items_of_a_catalogue_cannot_grow(runner, tmp_path):
    words = drifting.write(tmp_path / "a", drifting.REWRITTEN, num_rows=300)
    tower = ("model=two_tower", "model.net.item=[item]", *EPOCH)
    done = runner.run(*words, *tower, f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert "item: encode: growing: TwoTower ranks and samples the items" in done.text


def test_ids_are_not_sent_before_their_update_begins():
    context: Any = SimpleNamespace(growing=object())
    reason = find_sparse_dist_obstacle(context, None, None)  # type: ignore[arg-type]
    assert reason is not None
    assert "when their update begins" in reason
