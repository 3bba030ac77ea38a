"""Builds the context of the updates: model, tables with their optimizers, dense optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from runner.config.settings import TrainerSettings
from runner.config.settings.trainer import EmaSettings
from runner.config.targets import resolve_part
from runner.data.core.dataset import Dataset
from runner.distributed.global_batch import rank_batch_size
from runner.distributed.ranks import current_ranks
from runner.errors import ConfigError
from runner.models.row_scope import UPDATE_SCOPE
from runner.optim.dense import optimizer_parameters
from runner.optim.param_groups import parse_parameter_groups
from runner.optim.penalties import resolve_penalties
from runner.optim.penalty_settings import parse_penalties
from runner.reporting.console import View
from runner.training.builder.growing import check_growth, make_growing_ids
from runner.training.builder.inputs import JobInputs
from runner.training.builder.model import build_model_and_loss
from runner.training.builder.optimizers import (
    DENSE,
    ParameterGroups,
    assign_parameters,
    build_dense_optimizers,
    check_sparse_adam,
)
from runner.training.builder.part_kinds import KINDS
from runner.training.builder.tables import (
    build_embedding_tables,
    get_table_lookup,
    report_placement,
)
from runner.training.builder.threads import choose_threads, count_products
from runner.training.catalogue import count_ids_for_model
from runner.training.rng_state import seed_rank
from runner.training.update.context import Context
from runner.training.update.ema import MovingAverage
from runner.training.update.loss_scale import LossScale
from runner.training.update.parameters import (
    dense_parameters,
    running_statistics,
    trained_parameters,
)
from runner.training.update.task import Task
from runner.training.update.unsaved_state import warn_of_unregistered_parameters

AMP_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_context(
    inputs: JobInputs, dataset: Dataset
) -> tuple[Context, ParameterGroups, dict[str, float]]:
    """Build model, loss, tables and optimizers.

    Collective.

    Args:
        inputs: of the job. The run's directory gets `sharding.json`.
        dataset: gives the schema, and the counts of ids that a model may ask for.

    Returns:
        The context, the group of each parameter, and the learning rates of the tables by name.

    Raises:
        ConfigError: for parts of the configuration that do not fit each other or the data.
    """
    config, trainer, device, ranks = inputs.config, inputs.trainer, inputs.device, current_ranks()
    model, loss = build_model_and_loss(config["model"], dataset.schema, inputs.allowed)
    modules = {"model": model, "loss": loss}
    warn_of_unregistered_parameters(
        {name: part for name, part in modules.items() if isinstance(part, nn.Module)},
        inputs.view.warn,
    )
    parameters, lookup = dense_parameters(model, loss), get_table_lookup(model)
    parameter_groups = assign_parameters(
        parse_parameter_groups(config["optimizer"]),
        list(parameters),
        [spec.name for spec in lookup.specs],
    )
    built = build_embedding_tables(lookup, config, parameter_groups, trainer, device)
    if ranks.is_main:
        report_placement(built.tables.placement(), ranks.world_size, inputs.run, inputs.view)
    model.to(device)  # its tables stay on their own devices
    if isinstance(loss, nn.Module):
        loss.to(device)
    for tensor in (*model.parameters(), *model.buffers(), *parameters.values()):
        ranks.broadcast_(tensor.data)  # a model may draw from generators that are not seeded
    check_growth(config, dataset, model)
    count_ids_for_model(model, dataset, ranks)
    seed_rank(config["seed"], ranks.rank)
    key = "optimizer.dense"
    find_class = partial(resolve_part, allowed=inputs.allowed, kind=KINDS[key], key=key)
    optimizers = build_dense_optimizers(
        config["optimizer"]["dense"], parameters, parameter_groups, find_class
    )
    check_sparse_adam(optimizers.values(), model)
    context = Context(
        model=model,
        loss=loss,
        tables=built.tables,
        dense_optimizer=optimizers.pop(DENSE),
        part_optimizers=optimizers,
        trained_tables=built.trained,
        device=device,
        micro_batch_size=trainer.batch_size,
        amp_dtype=AMP_DTYPES[trainer.amp_dtype] if trainer.amp else None,
        loss_scale=LossScale(device) if trainer.amp and trainer.amp_dtype == "fp16" else None,
        ranks=ranks,
        ema=_make_averages({**parameters, **running_statistics(model)}, trainer.ema),
        clip=trainer.clip,
        l2_lookups=built.l2_lookups(),
        log_gradients=trainer.log_gradients,
        schema=dataset.schema,
    )
    num_rows = context.rows_at_once(rank_batch_size(trainer.batch_size, trainer.accumulate))
    if not trainer.compile:
        products = count_products(model, parameters.values(), dataset.schema, lookup.dim)
        choose_threads(context, config, products, num_rows, dataset)
    context.growing = make_growing_ids(config, dataset, context, lookup)
    report_rows_at_once(context, trainer, inputs.view)
    return context, parameter_groups, built.base_lrs


def _make_averages(tensors: Mapping[str, Tensor], settings: EmaSettings) -> MovingAverage | None:
    if settings.decay is None:
        return None
    return MovingAverage(  # the initial weights are the same on all ranks
        tensors, decay=settings.decay, warmup=settings.warmup, use_in_evaluation=settings.evaluate
    )


def set_up_task(task: Task, context: Context, trainer: TrainerSettings) -> None:
    """Let the task set itself up, then resolve what depends on its parameters too.

    Collective.

    Raises:
        ConfigError: for a parameter of the task that no optimizer would train.
    """
    setup = getattr(task, "setup", None)
    if setup is not None:
        setup(context)
    parameters = trained_parameters(context)
    trained = {id(p) for o in context.optimizers().values() for p in optimizer_parameters(o)}
    for name, parameter in parameters.items():
        if id(parameter) not in trained:
            raise ConfigError(
                f"{type(task).__name__}: {name} has no optimizer: ctx.add_optimizer in setup gives "
                "it one, requires_grad_(False) freezes it"
            )
    context.parameter_names = {id(p): name for name, p in parameters.items()}
    tables = [spec.name for spec in context.tables.layout.tables]
    context.penalties = resolve_penalties(parse_penalties(trainer.penalties), parameters, tables)


def report_rows_at_once(context: Context, trainer: TrainerSettings, view: View) -> None:
    """Show a note if the micro-batches of an update need the memory of one whole batch."""
    updates = [norm for norm in context.batch_norms if norm.scope == UPDATE_SCOPE]
    if updates and trainer.accumulate > 1 and context.ranks.is_main:
        view.note(
            f"batch norm over whole updates: the {trainer.accumulate} micro-batches of an update "
            "go through the dense layers as one batch, which takes its memory; "
            "model.net.norm_scope=micro_batch saves it"
        )
