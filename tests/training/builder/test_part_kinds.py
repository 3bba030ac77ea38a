"""What a group of the configuration takes: parts of its kind, and nothing else of any package."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
import yaml
from torch import nn
from torchmetrics.classification import BinaryF1Score

import runner
from runner.config.targets import ALLOWED_PACKAGES, resolve_part
from runner.errors import ConfigError
from runner.training.builder.instantiate import instantiate
from runner.training.builder.part_kinds import KINDS, check_parts
from tests.whole.fault_callables import GROUPS, PARTS, accepted

CONF = Path(__file__).parents[3] / "conf"
ATTACKS = {
    "runner.sweep.hydra_launcher.submit": {"request": {"launcher": "basic"}},
    "runner.distributed.parent_death.become_job": {"parent": 1},
    "runner.remote.train_on_cluster": {"request": {"words": [], "dir": None}},
    "runner.training.builder.instantiate.instantiate": {"node": {}, "key": "", "allowed": ["os"]},
    "runner.rundir.json_files.write_json": {"path": "x", "value": 1},
}


@pytest.mark.long
def test_of_every_public_callable_only_parts_are_accepted_and_each_in_one_group_only():
    count, parts = accepted()
    assert count > 8000
    names = {group: set(found) for group, found in parts.items()}
    assert {group: len(found) for group, found in names.items()} == PARTS
    together = [name for found in names.values() for name in found]
    assert len(together) == len(set(together))


@pytest.mark.long
def test_what_is_accepted_is_what_it_says():
    _, parts = accepted()
    assert all(issubclass(cls, nn.Module) for cls in parts["model.net"].values())
    assert all(issubclass(cls, torch.optim.Optimizer) for cls in parts["optimizer.dense"].values())
    assert all(name.startswith("torch.optim.") for name in parts["optimizer.dense"])
    assert all(name.startswith("runner.models.losses.") for name in parts["model.loss"])
    assert all(name.startswith("runner.training.loops.") for name in parts["loop"])
    assert all(name.startswith("runner.reporting.trackers.") for name in parts["tracker"])
    assert all(name.startswith("runner.training.callbacks.") for name in parts["callbacks"])
    scores = ("torchmetrics.classification.", "torchmetrics.regression.")
    assert all(name.startswith(scores) for name in parts["metrics.own"])


def test_every_option_names_a_part_of_its_group():
    folders = {"model.loss": "model/loss", "model.net": "model"}
    for group, kind in KINDS.items():
        if group in ("delivery", "metrics.own", "scheduler"):
            continue  # no option names one
        top = group.split(".")[0]
        count = 0
        for file in sorted((CONF / folders.get(group, top)).glob("*.yaml")):
            node = yaml.safe_load(file.read_text()) or {}
            inner = group.split(".")[1] if "." in group and group != "model.loss" else None
            nodes = [node.get(inner)] if inner else [node]
            if group in ("tracker", "callbacks"):
                nodes = list(node.values())
            for part in nodes:
                path = part.get("_target_") if isinstance(part, dict) else None
                if path not in (None, "???"):
                    resolve_part(path, ALLOWED_PACKAGES, kind, group)
                    count += 1
        assert count, group


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("path", ATTACKS)
def test_a_function_of_ours_that_is_no_part_is_refused_and_not_called(monkeypatch, group, path):
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    called = []

    def spy(**settings: Any) -> None:
        called.append(settings)

    spy.__module__ = module_name
    monkeypatch.setattr(module, name, spy)
    with pytest.raises(ConfigError) as refused:
        instantiate(
            {"_target_": path, **ATTACKS[path]}, KINDS[group], key=group, allowed=ALLOWED_PACKAGES
        )
    assert not called
    message = str(refused.value)
    assert message.startswith(f"{group}._target_={path}: not a part that {group} takes")
    assert KINDS[group].takes in message
    assert KINDS[group].marking in message


@pytest.mark.parametrize("key", ["_args_", "_partial_", "_recursive_", "_convert_"])
@pytest.mark.parametrize("where", ["top", "nested"])
def test_keys_of_hydras_instantiate_are_unknown(key, where):
    settings = {key: [1]} if where == "top" else {"inner": [{key: True}]}
    node = {"_target_": "runner.training.update.task.Supervised", **settings}
    with pytest.raises(ConfigError, match=rf"^task\.[^ ]*{key}: there is no such key"):
        instantiate(node, KINDS["task"], key="task", allowed=ALLOWED_PACKAGES)


def test_a_target_inside_a_parts_settings_is_refused():
    inner = {"_target_": "runner.training.update.task.Supervised"}
    node = {"_target_": "runner.training.update.task.Supervised", "hooks": [{"a": inner}]}
    with pytest.raises(
        ConfigError, match=r"^task\.hooks\[0\]\.a\._target_=.*nothing is built here"
    ):
        instantiate(node, KINDS["task"], key="task", allowed=ALLOWED_PACKAGES)


@pytest.fixture
def mine(monkeypatch) -> types.ModuleType:
    """A module of a user's, in a package that `--allow` opens."""
    module = types.ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def judge(mine: types.ModuleType, group: str, part: Any) -> Any:
    part.__module__ = "mine"
    mine.Part = part
    return resolve_part("mine.Part", ("mine",), KINDS[group], group)


