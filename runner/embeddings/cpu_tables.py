"""Tables on CPU with our own row updates, for the optimizers that FBGEMM's CPU kernels lack.

The look-up is FBGEMM's; meanwhile a second thread, if available, sorts (row, bag) pairs. The
backward sums the gradients of equal rows in that order, and updates the rows of the batch. Each row
is summed and updated by one thread, so that results do not depend on the number of threads.
B batch, F features, V values, R rows stored, U distinct rows of a batch, N bags, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.interface import Layout
from runner.embeddings.row_update_tables import RowUpdate, RowUpdateTables, put_rows, take_rows
from runner.embeddings.row_updates import STATE_NAMES, UPDATE_RULES, UpdateStep, state_shape
from runner.embeddings.sorted_ids import ALIGNED_ROWS, BagNumbers, LookupIds, SortedIds, sort_ids
from runner.embeddings.stochastic_rounding import RowRounding
from runner.optim.settings import SparseSettings

RunAll = Callable[[Iterable[Callable[[], object]]], None]

# Weights of the rows that are updated at a time. Fewer would fit into a core's own cache, but make
# many short operations, after which threads wait for each other: two take twice as long at 65,536.
_CHUNK_WEIGHTS = 524_288


@dataclass(frozen=True)
class _WidthGroup:
    """The tables of one width, stacked into one matrix with their states."""

    dim: int
    bags: BagNumbers
    columns: slice
    weight: Tensor
    states: tuple[Tensor, ...]
    rounding: RowRounding | None  # None: weights are stored in fp32


# the ids, and the groups that share them
_Sorted = tuple[SortedIds, list[_WidthGroup]]


class CpuTables(RowUpdateTables):
    """Tables on CPU whose updates have the results of FBGEMM's CUDA kernels."""

    def __init__(self, layout: Layout, settings: SparseSettings, device: torch.device) -> None:
        super().__init__(layout, settings, device)
        assert device.type == "cpu", "on CUDA every kind has a kernel"
        # SGD keeps no states, and its backward is never used; in a list: hidden from nn.Module
        self._lookup = [FbgemmTables(layout, replace(settings, kind="sgd"), device)]
        self._groups = _width_groups(layout, settings, self._lookup[0].state())
        self._num_rows_F = torch.tensor([layout.tables[t].num_rows for t in layout.table_of])
        self._run_all: RunAll = run_one_by_one
        self._num_parts = 1

    def use_threads(self, run_all: RunAll, num_threads: int) -> None:
        """Update rows by several threads, with the same results bit for bit.

        Args:
            run_all: calls functions, each in one thread.
            num_threads: how many it calls at a time.
        """
        self._run_all, self._num_parts = run_all, num_threads

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
        for group in self._groups:
            features = group.bags.features
            bags = slice(features.start * size, features.stop * size)
            low, high = int(offsets[bags.start]), int(offsets[bags.stop])
            if low == high:
                continue
            first_row_F = torch.from_numpy(group.bags.first_row_F1[:, 0])
            lengths = lengths_F[features.start : features.stop]
            rows = values_V[low:high] + first_row_F.repeat_interleave(lengths)
            vectors_VD = take_rows(group.weight, rows).float()
            pooled_ND = embedding_bag(
                torch.arange(high - low),
                vectors_VD,
                offsets[bags] - low,
                mode="sum",
                per_sample_weights=None if weights_V is None else weights_V[low:high],
            )
            by_feature_FBD = pooled_ND.view(len(features), size, group.dim)
            pooled_BE[:, group.columns] = by_feature_FBD.transpose(0, 1).reshape(size, -1)
        return pooled_BE

    def _look_up_to_update(
        self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None
    ) -> tuple[Tensor, RowUpdate]:
        ids = values_V, offsets, weights_V
        if self._num_parts == 1:  # sorted just before their use, they are still in the caches
            return self._look_up_only(*ids), lambda *step: self._update(self._sort(*ids), *step)
        pooled: list[Tensor] = []
        sorted_ids: list[_Sorted] = []

        @torch.no_grad()
        def look_up() -> None:
            pooled.append(self._look_up_only(*ids))

        self._run_all([look_up, lambda: sorted_ids.extend(self._sort(*ids))])
        return pooled[0], partial(self._update, sorted_ids)

    def _sort(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> list[_Sorted]:
        """Sort ids; only the look-up checks whether they are inside their tables."""
        if values_V.numel() == 0:
            return []
        size = (len(offsets) - 1) // len(self.layout.table_of)
        ids = LookupIds(values_V, offsets, weights_V, offsets[::size].tolist(), size)
        return [
            (sort_ids(ids, groups[0].bags), groups)
            for groups in self._groups_with_equal_ids(ids)
            if ids.count(groups[0].bags.features)
        ]

    def _groups_with_equal_ids(self, ids: LookupIds) -> list[list[_WidthGroup]]:
        """Return lists of groups with equal ids, which are sorted once for each list.

        The weights of a first-order term, for example, are separate tables with the same ids.
        """
        equal_groups: list[list[_WidthGroup]] = []
        for group in self._groups:
            for members in equal_groups:
                if members[0].bags.have_equal_ids(group.bags, ids):
                    members.append(group)
                    break
            else:
                equal_groups.append([group])
        return equal_groups

    def _update(self, sorted_ids: list[_Sorted], update: UpdateStep, grad_BE: Tensor) -> None:
        works = []
        for ids, groups in sorted_ids:
            for group in groups:
                grad_ND = grad_BE[:, group.columns].reshape(-1, group.dim)  # one row for a bag
                for rows in ids.split(self._num_parts):
                    works.append(partial(self._update_rows, group, ids, rows, grad_ND, update))
        self._run_all(works)

    def _update_rows(
        self, group: _WidthGroup, ids: SortedIds, part: slice, grad_ND: Tensor, update: UpdateStep
    ) -> None:
        """Update a part of the distinct rows in chunks that fit into the caches."""
        chunk = max(1, _CHUNK_WEIGHTS // group.dim // ALIGNED_ROWS) * ALIGNED_ROWS
        for start in range(part.start, part.stop, chunk):
            rows = slice(start, min(start + chunk, part.stop))
            rows_U = ids.rows_U[rows]
            self._step_rows(group, rows_U, _sum_gradients(ids, rows, grad_ND), update)

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


def _sum_gradients(ids: SortedIds, rows: slice, grad_ND: Tensor) -> Tensor:
    """Return the gradient of some of the distinct rows, [U, D], from that of each bag."""
    first = int(ids.starts_U[rows.start])
    last = int(ids.starts_U[rows.stop]) if rows.stop < len(ids.starts_U) else len(ids.bags_V)
    return embedding_bag(
        ids.bags_V[first:last],
        grad_ND,
        ids.starts_U[rows] - first,
        mode="sum",
        per_sample_weights=None if ids.weights_V is None else ids.weights_V[first:last],
    )


def run_one_by_one(works: Iterable[Callable[[], object]]) -> None:
    """Call functions one after another; their order does not matter."""
    for work in works:
        work()


def _width_groups(
    layout: Layout, settings: SparseSettings, weights: dict[str, Tensor]
) -> tuple[_WidthGroup, ...]:
    groups: list[_WidthGroup] = []
    feature = column = 0
    for dim in dict.fromkeys(layout.widths):
        tables = [t for t in layout.tables if t.dim == dim]
        num_rows = sum(t.num_rows for t in tables)
        first = weights[f"{tables[0].name}/weight"]
        # FBGEMM stores the tables of one module end to end, so those of one width form a matrix
        weight_RD = first.as_strided((num_rows, dim), (dim, 1))
        last = weights[f"{tables[-1].name}/weight"]
        assert last.data_ptr() == weight_RD[num_rows - tables[-1].num_rows].data_ptr()
        names = STATE_NAMES[settings.kind]
        shapes = [state_shape(settings.kind, name, num_rows, dim) for name in names]
        ends = accumulate((len(t.features) for t in tables), initial=feature)
        bags = BagNumbers([range(*pair) for pair in pairwise(ends)], [t.num_rows for t in tables])
        width = len(bags.features) * dim
        groups.append(
            _WidthGroup(
                dim=dim,
                bags=bags,
                columns=slice(column, column + width),
                weight=weight_RD,
                states=tuple(torch.zeros(shape) for shape in shapes),
                rounding=RowRounding(tables, settings.rounding_seed, weight_RD.dtype)
                if settings.is_16_bit
                else None,
            )
        )
        feature, column = bags.features.stop, column + width
    return tuple(groups)
