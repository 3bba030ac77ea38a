"""The leanest DLRM training step that we can write by hand, in plain torch and FBGEMM.

No modules, no graph cut, no check, no metric: tables fused with row-wise Adagrad, fed by one
vector of ids feature by feature; functions on plain tensors; Adam(fused=True). In two forms that
differ in the interaction only: `plain` takes the triangle by a flat `index_select` and leaves its
backward to autograd; `leanest` uses what is still faster, the runner's own `DotInteraction`.
B batch, D embedding width, N vectors, E width of all pooled embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch
from runner.errors import ConfigError
from runner.models.dlrm import DLRM
from runner.models.layers.dot import DotInteraction
from runner.training.job import Job
from runner.training.state import weight_tensors


class Ready(NamedTuple):
    """A batch in the form that the step takes."""

    dense_BD: Tensor
    ids_V: Tensor  # feature by feature
    offsets: Tensor
    labels_BT: Tensor


def ready(batches: Sequence[Batch]) -> list[Ready]:
    return [Ready(b.dense_BD, b.sparse.values(), b.sparse.offsets(), b.labels_BT) for b in batches]


class LeanDLRM:
    """Starts from the weights of a job's DLRM and does its updates.

    Raises: ConfigError for a job that it does not know how to repeat.
    """

    def __init__(self, job: Job, *, plain: bool) -> None:
        model, sparse = job.context.model, job.config["optimizer"]["sparse"]
        dense = job.context.dense_optimizer
        if not isinstance(model, DLRM) or not model.num_dense:
            raise ConfigError("the leanest step is that of model=dlrm on data with numbers")
        if sparse["kind"] != "rowwise_adagrad" or not isinstance(dense, torch.optim.Adam):
            raise ConfigError("the leanest step has row-wise Adagrad for tables, else Adam")
        self._given = {name: t.detach().clone() for name, t in weight_tensors(job.context).items()}
        self._names = [spec.name for spec in model.embedding.specs]
        self._tables = SplitTableBatchedEmbeddingBagsCodegen(
            embedding_specs=[
                (spec.num_rows, spec.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
                for spec in model.embedding.specs
            ],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=job.learning_rates.base["sparse"],
            eps=sparse["eps"],
            stochastic_rounding=False,
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
        )
        for name, weight in zip(self._names, self._tables.split_embedding_weights(), strict=True):
            weight.data.copy_(self._given[f"tables/{name}/weight"])
        self._bottom, self._top = self._layers("bottom", model), self._layers("top", model)
        parameters = [p for layer in (*self._bottom, *self._top) for p in layer]
        self._optimizer = torch.optim.Adam(parameters, **{**dense.defaults, "fused": True})
        self._dim, self._num_vectors = model.embedding_dim, len(self._names) + 1
        self._dots = DotInteraction(self._num_vectors)
        self._plain = plain

    def _layers(self, part: str, model: DLRM) -> list[tuple[Tensor, Tensor]]:
        """Return the weight and bias of each layer."""
        return [
            tuple(self._given[f"dense/{part}.{n}.{kind}"].requires_grad_() for kind in WEIGHTS)
            for n, module in model.get_submodule(part).named_children()
            if isinstance(module, nn.Linear)
        ]  # type: ignore[misc]

    def loop(self, batches: Sequence[Ready], chunk: int) -> Iterator[None]:
        """Make updates, and yield after every `chunk` of them."""
        for number, batch in enumerate(batches, start=1):
            self.update(batch)
            if number % chunk == 0:
                yield

    def update(self, batch: Ready) -> None:
        pooled_BE = self._tables(batch.ids_V, batch.offsets)
        bottom_BD = batch.dense_BD
        for weight, bias in self._bottom:
            bottom_BD = functional.linear(bottom_BD, weight, bias).relu_()
        vectors_BE = torch.cat((bottom_BD, pooled_BE), dim=1)
        x_BND = vectors_BE.view(-1, self._num_vectors, self._dim)
        if self._plain:
            products = torch.bmm(x_BND, x_BND.transpose(1, 2)).flatten(1)
            pairs_BP = products.index_select(1, self._dots.lower_P)
        else:
            pairs_BP = self._dots(x_BND)
        x_B = torch.cat((bottom_BD, pairs_BP), dim=1)
        *hidden, (last_weight, last_bias) = self._top
        for weight, bias in hidden:
            x_B = functional.linear(x_B, weight, bias).relu_()
        logits_BT = functional.linear(x_B, last_weight, last_bias)
        loss = functional.binary_cross_entropy_with_logits(logits_BT, batch.labels_BT)
        self._optimizer.zero_grad()
        loss.backward()  # the tables step in here
        self._optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        """Return live tensors under the names of `runner.training.state.weight_tensors`."""
        tables = zip(self._names, self._tables.split_embedding_weights(), strict=True)
        dense = {name: t for name, t in self._given.items() if name.startswith("dense/")}
        return dense | {f"tables/{name}/weight": t.detach() for name, t in tables}


WEIGHTS = ("weight", "bias")
