"""First-order terms: logistic regression on ids and numbers."""

from __future__ import annotations

from torch import Tensor, nn

from runner.batch import Schema
from runner.models.layers.embedding import LINEAR_COLUMNS


class FirstOrder(nn.Module):
    """Sum of one weight an id, plus a linear function of the numbers.

    FBGEMM stores no table of width 1, so a weight is stored as COPIES equal columns. They start
    equal, at 0, and here each of them is given the gradient of the weight itself, so they move as
    one. The mean over them is then exactly a table of width 1 under every table optimizer, also
    those that take a norm or a mean over a row; a table padded with unused columns would learn
    twice as fast under row-wise Adagrad.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.dense = nn.Linear(len(schema.dense), 1) if schema.dense else None

    def forward(self, linear_BE: Tensor, dense_B: Tensor) -> Tensor:
        """[B, 1]. Args: linear_BE: [B, number of sparse features x COPIES], see TableLookup."""
        sum_B1 = linear_BE.sum(1, keepdim=True)
        # the value of a mean, the gradient of a sum
        term_B1 = sum_B1 - sum_B1.detach() * (1 - 1 / LINEAR_COLUMNS)
        return term_B1 if self.dense is None else term_B1 + self.dense(dense_B)
