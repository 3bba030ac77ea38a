"""DIN (Zhou et al. 2018, arXiv:1706.06978): a user's history, weighed by the candidate item."""

from __future__ import annotations

from torch import nn

from runner.batch import Schema
from runner.models.argument_types import (
    Activation,
    DropoutRate,
    EmbeddingInit,
    Init,
    LayerDropout,
    Norm,
    NormPlace,
    NormScope,
    Width,
    Widths,
)
from runner.models.layers.history import HistoryModel
from runner.models.layers.interest import LocalActivation
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp


class DIN(HistoryModel):
    """Sequences pooled by their relevance to the candidate item, a(e_j, v_A) in eq. 3, then an MLP.

    The MLP sees these interests, all pooled features and the dense features. The activation is the
    paper's PReLU (eq. 8), unless another one is named, such as `dice`, its adaptive form (eq. 9).
    We leave out the mini-batch aware regularisation, since that is the optimizer's task
    (`optimizer.sparse.weight_decay` decays the rows of the batch).

    Args:
        schema: needs a sequence, and a sparse feature that reads its table: the candidate. A
            sequence whose table no feature reads is averaged.
        embedding_dim: D, width of every table.
        attention: hidden widths of the activation unit.
        top: hidden widths of the MLP; a last linear layer with one logit per task follows.
        dropout: dropout after each hidden layer of the MLP.
        embedding_dropout: dropout of all embeddings.
        embedding_init: see `TableLookup`.
        norm, norm_place, norm_scope, activation: of the MLP, see `HiddenLayers`; by default PReLU.
        attention_activation: of the activation unit; None for that of the MLP.
        init: see `init_linear_layers`.

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
        dropout: LayerDropout = 0.0,
        embedding_dropout: DropoutRate = 0.0,
        embedding_init: EmbeddingInit = None,
        norm: Norm = None,
        norm_place: NormPlace = None,
        norm_scope: NormScope = None,
        activation: Activation = None,
        attention_activation: Activation = None,
        init: Init = None,
    ) -> None:
        super().__init__(schema, embedding_dim, init=embedding_init, dropout=embedding_dropout)
        activation = activation or "prelu"
        unit = HiddenLayers(norm_scope=norm_scope, activation=attention_activation or activation)
        self.activations = nn.ModuleList(
            LocalActivation(embedding_dim, attention, unit)
            for p in self.candidates
            if p is not None
        )
        hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        self.top = mlp(self.num_inputs, [*top, len(schema.tasks)], hidden, last="linear")
        init_linear_layers(self, init)

    @property
    def interests(self) -> nn.ModuleList:
        return self.activations