def rows() -> str:
    """Return a text. A function as any package has many."""
    return "rows"


def test_a_users_function_needs_the_mark_of_its_group(mine):
    for group, mark in (("dataset", runner.dataset_option), ("loop", runner.loop_option)):
        plain, marked = (types.FunctionType(rows.__code__, {}) for _ in range(2))
        assert mark(marked) is marked
        assert judge(mine, group, marked) is marked
        with pytest.raises(ConfigError, match=rf"@runner\.{mark.__name__}"):
            judge(mine, group, plain)
        for other in set(GROUPS) - {group}:
            with pytest.raises(ConfigError, match="not a part"):
                judge(mine, other, marked)


def test_a_mark_is_that_of_the_function_itself(mine):
    class Everything:
        def __getattr__(self, name: str) -> str:
            return "dataset"

        def __call__(self) -> None:
            raise AssertionError

    mine.Part = Everything()
    with pytest.raises(ConfigError, match="not a part"):
        resolve_part("mine.Part", ("mine", __name__), KINDS["dataset"], "dataset")


class Net(nn.Module):
    def embed(self, batch): ...

    def dense(self, embeddings, batch): ...


class ModuleLoss(nn.Module):
    def forward(self, prediction): ...


class PlainLoss:
    def __call__(self, prediction): ...


class DeclaredLoss(nn.Module, runner.Loss):
    def forward(self, scores): ...


class MyTask:
    def train_step(self, ctx, batches): ...

    def eval_step(self, ctx, batch): ...


class MyDataset:
    def __init__(self, *, full: bool) -> None:
        if full:
            self.schema, self.num_rows = None, {"train": 1}

    def batches(self, split, *, batch_size): ...


class MyTracker:
    start = log = state = finish = messages = rows


class MyCallback:
    def on_epoch(self, training): ...


INTERNAL = (
    "runner.data.core.dataset.FileOrderDataset", "runner.data.read.parquet_dataset.ParquetDataset",
    "runner.data.streaming.dataset.StreamDataset",
    "runner.training.debugging.fixed_batches.FixedBatches",
    "runner.training.debugging.fixed_batches.SingleBatchDataset",
    "runner.training.debugging.hooks.ObservedDataset",
    "runner.training.loops.online.PrequentialTask",
)  # fmt: skip


@pytest.mark.parametrize("path", INTERNAL)
def test_a_class_that_only_code_makes_is_no_part_but_one_that_derives_from_it_may_be(mine, path):
    group = "task" if "Task" in path else "dataset"
    with pytest.raises(ConfigError, match=f"not a part that {group} takes"):
        resolve_part(path, ALLOWED_PACKAGES, KINDS[group], group)
    module, _, name = path.rpartition(".")
    base = getattr(importlib.import_module(module), name)
    derived = type("Derived", (base,), {"__init__": lambda self: None})
    assert judge(mine, group, derived) is derived


