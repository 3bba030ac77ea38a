"""Rows of tables that begin anew: initial weights, and no history in the optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runner.distributed.shards import set_rows
from runner.embeddings.initialization import draw_row_weights
from runner.embeddings.interface import EmbeddingTables, TableSpec


def reset_rows(
    tables: EmbeddingTables, specs: Sequence[TableSpec], rows: np.ndarray, *, seed: int, draw: int
) -> None:
    """Give rows of some tables new initial weights, and set their optimizer's states to zero.

    Every rank draws all weights and keeps those of its shards, so that any plan has the same. Call
    it between two updates.

    Args:
        tables: all tables of the model.
        specs: those whose rows are reset.
        rows: their numbers, the same in each of them.
        seed: of the run.
        draw: number of this reset; each draws other weights.
    """
    state, rows_N = tables.state(), torch.from_numpy(rows)
    for spec in specs:
        for key, tensor in state.items():
            table, _, name = key.rpartition("/")
            if table != spec.name:
                continue
            if name == "weight":
                values = draw_row_weights(len(rows), spec, seed=seed, draw=draw)
            else:
                values = torch.zeros(len(rows), *tensor.shape[1:], dtype=tensor.dtype)
            set_rows(tensor, rows_N, values)
    tables.take_over_weights()
