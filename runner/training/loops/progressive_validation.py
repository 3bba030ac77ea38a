"""Scores a batch before the update, by the forward of the update itself or an earlier one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Prediction
from runner.models.layers.embedding import TableLookup
from runner.parts import internal
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised, Task


def can_reuse_forward(task: Task, context: Context) -> bool:
    """Return whether the forward of an update gives what an evaluation just before it would give.

    It does if the task is exactly `Supervised`, and no module of the model or the loss depends on
    the training mode, as dropout and batch normalisation do. A module that cannot be judged counts
    as one that does.
    """
    roots = [context.model, *([context.loss] if isinstance(context.loss, nn.Module) else [])]
    modules = (m for root in roots for m in _outside_tables(root))
    if context.ema is not None and context.ema.use_in_evaluation:
        return False
    plain = type(task) is Supervised and not context.penalties  # its losses contain penalties
    return plain and not any(depends_on_training_mode(m) for m in modules)


def _outside_tables(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, TableLookup):
        return
    yield module
    for child in module.children():
        yield from _outside_tables(child)


def depends_on_training_mode(module: nn.Module) -> bool:
    """Return whether a method of the module's own classes names `training`, or it has hooks."""
    if module._forward_hooks or module._forward_pre_hooks:
        return True
    return any(
        _names_training(value.__code__)
        for cls in type(module).__mro__
        if cls not in nn.Module.__mro__
        for value in vars(cls).values()
        if isinstance(value, FunctionType)
    )


def _names_training(code: CodeType) -> bool:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return "training" in code.co_names or any(map(_names_training, inner))


@internal
class PrequentialTask:
    """Wraps a task: its output holds predictions that `eval_step` made before the update.

    If the task takes several batches for an update, each is scored when it is taken.
    """

    def __init__(self, task: Task, context: Context) -> None:
        self.task = task
        self._modules = [module for root in context.root_modules() for module in root.modules()]

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        scores: list[tuple[Prediction, dict[str, Tensor]]] = []
        output = self.task.train_step(ctx, self._score_batches(ctx, batches, scores))
        predictions, losses = zip(*scores)
        return replace(output, predictions=predictions, losses=losses)

    def _score_batches(
        self,
        ctx: Context,
        batches: Iterator[Batch],
        scores: list[tuple[Prediction, dict[str, Tensor]]],
    ) -> Iterator[Batch]:
        for batch in batches:
            modes = [module.training for module in self._modules]
            for root in ctx.root_modules():
                root.eval()
            with ctx.evaluation_weights(), torch.no_grad():
                scores.append(self.task.eval_step(ctx, batch))
            for module, training in zip(self._modules, modes):
                module.training = training
            yield batch

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        return self.task.eval_step(ctx, batch)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the wrapped task."""
        return getattr(self.__dict__["task"], name)
