"""The same seed gives the same weights, to the last bit, on several threads of a CPU."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional

from runner.batch import Schema, TaskSpec, log_columns
from runner.models.losses import check_loss_inputs
from runner.optim.dense import build_dense_optimizer
from runner.training.builder.threads import LEAST_WORK_OF_PART, thread_rows
from runner.training.update.context import Context
from runner.training.update.determinism import UnrepeatableSums
from runner.training.update.parameters import dense_parameters
from runner.training.update.task import Supervised
from tests.models.scene import CONF, from_yaml
from tests.models.sequence_scene import SCHEMA, batch_of
from tests.tiny import make_context, snapshot

REGRESSION = replace(SCHEMA, tasks=(TaskSpec("click", "regression"),))
WITH_LOG_LINK = replace(SCHEMA, tasks=(TaskSpec("click", "regression", link="log"),))
NEED_CANDIDATES = {"bpr", "in_batch_softmax", "sampled_bce", "sampled_softmax"}
NEED_BLOCKS = {"self_distillation"}
NEED_DRAWN = {"auxiliary_bce"}
NEXT_ITEM = {"bert4rec", "gru4rec", "hstu", "sasrec"}
HISTORY = {"bst", "dien", "din"}  # they need a sequence
RETRIEVAL = {*NEXT_ITEM, "two_tower"}  # they need a binary task
MODELS = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "own")
LOSSES = sorted(path.stem for path in (CONF / "loss").glob("*.yaml"))
OPTIMIZERS = sorted(path.stem for path in (CONF.parent / "optimizer").glob("*.yaml"))
MORE = {
    **{name: {"uniform": 20} for name in NEXT_ITEM},
    "two_tower": {"uniform": 16, "half_life": 3.0},
}
ROWS, UPDATES = 512, 3  # enough elements for torch to share each operation among threads


def default_loss(model: str) -> str:
    return yaml.safe_load((CONF / f"{model}.yaml").read_text())["defaults"][0]["loss"]


def losses_of(model: str) -> list[str]:
    """Return the losses that the model can be trained with."""
    others = set() if model in RETRIEVAL else set(NEED_CANDIDATES)
    others |= {"mse", "tweedie"} if model in RETRIEVAL or model == "esmm" else set()
    others |= {"in_batch_softmax"} if model in NEXT_ITEM else set()
    others |= set() if model == "finalnet" else NEED_BLOCKS
    others |= set() if model == "dien" else NEED_DRAWN
    return [loss for loss in LOSSES if loss not in others]


def make_loss(name: str, schema: Schema) -> torch.nn.Module:
    node = yaml.safe_load((CONF / "loss" / f"{name}.yaml").read_text())
    module, _, cls = node.pop("_target_").rpartition(".")
    group = {"group": "user"} if name == "jrc" else {}
    loss: torch.nn.Module = getattr(import_module(module), cls)(schema, **{**node, **group})
    return loss


def build(model_name: str, loss_name: str, optimizer: str) -> Context:
    schema = {"mse": REGRESSION, "tweedie": WITH_LOG_LINK}.get(loss_name, SCHEMA)
    model = from_yaml(model_name, schema, **MORE.get(model_name, {}))
    model.log_columns = log_columns(schema.tasks)
    loss = make_loss(loss_name, schema)
    check_loss_inputs(model, loss)
    node = yaml.safe_load((CONF.parent / "optimizer" / f"{optimizer}.yaml").read_text())
    sparse, dense = node["sparse"], node["dense"]
    context = make_context(sparse["kind"], lr=sparse["lr"], model=model, loss=loss)
    if optimizer == "lbfgs":
        dense["max_iter"] = 3  # its line search makes several backwards of each
    module, _, cls = dense.pop("_target_").rpartition(".")
    context.dense_optimizer = build_dense_optimizer(
        getattr(import_module(module), cls), dense, dense_parameters(model, loss)
    )
    return context


def config_of(model: str, loss: str) -> dict[str, dict]:
    net = yaml.safe_load((CONF / f"{model}.yaml").read_text())["net"]
    node = yaml.safe_load((CONF / "loss" / f"{loss}.yaml").read_text())
    task = {"_target_": "runner.training.update.task.Supervised"}
    return {"model": {"net": net, "loss": node}, "task": task}


def train(model: str, loss: str, optimizer: str, updates: int = UPDATES) -> dict[str, Tensor]:
    """Train as a job does on the threads that torch has, with rows in each where they may be."""
    context = build(model, loss, optimizer)
    context.row_threads = thread_rows(context, config_of(model, loss), LEAST_WORK_OF_PART, ROWS)
    torch.manual_seed(0)
    for step in range(1, updates + 1):
        context.tables.set_lr_and_step(0.0 if optimizer == "lbfgs" else 0.02, step)
        output = Supervised().train_step(context, iter([batch_of(ROWS, step)]))
        assert output.applied or optimizer == "lbfgs"  # which may leave for infinity, repeatably
    if context.row_threads is not None:  # several threads would draw in no certain order
        assert_only_seeds_of_updates_were_drawn()
    return snapshot(context)


def assert_only_seeds_of_updates_were_drawn() -> None:
    found = torch.get_rng_state()
    torch.manual_seed(0)
    for _ in range(1000):  # one each time that an update runs forward and backward
        torch.randint(1 << 62, ())
        if torch.equal(torch.get_rng_state(), found):
            return
    raise AssertionError("a forward pass has drawn from torch's own generator")


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor], what: str) -> None:
    different = [name for name, tensor in first.items() if not torch.equal(second[name], tensor)]
    assert not different, f"{what}: differs from one training to the next in {different}"
    assert first.keys() == second.keys()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parity("N15")
def test_a_model_learns_the_same_twice_on_two_threads(model):
    torch.set_num_threads(2)
    first, second = (train(model, default_loss(model), "rowwise_adagrad") for _ in range(2))
    assert_same(first, second, model)


class RepeatedAdds(UnrepeatableSums):
    """Counts the sums of numbers into indexed places as well, repeated or not."""

    def __init__(self) -> None:
        super().__init__(num_threads=2)
        self.num_sums = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        accumulate = (kwargs or {}).get("accumulate", args[3] if len(args) > 3 else False)
        if "index_put" in func.overloadpacket.__name__ and args[0].is_floating_point():
            self.num_sums += bool(accumulate)
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_no_backward_of_a_model_or_loss_adds_to_an_indexed_place_twice(model):
    num_sums = 0
    torch.set_num_threads(1)  # which is watched
    for loss in losses_of(model):
        with RepeatedAdds() as seen:
            train(model, loss, "sgd", updates=1)
        assert not seen.found, f"{model}, {loss}: {seen.found}; use functional.embedding"
        num_sums += seen.num_sums
    assert num_sums > 0 or model not in RETRIEVAL  # these index by rows, each of them once


def test_the_check_notes_repeats_and_lets_other_indices_pass():
    weight_ID = torch.randn(5, 3, requires_grad=True)
    for rows, expected in (([0, 0, 2], 1), ([0, 1, 2], 0)):
        with RepeatedAdds() as seen:
            weight_ID[torch.tensor(rows)].sum().backward()
        assert (seen.num_sums, len(seen.found)) == (1, expected)
    with RepeatedAdds() as seen:
        functional.embedding(torch.tensor([0, 0, 2]), weight_ID).sum().backward()
    assert seen.num_sums == 0


def test_every_loss_is_trained_with_some_model():
    assert {loss for model in (*RETRIEVAL, "dien", "finalnet") for loss in losses_of(model)} == set(
        LOSSES
    )
