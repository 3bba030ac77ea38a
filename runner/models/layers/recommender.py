"""The base classes of all models: two halves, with every table look-up in the first.

B batch, T tasks, K classes of one label.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.members import MEMBERS, split_members

MOST_LOG = 40.0  # of a prediction, so that its powers in a loss stay finite in float32


class Recommender(nn.Module):
    """A model of two halves: table look-ups, then everything else.

    Sharding replaces the first half. Exact gradients, autocast and export use the cut between
    the halves.
    """

    class_columns: tuple[slice, ...] = ()  # of each label of classes, see `runner.batch`
    log_columns: Mapping[int, float] = MappingProxyType({})  # see `runner.batch`

    @abstractmethod
    def embed(self, batch: Batch) -> Embeddings:
        """Look the batch up in the tables, and do nothing else."""

    @abstractmethod
    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        """Compute everything after the look-ups, without reading the batch's ids."""

    def predict_tasks(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        """Run the dense half; the sigmoid of a class's logit equals its softmax.

        The prediction of a task with a log link is an exponential of the sum of the layers.
        """
        prediction = self.dense(embeddings, batch)
        changes = self.class_columns or self.log_columns
        if not changes or not isinstance(prediction, Prediction):
            return prediction
        aux = prediction.aux
        if members := split_members(aux):
            aux = {**aux, MEMBERS: torch.stack([*map(self._as_predicted, members)], dim=1)}
        return replace(prediction, logits_BT=self._as_predicted(prediction.logits_BT), aux=aux)

    def _as_predicted(self, logits_BT: Tensor) -> Tensor:
        if self.class_columns:
            logits_BT = one_against_rest(logits_BT, self.class_columns)
        return exponentials(logits_BT, self.log_columns) if self.log_columns else logits_BT

    def forward(self, batch: Batch) -> Prediction:
        return self.predict_tasks(self.embed(batch), batch)


class EmbeddingModel(Recommender):
    """A model whose first half is one look-up with the batch as its only input.

    A model applies `embedding_drop` to the embeddings where its paper has dropout.

    Args:
        embedding: the look-up, which declares the tables.
        dropout: probability that an element of the embeddings is dropped.
    """

    def __init__(self, embedding: TableLookup, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.embedding_drop = Dropout(dropout)

    def embed(self, batch: Batch) -> Embeddings:
        embeddings: Embeddings = self.embedding(batch)
        return embeddings


def one_against_rest(logits_BT: Tensor, class_columns: Sequence[slice]) -> Tensor:
    """Return [B, T], with the logits x of the classes of a label converted to one against the rest.

    Class k gets x_k - log of the sum of exp(x_j) over all other classes j, whose sigmoid is the
    softmax of x at k: so the conversion of logits to probabilities also holds for classes.
    Other columns are unchanged.

    Args:
        logits_BT: the logits of a model, in float32.
        class_columns: the columns of each label with classes.
    """
    parts, start = [], 0
    for columns in class_columns:
        parts += [logits_BT[:, start : columns.start], _against_rest(logits_BT[:, columns])]
        start = columns.stop
    return torch.cat([*parts, logits_BT[:, start:]], dim=1)


def exponentials(logits_BT: Tensor, columns: Mapping[int, float]) -> Tensor:
    """Return [B, T] with the exponentials of some columns, which are finite and above 0.

    Args:
        logits_BT: the logits of a model, in float32.
        columns: of the tasks with a log link, and the logarithms of their scales.
    """
    logits = list(logits_BT.unbind(1))
    for column, log_scale in columns.items():
        logits[column] = (logits[column] + log_scale).clamp(-MOST_LOG, MOST_LOG).exp()
    return torch.stack(logits, dim=1)


def _against_rest(x_BK: Tensor) -> Tensor:
    """Return [B, K], avoiding a difference of nearly equal sums, for logits of any range."""
    is_top_BK = torch.arange(x_BK.shape[1], device=x_BK.device) == x_BK.argmax(1, keepdim=True)
    lowest = torch.finfo(x_BK.dtype).min  # an exported graph has no infinite constants
    of_top_B1 = x_BK.masked_fill(is_top_BK, lowest).logsumexp(1, keepdim=True)
    # The sum of the others is at least that of the top one, whose exponential is 1 here.
    top_B1 = x_BK.detach().amax(1, keepdim=True)
    exp_BK = (x_BK - top_B1).exp()
    others_BK = torch.where(is_top_BK, 1.0, exp_BK.sum(1, keepdim=True) - exp_BK)
    return x_BK - torch.where(is_top_BK, of_top_B1, top_B1 + others_BK.log())
