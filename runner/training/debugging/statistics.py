"""Distributions of activations and gradients of one update, per module and per table."""

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
    """What is known of the values of one part, over all its calls. Of finite values only, but
    for the counts."""

    shape: tuple[int, ...] = ()  # rows of all calls together
    count: int = 0
    zeros: int = 0
    bad: int = 0  # NaN or infinite
    total: float = 0.0
    sum_squares: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    @property
    def mean(self) -> float:
        return self.total / good if (good := self.count - self.bad) else math.nan

    @property
    def std(self) -> float:
        """Standard deviation, of the population."""
        if self.count == self.bad:
            return math.nan
        return math.sqrt(max(self.sum_squares / (self.count - self.bad) - self.mean**2, 0.0))

    @property
    def rms(self) -> float:
        return math.sqrt(self.sum_squares / good) if (good := self.count - self.bad) else math.nan

    @property
    def norm(self) -> float:
        return math.sqrt(self.sum_squares)

    @property
    def abs_max(self) -> float:
        """The largest absolute value."""
        return max(-self.least, self.most) if self.count > self.bad else math.nan

    def add(self, tensor: Tensor, scale: float = 1.0) -> None:
        """Takes in the values times `scale`. Synchronises."""
        values = tensor.detach().double()
        finite = values[values.isfinite()] * scale
        self.shape = _stacked(self.shape, tuple(tensor.shape))
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
    """What one update did with a table."""

    ids: int = 0  # look-ups
    rows: set[int] = field(default_factory=set)  # that were read
    gradient: Moments = field(default_factory=Moments)  # of what was read, at the boundary


class GradientNorms(Observer):
    """Norm of each parameter's gradient in the update, before any clipping."""

    def __init__(self, scale: Callable[[], float]) -> None:
        """scale: what the loss is multiplied by at the moment."""
        self.scale = scale
        self.norms: dict[str, Tensor] = {}  # of the scaled gradients
        self.used_scale = 1.0

    def step_begins(self) -> None:
        self.norms = {}
        self.used_scale = self.scale()

    def gradient_of_parameter(self, name: str, gradient: Tensor) -> None:
        # the gradient grows with each micro-batch: the last norm is the update's
        self.norms[name] = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64)

    def get(self, name: str) -> float | None:
        """None: it got no gradient. Synchronises."""
        return float(self.norms[name]) / self.used_scale if name in self.norms else None

    def total(self) -> float | None:
        """Of all parameters together. Synchronises."""
        if not self.norms:
            return None
        total = torch.linalg.vector_norm(torch.stack(tuple(self.norms.values())))
        return float(total) / self.used_scale


class ActivationStatistics(Observer):
    """Activations and their gradients in the last update, by part; each look synchronises."""

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
            given, _ = inputs
            self._add_ids(part, module, looked_up_ids(module, *given))

    def gradient_at_output(self, part: str, gradient: Tensor) -> None:
        module = self.modules[part]
        if not isinstance(module, TableLookup):
            self.gradients.setdefault(part, Moments()).add(gradient, 1.0 / self.used_scale)
            return
        # the update unscales the boundary's gradient before it sends it through the tables
        self.gradients.setdefault(part, Moments()).add(gradient)
        if gradient.ndim != 2:  # of sequences, not pooled
            return
        uses = self.tables[part]
        for table, columns in pooled_columns(module).items():
            for column in columns:
                if column.stop <= gradient.shape[1]:  # behind it stand the places of sequences
                    uses[table].gradient.add(gradient[:, column])

    def _add_ids(self, part: str, look_up: TableLookup, found: Mapping[str, Tensor]) -> None:
        uses = self.tables.setdefault(part, {spec.name: TableUsage() for spec in look_up.specs})
        for table, ids in found.items():
            uses[table].ids += ids.numel()
            uses[table].rows.update(ids.unique().tolist())


def compute_rows_norm(look_up: TableLookup, table: str, rows: set[int]) -> float:
    """Norm of some rows of a table. Synchronises."""
    weight_RD = lookup_weights(look_up)[table]
    index_U = torch.tensor(sorted(rows), dtype=torch.int64, device=weight_RD.device)
    return float(weight_RD.index_select(0, index_U).double().norm())


def _stacked(shape: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of both, one on top of the other, where only their rows differ."""
    if shape and len(shape) == len(more) and shape[1:] == more[1:]:
        return (shape[0] + more[0], *shape[1:])
    return more
