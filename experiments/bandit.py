"""A contextual bandit that learns from its own actions, where the best policy is known.

The contexts are a dataset's rows: fields of a visitor. The payments are generated from a known
model: arm a pays 1 with a probability that is the sigmoid of summed effects of the visitor's fields
and of their pairs on a. The policy sees the payment of the chosen arm only. The regret of a choice
is the best arm's probability minus that of the chosen arm. `python -m experiments.regret RUN...
--html FILE` plots it.

B rows, F fields, A arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from experiments.pairs import Pairs
from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender
from runner.training.update.context import Context
from runner.training.update.task import StepOutput

POLICIES = ("greedy", "uniform", "best")
HASH = 2_654_435_761  # Knuth's multiplier, for the same payments in every evaluation


class ArmValues(Recommender):
    """Predicts what each arm pays from the visitor's fields: [B, A] logits in `aux["arms"]`."""

    def __init__(
        self,
        schema: Schema,
        *,
        fields: Sequence[str],
        arms: int,
        embedding_dim: int,
        hidden: Sequence[int],
    ) -> None:
        super().__init__()
        self.embedding = Pairs(schema, fields, embedding_dim)
        self.arms = mlp(len(fields) * embedding_dim, [*hidden, arms], last="linear")
        self.num_arms = arms

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        arms_BA = self.arms(embeddings.pooled_BE).float()
        return Prediction.of(arms_BA.max(1, keepdim=True).values, batch, arms=arms_BA)


class Environment(nn.Module):
    """Effects that make payments, and the account of decisions, in buffers that resumes restore."""

    def __init__(self, sizes: Sequence[int], arms: int, *, seed: int, strength: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.sizes = list(sizes)
        self.pairs = list(combinations(range(len(sizes)), 2))
        shapes = [*sizes, *(sizes[i] * sizes[j] for i, j in self.pairs)]
        scale = strength / len(shapes) ** 0.5
        for i, num_rows in enumerate(shapes):
            effects_RA = torch.randn(num_rows, arms, generator=generator) * scale
            self.register_buffer(f"effects_{i}", effects_RA)
        self.register_buffer("account", torch.zeros(2, dtype=torch.float64))  # decisions, regret

    def forward(self, ids_BF: Tensor) -> Tensor:
        """Return the probability that an arm pays, [B, A]."""
        rows = list(ids_BF.unbind(1))
        rows += [rows[i] * self.sizes[j] + rows[j] for i, j in self.pairs]
        effects = [self.get_buffer(f"effects_{i}")[row_B] for i, row_B in enumerate(rows)]
        return torch.stack(effects).sum(0).sigmoid()


class Bandit:
    """Task whose update acts on every row of a batch, is paid, and learns from the chosen arms.

    Args:
        policy: greedy, with exploration. For comparison, uniform, or best, which knows the
            environment.
        explore: after n decisions, a choice is random with probability explore / (explore + n).
        seed: seed of the environment.
        strength: standard deviation of the effects; with 0 all arms pay by the toss of a coin.

    Raises:
        ValueError: if the policy is unknown, or if `explore` is not above 0.
    """

    def __init__(self, *, policy: str, explore: float, seed: int, strength: float) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy={policy}: must be one of {', '.join(POLICIES)}")
        if not explore > 0:
            raise ValueError(f"explore={explore}: must be above 0")
        self.policy, self.explore, self.seed, self.strength = policy, explore, seed, strength

    def setup(self, ctx: Context) -> None:
        self.fields = ctx.model.embedding.features
        rows = {f.name: f.num_rows for f in ctx.schema.sparse}
        environment = Environment(
            [rows[name] for name in self.fields],
            ctx.model.num_arms,
            seed=self.seed,
            strength=self.strength,
        )
        self.environment = ctx.add_module("environment", environment)

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        batch = next(batches)
        pays_BA = self.environment(self.visitors(ctx, batch))
        embeddings = ctx.model.embed(batch)
        boundary = embeddings.detached()
        with ctx.autocast():
            arms_BA = ctx.model.dense(boundary, batch).aux["arms"]
        chosen_B1 = self.act(arms_BA.detach(), pays_BA)
        paid_B1 = torch.bernoulli(pays_BA.gather(1, chosen_B1))
        prediction = Prediction(
            arms_BA.gather(1, chosen_B1), paid_B1, batch.weights_B, batch.groups_BG
        )
        loss_B = ctx.loss(prediction)["label"]
        ctx.backward(torch.dot(loss_B, batch.weights_B) / ctx.total_weight(batch))
        applied = ctx.update(embeddings, [boundary])
        self.account(ctx, pays_BA, chosen_B1)
        losses = {"payment": loss_B.detach()}
        return StepOutput((prediction.detached(),), (losses,), batch.rows_B, batch.cursor, applied)

    def visitors(self, ctx: Context, batch: Batch) -> Tensor:
        """Return the ids of the fields, [B, F]."""
        return torch.stack(list(ctx.model.embedding.ids_in(batch).values()), dim=1)

    def act(self, arms_BA: Tensor, pays_BA: Tensor) -> Tensor:
        """Choose an arm for each row, [B, 1]."""
        random_B1 = torch.randint(arms_BA.shape[1], (len(arms_BA), 1), device=arms_BA.device)
        if self.policy == "uniform":
            return random_B1
        if self.policy == "best":
            return pays_BA.argmax(1, keepdim=True)
        num_decisions = self.environment.account[0]
        share = self.explore / (self.explore + num_decisions)
        explores_B1 = torch.rand(len(arms_BA), 1, device=arms_BA.device) < share
        return torch.where(explores_B1, random_B1, arms_BA.argmax(1, keepdim=True))

    def account(self, ctx: Context, pays_BA: Tensor, chosen_B1: Tensor) -> None:
        """Collective. Add the decisions of all ranks to the account, and log it."""
        regret_B = regret(pays_BA, chosen_B1)
        both = torch.stack((torch.ones_like(regret_B), regret_B)).sum(1).double()
        self.environment.account += ctx.ranks.all_reduce_sum(both)
        ctx.log("regret", regret_B.mean())
        ctx.log("regret_so_far", self.environment.account[1])
        ctx.log("decisions", self.environment.account[0])

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        """Evaluate the learned policy without exploration; its regret is the loss."""
        pays_BA = self.environment(self.visitors(ctx, batch))
        arms_BA = ctx.model(batch).aux["arms"]
        chosen_B1 = (
            self.act(arms_BA, pays_BA) if self.policy == "best" else arms_BA.argmax(1)[:, None]
        )
        uniform_B1 = ((batch.rows_B * HASH) % 1_000_003 / 1_000_003)[:, None]
        paid_B1 = (uniform_B1 < pays_BA.gather(1, chosen_B1)).float()
        logits_B1 = arms_BA.gather(1, chosen_B1)
        prediction = Prediction(logits_B1, paid_B1, batch.weights_B, batch.groups_BG)
        return prediction, {"regret": regret(pays_BA, chosen_B1)}


def regret(pays_BA: Tensor, chosen_B1: Tensor) -> Tensor:
    """Return the probability of the best arm minus that of the chosen one, [B]."""
    return pays_BA.max(1).values - pays_BA.gather(1, chosen_B1)[:, 0]
