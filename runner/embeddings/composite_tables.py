"""Tables of several engines as one, such as those of parts with optimizers of their own.

E width of all pooled embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.embeddings.interface import EmbeddingTables, Layout, PermuteColumns, Placement
from runner.optim.settings import SparseSettings


class CompositeTables(EmbeddingTables):
    """Several kinds of tables as one; each has some of the features."""

    def __init__(
        self,
        layout: Layout,
        settings: SparseSettings,
        members: Sequence[EmbeddingTables],
        *,
        device: torch.device,
    ) -> None:
        super().__init__(layout, settings, device)
        self._parts = list(members)
        place = {name: i for i, name in enumerate(layout.feature_order)}
        self._features = [[place[name] for name in part.layout.feature_order] for part in members]
        # beside the lists: a list goes to a GPU by a copy that the host waits for
        self._places = [torch.tensor(f, dtype=torch.int32, device=device) for f in self._features]
        widths = {name: t.dim for t in layout.tables for name in t.features}
        order = [name for part in members for name in part.layout.feature_order]
        ends = torch.tensor([widths[name] for name in order]).cumsum(0).tolist()
        columns = {name: range(end - widths[name], end) for name, end in zip(order, ends)}
        flat = [c for name in layout.feature_order for c in columns[name]]
        self._to_features = torch.tensor(flat, device=device)
        self._to_parts = torch.argsort(self._to_features)

    def set_lr_and_step(self, lr: float, step: int) -> None:
        for part in self._parts:
            part.set_lr_and_step(lr, step)

    def state(self) -> dict[str, Tensor]:
        return {key: t for part in self._parts for key, t in part.state().items()}

    def placement(self) -> list[Placement]:
        return [p for part in self._parts for p in part.placement()]

    def torchrec_modules(self) -> list[nn.Module]:
        return [module for part in self._parts for module in part.torchrec_modules()]

    def torchrec_inputs(self, kjt: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        ids: list[KeyedJaggedTensor] = []
        for part, own in zip(self._parts, self._shares(kjt)):
            if part.torchrec_modules():
                ids += part.torchrec_inputs(own)
        return ids

    def _shares(self, kjt: KeyedJaggedTensor) -> Iterator[KeyedJaggedTensor]:
        """What each part looks up, made when it is asked for."""
        return (kjt.permute(f, places) for f, places in zip(self._features, self._places))

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        pooled = [part(own) for part, own in zip(self._parts, self._shares(kjt))]
        return PermuteColumns.apply(torch.cat(pooled, dim=1), self._to_features, self._to_parts)
