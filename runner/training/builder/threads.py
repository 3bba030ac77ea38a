"""Decides whether an update is large enough for more than one thread."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from runner.batch import Schema
from runner.models.layers.mlp import RowSequential

# Multiplications of a forward pass. On two cores a second thread brings 0.9 to 0.95 of the speed up
# to 3.6e8 of them (DLRM, MLP and DeepFM of 4,096 rows), 1.1 at 3.9e8 and 1.6 at 1.8e9: `python -m
# bench.threads`. Small updates are many short operations, at each of which the threads wake.
LEAST_WORK = 380_000_000


def limit_threads(
    model: nn.Module, weights: Collection[Tensor], schema: Schema, width: int, num_rows: int
) -> bool:
    """Let this process compute with one thread where more would make it slower.

    The size of the model decides and not a measurement, so that equal runs have equal threads. A
    model of a user's own keeps its threads, since what it computes is not known.

    Args:
        model: all of it.
        weights: of its dense half.
        schema: of the data.
        width: of the widest table.
        num_rows: of a rank, in one forward pass.

    Returns:
        Whether there were more.
    """
    is_ours = type(model).__module__.startswith("runner.")
    work = count_products(model, weights, schema, width) * num_rows
    if not is_ours or work >= LEAST_WORK or torch.get_num_threads() == 1:
        return False
    torch.set_num_threads(1)
    return True


def count_products(
    model: nn.Module, weights: Collection[Tensor], schema: Schema, width: int
) -> int:
    """Return the multiplications of a row by the weights of the dense half, rather too many.

    Each weight of an MLP counts once; every other one for each feature, as an attention over
    features has it, or each column of the widest table, as a CIN has it, whichever are more; and
    all of them for each event of the longest sequence.
    """
    mlps = [module for module in model.modules() if isinstance(module, RowSequential)]
    of_mlps = {weight for module in mlps for weight in module.parameters()}
    places = max(len(schema.dense) + len(schema.sparse), width)
    events = max((sequence.max_length for sequence in schema.sequences), default=1)
    return events * sum(
        weight.numel() * (1 if weight in of_mlps else places)
        for weight in weights
        if weight.dim() > 1
    )
