"""A model that comes to harm in training, for sweeps that must survive it."""

from __future__ import annotations

import os
import resource
import signal

import torch

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.dlrm import DLRM


class Harmful(DLRM):
    """A DLRM that fails at the fifth update as the whole part of `level` says.

    1: an exception; 5: SIGKILL; 6: too much memory; any other: nothing.
    """

    def __init__(self, schema: Schema, *, level: float) -> None:
        super().__init__(schema, embedding_dim=4, bottom=[8], top=[8])
        self.level, self.calls = int(level), 0

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        self.calls += self.training
        if self.calls == 5 and self.level == 1:
            raise ArithmeticError("the loss went through the roof")
        if self.calls == 5 and self.level == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls == 5 and self.level == 6:
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            torch.ones(1 << 31)
        return super().dense(embeddings, batch)