PARTS_OF_ONES_OWN = [
    ("model.net", Net),
    ("model.loss", ModuleLoss),
    ("model.loss", PlainLoss),
    ("model.loss", DeclaredLoss),
    ("task", MyTask),
    ("task", type("Shifted", (runner.Supervised,), {})),
    ("dataset", MyDataset),
    ("tracker", MyTracker),
    ("callbacks", MyCallback),
    ("optimizer.dense", type("Halved", (torch.optim.SGD,), {})),
]


@pytest.mark.parametrize(("group", "part"), PARTS_OF_ONES_OWN)
def test_a_users_class_is_recognised_by_base_class_or_methods_in_its_group_only(mine, group, part):
    monkeypatched = type(part.__name__, (part,), {})
    assert judge(mine, group, monkeypatched) is monkeypatched
    for other in set(GROUPS) - {group}:
        with pytest.raises(ConfigError, match="not a part"):
            judge(mine, other, monkeypatched)


class NamedLikeATask(Protocol):
    def train_step(self, ctx, batches): ...

    def eval_step(self, ctx, batch): ...


class MetaclassWithEverything(type):
    def __getattr__(cls, name):
        return rows


@pytest.mark.parametrize(
    ("group", "part"),
    [
        ("task", NamedLikeATask),
        ("task", type("Half", (), {"train_step": rows})),
        ("task", type("Values", (), {"train_step": 1, "eval_step": 2})),
        ("task", MetaclassWithEverything("Anything", (), {})),
        ("model.net", type("Undefined", (runner.Recommender,), {})),
        ("model.net", type("NoModule", (), {"embed": rows, "dense": rows})),
        ("model.net", type("NoHalves", (nn.Linear,), {})),
        ("model.loss", type("Pair", (nn.BCELoss,), {})),
        ("model.loss", type("NoCall", (), {})),
        ("optimizer.dense", type("NoOptimizer", (), {"step": rows})),
        ("dataset", type("OtherBatches", (), {"batches": lambda self, source: None})),
    ],
)
def test_half_a_part_is_none(mine, group, part):
    with pytest.raises(ConfigError, match="not a part"):
        judge(mine, group, type(part)(part.__name__, (part,), {}) if part is not NamedLikeATask
              else part)  # fmt: skip


@pytest.mark.parity("C7")
def test_a_dataset_must_have_what_its_class_does_not_show(mine):
    judge(mine, "dataset", type("Own", (MyDataset,), {}))
    for full in (True, False):
        node = {"_target_": "mine.Part", "full": full}
        if full:
            instantiate(node, KINDS["dataset"], key="dataset", allowed=("mine",))
        else:
            with pytest.raises(ConfigError, match="has no schema"):
                instantiate(node, KINDS["dataset"], key="dataset", allowed=("mine",))


def plain_config() -> dict[str, Any]:
    return {
        "dataset": {"_target_": "runner.data.sets.synthetic.synthetic"},
        "loop": {"_target_": "runner.training.loops.train.train"},
        "task": {"_target_": "runner.training.update.task.Supervised"},
        "model": {
            "net": {"_target_": "runner.models.dcn.DCN"},
            "loss": {"_target_": "runner.models.losses.BCE"},
        },
        "optimizer": {"dense": {"_target_": "torch.optim.Adam"}, "parts": [{"dense": {"lr": 1}}]},
        "tracker": {},
        "callbacks": {},
    }


def test_all_parts_are_judged_at_once():
    config = plain_config()
    check_parts(config, ALLOWED_PACKAGES)
    bad = {"_target_": "runner.remote.train_on_cluster"}
    config["optimizer"]["parts"] += [{"dense": dict(bad)}]
    config["tracker"]["a"] = config["callbacks"]["b"] = config["loop"] = config["task"] = bad
    config["scheduler"] = {"kind": "constant", "of": bad}
    config["task"] = {**bad, "_partial_": True}
    with pytest.raises(ConfigError) as refused:
        check_parts(config, ALLOWED_PACKAGES)
    message = str(refused.value)
    assert message.startswith("7 mistakes")
    for key in ("optimizer.parts[1].dense", "tracker.a", "callbacks.b", "loop", "task"):
        assert f"{key}._target_=runner.remote.train_on_cluster: not a part" in message
    assert "scheduler.of._target_=runner.remote.train_on_cluster: nothing is built here" in message
    assert "task._partial_: there is no such key" in message


