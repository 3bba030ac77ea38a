"""What a part of a user's own keeps outside of checkpoints is told at the first update."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from runner.errors import ConfigError
from runner.models.dlrm import DLRM
from runner.models.losses import BCE
from runner.training.job import Job
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.update.task import Supervised
from runner.training.update.unsaved_state import (
    check_extra_state,
    warn_of_unregistered_parameters,
)
from tests.tiny import SCHEMA, make_context
from tests.tiny_job import make_job


class Kept(DLRM):
    """A model that keeps its state where checkpoints hold it, and what never changes elsewhere."""

    def __init__(self) -> None:
        super().__init__(SCHEMA, embedding_dim=4, bottom=[4], top=[4])
        self.register_buffer("rows", torch.zeros(()))
        self.register_buffer("fixed", torch.zeros(()), persistent=False)
        self.mask_C, self.scale, self.cache = torch.ones(4), 0.5, None

    def dense(self, embeddings, batch):
        prediction = super().dense(embeddings, batch)
        if self.training:
            self.rows += 1
            self.mask_C = self.mask_C.clone()  # as a move to another device
            self.cache = prediction.logits_BT.detach()
        return prediction


class Lost(Kept):
    """A model with state of six kinds that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.updates, self.mean_C = 0, torch.zeros(4)
        self.torchs = torch.Generator().manual_seed(1)
        self.numpys, self.pythons = np.random.default_rng(1), random.Random(1)

    def dense(self, embeddings, batch):
        if self.training:
            self.updates += 1
            self.fixed += 1
            self.mean_C += torch.rand(4, generator=self.torchs)
            self.numpys.random()
            self.pythons.random()
        return super().dense(embeddings, batch)


class Counting(Supervised):
    def __init__(self) -> None:
        self.seen = 0

    def train_step(self, ctx, batches):
        self.seen += 1
        return super().train_step(ctx, batches)


def warnings_of(job: Job) -> list[str]:
    told: list[str] = []
    job.view.warn = told.append
    for _ in steps(job, TrainState()):
        pass
    return told


def test_state_that_no_checkpoint_holds_is_named_once_with_the_cure():
    [warning] = warnings_of(replace(make_job(make_context(model=Lost())), task=Counting()))
    names = [f"model.{n}" for n in ("fixed", "mean_C", "numpys", "pythons", "torchs", "updates")]
    told = warning.removeprefix("the first update changed ").partition(", which no ")[0]
    assert sorted(told.split(", ")) == sorted([*names, "task.seen"])
    assert "register_buffer" in warning


def test_a_task_that_returns_no_output_is_told():
    class Mute(Supervised):
        def train_step(self, ctx, batches):
            super().train_step(ctx, batches)

    with pytest.raises(ConfigError, match=r"train_step of Mute returned NoneType; it must return"):
        warnings_of(replace(make_job(make_context()), task=Mute()))


def test_buffers_caches_and_parts_of_ours_are_not_named():
    assert warnings_of(make_job(make_context(model=Kept()))) == []
    assert warnings_of(make_job(make_context())) == []


def test_extra_state_is_refused_before_the_training_of_which_no_checkpoint_could_hold_it():
    class Extra(BCE):
        def get_extra_state(self):
            return {"seen": 1}

    check_extra_state("model.loss", BCE(SCHEMA))
    with pytest.raises(ConfigError, match=r"model.loss: Extra has get_extra_state"):
        check_extra_state("model.loss", Extra(SCHEMA))


class Hidden(Kept):
    """A model with parameters where PyTorch does not find them, and with others beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.heads = [nn.Linear(4, 4)], {"click": (nn.Linear(4, 1),)}
        self.bias, self.weights = torch.zeros(4, requires_grad=True), [nn.Parameter(torch.ones(4))]
        # nothing is lost with these
        self.all_layers, self.shared = [*self.modules()], {"all": [*self.parameters()]}
        self.teacher = [nn.Linear(4, 4).requires_grad_(False)]
        self.computed, self.fixed_C = self.bias * 2, [torch.ones(4)]


def test_parameters_that_pytorch_does_not_find_are_named_once_with_the_cure():
    told: list[str] = []
    warn_of_unregistered_parameters({"model": Hidden(), "loss": BCE(SCHEMA)}, told.append)
    [warning] = told
    names = [f"model.{name}" for name in ("layers", "heads", "bias", "weights")]
    assert warning.partition(": ")[0] == ", ".join(names)
    assert "nn.ModuleList" in warning and "nn.Parameter" in warning


def test_a_model_whose_parameters_are_all_found_is_not_warned_of():
    told: list[str] = []
    warn_of_unregistered_parameters({"model": Kept(), "loss": BCE(SCHEMA)}, told.append)
    assert told == []
