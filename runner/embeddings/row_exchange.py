"""The exchange of ranks in a look-up of row-sharded tables, and in its backward.

An id is sent only to the rank that has its row. For pooled embeddings and their gradients, a rank
exchanges with another one the columns of features of which that rank has rows.
B batch of this rank, N batches of all ranks one after another, F features, W ranks, E width of all
pooled embeddings, V values of a jagged tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.distributed.ranks import Ranks

RowRange = tuple[int, int]  # rows [start, stop) of a table


class RowExchange:
    """The exchange of one set of tables.

    Collective: all methods but the constructor.
    """

    def __init__(
        self,
        ranks: Ranks,
        row_ranges: Sequence[Sequence[RowRange]],
        widths: Sequence[int],
        device: torch.device,
    ) -> None:
        """Note which features each rank serves.

        Args:
            row_ranges: for each feature, the rows of its table that every rank has.
            widths: of the features, in the same order.
        """
        self._ranks = ranks
        self._low_WF, self._high_WF = torch.tensor(row_ranges, device=device).permute(2, 1, 0)
        served_WF = (self._high_WF > self._low_WF).cpu()
        self._served = [row_F.nonzero().flatten().to(device) for row_F in served_WF]
        column_of_E = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
        self._columns = [row_F[column_of_E].nonzero().flatten().to(device) for row_F in served_WF]
        self._width = len(column_of_E)

    def send_ids(self, kjt: KeyedJaggedTensor) -> tuple[KeyedJaggedTensor, list[int]]:
        """Send every id to the rank that has its row.

        Returns:
            The ids of all ranks' batches whose rows are on this rank, [N] for each feature in the
            order of ranks, relative to the first row here; and the size of each rank's batch.

        Raises:
            IndexError: for an id outside its table, before any exchange.
        """
        num_features, size = len(kjt.keys()), kjt.stride()
        values_V, weights_V, offsets = kjt.values(), kjt.weights_or_none(), kjt.offsets()
        per_feature = torch.tensor(kjt.length_per_key(), device=values_V.device)
        lengths, ids, weights = [], [], []
        for rank, served in enumerate(self._served):
            low_V = self._low_WF[rank].repeat_interleave(per_feature)
            high_V = self._high_WF[rank].repeat_interleave(per_feature)
            is_there_V = (values_V >= low_V) & (values_V < high_V)
            num_before = torch.zeros(len(values_V) + 1, dtype=torch.int64, device=values_V.device)
            num_before[1:] = is_there_V.cumsum(0)
            lengths.append(num_before[offsets].diff().view(num_features, size)[served])
            ids.append((values_V - low_V)[is_there_V])
            if weights_V is not None:
                weights.append(weights_V[is_there_V])
        if sum(len(part) for part in ids) < len(values_V):
            num_rows_V = self._high_WF.amax(0).repeat_interleave(per_feature)
            at = int(((values_V < 0) | (values_V >= num_rows_V)).nonzero()[0])
            name = kjt.keys()[int((per_feature.cumsum(0) <= at).sum())]
            table = f"its table of {num_rows_V[at]} rows"
            raise IndexError(f"{name}: id {values_V[at]} is outside {table}")
        mine = torch.tensor([size, *(len(t) for t in ids)])
        counts = [torch.empty_like(mine) for _ in self._served]
        dist.all_gather(counts, mine, group=self._ranks.group)
        sizes = [int(c[0]) for c in counts]
        received = [int(c[1 + self._ranks.rank]) for c in counts]
        own_features = self._served[self._ranks.rank]
        lengths_W = self._exchange(
            [t.to(torch.int32).flatten() for t in lengths], [len(own_features) * n for n in sizes]
        )
        by_rank = [t.view(len(own_features), n) for t, n in zip(lengths_W, sizes)]
        lengths_FN = kjt.lengths().new_zeros(num_features, sum(sizes))
        lengths_FN[own_features] = torch.cat(by_rank, dim=1).to(lengths_FN.dtype)
        per_list = [t.sum(1).tolist() for t in by_rank]  # sync

        def feature_major(parts: list[Tensor]) -> Tensor:
            split = [torch.split(t, n) for t, n in zip(parts, per_list)]
            whole = [features[f] for f in range(len(own_features)) for features in split]
            return torch.cat([parts[0][:0], *whole])

        local_ids = KeyedJaggedTensor(
            keys=kjt.keys(),
            values=feature_major(self._exchange(ids, received)),
            weights=feature_major(self._exchange(weights, received)) if weights else None,
            lengths=lengths_FN.flatten(),
        )
        return local_ids, sizes

    def return_pooled(self, pooled_NE: Tensor, sizes: Sequence[int]) -> Tensor:
        """Send each rank its pooled embeddings; return the sum of those received, [B, E]."""
        own_columns, size = self._columns[self._ranks.rank], sizes[self._ranks.rank]
        sent = [t.flatten() for t in torch.split(self._select(pooled_NE, own_columns), list(sizes))]
        received = self._exchange(sent, [size * len(columns) for columns in self._columns])
        pooled_BE = pooled_NE.new_zeros(size, self._width)
        for columns, part in zip(self._columns, received):
            if len(columns) == self._width:
                pooled_BE += part.view_as(pooled_BE)
            else:
                pooled_BE.index_add_(1, columns, part.view(size, len(columns)))
        return pooled_BE

    def send_gradients(self, grad_BE: Tensor, sizes: Sequence[int]) -> Tensor:
        """Send the gradients to the ranks that serve their features; return those for here, [N, E].

        They are zero in the columns of features that this rank does not serve.
        """
        own_columns = self._columns[self._ranks.rank]
        sent = [self._select(grad_BE, columns).flatten() for columns in self._columns]
        received = self._exchange(sent, [len(own_columns) * n for n in sizes])
        grads_NE = torch.cat(received).view(sum(sizes), len(own_columns))
        if len(own_columns) == self._width:
            return grads_NE
        return grad_BE.new_zeros(sum(sizes), self._width).index_copy_(1, own_columns, grads_NE)

    def _select(self, x_NE: Tensor, columns: Tensor) -> Tensor:
        """Return some columns, ten times as fast as `x_NE[:, columns]`; x itself for all."""
        return x_NE if len(columns) == self._width else x_NE.index_select(1, columns)

    def _exchange(self, parts: Sequence[Tensor], received: Sequence[int]) -> list[Tensor]:
        """Send each rank its part, and return theirs for this one, of `received` numbers each."""
        sent = torch.cat(list(parts))
        received_flat = sent.new_empty(sum(received))
        dist.all_to_all_single(
            received_flat, sent, list(received), [len(t) for t in parts], group=self._ranks.group
        )
        return list(torch.split(received_flat, list(received)))


def even_row_ranges(num_rows: int, world_size: int) -> list[RowRange]:
    """Return blocks of equal size, with the last ones shorter or empty, as TorchRec's row_wise."""
    block = -(-num_rows // world_size)
    return [(min(r * block, num_rows), min((r + 1) * block, num_rows)) for r in range(world_size)]


def row_ranges_on_groups(
    sizes: Mapping[str, int], world_size: int, group_size: int
) -> dict[str, list[RowRange]]:
    """Place every table on one group of ranks, in equal blocks.

    The largest table is first, and each goes to the group with the fewest rows.

    Args:
        sizes: rows by table.
        group_size: ranks of a group, which follow each other: 1 leaves tables whole, and those of
            a node keep the exchange of partial sums within it.

    Returns:
        By table, the rows of every rank.
    """
    load = [0] * (world_size // group_size)
    row_ranges: dict[str, list[RowRange]] = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        group = load.index(min(load))
        load[group] += sizes[name]
        before, after = group * group_size, world_size - (group + 1) * group_size
        row_ranges[name] = [
            *[(0, 0)] * before,
            *even_row_ranges(sizes[name], group_size),
            *[(sizes[name], sizes[name])] * after,
        ]
    return row_ranges
