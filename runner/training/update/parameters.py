"""Which parameters the dense optimizers train, by name."""

from __future__ import annotations

from torch import Tensor, nn

from runner.models.layers.batch_norm import BatchNorm
from runner.models.layers.embedding import TableLookup
from runner.models.losses import Loss
from runner.training.update.context import Context

# prefixes of the names of parameters of a loss or a task; no part of a model may be
# called so
LOSS_PREFIX, TASK_PREFIX = "loss.", "task."


def dense_parameters(model: nn.Module, loss: Loss) -> dict[str, nn.Parameter]:
    """Return the trained parameters of the model, without its tables, and of the loss, by name.

    Names of a loss's parameters, such as learned weights of tasks, begin with `loss.`.
    """
    prefixes = table_prefixes(model)
    parameters = {name: p for name, p in model.named_parameters() if not name.startswith(prefixes)}
    if isinstance(loss, nn.Module):
        parameters |= {f"{LOSS_PREFIX}{name}": p for name, p in loss.named_parameters()}
    return {name: p for name, p in parameters.items() if p.requires_grad}


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of a model's batch norms, by name."""
    return {
        f"{prefix}.{name}": module.get_buffer(name)
        for prefix, module in model.named_modules()
        if isinstance(module, BatchNorm)
        for name in ("running_mean", "running_var")
    }


def trained_parameters(ctx: Context) -> dict[str, nn.Parameter]:
    """Return the trained parameters of model, loss and task, without the tables, by name."""
    parameters = dense_parameters(ctx.model, ctx.loss)
    for name, module in ctx.task_modules.items():
        of_module = {f"{TASK_PREFIX}{name}.{n}": p for n, p in module.named_parameters()}
        parameters |= {n: p for n, p in of_module.items() if p.requires_grad}
    return parameters


def table_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Return the prefixes of the names of a model's parameters that belong to its tables."""
    return tuple(f"{name}." for name, m in model.named_modules() if isinstance(m, TableLookup))
