"""MaskNet (Wang et al. 2021, arXiv:2102.07619), serial and parallel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import Positive, SomeWidths, Width, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.dropout import Dropout
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.mask import FieldNorm, MaskBlock
from runner.models.layers.mlp import init_linear_layers, mlp


class MaskNet(DeepModel):
    """Blocks whose input is multiplied by a mask computed from the row's embeddings, section 3.

    Args:
        schema: needs at least one sparse feature. Each dense feature gets a vector.
        embedding_dim: D, width of every table.
        structure: serial (each block on the one before, figure 2, left) or parallel (all blocks on
            the embeddings, their concatenated outputs into `top`).
        blocks: width of each block's output.
        reduction: width of a mask's hidden layer in widths of all embeddings together.
        top: hidden widths of the parallel structure's network; the serial structure has none.
        shared: further arguments of `DeepModel`. `dropout` also follows each block; norm and
            activation are those of `top`.

    Raises:
        ValueError: if the schema has no sparse feature, if a setting is out of range, or if the
            serial structure is given a `top`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        structure: Literal["serial", "parallel"],
        blocks: SomeWidths,
        reduction: Positive,
        top: Widths,
        **shared: Any,
    ) -> None:
        check_arguments(MaskNet.__init__, locals())
        if structure == "serial" and top:
            raise ValueError(f"top={list(top)}: the serial structure has none; use top=[]")
        super().__init__(schema, embedding_dim, **shared)
        self.serial = structure == "serial"
        self.fields = FieldEmbeddings(schema, embedding_dim)
        self.norm = FieldNorm(self.fields.num_fields, embedding_dim)
        width = self.fields.width
        inputs = [width, *blocks] if self.serial else [width] * len(blocks)
        self.blocks = nn.ModuleList(
            MaskBlock(width, before, after, reduction) for before, after in zip(inputs, blocks)
        )
        num_top = blocks[-1] if self.serial else sum(blocks)
        rates = self.hidden.dropouts(len(blocks) + len(top))
        self.drops = nn.ModuleList(Dropout(rate) for rate in rates[: len(blocks)])
        hidden = replace(self.hidden, dropout=rates[len(blocks) :])
        self.top = mlp(num_top, [*top, len(schema.tasks)], hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        v_BE, x_B = x_BND.flatten(1), self.norm(x_BND).flatten(1)
        if not self.serial:
            parts = [drop(block(v_BE, x_B)) for block, drop in zip(self.blocks, self.drops)]
            return Prediction.of(self.top(torch.cat(parts, dim=1), batch.weights_B), batch)
        for block, drop in zip(self.blocks, self.drops):
            x_B = drop(block(v_BE, x_B))
        return Prediction.of(self.top(x_B, batch.weights_B), batch)
