"""IRGAN (Wang et al. 2017, arXiv:1705.10513): two players over users and items.

The generator proposes items for a user from a softmax over all items. The discriminator separates
items that the user liked from proposed ones. They step in turn, each with its own optimizer: the
discriminator by gradient, the generator by policy gradient on the discriminator's score. We leave
out IRGAN's pretraining and its importance sampling from liked items.

B rows, I items, K proposed items per row, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.pairs import Pairs
from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.recommender import Recommender
from runner.training.update.context import Context
from runner.training.update.task import StepOutput

HASH = 2_654_435_761  # Knuth's multiplier, so that a row gets the same item in every evaluation


class Discriminator(Recommender):
    """Scores how likely a user likes an item, by a linear layer on both and their product."""

    def __init__(self, schema: Schema, *, user: str, item: str, embedding_dim: int) -> None:
        super().__init__()
        self.embedding = Pairs(schema, (user, item), embedding_dim)
        self.head = nn.Linear(3 * embedding_dim, 1)

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        return Prediction.of(self.score(embeddings)[:, None], batch)

    def score(self, embeddings: Embeddings) -> Tensor:
        """Return logits, [B]."""
        user_BD, item_BD = embeddings.pooled_BE.chunk(2, dim=1)
        return self.head(torch.cat((user_BD, item_BD, user_BD * item_BD), dim=1))[:, 0].float()


class Generator(nn.Module):
    """A softmax over all items for each user."""

    def __init__(self, num_users: int, num_items: int, dim: int) -> None:
        super().__init__()
        self.user = nn.Embedding(num_users, dim)
        self.item = nn.Linear(dim, num_items)
        nn.init.normal_(self.user.weight, std=dim**-0.5)

    def forward(self, users_B: Tensor) -> Tensor:
        """Return logits, [B, I]."""
        return self.item(self.user(users_B))


class Adversarial:
    """Task whose update is a turn of the discriminator, then one of the generator.

    Args:
        samples: K.
        generator_dim: D of the generator.
        generator_lr: learning rate of the generator's Adam.
        play: whether the generator plays. If not, items are proposed uniformly, for comparison.
        judge: which player scores in evaluation, generator or discriminator.

    Raises:
        ValueError: if the judge is unknown, or if there are fewer than 2 samples.
    """

    def __init__(
        self, *, samples: int, generator_dim: int, generator_lr: float, play: bool, judge: str
    ) -> None:
        if judge not in ("generator", "discriminator"):
            raise ValueError(f"judge={judge}: must be generator or discriminator")
        if samples < 2:
            raise ValueError(
                f"samples={samples}: must be at least 2, since their mean is the baseline"
            )
        self.samples, self.dim, self.lr = samples, generator_dim, generator_lr
        self.play, self.judge = play, judge

    def setup(self, ctx: Context) -> None:
        self.user, self.item = ctx.model.embedding.features
        rows = {f.name: f.num_rows for f in ctx.schema.sparse}
        generator = Generator(rows[self.user], rows[self.item], self.dim)
        self.generator = ctx.add_module("generator", generator)
        optimizer = torch.optim.Adam(self.generator.parameters(), lr=self.lr)
        self.optimizer = ctx.add_optimizer("generator", optimizer)

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        batch = next(batches)
        liked_B = batch.weights_B * batch.labels_BT[:, 0]
        total = ctx.total_weight(replace(batch, weights_B=liked_B))
        users_B = batch.sparse[self.user].values()
        log_p_BI = functional.log_softmax(self.generator(users_B), dim=1)
        p_BI = log_p_BI.detach().exp()
        proposed_BK = draw(p_BI if self.play else torch.ones_like(p_BI), self.samples)
        output = self.discriminate(ctx, batch, proposed_BK[:, 0], liked_B, total)
        if self.play:
            reward_BK = self.rewards(ctx, users_B, proposed_BK)
            advantage_BK = reward_BK - reward_BK.mean(1, keepdim=True)
            chosen_BK = log_p_BI.gather(1, proposed_BK)
            ctx.backward(-torch.dot((advantage_BK * chosen_BK).mean(1), liked_B) / total)
            ctx.step(self.optimizer)
            ctx.log("reward", reward_BK.mean())
            ctx.log("entropy", -(p_BI * log_p_BI.detach()).sum(1).mean())
        return output

    def discriminate(
        self, ctx: Context, batch: Batch, proposed_B: Tensor, liked_B: Tensor, total: Tensor
    ) -> StepOutput:
        """Take the discriminator's turn: the liked item of each row against a proposed one."""
        embeddings, prediction = self.look_up_pairs(ctx, batch, proposed_B, liked_B)
        boundary = embeddings.detached()
        with ctx.autocast():
            prediction = replace(prediction, logits_BT=ctx.model.score(boundary)[:, None])
        loss_B = ctx.loss(prediction)["label"]
        ctx.backward(torch.dot(loss_B, prediction.weights_B) / total)
        applied = ctx.update(embeddings, [boundary])
        losses = {"discriminator": loss_B.detach()}
        return StepOutput((prediction.detached(),), (losses,), batch.rows_B, batch.cursor, applied)

    def look_up_pairs(
        self, ctx: Context, batch: Batch, others_B: Tensor, weights_B: Tensor
    ) -> tuple[Embeddings, Prediction]:
        """Look up the batch's items (label 1), then other items for the same users (label 0)."""
        ids = ctx.model.embedding.ids_in(batch)
        pairs = {
            self.user: ids[self.user].repeat(2),
            self.item: torch.cat((ids[self.item], others_B)),
        }
        embeddings = ctx.model.embedding.look_up(pairs)
        labels = torch.cat((torch.ones_like(weights_B), torch.zeros_like(weights_B)))[:, None]
        groups = batch.groups_BG.repeat(2, 1)
        return embeddings, Prediction(labels, labels, weights_B.repeat(2), groups)

    @torch.no_grad()
    def rewards(self, ctx: Context, users_B: Tensor, items_BK: Tensor) -> Tensor:
        """Return log(1 + exp(score)), eq. 9, [B, K]."""
        pairs = {self.user: users_B.repeat_interleave(self.samples), self.item: items_BK.flatten()}
        score = ctx.model.score(ctx.model.embedding.look_up(pairs))
        return functional.softplus(score).view(items_BK.shape)

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        """Score a liked item and a random one per user; AUC is how often the liked one wins."""
        num_items = self.generator.item.out_features
        others_B = (batch.rows_B * HASH) % num_items
        liked_B = batch.weights_B * batch.labels_BT[:, 0]
        embeddings, prediction = self.look_up_pairs(ctx, batch, others_B, liked_B)
        if self.judge == "discriminator":
            scores = ctx.model.score(embeddings)
        else:
            ids = ctx.model.embedding.ids_in(batch)
            scores_BI = self.generator(ids[self.user])
            pairs_B2 = torch.stack((ids[self.item], others_B), dim=1)
            scores = scores_BI.gather(1, pairs_B2).t().flatten()
        prediction = replace(prediction, logits_BT=scores[:, None])
        return prediction, {"discriminator": ctx.loss(prediction)["label"]}


def draw(weights_BI: Tensor, num_samples: int) -> Tensor:
    """Draw items with replacement, [B, K]; several times as fast as torch.multinomial on CPU."""
    cumulative_BI = weights_BI.cumsum(1)
    num_rows, num_items = cumulative_BI.shape
    uniform_BK = torch.rand(num_rows, num_samples, device=cumulative_BI.device)
    threshold_BK = uniform_BK * cumulative_BI[:, -1:]
    return torch.searchsorted(cumulative_BI, threshold_BK).clamp_max(num_items - 1)
