"""The score of a batch before it is learnt from: the update's own forward, or one before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Prediction
from runner.models.layers.embedding import TableLookup
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised, Task


def can_reuse_forward(task: Task, context: Context) -> bool:
    """Whether the forward of an update gives what an evaluation just before it would give.

    It does where the task is the plain one, and no module of model or loss looks at whether it is
    training, as dropout and batch normalisation do. A module that we cannot judge counts as one.
    """
    roots = [context.model, *([context.loss] if isinstance(context.loss, nn.Module) else [])]
    modules = (m for root in roots for m in _outside_tables(root))
    if context.ema is not None and context.ema.use_in_evaluation:
        return False
    plain = type(task) is Supervised and not context.penalties  # which its losses contain
    return plain and not any(depends_on_training_mode(m) for m in modules)


def _outside_tables(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, TableLookup):
        return
    yield module
    for child in module.children():
        yield from _outside_tables(child)


def depends_on_training_mode(module: nn.Module) -> bool:
    """Whether any method of its classes below `nn.Module` names `training`, or it has hooks."""
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


class PrequentialTask:
    """A task whose output holds predictions made by `eval_step` before the update.

    A task that takes several batches an update has each scored as it takes it.
    """

    def __init__(self, task: Task, context: Context) -> None:
        self.task = task
        self._modules = [module for root in context.root_modules() for module in root.modules()]

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        scores: list[tuple[Prediction, dict[str, Tensor]]] = []
        output = self.task.train_step(ctx, self._scored(ctx, batches, scores))
        predictions, losses = zip(*scores)
        return replace(output, predictions=predictions, losses=losses)

    def _scored(
        self,
        ctx: Context,
        batches: Iterator[Batch],
        scores: list[tuple[Prediction, dict[str, Tensor]]],
    ) -> Iterator[Batch]:
        for batch in batches:
            before = [module.training for module in self._modules]
            for root in ctx.root_modules():
                root.eval()
            with ctx.evaluation_weights(), torch.no_grad():
                scores.append(self.task.eval_step(ctx, batch))
            for module, training in zip(self._modules, before):
                module.training = training
            yield batch

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        return self.task.eval_step(ctx, batch)

    def __getattr__(self, name: str) -> Any:
        """All else that a task may have is the inner one's."""
        return getattr(self.__dict__["task"], name)
