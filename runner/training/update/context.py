"""The interface of a task to the model, and the way of an update's gradients to all its parts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.distributed.all_reduce import all_reduce_gradients
from runner.distributed.ranks import Ranks, current_ranks
from runner.embeddings.interface import EmbeddingTables
from runner.errors import ConfigError, UserError
from runner.models.layers.batch_norm import BatchNorm
from runner.models.layers.dropout import Dropout
from runner.models.layers.members import mean_over_members
from runner.models.layers.recommender import Recommender
from runner.models.layers.update_state import UpdateState
from runner.models.losses import Loss
from runner.models.row_scope import UPDATE_SCOPE
from runner.optim.dense import optimizer_parameters
from runner.optim.fused_step import step_optimizer
from runner.optim.penalties import (
    ParameterPenalty,
    add_lookup_gradients,
    add_penalty_gradients,
    penalty_values,
)
from runner.optim.settings import ClipSettings
from runner.training.update.closure import step_with_closure
from runner.training.update.ema import MovingAverage
from runner.training.update.grad_clip import clip_gradients, gradient_norms
from runner.training.update.gradients import all_finite, boundary_gradients, drop_empty_lookups
from runner.training.update.logged_means import RunningMeans
from runner.training.update.loss_scale import LossScale
from runner.training.update.row_threads import RowThreads

if TYPE_CHECKING:  # TorchRec's pipelines are imported where one runs
    from runner.training.update.growing_ids import GrowingIds
    from runner.training.update.sparse_dist_pipeline import SparseDistPipeline


@dataclass
class Context:
    """The argument of `train_step`: the parts of the job that an update touches."""

    model: Recommender
    loss: Loss
    tables: EmbeddingTables
    dense_optimizer: torch.optim.Optimizer
    device: torch.device
    micro_batch_size: int  # rows
    amp_dtype: torch.dtype | None = None  # None: no autocast
    loss_scale: LossScale | None = None  # fp16 only
    prefetch_to_device: bool = True  # copy the next batch to a GPU while an update runs
    # send the ids of the next batch to their ranks while an update runs
    sparse_dist: SparseDistPipeline | None = None
    ranks: Ranks = field(default_factory=current_ranks)
    ema: MovingAverage | None = None  # of the dense half
    part_optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)  # by rate
    trained_tables: dict[str, EmbeddingTables] | None = None  # by rate; None: one rate for all
    prior_table_updates: dict[str, int] = field(default_factory=dict)  # before this run, by table
    clip: ClipSettings = field(default_factory=ClipSettings)
    penalties: tuple[ParameterPenalty, ...] = ()
    l2_lookups: float = 0.0  # of `optimizer.sparse`
    log_gradients: str | None = None  # global, parameters
    row_threads: RowThreads | None = None  # None: one thread begins all operations
    schema: Schema | None = None  # of the dataset
    growing: GrowingIds | None = None  # the maps from ids to rows; None: no table grows
    task_modules: dict[str, nn.Module] = field(default_factory=dict)  # from `add_module`
    task_optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    logged_means: RunningMeans = field(default_factory=RunningMeans)  # from `log`
    parameter_names: dict[int, str] = field(default_factory=dict)  # by id(), for the log
    _has_lookup_penalty: bool = field(default=False, init=False)  # since the last update
    table_groups: dict[str, EmbeddingTables] = field(init=False)  # those that train, by rate
    dense_parameters: list[nn.Parameter] = field(init=False)  # trained ones of the dense half
    update_states: list[UpdateState] = field(init=False)  # of the model and of the task
    drops_by_row: bool = field(init=False)  # has a dropout whose draws are not PyTorch's

    def __post_init__(self) -> None:
        trained = self.trained_tables
        self.table_groups = {"sparse": self.tables} if trained is None else trained
        optimizers = (self.dense_optimizer, *self.part_optimizers.values())
        self.dense_parameters = [p for o in optimizers for p in optimizer_parameters(o)]
        self.update_states = [m for m in self.model.modules() if isinstance(m, UpdateState)]
        self.drops_by_row = self.device.type == "cpu" and any(
            isinstance(m, Dropout) and m.p > 0 for m in self.model.modules()
        )

    @property
    def batch_norms(self) -> list[BatchNorm]:
        return [m for m in self.update_states if isinstance(m, BatchNorm)]

    def root_modules(self) -> list[nn.Module]:
        """Return the modules that are switched between train and eval mode."""
        return [self.model, *self.task_modules.values()]

    def set_eval_mode(self) -> None:
        for module in self.root_modules():
            module.eval()

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return all optimizers but those of the tables, by the name of their rate."""
        return {"dense": self.dense_optimizer, **self.part_optimizers, **self.task_optimizers}

    def add_module(self, name: str, module: nn.Module) -> nn.Module:
        """Add a module of the task's own, in its `setup`.

        Collective. The module moves to the device, is made equal on all ranks, is saved and resumed
        as `task.<name>`, and is in eval mode during an evaluation.

        Raises:
            ConfigError: for a name that is taken or not a plain word.
        """
        if not re.fullmatch(r"\w+", name) or name in self.task_modules:
            raise ConfigError(
                f"ctx.add_module({name!r}): the name must be a plain word that is not taken yet"
            )
        module.to(self.device)
        for tensor in (*module.parameters(), *module.buffers()):
            self.ranks.broadcast_(tensor.data)
        self.task_modules[name] = module
        self.update_states += [m for m in module.modules() if isinstance(m, UpdateState)]
        return module

    def add_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Add an optimizer of the task's own modules, in its `setup`.

        Its rate follows the scheduler and is logged as `lr/<name>`; it is saved and resumed.

        Raises:
            ConfigError: for a name or a parameter that is taken, or for several rates.
        """
        if not re.fullmatch(r"\w+", name) or name in {*self.optimizers(), *self.table_groups}:
            raise ConfigError(
                f"ctx.add_optimizer({name!r}): the name must be a plain word that is not taken yet"
            )
        if len({group["lr"] for group in optimizer.param_groups}) > 1:
            raise ConfigError(
                f"ctx.add_optimizer({name!r}): has several rates; give each an optimizer"
            )
        owned = {id(p) for o in self.optimizers().values() for p in optimizer_parameters(o)}
        if any(id(p) in owned for p in optimizer_parameters(optimizer)):
            raise ConfigError(f"ctx.add_optimizer({name!r}): a parameter has an optimizer already")
        self.task_optimizers[name] = optimizer
        return optimizer

    def log(self, name: str, value: Tensor | float) -> None:
        """Log a number: a row of the train log has its mean since the last row, over all ranks.

        Raises:
            UserError: for a value that is not a single number.
        """
        self.logged_means.add(name, value)

    def rows_at_once(self, num_rows: int) -> int:
        """Return how many of the rows of an update on this rank the dense half takes at once.

        A micro-batch; or all, if a batch norm has the statistics of the update.
        """
        if any(norm.scope == UPDATE_SCOPE for norm in self.batch_norms):
            return num_rows
        return self.micro_batch_size

    def autocast(self) -> AbstractContextManager[object]:
        if self.amp_dtype is None:
            return nullcontext()
        # All threads share one cache of weights in low precision, which each of them empties when
        # it is done. Whether two uses of a weight share a copy, in whose precision their gradients
        # are then summed, would depend on which thread is the faster one.
        may_keep = self.row_threads is None
        return torch.autocast(self.device.type, dtype=self.amp_dtype, cache_enabled=may_keep)

    def evaluation_weights(self) -> AbstractContextManager[object]:
        """Give the model the weights for evaluations within the block: its own, or averages."""
        if self.ema is None or not self.ema.use_in_evaluation:
            return nullcontext()
        return self.ema.average_parameters()

    def take_evaluation_weights(self) -> None:
        """Give the model the weights for evaluations permanently, when training is over."""
        if self.ema is not None and self.ema.use_in_evaluation:
            self.ema.swap()

    def losses(self, prediction: Prediction) -> Any:
        """Return the losses of a prediction, or their mean over the members of a model."""
        return mean_over_members(self.loss, prediction)

    def total_weight(self, batch: Batch) -> Tensor:
        """Return the weight of all rows of an update, over micro-batches and ranks, or 1 for 0.

        Collective. If losses are divided by it, the gradients of micro-batches and ranks add up to
        that of a single batch, however many rows each of them has.
        """
        weight = self.ranks.all_reduce_sum(batch.weights_B.sum())
        return torch.where(weight > 0, weight, 1.0)

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients of the dense half and of the boundary.

        The boundary is the cut between the look-ups and the dense half: no table is touched here.
        """
        scaled = self.loss_scale.scale(loss) if self.loss_scale else loss
        scaled.backward()  # type: ignore[no-untyped-call]

    def part_gradients(self, loss: Tensor, boundary: Embeddings) -> list[Tensor | None]:
        """Give the boundary its gradient and return those of the dense half.

        Unlike `backward` it may run in several threads at once: `add_gradients` adds what they
        return to the gradients of `dense_parameters`, in one order.
        """
        leaves = boundary.tensors()
        scaled = self.loss_scale.scale(loss) if self.loss_scale else loss
        inputs = [*leaves, *self.dense_parameters]
        gradients = torch.autograd.grad(scaled, inputs, allow_unused=True)
        for leaf, gradient in zip(leaves, gradients):
            leaf.grad = gradient
        return list(gradients[len(leaves) :])

    def operation_threads(self) -> AbstractContextManager[object]:
        """Use the number of threads of an update for operations within the block."""
        return nullcontext() if self.row_threads is None else self.row_threads.operation_threads()

    def add_lookup_penalty(
        self, boundary: Embeddings, weights_B: Tensor, total_weight: Tensor
    ) -> None:
        """Add the gradient of `optimizer.sparse.l2_lookups` to a micro-batch, after `backward`."""
        self._has_lookup_penalty = True
        l2 = self.l2_lookups / total_weight  # the loss is a mean over the rows of the update
        add_lookup_gradients(
            boundary, weights_B * (self.loss_scale.scale(l2) if self.loss_scale else l2)
        )

    def update(self, embeddings: Embeddings, boundaries: Sequence[Embeddings]) -> bool:
        """Update all parameters of the model from the gradients gathered so far, or none of them.

        Collective.

        Args:
            embeddings: the look-ups of the whole batch.
            boundaries: what `backward` has given gradients to, for each micro-batch.

        Returns:
            Whether the update was applied; False if any gradient is NaN or infinite.

        Raises:
            ConfigError: if the task has left out the penalty on look-ups.
            UserError: if no gradient was gathered.
        """
        if self.l2_lookups and not self._has_lookup_penalty:
            raise ConfigError(
                f"optimizer.sparse.l2_lookups={self.l2_lookups:g}: the task has not added it by "
                "ctx.add_lookup_penalty, as Supervised does"
            )
        self._has_lookup_penalty = False
        outputs, gradients = boundary_gradients(embeddings, boundaries)
        if self.clip.is_enabled or self.log_gradients is not None:
            drop_empty_lookups(embeddings, outputs, gradients, self.tables.layout)
        if not outputs and all(p.grad is None for p in self.dense_parameters):
            raise UserError("task: ctx.update without a gradient; ctx.backward(loss) comes before")
        applied = self._finalize_gradients(self.dense_parameters, gradients)
        if applied:
            # before the tables, whose update drives the dense gradients out of the caches
            for optimizer in (self.dense_optimizer, *self.part_optimizers.values()):
                step_optimizer(optimizer)
        self._release_gradients(self.dense_parameters, applied)
        if applied and outputs:
            torch.autograd.backward(outputs, gradients)  # fused tables step in here
            late = [p for p in self.dense_parameters if p.grad is not None]
            assert not late, "the model's `embed` reads parameters of the dense half"
        return applied

    def step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Tensor] | None = None
    ) -> bool:
        """Update the parameters of one optimizer only.

        Collective.

        Args:
            optimizer: one of the dense half or of the task.
            closure: for optimizers that evaluate the loss several times: computes this rank's share
                of the loss, calls `backward` on it and returns it. Without a closure the gradients
                gathered so far are used.

        Returns:
            Whether the update was applied; False if a gradient is NaN or infinite.

        Raises:
            ConfigError: for a closure together with fp16 or clipping.
        """
        parameters = optimizer_parameters(optimizer)
        if closure is None:
            applied = self._finalize_gradients(parameters, [])
            if applied:
                step_optimizer(optimizer)
        else:
            if self.loss_scale:
                raise ConfigError(
                    "trainer.amp_dtype=fp16: a closure's gradients are not scaled; "
                    "trainer.amp_dtype=bf16 needs no scale"
                )
            if self.clip.is_enabled:
                raise ConfigError(
                    "trainer.clip: a closure's gradients are not clipped; set "
                    "trainer.clip.global_norm=null, and the other bounds of trainer.clip"
                )

            def evaluate() -> tuple[Tensor, bool]:
                for state in self.update_states:  # the last evaluation counts
                    state.forget_update()
                with torch.enable_grad():
                    share = closure()
                loss = self.ranks.all_reduce_sum(share.detach().clone())
                for value in penalty_values(self.penalties).values():
                    loss = loss + value
                finite = self._finalize_gradients(parameters, []) and math.isfinite(loss)  # sync
                return loss, finite

            applied = step_with_closure(optimizer, parameters, evaluate, self.device)
        self._release_gradients(parameters, applied)
        return applied

    def end_update(self, *, applied: bool) -> None:
        """End an update, after `train_step`, when all its gradients are used.

        Collective.

        Args:
            applied: whether it changed the weights; running statistics move only then.
        """
        for state in self.update_states:
            state.end_update(applied=applied)
        if self.loss_scale:
            self.loss_scale.update()

    def zero_grad(self) -> None:
        """Drop all gradients gathered so far.

        For tasks of several players, in which a loss leaves gradients in parameters of others.
        """
        for optimizer in self.optimizers().values():
            optimizer.zero_grad()

    def _finalize_gradients(
        self, parameters: Sequence[nn.Parameter], boundary: list[Tensor]
    ) -> bool:
        """Unscale gradients, sum them over ranks, add penalties and clip them, in place.

        Collective.

        Returns:
            Whether all of them are finite.
        """
        dense = [p.grad for p in parameters if p.grad is not None]
        if self.loss_scale:
            self.loss_scale.unscale([*dense, *boundary])
        finite = True
        if self.ranks.is_distributed:
            # every rank has its own boundary, so whether it is finite is exchanged with the sums
            finite = all_reduce_gradients(parameters, self.ranks, is_finite=all_finite(boundary))
        if self.penalties:
            add_penalty_gradients(self.penalties, parameters)
        if self.ranks.is_distributed or self.penalties:
            dense = [p.grad for p in parameters if p.grad is not None]
        finite = finite and all_finite(dense if self.ranks.is_distributed else [*dense, *boundary])
        if finite and self.log_gradients is not None:
            self._log_norms(parameters, boundary)
        if finite and self.clip.is_enabled:
            clip_gradients(self.clip, dense, boundary, self.tables.layout, self.ranks)
        return finite

    def _log_norms(self, parameters: Sequence[nn.Parameter], boundary: list[Tensor]) -> None:
        gradients = {
            self.parameter_names.get(id(p), str(i)): p.grad
            for i, p in enumerate(parameters)
            if p.grad is not None
        }
        norms = gradient_norms(
            gradients,
            boundary,
            self.tables.layout,
            self.ranks,
            per_parameter=self.log_gradients == "parameters",
        )
        for name, norm in norms.items():
            self.logged_means.add(name, norm)

    def _release_gradients(self, parameters: Sequence[nn.Parameter], applied: bool) -> None:
        for parameter in parameters:
            parameter.grad = None
        if self.loss_scale:
            self.loss_scale.record(applied)
