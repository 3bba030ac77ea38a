"""Tables of which all rows are updated at every update, like parameters under `torch.optim`.

A row that no example has looked up moves by its decaying moments, and has the L2 penalty of whole
tables. An update passes over all rows, so this is for small tables.
R rows, D width, B batch, E width of all pooled embeddings.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.interface import Layout
from runner.embeddings.row_update_tables import RowUpdate, RowUpdateTables
from runner.embeddings.row_updates import STATE_NAMES, UPDATE_RULES, UpdateStep, state_shape
from runner.optim.settings import SparseSettings

# SGD of this rate on rows of zeros leaves the sums of the gradients in them
_SUMS_GRADIENTS = SparseSettings(kind="sgd", lr=-1.0)


class DenseTables(RowUpdateTables):
    """Tables on any device, looked up by FBGEMM and updated whole by the rules of `row_updates`."""

    def __init__(self, layout: Layout, settings: SparseSettings, device: torch.device) -> None:
        super().__init__(layout, settings, device)
        # in lists: hidden from nn.Module
        self._weights = [FbgemmTables(layout, _SUMS_GRADIENTS, device)]
        self._gradients = [FbgemmTables(layout, _SUMS_GRADIENTS, device)]
        self._gradients[0].set_lr_and_step(_SUMS_GRADIENTS.lr, 1)
        for gradient_RD in self._gradients[0].state().values():
            gradient_RD.zero_()
        kind, names = settings.kind, STATE_NAMES[settings.kind]
        self._states = {
            f"{t.name}/{n}": torch.zeros(state_shape(kind, n, t.num_rows, t.dim), device=device)
            for t in layout.tables
            for n in names
        }

    def state(self) -> dict[str, Tensor]:
        return {**self._weights[0].state(), **self._states}

    def _look_up_only(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        return self._weights[0]._look_up(values_V, offsets, weights_V)

    def _look_up_to_update(
        self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None
    ) -> tuple[Tensor, RowUpdate]:
        ids = values_V, offsets, weights_V
        return self._look_up_only(*ids), partial(self._update, *ids)

    def _update(
        self,
        values_V: Tensor,
        offsets: Tensor,
        weights_V: Tensor | None,
        update: UpdateStep,
        grad_BE: Tensor,
    ) -> None:
        with torch.enable_grad():
            pooled_BE = self._gradients[0]._look_up(values_V, offsets, weights_V)
        torch.autograd.backward([pooled_BE], [grad_BE])  # adds to the rows
        weights, gradients = self._weights[0].state(), self._gradients[0].state()
        for spec in self.layout.tables:
            weight_RD, grad_RD = (t[f"{spec.name}/weight"] for t in (weights, gradients))
            if self.settings.l2_tables:
                grad_RD.add_(weight_RD, alpha=self.settings.l2_tables)
            states = [self._states[f"{spec.name}/{n}"] for n in STATE_NAMES[self.settings.kind]]
            UPDATE_RULES[self.settings.kind](weight_RD, states, grad_RD, update)
            grad_RD.zero_()
