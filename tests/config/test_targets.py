import shutil
import sys
import types
from copy import deepcopy

import pytest
import yaml

from runner.config.targets import (
    ALLOWED_PACKAGES,
    allowed_packages,
    check_target_names,
    find_targets,
    resolve_target,
)
from runner.errors import ConfigError
from tests.conftest import TINY, forget_config_record


def test_every_target_is_found_however_deep():
    config = {"a": {"_target_": "x.A", "b": [{"c": {"_target_": "x.B"}}]}, "d": 1}
    assert list(find_targets(config)) == [("a._target_", "x.A"), ("a.b[0].c._target_", "x.B")]


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "torch.load",
        "torchx.optim.Adam",
        "runnerx.a",
        "builtins.eval",
        "subprocess.run",
    ],
)
def test_a_target_outside_the_allowed_packages_is_refused_by_name(path):
    (message,) = check_target_names({"model": {"_target_": path}}, ALLOWED_PACKAGES)
    assert f"model._target_={path}" in message
    assert "--allow" in message


@pytest.mark.parametrize("path", ["", "runner", "runner..a", "runner.a b", "runner._h.f", 3, None])
def test_a_target_that_is_no_public_dotted_name_is_refused(path):
    assert check_target_names({"model": {"_target_": path}}, ALLOWED_PACKAGES)


@pytest.fixture
def module_with_imports(monkeypatch):
    """A module of an allowed package that has imported dangerous things under its own name."""
    import os
    import subprocess

    module = types.ModuleType("runner.planted")
    module.os, module.system, module.run = os, os.system, subprocess.run
    module.alias = os.path.join
    module.VALUE = 3

    def add_one(a: int) -> int:
        return a + 1

    add_one.__module__ = "runner.planted"
    module.add_one = add_one
    monkeypatch.setitem(sys.modules, "runner.planted", module)
    return module


@pytest.mark.parametrize(
    "path",
    [
        "runner.planted.os.system",
        "runner.planted.system",
        "runner.planted.run",
        "runner.planted.alias",
        "runner.planted.os",
        "runner.planted.VALUE",
        "runner.planted.add_one.__globals__",
    ],
)
def test_what_a_target_resolves_to_is_judged_not_its_spelling(module_with_imports, path):
    with pytest.raises(ConfigError):
        resolve_target(path, ALLOWED_PACKAGES)


def test_an_own_function_resolves(module_with_imports):
    assert resolve_target("runner.planted.add_one", ALLOWED_PACKAGES)(2) == 3


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(ConfigError, match="nearest: 'parse_interval'"):
        resolve_target("runner.config.intervals.parse_intervals", ALLOWED_PACKAGES)


def test_a_package_that_is_not_installed_is_said_so():
    with pytest.raises(ConfigError, match="no package 'nowhere'"):
        resolve_target("nowhere.a.B", ("nowhere",))


def test_a_module_with_a_broken_import_is_not_taken_for_a_typo(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="not_there_at_all"):
        resolve_target("mine.Model", ("mine",))


def test_the_list_is_ours_and_what_flags_and_environment_add(monkeypatch):
    monkeypatch.setenv("RUNNER_ALLOW", "one, two.three")
    assert allowed_packages(["four"]) == (*ALLOWED_PACKAGES, "four", "one", "two.three")
    with pytest.raises(ConfigError, match="not the name of a Python package"):
        allowed_packages(["a/b"])


def test_experiments_are_the_projects_own_wherever_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = resolve_target("experiments.bandit.Bandit", ALLOWED_PACKAGES)
    assert found.__module__ == "experiments.bandit"
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("")
    (tmp_path / "experiments" / "bandit.py").write_text("class Bandit: ...")
    loaded = {name for name in sys.modules if name.split(".")[0] == "experiments"}
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="not the folder beside runner"):
        resolve_target("experiments.bandit.Bandit", ALLOWED_PACKAGES)


