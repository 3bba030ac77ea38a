"""Statistics of the activations and gradients of one update, by module and by table.

R rows of a table, D embedding width, U different rows that are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from runner.models.layers.embedding import TableLookup
from runner.training.debugging.hooks import Observer, iter_float_tensors
from runner.training.debugging.lookups import looked_up_ids, lookup_weights, pooled_columns


@dataclass
class Moments:
    """Statistics of the values of one module, over all its calls.

    Except for the counts, they are those of the finite values.
    """

    shape: tuple[int, ...] = ()  # with the rows of all calls
    count: int = 0
    zeros: int = 0
    bad: int = 0  # NaN or infinite
    total: float = 0.0
    sum_squares: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    @property
    def mean(self) -> float:
        """The mean; NaN if no value is finite, as for the other statistics."""
        return self.total / good if (good := self.count - self.bad) else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the population."""
        if self.count == self.bad:
            return math.nan
        return math.sqrt(max(self.sum_squares / (self.count - self.bad) - self.mean**2, 0.0))

    @property
    def rms(self) -> float:
        """The root of the mean square."""
        return math.sqrt(self.sum_squares / good) if (good := self.count - self.bad) else math.nan

    @property
    def norm(self) -> float:
        """The L2 norm of all values."""
        return math.sqrt(self.sum_squares)

    @property
    def abs_max(self) -> float:
        """The largest absolute value."""
        return max(-self.least, self.most) if self.count > self.bad else math.nan

    def add(self, tensor: Tensor, scale: float = 1.0) -> None:
        """Add the values of a tensor times `scale`. Synchronises."""
        values = tensor.detach().double()
        finite = values[values.isfinite()] * scale
        self.shape = _concatenated_shape(self.shape, tuple(tensor.shape))
        self.count += values.numel()
        self.bad += values.numel() - finite.numel()
        if finite.numel():
            least, most = finite.aminmax()
            self.zeros += int((finite == 0).sum())
            self.total += float(finite.sum())
            self.sum_squares += float(finite.square().sum())
            self.least = min(self.least, float(least))
            self.most = max(self.most, float(most))


@dataclass
class TableUsage:
    """What one update read of a table, and the gradient that it sent back."""

    ids: int = 0  # number of look-ups
    rows: set[int] = field(default_factory=set)  # that were read
    gradient: Moments = field(default_factory=Moments)  # at the output of the look-up


class GradientNorms(Observer):
    """The norm of each parameter's gradient in the last update, before any clipping."""

    def __init__(self, scale: Callable[[], float]) -> None:
        self.scale = scale  # returns the present loss scale
        self.norms: dict[str, Tensor] = {}  # of the scaled gradients
        self.used_scale = 1.0

    def step_begins(self) -> None:
        self.norms = {}
        self.used_scale = self.scale()

    def gradient_of_parameter(self, name: str, gradient: Tensor) -> None:
        # the gradient is summed over micro-batches: the last norm is that of the update
        self.norms[name] = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64)

    def get(self, name: str) -> float | None:
        """Return the norm of a parameter's gradient; None if it has none. Synchronises."""
        return float(self.norms[name]) / self.used_scale if name in self.norms else None

    def total(self) -> float | None:
        """Return the norm over all parameters; None if there is no gradient. Synchronises."""
        if not self.norms:
            return None
        total = torch.linalg.vector_norm(torch.stack(tuple(self.norms.values())))
        return float(total) / self.used_scale


class ActivationStatistics(Observer):
    """Statistics of activations and their gradients in the last update; each event synchronises."""

    def __init__(self, modules: Mapping[str, nn.Module], scale: Callable[[], float]) -> None:
        self.modules = modules
        self.scale = scale
        self.used_scale = 1.0
        self.step_begins()

    def step_begins(self) -> None:
        self.used_scale = self.scale()
        self.outputs: dict[str, Moments] = {}
        self.gradients: dict[str, Moments] = {}  # at the outputs, unscaled
        self.tables: dict[str, dict[str, TableUsage]] = {}  # by look-up, then by table

    def call_ends(self, part: str, inputs: Any, outputs: Any) -> None:
        if part not in self.modules:
            return
        for tensor in iter_float_tensors(outputs):
            self.outputs.setdefault(part, Moments()).add(tensor)
        module = self.modules[part]
        if isinstance(module, TableLookup):
            args, _ = inputs
            self._add_ids(part, module, looked_up_ids(module, *args))

    def gradient_at_output(self, part: str, gradient: Tensor) -> None:
        module = self.modules[part]
        if not isinstance(module, TableLookup):
            self.gradients.setdefault(part, Moments()).add(gradient, 1.0 / self.used_scale)
            return
        # the update unscales this gradient before it sends it through the tables
        self.gradients.setdefault(part, Moments()).add(gradient)
        if gradient.ndim != 2:  # that of sequences, which are not pooled
            return
        usages, equal_columns = self.tables[part], _equal_columns(module)
        for table, columns in pooled_columns(module).items():
            step = equal_columns[table]
            for column in columns:
                if column.stop <= gradient.shape[1]:  # behind them are the columns of sequences
                    usages[table].gradient.add(gradient[:, column.start : column.stop : step])

    def _add_ids(self, part: str, lookup: TableLookup, ids_by_table: Mapping[str, Tensor]) -> None:
        usages = self.tables.setdefault(part, {spec.name: TableUsage() for spec in lookup.specs})
        for table, ids in ids_by_table.items():
            usages[table].ids += ids.numel()
            usages[table].rows.update(torch.unique(ids).tolist())


def _equal_columns(lookup: TableLookup) -> dict[str, int]:
    """Return how many equal columns stand for a weight, by table."""
    return {spec.name: spec.equal_columns for spec in lookup.specs}


def compute_rows_norm(lookup: TableLookup, table: str, rows: set[int]) -> float:
    """Return the norm of some rows of a table. Synchronises."""
    weight_RD = lookup_weights(lookup)[table]
    index_U = torch.tensor(sorted(rows), dtype=torch.int64, device=weight_RD.device)
    rows_UD = weight_RD[:, :: _equal_columns(lookup)[table]].index_select(0, index_U)
    return float(rows_UD.double().norm())


def _concatenated_shape(shape: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of two tensors joined by rows; the second shape if they do not fit."""
    if shape and len(shape) == len(more) and shape[1:] == more[1:]:
        return (shape[0] + more[0], *shape[1:])
    return more
