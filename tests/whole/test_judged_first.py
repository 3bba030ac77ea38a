"""Parts are judged before any data is read and before any directory is made."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import yaml

from runner import worker
from runner.config.compose import compose
from runner.config.targets import find_unshipped_targets
from runner.distributed.launcher import ProcessResult
from runner.errors import ConfigError
from tests.conftest import TINY

CODE = """
import runner

class Plain:
    def __init__(self, **settings):
        raise AssertionError("was called")

class Task(runner.Supervised):
    pass

class Far(runner.Supervised):
    def __init__(self, *, distance): ...
"""
NO_DATA = ("dataset=parquet", "dataset.path=nothere.parquet", "dataset.schema={labels: [click]}")
PLACES = ("task", "model.net", "model.loss", "dataset", "optimizer.dense", "+callbacks.mine")
MESSAGE = "_target_=mine.Plain: not a part that"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def made(project):
    return {p.name for p in project.iterdir()} - {"mine.py", "__pycache__", "run"}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_part_is_told_before_the_data_that_is_not_there(runner, project, place):
    done = runner.run(
        "--allow", "mine", *NO_DATA, f"{place}._target_=mine.Plain", cwd=project
    ).check(2)
    assert f"{place.lstrip('+')}.{MESSAGE}" in done.text
    assert "nothere" not in done.text
    assert not made(project)


def test_wrong_arguments_of_ones_own_parts_are_told_with_all_other_mistakes(runner, project):
    words = ["--allow", "mine", "task._target_=mine.Far", "+task.distanc=1", "+dataset.y=3"]
    told = runner.run(*words, "trainer.max_stps=3", cwd=project).check(2).text
    assert "4 mistakes" in told
    assert "trainer.max_stps=3: there is no key" in told
    assert "dataset.y is not a setting of synthetic" in told
    assert "task.distanc is not a setting of Far; nearest: 'distance'" in told
    assert "task.distance: is not set, and Far has no default for it" in told


@pytest.mark.parametrize(
    "words", [("trainer.num_processes=2",), ("-m", "seed=1,2"), ("loop=debug",)]
)
def test_nothing_is_made_for_ranks_a_sweep_or_another_loop(runner, project, words):
    given = ("--allow", "mine", *words, *NO_DATA, "task._target_=mine.Plain")
    done = runner.run(*given, cwd=project).check(2)
    assert done.text.count(f"task.{MESSAGE}") == 1
    assert "was called" not in done.text
    assert not made(project)


@pytest.mark.parametrize(
    ("ranks", "part", "told"),
    [
        (1, '"^botom", frozen: true', "[0].pattern '^botom' matches no parameter; nearest"),
        (2, '"^top", sparse: {lr: 0.1}', "[0].sparse: '^top' owns no table"),
    ],
)
def test_patterns_are_held_against_names_before_the_data_that_is_not_there(
    runner, project, ranks, part, told
):
    schema = (
        "dataset.schema={labels: [click], numeric: [price], categorical: {city: {num_rows: 9}}}"
    )
    words = (
        *NO_DATA[:2],
        schema,
        f"trainer.num_processes={ranks}",
        f"optimizer.parts=[{{pattern: {part}}}]",
    )
    assert f"optimizer.parts{told}" in runner.run(*words, cwd=project).check(2).text
    assert not made(project)


@pytest.mark.parametrize("message", ["", "'^botom' matches no parameter"])
def test_the_jobs_of_a_sweep_are_judged_once_for_each_model(monkeypatch, message):
    judged = []

    def judge(num_ranks, work):
        judged.append(num_ranks)
        return ProcessResult(2 if message else 0, "refused" if message else "", message)

    monkeypatch.setattr(worker, "run_on_ranks", judge)
    monkeypatch.setattr(worker, "_judged", {})
    parts = "optimizer.parts=[{pattern: '^botom', frozen: true}]"
    for words in (["seed=1"], ["seed=2", "optimizer.dense.lr=0.1"], ["seed=3", "model=dcn"]):
        composed = compose([*words, parts])
        for _ in range(2):
            with pytest.raises(ConfigError, match="botom") if message else nullcontext():
                worker.judge_parts(composed, (), in_own_process=True)
    assert judged == [1, 1]  # of dlrm and of dcn


@pytest.mark.parametrize("verb", ["reproduce", "resume", "eval"])
@pytest.mark.parity("N16")
def test_a_run_directory_is_judged_before_its_data_is_read(runner, project, verb):
    words = [*TINY, "trainer.max_steps=2", "hydra.run.dir=run"]
    runner.run(*words, cwd=project).check()
    path = project / "run" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["dataset"]["data_seed"] = 7  # would be another run, or other data
    config["callbacks"] = {"mine": {"_target_": "runner.distributed.parent_death.become_job"}}
    path.write_text(yaml.safe_dump(config))
    record = project / "run" / "meta.json"  # a run of before there was a record of its settings
    meta = json.loads(record.read_text())
    record.write_text(json.dumps({k: v for k, v in meta.items() if not k.startswith("config")}))
    words = {"eval": ["loop=eval", "run=run"]}.get(verb, [verb, "run"])
    done = runner.run(*words, cwd=project).check(2)
    assert "callbacks.mine._target_=runner.distributed.parent_death.become_job: not a" in done.text
    assert "drift" not in done.text
    assert not made(project)


@pytest.mark.long
def test_a_part_of_ones_own_is_judged_where_ranks_are_forked(runner, project):
    words = [*TINY, "trainer.max_steps=2", "trainer.num_processes=2", "hydra.run.dir=run"]
    runner.run("--allow", "mine", *words, "task._target_=mine.Task", cwd=project).check()
    assert (project / "run" / "result.json").exists()


def test_only_targets_of_our_options_in_their_own_place_are_known_without_torch():
    config = {
        "task": {"_target_": "runner.training.update.task.Supervised"},
        "model": {"loss": {"_target_": "runner.models.dlrm.DLRM"}},
        "optimizer": {"parts": [{"dense": {"_target_": "torch.optim.Adam"}}]},
        "callbacks": {"a": {"_target_": "torch.optim.Adam"}},
        "tracker": {"b": {"_target_": "runner.reporting.trackers.wandb.WandB"}},
    }
    assert find_unshipped_targets(config) == (
        ("model.loss._target_", "runner.models.dlrm.DLRM"),
        ("callbacks.a._target_", "torch.optim.Adam"),
    )
