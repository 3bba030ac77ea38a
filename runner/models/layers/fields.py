"""Inputs of a dense half: embeddings and dense features, flat or as one vector per field.

B batch, E width of all embeddings, D embedding width, N fields.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from runner.batch import Schema
from runner.models.table_widths import TableWidths


def concat_features(pooled_BE: Tensor, dense_B: Tensor) -> Tensor:
    """Return embeddings, then dense features as they are; no copy if there are no dense ones."""
    return torch.cat((pooled_BE, dense_B), dim=1) if dense_B.shape[1] else pooled_BE


def concat_width(schema: Schema, dim: TableWidths) -> int:
    """Return the width of what `concat_features` returns."""
    widths = [dim if isinstance(dim, int) else dim[f.table_name] for f in schema.sparse]
    return sum(widths) + len(schema.dense)


class FieldEmbeddings(nn.Module):
    """One vector per field: a sparse feature's embedding, or x_d v_d for dense feature x_d.

    The vectors v_d are parameters. They are those of AutoInt eq. 4 (arXiv:1810.11921); DeepFM and
    MaskNet do the same.

    Raises:
        ValueError: if the schema has fewer than `min_fields` fields.
    """

    def __init__(self, schema: Schema, dim: int, *, min_fields: int = 1) -> None:
        super().__init__()
        self.dim = dim
        self.num_fields = len(schema.sparse) + len(schema.dense)
        if self.num_fields < min_fields:
            names = ", ".join((*(f.name for f in schema.sparse), *schema.dense))
            raise ValueError(
                f"needs at least {min_fields} features to join; the dataset has {names or 'none'}"
            )
        self.width = self.num_fields * dim
        self.vectors = None
        if schema.dense:
            bound = 1 / math.sqrt(dim)
            self.vectors = nn.Parameter(torch.empty(len(schema.dense), dim).uniform_(-bound, bound))

    def forward(self, pooled_BE: Tensor, dense_B: Tensor) -> Tensor:
        """Return [B, N, D]: the sparse features in the schema's order, then the dense ones."""
        sparse_BND = torch.unflatten(pooled_BE, 1, (-1, self.dim))
        if self.vectors is None:
            return sparse_BND
        return torch.cat((sparse_BND, dense_B[:, :, None] * self.vectors), dim=1)
