"""First-order terms: logistic regression on ids and dense features."""

from __future__ import annotations

from torch import Tensor, nn

from runner.batch import Schema
from runner.models.layers.embedding import LINEAR_COLUMNS


class StackedLinear(nn.Linear):
    """Linear maps of one input, computed as one, with their outputs side by side.

    Args:
        num_inputs: width of the input.
        num_outputs: width of all outputs.
        num_stacked: number of the maps, for `init_linear_layers`.
        bias: whether they have biases.
    """

    def __init__(
        self, num_inputs: int, num_outputs: int, *, num_stacked: int, bias: bool = True
    ) -> None:
        super().__init__(num_inputs, num_outputs, bias=bias)
        self.num_stacked = num_stacked


class FirstOrder(nn.Module):
    """The sum of one weight per id, plus a linear function of the dense features.

    FBGEMM stores no table of width 1, so a weight is stored as LINEAR_COLUMNS equal columns. All
    start at 0, and each gets the gradient of the weight itself, so they stay equal. Their mean is
    then exactly a table of width 1 under every table optimizer, also under those that take a norm
    or a mean over a row. A table padded with unused columns would learn twice as fast under
    row-wise Adagrad.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.dense = nn.Linear(len(schema.dense), 1) if schema.dense else None

    def forward(self, linear_BE: Tensor, dense_B: Tensor) -> Tensor:
        """Return [B, 1].

        Args:
            linear_BE: [B, number of sparse features x LINEAR_COLUMNS], see `TableLookup`.
            dense_B: [B, number of dense features].
        """
        sum_B1 = linear_BE.sum(1, keepdim=True)
        # the value of a mean, the gradient of a sum
        term_B1 = sum_B1 - sum_B1.detach() * (1 - 1 / LINEAR_COLUMNS)
        return term_B1 if self.dense is None else term_B1 + self.dense(dense_B)
