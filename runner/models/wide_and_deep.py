"""Wide & Deep (Cheng et al. 2016, arXiv:1606.07792)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import FITTED, LogitScale, Members, Pairs, Switch, Widths
from runner.models.layers.deep_model import LinearDeepModel
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.fm import PairTerm
from runner.models.layers.linear import FirstOrder
from runner.models.layers.members import MEMBERS
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.layers.periodic import PeriodicNumbers
from runner.models.losses.protocol import expand_per_task
from runner.models.table_widths import TableWidths


class WideAndDeep(LinearDeepModel):
    """A linear model plus a deep network, both on ids and dense features, eq. 3.

    The paper's crossed columns belong to the dataset, not to the model: a column with the
    crossed id is wide like any other.

    With `pairs` the dot products of the embeddings of all pairs of sparse features are added, as
    in a factorization machine (Rendle 2010, eq. 1): a network finds products of two embeddings
    with far more rows. Pairs with dense features, whose values have no bound, are left out.

    Args:
        schema: needs at least one sparse feature; dense ones are optional.
        embedding_dim: D, width of every table, or widths by table but the wide ones.
        deep: hidden widths; a last linear layer with one logit per task follows.
        pairs: whether dot products are added, see `PairTerm`; they need one width. With `fitted`,
            `checkpoint.init_linear` starts them as factors of the train rows, and `pair_scale`
            makes these small for the network, which would memorise which ids occur together.
        scale: of the logits, or numbers by task (1 for omitted tasks); None is 1. Steps
            of an optimizer such as Adam have about one size, so a label that is a number is
            learnt in units of its deviation.
        members: number of deep networks, which share their matrices, see `MemberLinear`.
            Each learns by a separate loss, and the model's logit is their mean. None: 1.
        periodic: whether the deep network sees waves of the dense features, see `PeriodicNumbers`.
        shared: further arguments of `LinearDeepModel`.

    Raises:
        ValueError: if the schema has no sparse feature, or lacks a task of `scale`; for `pairs` of
            one sparse feature or of widths by table; for fitted ones of classes; for
            `members` without hidden layers, and `periodic` without dense features.
    """

    scale_T: Tensor
    pair_scale: Tensor | None

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: TableWidths,
        deep: Widths,
        pairs: Pairs = False,
        scale: LogitScale = None,
        members: Members = None,
        periodic: Switch = False,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim, **shared)
        self.scales = expand_per_task(scale, [task.name for task in schema.tasks], "scale")
        self.register_buffer("scale_T", torch.tensor(self.scales), persistent=False)
        # of the vectors whose dot products are added; 0: none
        self.pair_width = _check_pairs(schema, embedding_dim, pairs) if pairs else 0
        self.pairs = PairTerm(schema, self.pair_width) if pairs else None
        ones = torch.ones(len(schema.sparse) * self.pair_width) if pairs == FITTED else None
        self.register_buffer("pair_scale", ones)  # factors of what the network sees of pooled_BE
        self.wide = FirstOrder(schema, self.embedding.linear)
        width, deep = concat_width(schema, embedding_dim), [*deep, len(schema.tasks)]
        self.numbers = _make_numbers(schema) if periodic else None
        if self.numbers is not None:
            width += self.numbers.width - len(schema.dense)
        self.members = members
        self.deep = mlp(width, deep, self.hidden, last="linear", members=members)
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        wide_BT = self.wide(linear_BE, batch.dense_BD)
        pooled_BE = self.embedding_drop(pooled_BE)
        seen_BE = pooled_BE if self.pair_scale is None else pooled_BE * self.pair_scale
        seen_BD = batch.dense_BD if self.numbers is None else self.numbers(batch.dense_BD)
        deep = self.deep(concat_features(seen_BE, seen_BD), batch.weights_B)
        if self.members is not None:  # [B, K, T]
            deep, wide_BT = deep.unflatten(1, (self.members, -1)), wide_BT[:, None]
        logits = wide_BT + deep
        if self.pairs is not None:
            term_BT = self.pairs(pooled_BE.unflatten(1, (-1, self.pair_width)))
            logits = logits + (term_BT if self.members is None else term_BT[:, None])
        if set(self.scales) != {1.0}:  # in float32: a scaled label may exceed the range of fp16
            logits = logits.float() * self.scale_T
        if self.members is None:
            return Prediction.of(logits, batch)
        aux = {MEMBERS: logits.float()} if self.training else {}
        return Prediction.of(logits.mean(1), batch, **aux)


def _make_numbers(schema: Schema) -> PeriodicNumbers:
    """Return embeddings of the dense features.

    Raises:
        ValueError: if there are none.
    """
    if not schema.dense:
        raise ValueError(
            "periodic=true: the dataset has no numbers of which waves are made; set periodic=false"
        )
    return PeriodicNumbers(len(schema.dense))


def _check_pairs(schema: Schema, embedding_dim: TableWidths, pairs: bool | str) -> int:
    """Return the width of the vectors whose dot products are added.

    Raises:
        ValueError: for widths by table, fewer than two sparse features, and fitted pairs of
            classes.
    """
    key = f"pairs={str(pairs).lower()}"
    if not isinstance(embedding_dim, int):
        raise ValueError(f"{key}: needs tables of one width, as in embedding_dim=16")
    if len(schema.sparse) < 2:
        raise ValueError(f"{key}: needs two features of ids; there is {schema.sparse[0].name}")
    if pairs == FITTED and (classes := [t.one_of for t in schema.tasks if t.one_of]):
        raise ValueError(
            f"{key}: {classes[0]} has classes, to which none are fitted; pairs=true works"
        )
    return embedding_dim
