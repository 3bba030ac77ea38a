"""Model -> tables with their optimizer -> dense optimizers -> task: what an update touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runner.config.settings import EmaSettings, TrainerSettings, make_settings
from runner.config.targets import resolve_target
from runner.data.core.dataset import Dataset
from runner.distributed.ranks import current_ranks
from runner.embeddings.factory import EmbeddingTables
from runner.embeddings.interface import Placement
from runner.embeddings.placement import describe_placement
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError
from runner.models.layers.embedding import TableLookup
from runner.models.layers.recommender import Recommender
from runner.models.losses import check_loss_inputs
from runner.optim.lr_scaling import lr_scale_factor
from runner.optim.lr_schedule import build_schedule
from runner.optim.param_groups import parse_parameter_groups
from runner.optim.penalties import resolve_penalties
from runner.optim.penalty_settings import parse_penalties
from runner.optim.settings import parse_sparse
from runner.reporting.console import View
from runner.rundir.json_files import write_json
from runner.rundir.run import Run
from runner.training.builder.instantiate import instantiate
from runner.training.builder.optimizers import (
    DENSE,
    ParameterGroups,
    assign_parameters,
    build_dense_optimizers,
    build_table_groups,
    group_schedules,
    make_table_builder,
)
from runner.training.catalogue import count_ids_for_model
from runner.training.job import LearningRates
from runner.training.rng_state import seed_rank
from runner.training.update.compilation import compile_dense
from runner.training.update.context import Context, optimizer_parameters
from runner.training.update.ema import MovingAverage
from runner.training.update.loss_scale import LossScale
from runner.training.update.parameters import dense_parameters, trained_parameters
from runner.training.update.task import Task

AMP_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_context(
    config: Mapping[str, Any],
    trainer: TrainerSettings,
    dataset: Dataset,
    device: torch.device,
    run: Run | None,
    view: View,
    allowed: Sequence[str],
) -> tuple[Context, ParameterGroups]:
    """Collective. Model, loss, tables and optimizers, and who owns what."""
    ranks = current_ranks()
    model: Recommender = instantiate(config["model"]["net"], schema=dataset.schema, allowed=allowed)
    loss = instantiate(config["model"]["loss"], schema=dataset.schema, allowed=allowed)
    try:
        check_loss_inputs(model, loss)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    parameters = dense_parameters(model, loss)
    lookup = get_table_lookup(model)
    owned = assign_parameters(
        parse_parameter_groups(config["optimizer"]),
        list(parameters),
        [spec.name for spec in lookup.specs],
    )
    tables, table_groups = build_embedding_tables(lookup, config, owned, trainer, device)
    if ranks.is_main:
        report_placement(tables.placement(), ranks.world_size, run, view)
    model.to(device)
    if isinstance(loss, nn.Module):
        loss.to(device)
    for tensor in (*model.parameters(), *model.buffers(), *parameters.values()):
        ranks.broadcast_(tensor.data)  # a model may draw from where no seed reaches
    count_ids_for_model(model, dataset, ranks)
    seed_rank(config["seed"], ranks.rank)
    if trainer.compile and not config["loop"]["_target_"].startswith(
        "runner.training.loops.debug."
    ):
        compile_dense(model, device)  # debug looks into modules, which a compiled half has not
    optimizers = build_dense_optimizers(
        config["optimizer"]["dense"], parameters, owned, partial(resolve_target, allowed=allowed)
    )
    context = Context(
        model=model,
        loss=loss,
        tables=tables,
        dense_optimizer=optimizers.pop(DENSE),
        part_optimizers=optimizers,
        trained_tables=table_groups,
        device=device,
        micro_batch_size=trainer.batch_size,
        amp_dtype=AMP_DTYPES[trainer.amp_dtype] if trainer.amp else None,
        loss_scale=LossScale(device) if trainer.amp and trainer.amp_dtype == "fp16" else None,
        ranks=ranks,
        ema=make_ema(parameters, trainer.ema),
        clip=trainer.clip,
        log_gradients=trainer.log_gradients,
        schema=dataset.schema,
    )
    return context, owned


def set_up_task(task: Task, context: Context, trainer: TrainerSettings) -> None:
    """Collective. What the task brings, and what holds for parameters of its as well.

    Raises: ConfigError for a parameter of the task's that nothing would train.
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


def make_learning_rates(
    config: Mapping[str, Any],
    context: Context,
    owned: ParameterGroups,
    total_steps: int | None,
    steps_per_epoch: int | None,
) -> LearningRates:
    """The full learning rates of all optimizers, and what scales them.

    Raises: ConfigError for a schedule that does not fit the run's length.
    """
    full = {name: float(o.param_groups[0]["lr"]) for name, o in context.optimizers().items()}
    full |= {name: tables.settings.lr for name, tables in context.table_groups.items()}
    build = partial(build_schedule, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
    scaling = make_settings(TrainerSettings, config["trainer"]).lr_scaling
    scale = lr_scale_factor(scaling.rule, scaling.batches)
    full = {name: rate * scale for name, rate in full.items()}
    schedules = group_schedules(config["optimizer"].get("schedules") or {}, owned)
    own = {name: build(node, where=where) for name, (node, where) in schedules.items()}
    return LearningRates(full, build(config["scheduler"]), own)


def get_table_lookup(model: nn.Module) -> TableLookup:
    lookups = [m for m in model.modules() if isinstance(m, TableLookup)]
    if len(lookups) != 1:
        raise ConfigError(f"a model holds one TableLookup for all its tables, not {len(lookups)}")
    return lookups[0]


def build_embedding_tables(
    lookup: TableLookup,
    config: Mapping[str, Any],
    owned: ParameterGroups,
    trainer: TrainerSettings,
    device: torch.device,
) -> tuple[EmbeddingTables, dict[str, EmbeddingTables]]:
    """Collective. Gives the model's tables memory, initial weights and their fused optimizers.

    Returns: all of them, and those that have a rate of their own by its name.
    """
    sparse = parse_sparse(config["optimizer"]["sparse"])
    build = make_table_builder(
        make_settings(ShardingSettings, config["sharding"]),
        current_ranks() if dist.is_initialized() else None,
        owned,
        sparse,
        seed=config["seed"],
        device=device,
        batch_size=trainer.batch_size * trainer.accumulate,
    )
    tables, groups = build_table_groups(
        lookup.specs, lookup.features, sparse, owned, build, device=device
    )
    lookup.attach_tables(tables)
    return tables, groups


def report_placement(
    placement: Sequence[Placement], world_size: int, run: Run | None, view: View
) -> None:
    """Which rank has which part of which table: for people, and in the run directory.

    Of one process, which has all of them whole, neither: what a run of several ranks had left there
    goes when it is resumed.
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


def make_ema(parameters: Mapping[str, nn.Parameter], settings: EmaSettings) -> MovingAverage | None:
    """Of parameters that have their initial weights, the same on all ranks."""
    if settings.decay is None:
        return None
    return MovingAverage(
        parameters,
        decay=settings.decay,
        warmup=settings.warmup,
        use_in_evaluation=settings.evaluate,
    )
