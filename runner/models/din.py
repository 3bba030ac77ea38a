"""DIN (Zhou et al. 2018, arXiv:1706.06978): a user's history, weighted by the candidate item."""

from __future__ import annotations

from typing import Any

from torch import nn

from runner.batch import Schema
from runner.models.argument_types import Activation, Width, Widths
from runner.models.layers.history import HistoryModel
from runner.models.layers.interest import LocalActivation
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp


class DIN(HistoryModel):
    """Sequences pooled by their relevance to the candidate item, a(e_j, v_A) in eq. 3, then an MLP.

    The MLP sees these interests, all pooled features and the dense features. The activation is the
    paper's PReLU (eq. 8), unless another one is named, such as `dice`, its adaptive form (eq. 9).
    We leave out the mini-batch aware regularisation, since that is the optimizer's task
    (`optimizer.sparse.l2_lookups` is an L2 penalty of the rows of the batch).

    Args:
        schema: needs a sequence, and a sparse feature that reads its table: the candidate. A
            sequence whose table no feature reads is averaged.
        embedding_dim: D, width of every table.
        attention: hidden widths of the activation unit.
        top: hidden widths of the MLP; a last linear layer with one logit per task follows.
        activation: of the MLP; None for PReLU.
        attention_activation: of the activation unit; None for that of the MLP.
        shared: further arguments of `HistoryModel`.

    Raises:
        ValueError: if the schema has no such sequence.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        attention: Widths,
        top: Widths,
        activation: Activation = None,
        attention_activation: Activation = None,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim, activation=activation or "prelu", **shared)
        unit = HiddenLayers(
            norm_scope=self.hidden.norm_scope,
            activation=attention_activation or self.hidden.activation,
        )
        self.activations = nn.ModuleList(
            LocalActivation(embedding_dim, attention, unit)
            for p in self.candidates
            if p is not None
        )
        self.top = mlp(self.num_inputs, [*top, len(schema.tasks)], self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    @property
    def interests(self) -> nn.ModuleList:
        return self.activations