@pytest.mark.parametrize("name", ["_args_", "_partial_", "_recursive_", "_convert_"])
def test_keys_of_hydras_instantiate_are_unknown_before_torch(name):
    config = {"task": {"_target_": "runner.training.update.task.Supervised", name: [1]}}
    (message,) = check_target_names(config, ALLOWED_PACKAGES)
    assert message.startswith(f"task.{name}: there is no such key")


@pytest.mark.parametrize(
    "key", ["model", "scheduler.of", "task.hook", "dataset.of[0]", "callbacks", "tracker.a.b", "x"]
)
def test_a_target_stands_only_where_a_part_is_built(key):
    config = {"_target_": "runner.training.update.task.Supervised"}
    for word in reversed(key.replace("[0]", "").split(".")):
        config = {word: [config] if key.endswith(f"{word}[0]") else config}
    (message,) = check_target_names(config, ALLOWED_PACKAGES)
    target = "runner.training.update.task.Supervised"
    assert message.startswith(f"{key}._target_={target}: nothing is built here")


PLACES = (
    "dataset", "loop", "task", "model.net", "model.loss", "optimizer.dense", "tracker.mine",
    "callbacks.mine",
)  # fmt: skip
QUICK = (*TINY, "trainer.max_steps=4", "dataset.rows={train: 400, validation: 50, test: 50}")


@pytest.fixture(scope="module")
def finished(runner, tmp_path_factory):
    """A finished run of a few updates."""
    run = tmp_path_factory.mktemp("attacked") / "run"
    runner.run(*QUICK, f"hydra.run.dir={run}").check()
    return run


def attack(finished, folder, places, target, **settings):
    """Copy the run, with a target planted in its configuration."""
    run = folder / "run"
    shutil.copytree(finished, run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    for place in places:
        *above, last = place.split(".")
        node = config
        for name in above:
            node = node[name]
        node[last] = deepcopy({"_target_": target, **settings})  # shared lists become aliases
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    forget_config_record(run)
    return run


def commands(run, folder):
    return {
        "eval": ["loop=eval", f"run={run}", f"hydra.run.dir={folder}/new"],
        "debug": ["loop=debug", f"run={run}"],
        "reproduce": ["reproduce", str(run), f"hydra.run.dir={folder}/new"],
        "schedule": ["schedule", str(run), "trainer.max_epochs=1"],
        "resume": ["resume", str(run), "trainer.max_steps=6"],
    }


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_a_run_directory_cannot_make_a_command_run(runner, finished, tmp_path, place):
    target, canary = "runner.rundir.json_files.write_json", tmp_path / "canary"
    run = attack(finished, tmp_path, [place], target, path=str(canary), value=1)
    verb = "resume" if place == "loop" else "eval"  # an evaluation has a loop of its own
    done = runner.run(*commands(run, tmp_path)[verb], cwd=tmp_path).check(2)
    refusal = "is not an optimizer" if place == "optimizer.dense" else "not"
    assert f"{place}._target_={target}: {refusal}" in done.text
    assert not canary.exists()


VERBS = {
    "debug": ("dataset", "task", "callbacks.mine"),
    "reproduce": ("loop", "task", "callbacks.mine"),  # of a wrong dataset it speaks alone
    "schedule": ("dataset",),
    "resume": ("loop", "tracker.mine"),  # the others are signed, so that it is another run
}


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_what_a_run_directory_names(runner, finished, tmp_path, verb):
    target, canary = "runner.rundir.json_files.write_json", tmp_path / "canary"
    run = attack(finished, tmp_path, VERBS[verb], target, path=str(canary), value=1)
    done = runner.run(*commands(run, tmp_path)[verb], cwd=tmp_path).check(2)
    for place in VERBS[verb]:
        assert f"{place}._target_={target}: not a part that {place} takes" in done.text
    assert "function marked with @runner." in done.text
    assert not canary.exists()
