"""Tables on CPU with our own row updates, for the optimizers that FBGEMM's CPU kernels lack.

The look-up is FBGEMM's. The backward sorts (row, bag) pairs, sums the gradients of equal rows in
that order, and updates the rows of the batch. A row is summed and updated by one thread: the same
bits on any number of threads.
B batch, F features, V values, R rows stored, U distinct rows of a batch, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.interface import Layout
from runner.embeddings.row_copies import put_rows, take_rows
from runner.embeddings.row_update_tables import RowUpdateTables
from runner.embeddings.row_updates import STATE_NAMES, UPDATE_RULES, UpdateStep, state_shape
from runner.embeddings.stochastic_rounding import RowRounding
from runner.optim.settings import SparseSettings

RunAll = Callable[[Iterable[Callable[[], object]]], None]

# Weights of the rows that are updated at a time: they, their states and their gradients stay in a
# core's cache.
_CHUNK_WEIGHTS = 65_536


@dataclass(frozen=True)
class _WidthGroup:
    """The tables of one width, stacked into one matrix with their states."""

    dim: int
    first_row: int  # its number among the rows of all groups
    features: slice
    columns: slice
    weight: Tensor
    states: tuple[Tensor, ...]
    rounding: RowRounding | None  # None: weights are stored in fp32

    @property
    def num_features(self) -> int:
        return int(self.features.stop - self.features.start)


class CpuTables(RowUpdateTables):
    """Tables on CPU whose updates have the results of FBGEMM's CUDA kernels."""

    def __init__(self, layout: Layout, settings: SparseSettings, device: torch.device) -> None:
        super().__init__(layout, settings, device)
        assert device.type == "cpu", "on CUDA every kind has a kernel"
        # SGD keeps no states, and its backward is never used; in a list: hidden from nn.Module
        self._lookup = [FbgemmTables(layout, replace(settings, kind="sgd"), device)]
        self._groups = _width_groups(layout, settings, self._lookup[0].state())
        self._first_row_F1 = _first_rows(layout)[:, None]
        self._num_rows_F = torch.tensor([layout.tables[t].num_rows for t in layout.table_of])
        self._sorted_apart = _first_features(layout)
        self._first_rows_G = torch.tensor([group.first_row for group in self._groups])
        self._rows_and_bags_cache = (-1, torch.empty(0), torch.empty(0))  # first: its batch size
        self.run_all: RunAll = run_one_by_one  # may be replaced by what uses several threads

    def state(self) -> dict[str, Tensor]:
        names = STATE_NAMES[self.settings.kind]
        tensors = {}
        weights = self._lookup[0].state()
        for group in self._groups:
            row = 0
            for spec in self.layout.tables:
                if spec.dim != group.dim:
                    continue
                rows = slice(row, row + spec.num_rows)
                row = rows.stop
                tensors[f"{spec.name}/weight"] = weights[f"{spec.name}/weight"]
                for name, state in zip(names, group.states, strict=True):
                    tensors[f"{spec.name}/{name}"] = state[rows]
        return tensors

    def _look_up_only(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        if self.settings.dtype == "bf16":
            return self._gather_and_pool(values_V, offsets, weights_V)
        return self._lookup[0]._look_up(values_V, offsets, weights_V)

    def _gather_and_pool(
        self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None
    ) -> Tensor:
        """Look up bf16 rows, for which FBGEMM has no CPU kernel; sums are in fp32.

        Raises:
            IndexError: for an id outside its table.
        """
        num_features = len(self.layout.table_of)
        size = (len(offsets) - 1) // num_features
        pooled_BE = torch.zeros(size, self.output_width)
        if values_V.numel() == 0:
            return pooled_BE
        ends_F = offsets[size::size]
        lengths_F = ends_F.diff(prepend=ends_F.new_zeros(1))
        stop_V = self._num_rows_F.repeat_interleave(lengths_F)
        if bool(((values_V < 0) | (values_V >= stop_V)).any()):
            raise IndexError("an id is outside its table")
        rows_V = values_V + self._first_row_F1[:, 0].repeat_interleave(lengths_F)
        for group in self._groups:
            bags = slice(group.features.start * size, group.features.stop * size)
            low, high = int(offsets[bags.start]), int(offsets[bags.stop])
            if low == high:
                continue
            vectors_VD = take_rows(group.weight, rows_V[low:high] - group.first_row).float()
            pooled_ND = embedding_bag(
                torch.arange(high - low),
                vectors_VD,
                offsets[bags] - low,
                mode="sum",
                per_sample_weights=None if weights_V is None else weights_V[low:high],
            )
            by_feature_FBD = pooled_ND.view(group.num_features, size, group.dim)
            pooled_BE[:, group.columns] = by_feature_FBD.transpose(0, 1).reshape(size, -1)
        return pooled_BE

    def _update(
        self,
        update: UpdateStep,
        values_V: Tensor,
        offsets: Tensor,
        weights_V: Tensor | None,
        grad_BE: Tensor,
    ) -> None:
        if values_V.numel() == 0:
            return
        rows_V, bags_V, weights_V = self._sort_ids(values_V, offsets, weights_V, grad_BE.shape[0])
        rows_U, counts_U = torch.unique_consecutive(rows_V, return_counts=True)
        ends_U = counts_U.cumsum(0)
        starts_U = ends_U - counts_U
        bounds = [*torch.searchsorted(rows_U, self._first_rows_G).tolist(), rows_U.numel()]

        def step(group: _WidthGroup, grads_ND: Tensor, start: int, stop: int) -> None:
            first, last = int(starts_U[start]), int(ends_U[stop - 1])
            grad_UD = embedding_bag(
                bags_V[first:last],
                grads_ND,
                starts_U[start:stop] - first,
                mode="sum",
                per_sample_weights=None if weights_V is None else weights_V[first:last],
            )
            self._step_rows(group, rows_U[start:stop] - group.first_row, grad_UD, update)

        steps = []
        for group, low, high in zip(self._groups, bounds, bounds[1:]):
            grads_ND = grad_BE[:, group.columns].reshape(-1, group.dim)  # one row for a bag
            chunk = max(1, _CHUNK_WEIGHTS // group.dim)
            for start in range(low, high, chunk):
                steps.append(partial(step, group, grads_ND, start, min(start + chunk, high)))
        self.run_all(steps)

    def _sort_ids(
        self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None, batch_size: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return row, bag and weight of every id, ordered by row, then bag, then position."""
        rows_FB, bags_FB = self._rows_and_bags(batch_size)
        lengths = offsets.diff()
        is_one_id_a_bag = values_V.numel() == lengths.numel() and int(lengths.min()) == 1

        def repeat_for_ids(values_FB: Tensor) -> Tensor:
            flat = values_FB.reshape(-1)
            if is_one_id_a_bag:
                return flat
            return flat.repeat_interleave(lengths, output_size=values_V.numel())

        rows_V = values_V + repeat_for_ids(rows_FB)
        starts = offsets[::batch_size][self._sorted_apart].tolist()
        sort = partial(_sort_pairs, rows_V, starts=starts, run_all=self.run_all)
        if weights_V is None:
            return *sort(repeat_for_ids(bags_FB), bags_FB.numel()), None
        rows_V, order_V = sort(torch.arange(values_V.numel()), values_V.numel())
        return rows_V, repeat_for_ids(bags_FB)[order_V], weights_V[order_V]

    def _step_rows(
        self, group: _WidthGroup, rows_U: Tensor, grad_UD: Tensor, update: UpdateStep
    ) -> None:
        stored = (group.weight, *group.states)
        weight_UD, *states = (take_rows(tensor, rows_U) for tensor in stored)
        if group.rounding is not None:
            weight_UD = weight_UD.float()
        UPDATE_RULES[self.settings.kind](weight_UD, states, grad_UD, update)
        if group.rounding is not None:
            weight_UD = group.rounding.round(weight_UD, rows_U, update.step)
        for tensor, rows in zip(stored, (weight_UD, *states), strict=True):
            put_rows(tensor, rows_U, rows)

    def _rows_and_bags(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return, [F, B] each, the table's first row and the bag's row in the group's gradients."""
        if self._rows_and_bags_cache[0] != batch_size:
            bags = [
                torch.arange(batch_size * g.num_features).view(batch_size, -1).t()
                for g in self._groups
            ]
            bags_FB = torch.cat(bags).contiguous()
            rows_FB = self._first_row_F1.expand(bags_FB.shape).contiguous()
            self._rows_and_bags_cache = (batch_size, rows_FB, bags_FB)
        return self._rows_and_bags_cache[1:]


def run_one_by_one(works: Iterable[Callable[[], object]]) -> None:
    """Call each of some functions that may be called in any order."""
    for work in works:
        work()


def _sort_pairs(
    high_V: Tensor, low_V: Tensor, num_low: int, *, starts: list[int], run_all: RunAll
) -> tuple[Tensor, Tensor]:
    """Sort pairs of int64 in ascending order, with the low ones in [0, num_low).

    A pair is packed into one key. NumPy's sort of int64 is vectorised and three times as fast as
    torch's. Equal keys are equal pairs, so the sort need not be stable. At `starts` runs begin, of
    which each lies wholly below the next; they are sorted one by one, each in the caches.
    """
    bits = num_low.bit_length()
    key_V = (high_V << bits).bitwise_or_(low_V)
    run_all([keys.sort for keys in np.split(key_V.numpy(), starts[1:])])
    return key_V >> bits, key_V.bitwise_and_((1 << bits) - 1)


def _width_groups(
    layout: Layout, settings: SparseSettings, weights: dict[str, Tensor]
) -> tuple[_WidthGroup, ...]:
    groups: list[_WidthGroup] = []
    row = feature = column = 0
    for dim in dict.fromkeys(layout.widths):
        tables = [t for t in layout.tables if t.dim == dim]
        num_rows = sum(t.num_rows for t in tables)
        num_features = layout.widths.count(dim)
        first = weights[f"{tables[0].name}/weight"]
        # FBGEMM stores the tables of one module end to end, so those of one width form a matrix
        weight_RD = first.as_strided((num_rows, dim), (dim, 1))
        last = weights[f"{tables[-1].name}/weight"]
        assert last.data_ptr() == weight_RD[num_rows - tables[-1].num_rows].data_ptr()
        names = STATE_NAMES[settings.kind]
        shapes = [state_shape(settings.kind, name, num_rows, dim) for name in names]
        groups.append(
            _WidthGroup(
                dim=dim,
                first_row=row,
                features=slice(feature, feature + num_features),
                columns=slice(column, column + num_features * dim),
                weight=weight_RD,
                states=tuple(torch.zeros(shape) for shape in shapes),
                rounding=RowRounding(tables, settings.rounding_seed, weight_RD.dtype)
                if settings.is_16_bit
                else None,
            )
        )
        row += num_rows
        feature += num_features
        column += num_features * dim
    return tuple(groups)


def _first_features(layout: Layout) -> list[int]:
    """Return the features with which the ids of another table begin, if tables come in order."""
    tables = layout.table_of
    in_order = sorted(tables) == list(tables)
    return [tables.index(t) for t in dict.fromkeys(tables)] if in_order else [0]


def _first_rows(layout: Layout) -> Tensor:
    """Return, [F], the first row of each feature's table among the rows of all groups."""
    sizes = torch.tensor([0] + [t.num_rows for t in layout.tables])
    return sizes.cumsum(0)[torch.tensor(layout.table_of)]
