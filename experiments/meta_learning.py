"""MeLU (Lee et al., KDD 2019, arXiv:1908.00413): shared weights that adapt to a user's few ratings.

Inner loop: a user's copy of the decision layers starts from the shared weights and takes some
gradient steps on the user's support ratings. Outer loop: the loss of the user's query ratings is
backpropagated through these steps, with second-order gradients, to the shared weights and to the
embeddings. Of the content features of items we keep the id only, and all users of a batch step at
once.

U users, S support and Q query ratings of a user (padded), N ratings, E width of a pair's embedding,
H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, Embeddings, Prediction, Schema, SparseFeature
from runner.models.layers.embedding import TableLookup
from runner.models.layers.recommender import Recommender
from runner.training.update.context import Context
from runner.training.update.task import StepOutput

PERSON = ("gender", "age", "occupation")
Weights = list[Tensor]


class PairLookup(TableLookup):
    """One look-up for each pair (user, item) of all support ratings, then of all query ratings."""

    def __init__(self, schema: Schema, dim: int) -> None:
        rows = {f.table_name: f.num_rows for f in schema.sparse}
        features = tuple(SparseFeature(name, rows[name]) for name in (*PERSON, "item"))
        super().__init__(replace(schema, sparse=features), dim)

    def lookup_ids(self, batch: Batch) -> KeyedJaggedTensor:
        ids: dict[str, list[Tensor]] = {name: [] for name in self.features}
        for part in ("support", "query"):
            items = batch.sparse[f"{part}_item"]
            for name in PERSON:
                user_ids = batch.sparse[name].values()
                ids[name].append(user_ids.repeat_interleave(items.lengths()))
            ids["item"].append(items.values())
        values = torch.cat([torch.cat(ids[name]) for name in self.features])
        return KeyedJaggedTensor(
            keys=list(self.features), values=values, lengths=torch.ones_like(values)
        )


class MeLU(Recommender):
    """Hidden decision layers and a logit, of whose weights each user may have a copy."""

    def __init__(self, schema: Schema, *, embedding_dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.embedding = PairLookup(schema, embedding_dim)
        widths = [4 * embedding_dim, *hidden, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        """Return logits of all query ratings by the shared weights, without adaptation."""
        task = Meta(inner_steps=0, inner_lr=0.0)
        return task.predict(self, embeddings, batch)

    def weights(self, num_users: int) -> Weights:
        """Return views per user of each weight, [U, H, E], and bias, [U, 1, H]."""
        weights = []
        for layer in self.layers:
            weights.append(layer.weight.expand(num_users, -1, -1))
            weights.append(layer.bias.expand(num_users, 1, -1))
        return weights

    @staticmethod
    def decide(weights: Weights, x_UNE: Tensor) -> Tensor:
        """Return logits by each user's weights, [U, N]."""
        for i in range(0, len(weights), 2):
            x_UNE = torch.baddbmm(weights[i + 1], x_UNE, weights[i].transpose(1, 2))
            if i + 2 < len(weights):
                x_UNE = x_UNE.relu()
        return x_UNE[..., 0]


class Meta:
    """Task whose update adapts to every user of the batch, then learns from the adapted losses.

    Args:
        inner_steps: steps of the inner loop, in training and evaluation. With 0 there is no
            adaptation, which is ordinary training.
        inner_lr: learning rate of the inner loop.

    Raises:
        ValueError: if `inner_steps` is below 0.
    """

    def __init__(self, *, inner_steps: int, inner_lr: float) -> None:
        if inner_steps < 0:
            raise ValueError(f"inner_steps={inner_steps}: must be from 0")
        self.inner_steps, self.inner_lr = inner_steps, inner_lr

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        batch = next(batches)
        embeddings = ctx.model.embed(batch)
        boundary = embeddings.detached()
        prediction = self.predict(ctx.model, boundary, batch)
        loss_N = ctx.loss(prediction)["label"]
        total = ctx.ranks.all_reduce_sum(prediction.weights_B.sum()).clamp_min(1e-30)
        ctx.backward(torch.dot(loss_N, prediction.weights_B) / total)
        applied = ctx.update(embeddings, [boundary])
        losses = {"query": loss_N.detach()}
        return StepOutput((prediction.detached(),), (losses,), batch.rows_B, batch.cursor, applied)

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        with torch.enable_grad():  # the inner loop needs gradients in evaluation too
            embeddings = ctx.model.embed(batch).detached()
            prediction = self.predict(ctx.model, embeddings, batch).detached()
        return prediction, {"query": ctx.loss(prediction)["label"]}

    def predict(self, model: MeLU, embeddings: Embeddings, batch: Batch) -> Prediction:
        """Return logits of all query ratings of the batch, user after user."""
        lengths = [batch.sparse[f"{part}_item"].lengths() for part in ("support", "query")]
        num_support = int(lengths[0].sum())
        support_USE, support_mask_US = pad(embeddings.pooled_BE[:num_support], lengths[0])
        query_UQE, query_mask_UQ = pad(embeddings.pooled_BE[num_support:], lengths[1])
        liked = batch.sparse["support_liked"].values().float()[:, None]
        liked_US = pad(liked, lengths[0])[0][..., 0]
        weights = self.adapt(model, support_USE, liked_US, support_mask_US)
        logits_N = model.decide(weights, query_UQE)[query_mask_UQ]
        users_N = torch.arange(batch.size, device=logits_N.device).repeat_interleave(lengths[1])
        return Prediction(
            logits_N[:, None],
            batch.sparse["query_liked"].values().float()[:, None],
            batch.weights_B[users_N],
            batch.groups_BG[users_N],
        )

    def adapt(self, model: MeLU, support_USE: Tensor, liked_US: Tensor, mask_US: Tensor) -> Weights:
        """Return every user's weights after the inner loop, differentiable in the shared ones."""
        weights = model.weights(len(support_USE))
        count_U1 = mask_US.sum(1, keepdim=True).clamp_min(1)
        for _ in range(self.inner_steps):
            logits_US = model.decide(weights, support_USE)
            losses_US = functional.binary_cross_entropy_with_logits(
                logits_US, liked_US, reduction="none"
            )
            # in the sum over users, the gradient of each is that of the user's mean
            loss = (losses_US * mask_US / count_U1).sum()
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            weights = [w - self.inner_lr * grad for w, grad in zip(weights, grads)]
        return weights


def pad(x_NE: Tensor, lengths_U: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows, given user after user, as [U, longest, E] with zeros behind, and their mask."""
    longest = max(1, int(lengths_U.max()))
    mask_UN = torch.arange(longest, device=x_NE.device)[None, :] < lengths_U[:, None]
    out_UNE = x_NE.new_zeros(len(lengths_U), longest, x_NE.shape[1])
    return out_UNE.masked_scatter(mask_UN[..., None], x_NE), mask_UN