class Unfinished(runner.Recommender):
    """A model without its look-ups."""

    def __init__(self, schema: Any, *, width: int) -> None:
        super().__init__()

    def dense(self, embeddings: Any, batch: Any) -> Any:
        return None


class Finished(Unfinished):
    def embed(self, batch: Any) -> Any:
        return None


class Broken(Finished):
    """A model whose own code calls a module with too few arguments."""

    def __init__(self, schema: Any, *, width: int) -> None:
        super().__init__(schema, width=width)
        self.map = nn.Linear(width)


def test_an_error_in_the_code_of_a_part_is_no_mistake_in_its_settings():
    node = {"_target_": "tests.training.builder.test_part_kinds.Broken", "width": 3}
    allowed = (*ALLOWED_PACKAGES, "tests")
    with pytest.raises(TypeError, match=r"Linear.* missing .* 'out_features'$"):
        instantiate(node, KINDS["model.net"], key="model.net", allowed=allowed, schema=None)


def test_a_model_of_ones_own_is_told_which_method_and_which_argument_is_wrong():
    allowed = (*ALLOWED_PACKAGES, "tests")
    here = "tests.training.builder.test_part_kinds"
    with pytest.raises(ConfigError, match=r"embed and dense; Unfinished lacks embed$"):
        resolve_part(f"{here}.Unfinished", allowed, KINDS["model.net"], "model.net")
    node = {"_target_": f"{here}.Finished", "widht": 3}
    said = "argument 'widht'; nearest: 'width'; it takes width$"
    with pytest.raises(ConfigError, match=said):
        instantiate(node, KINDS["model.net"], key="model.net", allowed=allowed, schema=None)
    with pytest.raises(ConfigError, match="required keyword-only argument: 'width'; it takes wid"):
        instantiate(
            {"_target_": node["_target_"]},
            KINDS["model.net"],
            key="model.net",
            allowed=allowed,
            schema=None,
        )


def test_all_wrong_arguments_of_parts_of_ones_own_are_told_together(mine):
    mine.Loss = type("Loss", (ModuleLoss,), {"__init__": lambda self, schema, *, power: None})
    mine.Fast = type("Fast", (torch.optim.SGD,), {"__init__": lambda self, params, lr=0.1: None})
    mine.F1 = type("F1", (BinaryF1Score,), {"__init__": lambda self, threshold=0.5: None})
    for part in (mine.Loss, mine.Fast, mine.F1):
        part.__module__ = "mine"
    config = plain_config()
    config["model"] = {
        "net": {"_target_": "tests.training.builder.test_part_kinds.Finished", "widht": 3},
        "loss": {"_target_": "mine.Loss"},
    }
    config["optimizer"]["dense"] = {"_target_": "mine.Fast", "lr": 0.1, "eps": 1e-8, "betas": [0]}
    own_metric = {"_target_": "mine.F1", "tasks": ["click"], "treshold": 0.4}
    config["metrics"] = {"own": {"f": own_metric}}
    with pytest.raises(ConfigError) as refused:
        check_parts(config, (*ALLOWED_PACKAGES, "mine", "tests"))
    message = str(refused.value)
    assert message.startswith("5 mistakes"), message
    assert "model.net.widht is not a setting of Finished; nearest: 'width'" in message
    assert "model.net.width: is not set, and Finished has no default for it" in message
    assert "model.loss.power: is not set, and Loss has no default" in message
    assert "~optimizer.dense.eps ~optimizer.dense.betas leave them out" in message
    assert "metrics.own.f.treshold is not a setting of F1; nearest: 'threshold'" in message
