"""MaskNet (Wang et al. 2021, arXiv:2102.07619), serial and parallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.mask import FieldNorm, MaskBlock
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender


class MaskNet(Recommender):
    """Blocks whose input is multiplied by a mask made from the row's embeddings, section 3.

    Args:
        schema: needs at least one sparse feature; dense ones, each with a vector of its own, are
            optional.
        embedding_dim: D, width of every table.
        structure: serial (each block on the one before, figure 2's left) or parallel (all blocks on
            the embeddings, their outputs side by side into `top`).
        blocks: width of each block's output.
        reduction: a mask's hidden layer is this many times as wide as all embeddings together.
        top: hidden widths of the parallel structure's network; the serial one has none.
        dropout: after each block and each hidden layer.
        embedding_dropout: of the pooled embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema without sparse features, a structure it does not know, no
        block, or a `top` that the serial structure would ignore.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        structure: Literal["serial", "parallel"],
        blocks: Sequence[int],
        reduction: float,
        top: Sequence[int],
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        if structure not in ("serial", "parallel"):
            raise ValueError(f"structure={structure}: serial or parallel")
        if not blocks:
            raise ValueError("blocks=[]: at least one block")
        self.serial = structure == "serial"
        if self.serial and top:
            raise ValueError(f"top={list(top)}: the serial structure has none; use top=[]")
        self.embedding = TableLookup(schema, embedding_dim, init=embedding_init)
        self.embedding_drop = Dropout(embedding_dropout)
        self.fields = FieldEmbeddings(schema, embedding_dim)
        self.norm = FieldNorm(self.fields.num_fields, embedding_dim)
        width = self.fields.width
        inputs = [width, *blocks] if self.serial else [width] * len(blocks)
        self.blocks = nn.ModuleList(
            MaskBlock(width, before, after, reduction) for before, after in zip(inputs, blocks)
        )
        self.drop = Dropout(dropout)
        self.top = mlp(
            blocks[-1] if self.serial else sum(blocks),
            [*top, len(schema.tasks)],
            dropout=dropout,
            last_linear=True,
        )

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        guide_BE, x_B = x_BND.flatten(1), self.norm(x_BND).flatten(1)
        if not self.serial:
            x_B = torch.cat([self.drop(block(guide_BE, x_B)) for block in self.blocks], dim=1)
            return Prediction.of(self.top(x_B), batch)
        for block in self.blocks:
            x_B = self.drop(block(guide_BE, x_B))
        return Prediction.of(self.top(x_B), batch)
