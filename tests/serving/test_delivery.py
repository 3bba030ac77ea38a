"""Deltas of whole runs: by the command line, and delivered while a training goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from runner.errors import UserError
from runner.rundir.checkpoint import saved_steps
from runner.serving.artifact.delta import next_delta, open_delta
from runner.serving.artifact.folder import open_artifact
from runner.serving.artifact.weights import read_artifact_weights
from runner.serving.delivery import FolderDelivery
from runner.serving.scorer import Scorer
from tests.conftest import TINY
from tests.data.growing import drifting
from tests.data.growing.drifting import DIRECT
from tests.data.streaming.files import arrive
from tests.serving import clicks
from tests.serving.versions import Versions
from tests.tiers import fast
from tests.whole.test_growing import EPOCH, WIDE
from tests.whole.test_items import FULL, SETTINGS, beauty  # noqa: F401  (a fixture)
from tests.whole.test_online import STREAM

DELIVERING = (*TINY, "delivery.every=5", "delivery.to=x")
AVERAGING = (*TINY, "trainer.ema.decay=0.9", "trainer.log_every=50", "trainer.eval_every=null")


def verb(runner, *words: str) -> str:
    done = runner.run(*words).check()
    return str(done.text)


def assert_same_model(first: Path, second: Path) -> None:
    """Compare weights, tables and transforms, to the last bit."""
    weights, expected = (read_artifact_weights(open_artifact(path)) for path in (first, second))
    assert weights.keys() == expected.keys()
    for key, values in expected.items():
        assert weights[key].tobytes() == values.tobytes(), key
    for path in second.glob("vocabulary-*"):
        assert (first / path.name).read_bytes() == path.read_bytes()
    assert (first / "schema.json").read_text() == (second / "schema.json").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    "case", fast("dlrm", of=["dlrm", "several tasks, int8", "two_tower", "growing"])
)
def test_a_delta_applied_is_the_checkpoint_exported_whole(runner, beauty, tmp_path, case):  # noqa: F811
    words = {
        "dlrm": TINY,
        "several tasks, int8": (*clicks.write(tmp_path / "data"), "checkpoint.save_every=5"),
        "two_tower": (*SETTINGS, beauty, "model=two_tower", *FULL, "report=false"),
        "growing": (*drifting.write(tmp_path / "drifting", DIRECT), WIDE, *EPOCH),
    }[case]
    run = tmp_path / "run"
    verb(runner, *words, f"hydra.run.dir={run}", "checkpoint.keep=9")
    early, *_, last = saved_steps(run / "checkpoints")
    quantise = ("--quantise", "int8") if "int8" in case else ()
    for name, step in (("base", early), ("whole", last)):
        out = str(tmp_path / name)
        verb(runner, "export", str(run), "--out", out, *quantise, f"checkpoint.step={step}")
    words = ("--since", str(tmp_path / "base"), "--out", str(tmp_path / "delta"))
    text = verb(runner, "export", str(run), *words, f"checkpoint.step={last}")
    assert f"`python -m runner apply {words[1]} {words[3]} --out NEW` brings" in text
    verb(
        runner,
        "apply",
        *(str(tmp_path / n) for n in ("base", "delta")),
        "--out",
        str(tmp_path / "new"),
    )
    assert_same_model(tmp_path / "new", tmp_path / "whole")
    delta = open_delta(tmp_path / "delta")
    manifest = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert (delta.base, delta.step) == (open_artifact(tmp_path / "base").version, last)
    assert (manifest["version"], manifest["checkpoint"]["step"]) == (delta.version, last)
    new, whole = (json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("new", "whole"))
    assert new["measured"] == {"version": delta.version, "step": last}
    assert new["evaluated"] == whole["evaluated"]
    assert new["formats"]["pt2"]["metrics"] == whole["formats"]["pt2"]["metrics"]
    example, expected = (np.load(tmp_path / n / "example.npz") for n in ("new", "whole"))
    assert sorted(example.files) == sorted(expected.files)
    for name in expected.files:  # ids of growing tables are those of the base's example, in range
        assert case == "growing" or example[name].tobytes() == expected[name].tobytes(), name
    if case == "two_tower":
        for name in ("items.parquet", "queries.parquet", "query_rows.parquet"):
            found, expected = (pq.read_table(tmp_path / n / name) for n in ("new", "whole"))
            assert found.equals(expected), name
            base = pq.read_table(tmp_path / "base" / name)
            assert base.equals(expected) == (name == "query_rows.parquet")
    if case == "growing":  # users have come and gone
        moved = delta.manifest["moved"]["model/lookup.pooled.0.rows.weight"]
        assert moved["deleted"] > 5 and moved["inserted"] > 5
        weights = json.loads((tmp_path / "delta" / "manifest.json").read_text())["rows"]
        assert all(count < 300 for count in weights.values())
    # on the wrong base, and into a folder that is there
    done = runner.run(
        "apply", str(tmp_path / "whole"), str(tmp_path / "delta"), "--out", str(tmp_path / "x")
    ).check(2)
    assert delta.base in done.text
    assert open_artifact(tmp_path / "whole").version in done.text
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_what_a_delta_cannot_be_is_refused_before_anything_is_written(runner, tmp_path):
    for words, message in (
        (("apply", "model", "delta"), "--out is not set"),
        (("apply", "model", "--out", "x"), "name a model and its deltas"),
        (("apply", "nothing", "delta", "--out", "x"), "no exported model"),
        (("apply", "model", "delta", "--outt", "x"), "nearest: '--out'"),
        (("export", "run", "--since", "nothing", "--out", "x"), "no exported model"),
        ((*TINY, "delivery.every=5"), "delivery.to is not set"),
        ((*TINY, "delivery.to=x"), "nothing is delivered without delivery.every"),
        ((*TINY, "delivery.evry=5"), "delivery.every"),
        ((*TINY, "delivery.rows_from=x"), "nothing is delivered without delivery.every"),
        (
            (*DELIVERING, "delivery.rows_from=no.csv"),
            f"delivery.rows_from={tmp_path / 'no.csv'}: no such path",
        ),
        (
            (*DELIVERING, "loop=online", "dataset=folder"),
            "name a file of labelled rows by delivery.rows_from=FILE",
        ),
        ((*TINY, "delivery.every=5", "delivery.to=x", "checkpoint.keep=0"), "from a checkpoint"),
        ((*TINY, "delivery.every=5", "delivery.to=x", "loop=tune_lr"), "only loop=train"),
    ):
        done = runner.run(*words, cwd=tmp_path)
        assert (done.code, message in done.text) == (2, True), done.text
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_delivering_run_that_is_killed_goes_on_without_a_gap(runner, tmp_path):
    """The first artifact is there, as after its export, so that every delivery is a delta."""
    run, folder = tmp_path / "run", tmp_path / "deliveries"
    words = (*AVERAGING, "loop=online", "trainer.max_epochs=null", f"hydra.run.dir={run}")
    verb(runner, *words, "trainer.max_steps=5")
    verb(runner, "export", str(run), "--out", str(folder / "full"), "checkpoint.step=5")
    more = ("delivery.every=2", f"delivery.to={folder}", "trainer.max_steps=80")
    training = runner.start("resume", str(run), *more)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("delta-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(training.pid, signal.SIGKILL)
    training.wait()
    killed_at = len(list(folder.glob("delta-*")))
    assert killed_at >= 3
    verb(runner, "resume", str(run))
    scorer, deltas = Scorer.load(folder / "full"), []
    while (path := next_delta(scorer, folder)) is not None:
        scorer.apply_delta(path)
        deltas.append(path)
    assert sorted(deltas) == sorted(folder.glob("delta-*"))  # one chain, and nothing beside it
    steps = [open_delta(path).step for path in deltas]
    assert steps == list(range(6, 81, 2))
    verb(runner, "apply", str(folder / "full"), *map(str, deltas), "--out", str(tmp_path / "new"))
    verb(runner, "export", str(run), "--out", str(tmp_path / "whole"), "checkpoint.step=80")
    assert_same_model(tmp_path / "new", tmp_path / "whole")
    metrics = json.loads((tmp_path / "new" / "metrics.json").read_text())
    assert metrics["measured"]["step"] == 5  # deliveries are not measured one by one
    assert open_artifact(tmp_path / "new").manifest["weights"] == "ema"


@pytest.mark.slow
def test_a_training_delivers_a_whole_artifact_first_and_its_last_weights_at_the_end(
    runner, tmp_path
):
    run, folder = tmp_path / "run", tmp_path / "deliveries"
    words = ("delivery.every=10", f"delivery.to={folder}", f"hydra.run.dir={run}")
    verb(runner, *TINY, *words)
    full = open_artifact(folder / "full")
    assert full.step == 10
    metrics = json.loads((folder / "full" / "metrics.json").read_text())
    assert metrics["formats"]["pt2"]["metrics"] == metrics["evaluated"]
    deltas = sorted(folder.glob("delta-*"))
    assert open_delta(deltas[-1]).step == 40
    assert open_delta(deltas[0]).base == full.version
    plain = tmp_path / "plain"
    verb(runner, *TINY, f"hydra.run.dir={plain}")
    assert (run / "metrics.jsonl").read_text() == (plain / "metrics.jsonl").read_text()
    signatures = [json.loads((p / "meta.json").read_text())["signature"] for p in (run, plain)]
    assert signatures[0] == signatures[1]


@pytest.mark.slow
def test_a_stream_whose_ids_come_and_go_is_delivered_as_it_would_be_exported(runner, tmp_path):
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(DIRECT))
    (tmp_path / "files").mkdir()
    rows = drifting.table(900)
    for n in range(3):
        arrive(tmp_path / "files", f"{n}.parquet", rows.slice(300 * n, 300))
    test, folder, run = tmp_path / "test.parquet", tmp_path / "deliveries", tmp_path / "run"
    pq.write_table(drifting.table(300, first_row=600, seed=1), test)
    words = (f"dataset.path={tmp_path / 'files'}", f"dataset.schema={tmp_path / 'schema.yaml'}")
    more = ("delivery.every=9", f"delivery.to={folder}", f"delivery.rows_from={test}")
    verb(runner, *STREAM, *words, *drifting.MODEL, WIDE, *more, f"hydra.run.dir={run}")
    full, deltas = open_artifact(folder / "full"), sorted(folder.glob("delta-*"))
    measured = json.loads((folder / "full" / "metrics.json").read_text())
    assert (measured["rows_from"], full.step) == (["test.parquet"], 9)
    assert measured["formats"]["pt2"]["metrics"] == pytest.approx(measured["evaluated"], rel=1e-6)
    assert open_delta(deltas[0]).base == full.version and open_delta(deltas[-1]).step == 28
    assert any(move["deleted"] for move in open_delta(deltas[-1]).manifest["moved"].values())
    new, whole = tmp_path / "new", tmp_path / "whole"
    verb(runner, "apply", str(folder / "full"), *map(str, deltas), "--out", str(new))
    step = "checkpoint.step=28"
    verb(runner, "export", str(run), "--out", str(whole), "--rows-from", str(test), step)
    assert_same_model(new, whole)
    scorer = Scorer.load(folder / "full")
    while (path := next_delta(scorer, folder)) is not None:
        scorer.apply_delta(path)
    expected = Scorer.load(whole).score(rows.drop_columns(["click"]))["click"]
    found = scorer.score(rows.drop_columns(["click"]))["click"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("run_id", "is_delivered"), [("first", False), ("second", True)])
def test_only_a_resumed_run_takes_its_updates_for_delivered(tmp_path, run_id, is_delivered):
    """A second run over a stream begins at step 1 again, with the signature of the first."""
    versions = Versions(tmp_path)
    versions.write_whole("full")
    base = open_artifact(tmp_path / "full")
    base.manifest["run"]["id"] = "first"
    delivery, read = FolderDelivery(to=str(tmp_path)), []
    delivery._last, delivery._run = (base, {}), SimpleNamespace(meta={"run_id": run_id})

    def stop(*_):
        read.append(True)
        raise InterruptedError

    delivery._read_version = stop
    with contextlib.suppress(InterruptedError):
        delivery._write_delta(SimpleNamespace(step=base.step))
    assert bool(read) == is_delivered


def test_a_folder_with_deliveries_of_another_run_is_told_by_its_key(tmp_path):
    versions = Versions(tmp_path)
    versions.write_whole("full")
    base, told = open_artifact(tmp_path / "full"), []
    name, signature = base.manifest["run"]["name"], base.manifest["run"]["signature"]
    delivery = FolderDelivery(to=str(tmp_path))
    delivery._job = SimpleNamespace(view=SimpleNamespace(note=told.append))
    delivery._version = lambda *_: versions.now()
    for own, count in ((signature, 0), ("another", 1)):
        delivery._run = SimpleNamespace(meta={"signature": own})
        delivery._check_holds_this_model(base)
        assert len(told) == count
    base.manifest["run"]["id"] = "first"  # a second run over a stream has the same signature
    for run_id, count in (("first", 1), ("second", 2)):
        delivery._run = SimpleNamespace(meta={"signature": signature, "run_id": run_id})
        delivery._check_holds_this_model(base)
        assert len(told) == count
    assert told[0].startswith(f"delivery.to={tmp_path}: holds deliveries of run {name}, and")
    new = versions.now()
    delivery._version = lambda *_: replace(new, facts={**new.facts, "architecture": "dcn"})
    with pytest.raises(UserError) as error:
        delivery._check_holds_this_model(base)
    assert str(error.value) == (
        f"delivery.to={tmp_path}: holds deliveries of run {name}, another model; "
        "name another folder"
    )
