"""SGD with L2 of whole tables, at the cost of the rows that are looked up.

Every update multiplies every weight by f = 1 - lr l2 and moves the looked-up rows by -lr g. Here
the weights are w = c v with one number c for all tables: an update sets c' = c f and moves only
looked-up rows, by v' = v - (lr / c') g, so that w' = c' v' = f w - lr g. A row that is looked up
again has all decays that it has missed, in closed form. No other rule allows that, since the states
of other rules change with every penalised gradient.
E width of all pooled embeddings, B batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.distributed.shards import LocalShard, LocalShards, local_tensors
from runner.embeddings.interface import EmbeddingTables, WrappedTables
from runner.errors import ConfigError

_LEAST_SCALE = 1e-3  # below it, c is multiplied into the stored numbers, in one pass over all rows


class DecayedTables(WrappedTables):
    """The tables of another engine under plain SGD, with L2 of all rows.

    `state` returns copies of the weights, the same ones until the next update, so a save needs the
    memory of the tables twice. Values written into them take effect by `take_over_weights`.
    `resume_state` has v and c, from which a training continues bit for bit.
    """

    def __init__(self, engine: EmbeddingTables, *, device: torch.device) -> None:
        super().__init__(engine, device=device)
        assert self.settings.kind == "sgd" and not self.settings.every_row, self.settings
        # c of each table on the host: equal, unless a resume has merged groups
        self._scale_T = torch.ones(len(self.layout.tables), dtype=torch.float64)
        self._next_scale = 1.0
        self._copies: dict[str, Tensor] = {}  # the result of `state` since the last update
        self._lr_and_step: tuple[float, int] | None = None  # of the coming update

    def set_lr_and_step(self, lr: float, step: int) -> None:
        self._copies = {}  # a save is over
        self._lr_and_step = (lr, step)
        factor = 1 - lr * self.settings.l2_tables
        if factor < _LEAST_SCALE:
            raise ConfigError(
                f"optimizer.sparse.l2_tables={self.settings.l2_tables:g}: times the rate {lr:g} "
                "it must be below 1: one update would take away the whole of every weight"
            )
        if self._scale() * factor < _LEAST_SCALE:
            self._fold_scale()
        self._next_scale = self._scale() * factor
        self._engine.set_lr_and_step(lr / self._next_scale, step)

    def state(self) -> dict[str, Tensor]:
        if not self._copies:
            scale = self._scale()
            self._copies = {key: _times(v, scale) for key, v in self._engine.state().items()}
        return dict(self._copies)

    def resume_state(self) -> dict[str, Tensor]:
        stored = {f"{t.name}/unscaled": self._stored(t.name) for t in self.layout.tables}
        scales = {
            f"{t.name}/scale": self._scale_T[i : i + 1] for i, t in enumerate(self.layout.tables)
        }
        return stored | scales

    def take_over_weights(self) -> None:
        for key, copy in self._copies.items():
            for stored, written in zip(
                local_tensors(self._engine.state()[key]), local_tensors(copy)
            ):
                stored.copy_(written)
        self._copies = {}
        self._scale_T.fill_(1.0)
        if self._lr_and_step is not None:  # which is a multiple of c
            self.set_lr_and_step(*self._lr_and_step)

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        pooled_BE: Tensor = _ScaledLookup.apply(  # type: ignore[no-untyped-call]
            self._engine._pool(kjt), self
        )
        return pooled_BE

    def _stored(self, table: str) -> Tensor:
        return self._engine.state()[f"{table}/weight"]

    def _scale(self) -> float:
        """Return c, which is 1 if the tables had different ones."""
        first = float(self._scale_T[0])
        if not bool((self._scale_T == first).all()):
            self._fold_scale()
            return 1.0
        return first

    def _fold_scale(self) -> None:
        for spec, scale in zip(self.layout.tables, self._scale_T.tolist(), strict=True):
            for stored in local_tensors(self._stored(spec.name)):
                stored.mul_(scale)
        self._scale_T.fill_(1.0)


class _ScaledLookup(torch.autograd.Function):
    """c times what is stored; the rate of the engine has the gradient's factor."""

    @staticmethod
    def forward(ctx: Any, pooled_BE: Tensor, tables: DecayedTables) -> Tensor:
        ctx.tables = tables
        ctx.mark_dirty(pooled_BE)
        return pooled_BE.mul_(tables._scale())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[Tensor, None]:
        ctx.tables._copies = {}
        ctx.tables._scale_T.fill_(ctx.tables._next_scale)
        return grad_BE, None


def _times(tensor: Tensor, scale: float) -> Tensor:
    if not isinstance(tensor, LocalShards):
        return tensor * scale
    shards = [LocalShard(s.tensor * scale, s.offset) for s in tensor.shards]
    return LocalShards(tensor.shape, shards, tensor.dtype, tensor.device)


def decay_whole_tables(tables: EmbeddingTables, *, device: torch.device) -> EmbeddingTables:
    """Wrap tables to apply L2 to all rows, if their settings ask for it and no engine does it."""
    if tables.settings.l2_tables and not tables.settings.every_row:
        return DecayedTables(tables, device=device)
    return tables
