"""Combines tables of several engines, such as those of groups with different optimizers.

E width of all pooled embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.embeddings.interface import (
    EmbeddingTables,
    Layout,
    Placement,
    TableSpec,
    column_orders,
    make_layout,
    permute_columns,
)
from runner.optim.settings import SparseSettings


class CompositeTables(EmbeddingTables):
    """Several `EmbeddingTables` as one, each with some of the features."""

    def __init__(
        self,
        layout: Layout,
        settings: SparseSettings,
        members: Sequence[EmbeddingTables],
        *,
        device: torch.device,
    ) -> None:
        super().__init__(layout, settings, device)
        self._members = list(members)
        index = {name: i for i, name in enumerate(layout.feature_order)}
        self._features = [[index[name] for name in m.layout.feature_order] for m in members]
        # also as tensors: the host would wait while a list is copied to a GPU
        self._features_F = [
            torch.tensor(f, dtype=torch.int32, device=device) for f in self._features
        ]
        widths = {name: t.dim for t in layout.tables for name in t.features}
        order = [name for member in members for name in member.layout.feature_order]
        self._to_output_E, self._to_members_E = column_orders(
            order, [widths[name] for name in order], layout.feature_order, device
        )

    def set_lr_and_step(self, lr: float, step: int) -> None:
        for member in self._members:
            member.set_lr_and_step(lr, step)

    def state(self) -> dict[str, Tensor]:
        return {key: t for member in self._members for key, t in member.state().items()}

    def resume_state(self) -> dict[str, Tensor]:
        return {key: t for member in self._members for key, t in member.resume_state().items()}

    def take_over_weights(self) -> None:
        for member in self._members:
            member.take_over_weights()

    def placement(self) -> list[Placement]:
        return [shard for member in self._members for shard in member.placement()]

    def torchrec_modules(self) -> list[nn.Module]:
        return [module for member in self._members for module in member.torchrec_modules()]

    def torchrec_inputs(self, kjt: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        inputs: list[KeyedJaggedTensor] = []
        for member, member_kjt in zip(self._members, self._member_inputs(kjt)):
            if member.torchrec_modules():
                inputs += member.torchrec_inputs(member_kjt)
        return inputs

    def _member_inputs(self, kjt: KeyedJaggedTensor) -> Iterator[KeyedJaggedTensor]:
        """Yield the features of each member."""
        return (kjt.permute(f, f_F) for f, f_F in zip(self._features, self._features_F))

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        pooled = [member(ids) for member, ids in zip(self._members, self._member_inputs(kjt))]
        return permute_columns(torch.cat(pooled, dim=1), self._to_output_E, self._to_members_E)


def read_features(specs: Iterable[TableSpec], feature_order: Iterable[str]) -> list[str]:
    """Return the features that read some tables, in their order among all features."""
    own = {name for spec in specs for name in spec.features}
    return [name for name in feature_order if name in own]


def join_tables(
    members: Sequence[EmbeddingTables],
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    *,
    device: torch.device,
) -> EmbeddingTables:
    """Return the tables of several engines as one; those of a single one as they are."""
    if len(members) == 1:
        return members[0]
    layout = make_layout(specs, feature_order, by_dim=False)
    return CompositeTables(layout, settings, members, device=device)
