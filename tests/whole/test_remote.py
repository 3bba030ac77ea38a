"""remote=ray without Ray: what the job of a cluster sends, and what is made of it here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner import remote
from runner.config.compose import compose_job
from runner.config.targets import ALLOWED_PACKAGES
from runner.rundir.checkpoint import DamagedError
from tests.conftest import ROOT, TINY, Zygote
from tests.data.streaming.files import SCHEMA, arrive, rows
from tests.whole.compare_runs import differences

WORDS = (*TINY, "trainer.max_steps=40", "trainer.eval_every=8", "optimizer.dense.lr=0.3")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a job sends that brings everything back; its folder on the cluster is gone."""
    os.environ["PYTHONPATH"] = str(ROOT)
    words = [*WORDS, "report=false", "checkpoint.keep=3"]
    sent = remote.train_on_cluster({"words": words, "dir": None, "bring_back": "all"})
    assert sent["code"] == 0, sent
    return sent


def bring(folder: Path, sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    composed = compose_job([*WORDS, "report=false", "checkpoint.keep=3", "hydra.run.dir=near"])
    return remote.write_run_dir(composed, sent["files"]).absolute()


@pytest.mark.long
@pytest.mark.parity("L18")
def test_what_came_back_is_evaluated_and_resumed_as_if_it_had_run_here(
    runner: Zygote, answer, tmp_path, monkeypatch
):
    near = bring(tmp_path, answer, monkeypatch)
    here = tmp_path / "here"
    words = (*WORDS, "report=false", "checkpoint.keep=3", f"hydra.run.dir={here}")
    runner.run(*words).check()
    assert differences(near, here) == []
    runner.run("loop=eval", f"run={near}", f"hydra.run.dir={tmp_path / 'eval'}").check()
    ours = json.loads((tmp_path / "eval" / "result.json").read_text())["metrics"]
    theirs = json.loads((here / "result.json").read_text())["metrics"]
    assert ours["test/auc"] == theirs["test/auc"]
    for run in (near, here):
        runner.run("resume", str(run), "trainer.max_steps=50").check()
    assert differences(near, here) == []


@pytest.mark.long
def test_the_choice_says_which_checkpoints_come(tmp_path):
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "runner", *WORDS, "report=false", f"hydra.run.dir={run}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0
    best = json.loads((run / "result.json").read_text())["best"]["step"]
    on_disk = {int(p.name[5:]) for p in run.glob("checkpoints/step-*")}
    assert best != 40 and {best, 40} < on_disk | {-1}

    def steps(which: str) -> set[int]:
        names = [name.split("/") for name in remote._read_checkpoints(run, which)]
        return {int(parts[1][5:]) for parts in names if parts[0] == "checkpoints"}

    assert steps("none") == set()
    assert steps("last") == {40}
    assert steps("best") == {best, 40}
    assert steps("all") == on_disk


@pytest.mark.long
@pytest.mark.parity("L18")
def test_a_stream_is_learnt_on_a_cluster(tmp_path, monkeypatch, capsys):
    """Ray is a fake that runs the job at once; everything else is real."""
    (tmp_path / "files").mkdir()
    arrive(tmp_path / "files", "0.parquet", rows(400))
    (tmp_path / "schema.yaml").write_text(json.dumps(SCHEMA))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    job = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=remote.train_on_cluster))
    fake = SimpleNamespace(
        init=lambda **_: None,
        shutdown=lambda: None,
        remote=lambda function: job,
        get=lambda value: value,
        exceptions=SimpleNamespace(RayError=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(remote, "missing_extra", lambda *_: ())
    words = [
        "remote=ray",
        "remote.bring_back=last",
        "loop=online",
        "dataset=folder",
        f"dataset.path={tmp_path / 'files'}",
        f"dataset.schema={tmp_path / 'schema.yaml'}",
        "dataset.idle_timeout_s=0.3",
        "trainer.batch_size=32",
        "trainer.num_threads=1",
        "report=false",
        f"hydra.run.dir={tmp_path / 'near'}",
    ]
    assert remote.run_remotely(compose_job(words), [], ALLOWED_PACKAGES) == 0
    assert "brought back: step 12" in capsys.readouterr().out
    found = json.loads((tmp_path / "near" / "result.json").read_text())
    assert (found["step"], found["stream_place"]["row"]) == (12, 384)


@pytest.mark.long
def test_files_of_other_names_are_not_written(answer, tmp_path, monkeypatch):
    names = (
        "../outside",
        "checkpoints/step-1/../../../outside",
        "checkpoints/step-1/.hidden",
        "/tmp/outside",
        "checkpoints/step-x/a",
        "other.txt",
        "data/../outside",
    )
    files = {**answer["files"], **dict.fromkeys(names, b"x")}
    near = bring(tmp_path, {"files": files}, monkeypatch)
    assert not list(tmp_path.rglob("*outside*")) + list(tmp_path.rglob("other.txt"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [near.name]


def test_a_checkpoint_that_changed_on_its_way_is_told(answer, tmp_path, monkeypatch):
    files = dict(answer["files"])
    name = next(n for n in files if n.endswith(".safetensors"))
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    with pytest.raises(DamagedError, match=r"safetensors"):
        bring(tmp_path, {"files": files}, monkeypatch)
