"""Bare training loops that the runner is measured against: they do nothing but the updates.

Both take batches that lie in memory and yield after every `chunk` of them, so that they can take
turns with the runner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.models.dlrm import DLRM
from torchrec.modules.fused_embedding_modules import fuse_embedding_optimizer
from torchrec.optim import RowWiseAdagrad

from runner.batch import Batch, Schema
from runner.training.job import Job
from runner.training.update.context import Context


def bare_loop(context: Context, batches: Sequence[Batch], chunk: int) -> Iterator[None]:
    """Train the runner's own model, tables and optimizers, without the cut and without checks."""
    model, optimizer = context.model, context.dense_optimizer
    model.train()
    for number, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        prediction = model(batch)
        loss = functional.binary_cross_entropy_with_logits(
            prediction.logits_BT, prediction.labels_BT
        )
        loss.backward()  # the tables step in here
        optimizer.step()
        if number % chunk == 0:
            yield


class TorchRecDLRM(nn.Module):
    """TorchRec's own DLRM over an EmbeddingBagCollection with row-wise Adagrad fused into it."""

    def __init__(self, schema: Schema, config: Mapping[str, Any]) -> None:
        super().__init__()
        net, sparse = config["model"]["net"], config["optimizer"]["sparse"]
        if sparse["kind"] != "rowwise_adagrad":
            raise ValueError(f"the TorchRec loop knows rowwise_adagrad only, not {sparse['kind']}")
        dim = net["embedding_dim"]
        tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f.name, embedding_dim=dim, num_embeddings=f.num_rows,
                    feature_names=[f.name],
                )
                for f in schema.sparse
            ]
        )  # fmt: skip
        self.net = DLRM(
            fuse_embedding_optimizer(
                tables,
                optimizer_type=RowWiseAdagrad,
                optimizer_kwargs={"lr": sparse["lr"], "eps": sparse["eps"]},
                device=torch.device("cpu"),
            ),
            dense_in_features=len(schema.dense),
            dense_arch_layer_sizes=[*net["bottom"], dim],
            over_arch_layer_sizes=[*net["top"], 1],
        )
        self.dense_parameters = [
            p for n, p in self.net.named_parameters() if not n.startswith("sparse_arch.")
        ]

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.net(batch.dense_BD, batch.sparse)


def torchrec_loop(job: Job, batches: Sequence[Batch], chunk: int) -> Iterator[None]:
    """Train like TorchRec's examples, without their pipeline, which only costs time on a CPU."""
    model = TorchRecDLRM(job.dataset.schema, job.config)
    dense = job.context.dense_optimizer
    optimizer = type(dense)(model.dense_parameters, **dense.defaults)
    model.train()
    for number, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(batch), batch.labels_BT)
        loss.backward()
        optimizer.step()
        if number % chunk == 0:
            yield
