"""Which parameters the dense optimizers train, by name."""

from __future__ import annotations

from torch import nn

from runner.models.layers.embedding import TableLookup
from runner.models.losses import Loss
from runner.training.update.context import Context

# They begin the names of a loss's and of a task's own parameters.
LOSS_PREFIX, TASK_PREFIX = "loss.", "task."


def dense_parameters(model: nn.Module, loss: Loss) -> dict[str, nn.Parameter]:
    """What the dense optimizer trains, by name: the model but its tables, and the loss.

    Names of a loss's parameters, such as learnt weights of tasks, begin with `loss.`.
    """
    prefixes = table_prefixes(model)
    found = {name: p for name, p in model.named_parameters() if not name.startswith(prefixes)}
    if isinstance(loss, nn.Module):
        found |= {f"{LOSS_PREFIX}{name}": p for name, p in loss.named_parameters()}
    return {name: p for name, p in found.items() if p.requires_grad}


def trained_parameters(ctx: Context) -> dict[str, nn.Parameter]:
    """All that is trained, by name, but the tables."""
    found = dense_parameters(ctx.model, ctx.loss)
    for name, module in ctx.task_modules.items():
        own = {f"{TASK_PREFIX}{name}.{n}": p for n, p in module.named_parameters()}
        found |= {n: p for n, p in own.items() if p.requires_grad}
    return found


def table_prefixes(model: nn.Module) -> tuple[str, ...]:
    """How the names of a model's parameters begin that belong to its tables."""
    return tuple(f"{name}." for name, m in model.named_modules() if isinstance(m, TableLookup))
