"""Each mistake against a rule between keys is told with its key, its value and what works."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest

from runner.config.compose import compose
from runner.config.rules import check as check_module
from runner.config.rules import check_config, hardware
from runner.config.targets import ALLOWED_PACKAGES
from runner.errors import ConfigError
from runner.optim.param_groups import parse_parameter_groups

INIT, ONLINE = "checkpoint.init", {"loop._target_": "runner.training.loops.online.online"}
Changes = dict[str, Any]
MISTAKES: list[tuple[Changes, str]] = [
    ({"run": "old"}, "run=old: is for loops that start from a run"),
    ({"checkpoint.path": "old"}, "checkpoint.path=old: is what loop=eval evaluates"),
    ({"trainer.eval_splits": ["test"]}, r"trainer.eval_splits=\[test\]: must hold validation"),
    ({"trainer.eval_splits": []}, r"trainer.eval_splits=\[\]: needs a split: train"),
    ({"trainer.eval_splits": ["validation"] * 2}, "eval_splits=validation: is listed twice"),
    (
        {"dataset._target_": "runner.data.streaming.dataset.folder"},
        "dataset=folder: is a stream, .*: loop=online",
    ),
    (
        {
            "dataset._target_": "runner.data.streaming.dataset.folder",
            "loop._target_": "runner.training.loops.evaluate.evaluate",
        },
        "dataset=folder: is a stream, .*; labelled rows evaluate a run: .* dataset.test_path=FILE",
    ),
    ({**ONLINE, "trainer.max_epochs": 2}, "max_epochs=2: loop=online learns from each row once"),
    ({**ONLINE, "trainer.early_stop.patience": 2}, "trainer.early_stop: waits for evaluations of"),
    ({**ONLINE, "dataset.mix": True}, "dataset.mix=true: stores train rows in random order"),
    ({f"{INIT}_names": {"a": "b"}}, "init_names: renames weights of checkpoint.init_from, which"),
    ({f"{INIT}_names": {"a": 5}}, "init_names.a=5: needed is the name in the source, or null"),
    ({f"{INIT}_optimizer": True}, "init_optimizer=true: takes the optimizers' states of what"),
    ({f"{INIT}_average": True}, "init_average=true: takes the averages of checkpoint.init_from"),
    ({f"{INIT}_from": "nowhere"}, "checkpoint.init_from=nowhere: no such folder"),
    (
        {f"{INIT}_from": "/", f"{INIT}_linear": True},
        "init_tables give the start; choose one: checkpoint.init_linear=false goes with them",
    ),
    ({f"{INIT}_tables": {"user": 5}}, r"init_tables.user=5: write \{from: DIR\}, or"),
    (
        {f"{INIT}_tables": {"user": {"from": "/", "tabel": "u"}}},
        "user.tabel: there is no such key; nearest: 'table'; known: from, table",
    ),
    ({f"{INIT}_tables": {"user": {"from": "/", "table": 5}}}, "user.table=5: needed is the name"),
    ({f"{INIT}_tables": {"user": {"from": "nowhere"}}}, "user.from=nowhere: no such folder"),
    ({"trainer.early_stop": None}, "early_stop=null: is a group of keys; .*patience=null turns"),
    ({"trainer.early_stop.min_delta": 0.5}, "min_delta=0.5: does nothing without .*patience"),
    ({"checkpoint.monitor.metric": "test/auc"}, "metric=test/auc: the best checkpoint is that of"),
    (
        {"trainer.early_stop.patience": 2, "trainer.early_stop.metric": "test/auc"},
        r"test/auc: is not evaluated on the way; trainer.eval_splits=\[validation,test\] adds",
    ),
    (
        {"trainer.early_stop.patience": 2, "trainer.early_stop.metric": "tset/auc"},
        "there is no split tset.*: validation/auc",
    ),
    ({"optimizer.dense._target_": None}, "dense._target_: is missing; name a class of torch.optim"),
    (
        {
            "trainer.early_stop.patience": 2,
            "trainer.early_stop.metric": "validation/mine",
            "metrics.own": {"mine": {"_target_": "torchmetrics.HammingDistance", "task": "binary"}},
        },
        "whether more or less of validation/mine is better is not known; .*direction=max or",
    ),
    (
        {"optimizer.dense": {"_target_": "mine.Adam", "lr": -0.5}},
        "optimizer.dense.lr=-0.5: a learning rate is a number from 0",
    ),
    ({"callbacks": {"mine": {"a": 1}}}, r"as in \+callbacks.mine._target_=mypackage.MyClass -"),
    (
        {"task._target_": "runner.task.Supervised"},
        "has moved; task._target_=runner.training.update.task.Supervised is its name now",
    ),
    ({"metrics.own": {"mine": {"a": 1}}}, "metrics.own.mine: needs a _target_: a class of torch"),
]


@pytest.fixture(scope="module")
def composed():
    return compose(["dataset=synthetic"])


@pytest.mark.parametrize(("changes", "told"), MISTAKES)
def test_a_mistake_between_keys_is_told_with_what_works(composed, changes, told):
    config = deepcopy(composed.config)
    for key, value in changes.items():
        *groups, name = key.split(".")
        node = config
        for group in groups:
            node = node[group]
        node[name] = value
    problems = check_config(config, composed.default_config, allowed=ALLOWED_PACKAGES)
    assert re.search(told, "\n".join(problems)), problems


def test_a_rule_that_fails_is_raised_unless_a_message_says_what_is_wrong(composed, monkeypatch):
    def failing(config):
        yield "seed=0: told before the failure"
        raise KeyError("nothing has this key")

    def check(rules, **more):
        monkeypatch.setattr(check_module, "CONFIG_RULES", rules)
        return check_config(
            composed.config, composed.default_config, allowed=ALLOWED_PACKAGES, **more
        )

    assert check((failing,)) == ["seed=0: told before the failure"]
    broken = check_module._ask(lambda config: config["nothing"])
    with pytest.raises(KeyError):
        check((broken,))
    assert not check((broken,), known_problems=["seed: is missing"])


def test_ranks_that_memory_has_no_room_for_are_told_with_the_number_that_fits(
    composed, monkeypatch
):
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 3 * hardware.RANK_BYTES)
    trainer = {**composed.config["trainer"], "num_processes": 4, "device": "cpu"}
    config = {**composed.config, "trainer": trainer}
    [problem] = check_config(config, composed.default_config, allowed=ALLOWED_PACKAGES)
    assert problem.startswith("trainer.num_processes=4: a rank needs")
    assert problem.endswith("; trainer.num_processes=3 fits")


def test_a_sweep_has_no_weights_of_its_own_and_its_best_job_is_named(composed, tmp_path):
    (tmp_path / "study.db").touch()
    board, head = tmp_path / "leaderboard.csv", "lr,status,validation/auc,folder\n"
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "meta.json").write_text("{}")
    checkpoint = {**composed.config["checkpoint"], "init_from": str(tmp_path)}
    config = {**composed.config, "checkpoint": checkpoint}
    for row, told in (
        ("1,failed,,best", "a sweep of which no job has a result yet"),
        ("1,completed,.8,best", f"is a sweep; its best job is {tmp_path}/best"),
    ):
        board.write_text(f"{head}{row}\n")
        [problem] = check_config(config, composed.default_config, allowed=ALLOWED_PACKAGES)
        assert problem.startswith(f"checkpoint.init_from={tmp_path}: ") and told in problem


PARTS = [
    ({"name": "a b"}, "parts.0..name='a b': must consist of letters, digits"),
    ({"frozen": 1}, "parts.0..frozen=1: must be true or false"),
    ({"dense": 1}, "parts.0..dense=1: must be a group of keys"),
]


@pytest.mark.parametrize(("entry", "told"), PARTS)
def test_a_wrong_part_of_the_optimizer_is_told_by_its_number(entry, told):
    with pytest.raises(ConfigError, match=told):
        parse_parameter_groups({"parts": [{"pattern": "top", **entry}]})
