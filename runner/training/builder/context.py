"""Builds the context of the updates: model, tables with their optimizers, dense optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runner.batch import Schema
from runner.config.settings import (
    EmaSettings,
    LrScalingSettings,
    TrainerSettings,
    make_settings,
)
from runner.config.targets import resolve_part
from runner.data.core.dataset import Dataset
from runner.distributed.global_batch import rank_batch_size
from runner.distributed.ranks import current_ranks
from runner.embeddings.interface import Placement
from runner.embeddings.placement import describe_placement
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError
from runner.models.layers.embedding import TableLookup
from runner.models.layers.recommender import Recommender
from runner.models.losses import Loss, check_loss_inputs
from runner.models.row_scope import UPDATE_SCOPE
from runner.models.table_widths import AUTO, TableWidths, one_width, resolve_widths
from runner.optim.lr_scaling import lr_scale_factor
from runner.optim.param_groups import parse_parameter_groups
from runner.optim.penalties import resolve_penalties
from runner.optim.penalty_settings import parse_penalties
from runner.optim.settings import parse_sparse
from runner.reporting.console import View
from runner.rundir.json_files import write_json
from runner.rundir.run import Run
from runner.training.builder.growing import check_growth, make_growing_ids
from runner.training.builder.instantiate import instantiate
from runner.training.builder.optimizers import (
    DENSE,
    BuiltTables,
    ParameterGroups,
    assign_parameters,
    build_dense_optimizers,
    build_table_groups,
    group_schedules,
    make_table_builder,
)
from runner.training.builder.own_schedule import build_any_schedule
from runner.training.builder.part_kinds import KINDS
from runner.training.builder.threads import limit_threads
from runner.training.catalogue import count_ids_for_model
from runner.training.job import LearningRates
from runner.training.rng_state import seed_rank
from runner.training.update.compilation import compile_dense
from runner.training.update.context import Context, optimizer_parameters
from runner.training.update.ema import MovingAverage
from runner.training.update.loss_scale import LossScale
from runner.training.update.parameters import (
    dense_parameters,
    running_statistics,
    trained_parameters,
)
from runner.training.update.task import Task
from runner.training.update.unsaved_state import check_extra_state

AMP_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_context(
    config: Mapping[str, Any],
    trainer: TrainerSettings,
    dataset: Dataset,
    device: torch.device,
    run: Run | None,
    view: View,
    allowed: Sequence[str],
) -> tuple[Context, ParameterGroups, dict[str, float]]:
    """Build model, loss, tables and optimizers.

    Collective.

    Args:
        config: of the whole job.
        trainer: the settings of its group `trainer`.
        dataset: gives the schema, and the counts of ids that a model may ask for.
        device: of this rank.
        run: its directory gets `sharding.json`; None: nothing is written.
        view: where people read how the tables are placed.
        allowed: packages that a `_target_` may name besides ours.

    Returns:
        The context, who owns which parameter, and the learning rates of the tables by name.

    Raises:
        ConfigError: for parts of the configuration that do not fit each other or the data.
    """
    ranks = current_ranks()
    model, loss = build_model_and_loss(config["model"], dataset.schema, allowed)
    parameters = dense_parameters(model, loss)
    lookup = get_table_lookup(model)
    parameter_groups = assign_parameters(
        parse_parameter_groups(config["optimizer"]),
        list(parameters),
        [spec.name for spec in lookup.specs],
    )
    built = build_embedding_tables(lookup, config, parameter_groups, trainer, device)
    if ranks.is_main:
        report_placement(built.tables.placement(), ranks.world_size, run, view)
    model.to(device)
    if isinstance(loss, nn.Module):
        loss.to(device)
    for tensor in (*model.parameters(), *model.buffers(), *parameters.values()):
        ranks.broadcast_(tensor.data)  # a model may draw from generators that no seed reaches
    check_growth(config, dataset, model)
    count_ids_for_model(model, dataset, ranks)
    seed_rank(config["seed"], ranks.rank)
    optimizers = build_dense_optimizers(
        config["optimizer"]["dense"],
        parameters,
        parameter_groups,
        partial(
            resolve_part, allowed=allowed, kind=KINDS["optimizer.dense"], key="optimizer.dense"
        ),
    )
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
        ema=make_ema({**parameters, **running_statistics(model)}, trainer.ema),
        clip=trainer.clip,
        l2_lookups=built.l2_lookups(),
        log_gradients=trainer.log_gradients,
        schema=dataset.schema,
    )
    rows_at_once = context.rows_at_once(rank_batch_size(trainer.batch_size, trainer.accumulate))
    if trainer.compile:
        if not config["loop"]["_target_"].startswith("runner.training.loops.debug."):
            compile_dense(model, device, rows_at_once)  # debug observes modules, which it hides
    elif trainer.num_threads is None and (
        device.type != "cpu"
        or limit_threads(model, parameters.values(), dataset.schema, lookup.dim, rows_at_once)
    ):
        dataset.read_ahead()
    context.growing = make_growing_ids(config, dataset, context, lookup)
    report_rows_at_once(context, trainer, view)
    return context, parameter_groups, built.base_lrs


def build_model_and_loss(
    node: Mapping[str, Any], schema: Schema, allowed: Sequence[str]
) -> tuple[Recommender, Loss]:
    """Build `model.net` and `model.loss`, and check that they fit each other.

    Raises:
        ConfigError: if the loss reads what the model does not provide, or if one of them keeps
            state that no checkpoint holds.
    """
    node = {**node, "net": with_table_widths(node["net"], schema, allowed)}
    model: Recommender
    model, loss = (
        instantiate(
            node[name], KINDS[f"model.{name}"], key=f"model.{name}", allowed=allowed, schema=schema
        )
        for name in ("net", "loss")
    )
    try:
        check_loss_inputs(model, loss)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    check_extra_state("model.net", model)
    check_extra_state("model.loss", loss)
    return model, loss


def with_table_widths(
    net: Mapping[str, Any], schema: Schema, allowed: Sequence[str]
) -> Mapping[str, Any]:
    """Return `model.net` with the numbers that its `embedding_dim` means for these tables.

    A model whose constructor is annotated with `TableWidths` may get a width for each table.

    Raises:
        ConfigError: for widths that do not fit the tables or the model.
    """
    value = net.get("embedding_dim")
    num_rows = {f.table_name: f.num_rows for f in schema.sparse}
    num_rows |= {s.table_name: s.num_rows for s in schema.sequences}
    if not (value == AUTO or isinstance(value, Mapping)) or not num_rows:
        return net  # without tables the model says what it needs
    cls = resolve_part(net["_target_"], allowed, KINDS["model.net"], "model.net")
    annotation = inspect.get_annotations(cls.__init__).get("embedding_dim")
    if annotation in ("TableWidths", TableWidths) and not schema.sequences:
        return {**net, "embedding_dim": resolve_widths(value, num_rows)}
    return {**net, "embedding_dim": one_width(value, num_rows, cls.__name__)}


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


def base_learning_rates(
    context: Context, table_lrs: Mapping[str, float], scaling: LrScalingSettings
) -> dict[str, float]:
    """Return the full learning rates of all optimizers by name, scaled by the batches of an update.

    Called before the first update, which sets the rates of a schedule: an optimizer of the dense
    half or of the task may have the default rate of its class, which only the optimizer knows.

    Args:
        context: after the task has added its optimizers.
        table_lrs: learning rates of the tables, by name.
        scaling: of `trainer.lr_scaling`, resolved.
    """
    lrs = {name: float(o.param_groups[0]["lr"]) for name, o in context.optimizers().items()}
    scale = lr_scale_factor(scaling.rule, scaling.batches)
    return {name: lr * scale for name, lr in {**lrs, **table_lrs}.items()}


def make_learning_rates(
    config: Mapping[str, Any],
    base_lrs: Mapping[str, float],
    parameter_groups: ParameterGroups,
    allowed: Sequence[str],
    total_steps: int | None,
    steps_per_epoch: int | None,
) -> LearningRates:
    """Return the full learning rates with the schedules of a run of this length.

    Raises:
        ConfigError: for a schedule that does not fit the length of the run.
    """
    build = partial(
        build_any_schedule,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        allowed=allowed,
    )
    schedules = group_schedules(config["optimizer"].get("schedules") or {}, parameter_groups)
    factors = {name: build(node, where=where) for name, (node, where) in schedules.items()}
    return LearningRates(base_lrs, build(config["scheduler"]), factors)


def get_table_lookup(model: nn.Module) -> TableLookup:
    """Return the one look-up that holds all tables of the model.

    Raises:
        ConfigError: if the model has none or several.
    """
    lookups = [m for m in model.modules() if isinstance(m, TableLookup)]
    if len(lookups) != 1:
        raise ConfigError(
            f"model.net: {type(model).__name__} must hold one TableLookup for all its tables, not "
            f"{len(lookups)}"
        )
    return lookups[0]


def build_embedding_tables(
    lookup: TableLookup,
    config: Mapping[str, Any],
    parameter_groups: ParameterGroups,
    trainer: TrainerSettings,
    device: torch.device,
) -> BuiltTables:
    """Give the model's tables memory, initial weights and their fused optimizers.

    Collective.
    """
    sparse = parse_sparse(config["optimizer"]["sparse"])
    build = make_table_builder(
        make_settings(ShardingSettings, config["sharding"]),
        current_ranks() if dist.is_initialized() else None,
        parameter_groups,
        sparse,
        seed=config["seed"],
        device=device,
        batch_size=rank_batch_size(trainer.batch_size, trainer.accumulate),
    )
    built = build_table_groups(
        lookup.specs, lookup.features, sparse, parameter_groups, build, device=device
    )
    lookup.attach_tables(built.tables)
    return built


def report_placement(
    placement: Sequence[Placement], world_size: int, run: Run | None, view: View
) -> None:
    """Show which rank has which part of which table, and write it into the run directory.

    A single process holds all tables whole: nothing is shown, and the file that the same run has
    left while it had several ranks is removed.
    """
    file = None if run is None else run.dir / "sharding.json"
    if not placement:
        if file is not None:
            file.unlink(missing_ok=True)
        return
    view.note(describe_placement(placement, world_size))
    if file is not None:
        pieces = [asdict(piece) for piece in placement]
        write_json(file, {"world_size": world_size, "pieces": pieces})


def report_rows_at_once(context: Context, trainer: TrainerSettings, view: View) -> None:
    """Show that the micro-batches of an update take the memory of one batch, if they do."""
    updates = [norm for norm in context.batch_norms if norm.scope == UPDATE_SCOPE]
    if updates and trainer.accumulate > 1 and context.ranks.is_main:
        view.note(
            f"batch statistics over the update: its {trainer.accumulate} micro-batches go through "
            "the dense half as one; model.net.norm_scope=micro_batch saves this memory"
        )


def make_ema(parameters: Mapping[str, torch.Tensor], settings: EmaSettings) -> MovingAverage | None:
    """Return the moving average of the dense half, if the settings ask for one.

    Args:
        parameters: with their initial weights, which are the same on all ranks; and running
            statistics.
        settings: of `trainer.ema`.
    """
    if settings.decay is None:
        return None
    return MovingAverage(
        parameters,
        decay=settings.decay,
        warmup=settings.warmup,
        use_in_evaluation=settings.evaluate,
    )
