"""What a model's dense half starts from: embeddings and numbers, flat or as one vector a field.

B batch, E width of all embeddings, D embedding width, N fields.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from runner.batch import Schema


def concat_features(pooled_BE: Tensor, dense_B: Tensor) -> Tensor:
    """[B, E + numbers]: embeddings, then numbers as they are. Without numbers nothing is copied."""
    return torch.cat((pooled_BE, dense_B), dim=1) if dense_B.shape[1] else pooled_BE


def concat_width(schema: Schema, dim: int) -> int:
    """Width of what `beside` returns."""
    return len(schema.sparse) * dim + len(schema.dense)


class FieldEmbeddings(nn.Module):
    """One vector a field: a sparse feature's embedding, x_d v_d for number x_d (v_d is learnt).

    Numbers as in AutoInt eq. 4 (arXiv:1810.11921); DeepFM and MaskNet do the same.
    """

    def __init__(self, schema: Schema, dim: int, *, min_fields: int = 1) -> None:
        """Raises: ValueError if the schema has fewer than `min_fields` fields."""
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
        """[B, N, D]: the sparse features in the schema's order, then the numbers."""
        sparse_BND = pooled_BE.unflatten(1, (-1, self.dim))
        if self.vectors is None:
            return sparse_BND
        return torch.cat((sparse_BND, dense_B[:, :, None] * self.vectors), dim=1)
