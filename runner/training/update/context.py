"""Gradient semantics: what a task may do to the model, and how an update reaches everything."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Schema
from runner.distributed.all_reduce import all_reduce_gradients
from runner.distributed.ranks import Ranks, current_ranks
from runner.embeddings.factory import EmbeddingTables
from runner.errors import ConfigError
from runner.models.layers.recommender import Recommender
from runner.models.losses import Loss
from runner.optim.fused_step import step_optimizer
from runner.optim.penalties import ParameterPenalty, add_penalty_gradients, penalty_values
from runner.optim.settings import ClipSettings
from runner.training.update.closure import step_with_closure
from runner.training.update.ema import MovingAverage
from runner.training.update.grad_clip import clip_gradients, gradient_norms
from runner.training.update.logged_means import RunningMeans
from runner.training.update.loss_scale import LossScale

if TYPE_CHECKING:  # TorchRec's pipelines are imported where one runs
    from runner.training.update.sparse_dist_pipeline import SparseDistPipeline


@dataclass
class Context:
    """What `train_step` works with: the parts of the job that an update touches."""

    model: Recommender
    loss: Loss
    tables: EmbeddingTables
    dense_optimizer: torch.optim.Optimizer
    device: torch.device
    micro_batch_size: int  # rows
    amp_dtype: torch.dtype | None = None  # None: no autocast
    loss_scale: LossScale | None = None  # fp16 only
    prefetch_to_device: bool = True  # to a GPU, the next batch beside an update
    sparse_dist: SparseDistPipeline | None = (
        None  # between ranks, the ids of the next batch beside an update
    )
    ranks: Ranks = field(default_factory=current_ranks)
    ema: MovingAverage | None = None  # of the dense half
    part_optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)  # by rate
    trained_tables: dict[str, EmbeddingTables] | None = None  # by rate; None: all have one
    prior_table_updates: dict[str, int] = field(default_factory=dict)  # before this run, by table
    clip: ClipSettings = field(default_factory=ClipSettings)
    penalties: tuple[ParameterPenalty, ...] = ()
    log_gradients: str | None = None  # global, parameters
    schema: Schema | None = None  # of the dataset
    task_modules: dict[str, nn.Module] = field(default_factory=dict)  # of the task
    task_optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)  # of the task
    logged_means: RunningMeans = field(
        default_factory=RunningMeans
    )  # what `log` was told since the last row
    parameter_names: dict[int, str] = field(
        default_factory=dict
    )  # of parameters, by id, for the log
    table_groups: dict[str, EmbeddingTables] = field(init=False)  # those that train, by rate
    dense_parameters: list[nn.Parameter] = field(init=False)  # of the dense half, that train

    def __post_init__(self) -> None:
        trained = self.trained_tables
        self.table_groups = {"sparse": self.tables} if trained is None else trained
        owners = (self.dense_optimizer, *self.part_optimizers.values())
        self.dense_parameters = [p for optimizer in owners for p in optimizer_parameters(optimizer)]

    def root_modules(self) -> list[nn.Module]:
        """Everything that has a train and an eval mode."""
        return [self.model, *self.task_modules.values()]

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """All but those of the tables, by the name of their rate."""
        return {"dense": self.dense_optimizer, **self.part_optimizers, **self.task_optimizers}

    def add_module(self, name: str, module: nn.Module) -> nn.Module:
        """Collective. For `setup`: a module of the task's own. On the device, equal on all ranks,
        saved and resumed as `task.<name>`, in eval mode during evaluation.

        Raises: ConfigError for a name that is taken or no plain word.
        """
        if not re.fullmatch(r"\w+", name) or name in self.task_modules:
            raise ConfigError(f"ctx.add_module({name!r}): a plain word that is not taken yet")
        module.to(self.device)
        for tensor in (*module.parameters(), *module.buffers()):
            self.ranks.broadcast_(tensor.data)
        self.task_modules[name] = module
        return module

    def add_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """For `setup`: an optimizer of the task's own modules. It follows the scheduler, is logged
        as `lr/<name>`, saved and resumed.

        Raises: ConfigError for a name or a parameter that is taken, or several rates.
        """
        if not re.fullmatch(r"\w+", name) or name in {*self.optimizers(), *self.table_groups}:
            raise ConfigError(f"ctx.add_optimizer({name!r}): a plain word that is not taken yet")
        if len({group["lr"] for group in optimizer.param_groups}) > 1:
            raise ConfigError(f"ctx.add_optimizer({name!r}): one rate; several optimizers can be")
        taken = {id(p) for o in self.optimizers().values() for p in optimizer_parameters(o)}
        if any(id(p) in taken for p in optimizer_parameters(optimizer)):
            raise ConfigError(f"ctx.add_optimizer({name!r}): a parameter has an optimizer already")
        self.task_optimizers[name] = optimizer
        return optimizer

    def log(self, name: str, value: Tensor | float) -> None:
        """A number for the rows of the train log: its mean since the last row, over all ranks."""
        self.logged_means.add(name, value)

    def autocast(self) -> AbstractContextManager[object]:
        if self.amp_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.amp_dtype)

    def evaluation_weights(self) -> AbstractContextManager[object]:
        """Within it the model has the weights that evaluations take: its own, or their averages."""
        if self.ema is None or not self.ema.use_in_evaluation:
            return nullcontext()
        return self.ema.average_parameters()

    def total_weight(self, batch: Batch) -> Tensor:
        """Collective. Of the rows of an update, over all its micro-batches and ranks; above 0.

        A loss divided by it makes gradients of micro-batches and ranks add up to the one of a
        single batch, however many rows each of them has.
        """
        weight = self.ranks.all_reduce_sum(batch.weights_B.sum())
        return weight.clamp_min(torch.finfo(torch.float32).tiny)

    def backward(self, loss: Tensor) -> None:
        """Adds to the gradients of the dense half and of the boundary; touches no table."""
        (self.loss_scale.scale(loss) if self.loss_scale else loss).backward()

    def update(self, embeddings: Embeddings, boundaries: Sequence[Embeddings]) -> bool:
        """Collective. One update of all of the model's parameters from the gradients gathered so
        far, or of none.

        Returns: whether it was applied; False if any gradient is NaN or infinite.
        """
        outputs, gradients = _boundary_gradients(embeddings, boundaries)
        applied = self._finalize_gradients(self.dense_parameters, gradients)
        if applied:
            if outputs:
                torch.autograd.backward(outputs, gradients)  # fused tables step in here
            for own in (self.dense_optimizer, *self.part_optimizers.values()):
                step_optimizer(own)
        self._release_gradients(self.dense_parameters, applied)
        return applied

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Tensor] | None = None,
    ) -> bool:
        """Collective. One update of what `optimizer` owns, and of nothing else.

        Args: closure: for optimizers that evaluate several times: computes this rank's share of
        the loss, calls `backward` on it and returns it. Without one, the gradients gathered so far
        count.
        Returns: whether it was applied; False if a gradient is NaN or infinite.
        """
        owned = optimizer_parameters(optimizer)
        if closure is None:
            applied = self._finalize_gradients(owned, [])
            if applied:
                step_optimizer(optimizer)
        else:
            if self.loss_scale:
                raise ConfigError("trainer.amp_dtype=fp16: a closure's gradients are not scaled")
            if self.clip.is_enabled:
                raise ConfigError("trainer.clip: a closure's gradients are not clipped")

            def evaluate() -> tuple[Tensor, bool]:
                with torch.enable_grad():
                    share = closure()
                loss = self.ranks.all_reduce_sum(share.detach().clone())
                for value in penalty_values(self.penalties).values():
                    loss = loss + value
                return loss, self._finalize_gradients(owned, []) and math.isfinite(loss)  # sync

            applied = step_with_closure(optimizer, owned, evaluate, self.device)
        self._release_gradients(owned, applied)
        return applied

    def end_update(self) -> None:
        """Called after every `train_step`: no gradient of the update is left."""
        if self.loss_scale:
            self.loss_scale.update()

    def zero_grad(self) -> None:
        """Forgets all gradients gathered so far, such as those that one player left in another."""
        for optimizer in self.optimizers().values():
            for parameter in optimizer_parameters(optimizer):
                parameter.grad = None

    def _finalize_gradients(
        self, parameters: Sequence[nn.Parameter], boundary: list[Tensor]
    ) -> bool:
        """Collective. Makes what was gathered the gradients of the update: unscaled, summed over
        ranks, with penalties, clipped. Returns whether all of it is finite."""
        dense = [p.grad for p in parameters if p.grad is not None]
        if self.loss_scale:
            self.loss_scale.unscale([*dense, *boundary])
        sound = True
        if (
            self.ranks.is_distributed
        ):  # the sums are equal on all ranks, the boundary is each one's own
            sound = all_reduce_gradients(parameters, self.ranks, is_finite=all_finite(boundary))
        if self.penalties:
            add_penalty_gradients(self.penalties, parameters)
        if self.ranks.is_distributed or self.penalties:
            dense = [p.grad for p in parameters if p.grad is not None]
        finite = sound and all_finite(dense if self.ranks.is_distributed else [*dense, *boundary])
        if finite and self.log_gradients is not None:
            self._log_norms(parameters, boundary)
        if finite and self.clip.is_enabled:
            clip_gradients(self.clip, dense, boundary, self.tables.layout, self.ranks)
        return finite

    def _log_norms(self, parameters: Sequence[nn.Parameter], boundary: list[Tensor]) -> None:
        named = {
            self.parameter_names.get(id(p), str(i)): p.grad
            for i, p in enumerate(parameters)
            if p.grad is not None
        }
        each = self.log_gradients == "parameters"
        norms = gradient_norms(named, boundary, self.tables.layout, self.ranks, per_parameter=each)
        for name, norm in norms.items():
            self.logged_means.add(name, norm)

    def _release_gradients(self, parameters: Sequence[nn.Parameter], applied: bool) -> None:
        for parameter in parameters:
            parameter.grad = None
        if self.loss_scale:
            self.loss_scale.record(applied)


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _boundary_gradients(
    embeddings: Embeddings, boundaries: Sequence[Embeddings]
) -> tuple[list[Tensor], list[Tensor]]:
    """The look-ups that were used, and the gradient of each over all its micro-batches."""
    outputs, gradients = [], []
    num_by_row = len(embeddings.row_lookups())
    every = zip(embeddings.tensors(), *(b.tensors() for b in boundaries))
    for place, (output, *parts) in enumerate(every):
        if not output.requires_grad or all(p.grad is None for p in parts):
            continue
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parts]
        outputs.append(output)
        if len(grads) > 1:  # rows stand one after another, what is shared adds up
            grads = [torch.cat(grads) if place < num_by_row else torch.stack(grads).sum(0)]
        gradients.append(grads[0])
    return outputs, gradients


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no element is NaN or infinite. Synchronises: the decision is taken on the host."""
    tensors = [t for t in tensors if t.numel()]
    if not tensors:
        return True
    if all(t.device.type == "cpu" for t in tensors):
        # A NaN or an infinity always shows in a sum, at the cost of reading the memory once; torch
        # has no vectorised infinity norm on CPU. Finite numbers may overflow a sum: then we look.
        if all(math.isfinite(t.sum().item()) for t in tensors):
            return True
        return all(bool(torch.isfinite(t).all()) for t in tensors)
    # one kernel for all; the largest magnitude keeps a NaN and cannot overflow, unlike a sum
    largest = torch.stack(torch._foreach_norm(tensors, float("inf")))
    return bool(torch.isfinite(largest).all())  # sync
