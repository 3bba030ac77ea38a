"""Model -> tables with their optimizer -> dense optimizers -> task: what an update touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runner.config.settings import Averaging, TrainerSettings, settings_from
from runner.config.targets import resolve_target
from runner.data.core.dataset import Dataset
from runner.distributed.ranks import this_process
from runner.embeddings.factory import Tables
from runner.embeddings.interface import Placement
from runner.embeddings.placement import placement_text
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError
from runner.models.layers.embedding import TableLookup
from runner.models.layers.recommender import Recommender
from runner.models.losses import check_offered
from runner.optim.lr_scaling import rate_scale
from runner.optim.lr_schedule import build_schedule
from runner.optim.param_groups import parse_parts
from runner.optim.penalties import penalize
from runner.optim.penalty_settings import parse_penalties
from runner.optim.settings import parse_sparse
from runner.reporting.console import View
from runner.rundir.json_files import write_json
from runner.rundir.run import Run
from runner.training.builder.instantiate import instantiate
from runner.training.builder.optimizers import (
    DENSE,
    Ownership,
    build_optimizers,
    build_table_groups,
    own,
    own_schedules,
    table_builder,
)
from runner.training.catalogue import give_counts
from runner.training.job import Rates
from runner.training.rng_state import seed_rank
from runner.training.state import dense_parameters, parameters_of
from runner.training.update.compilation import compile_dense
from runner.training.update.context import Context, parameters_in
from runner.training.update.ema import MovingAverage
from runner.training.update.loss_scale import LossScale
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
) -> tuple[Context, Ownership]:
    """Collective. Model, loss, tables and optimizers, and who owns what."""
    ranks = this_process()
    model: Recommender = instantiate(config["model"]["net"], schema=dataset.schema, allowed=allowed)
    loss = instantiate(config["model"]["loss"], schema=dataset.schema, allowed=allowed)
    try:
        check_offered(model, loss)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    parameters = dense_parameters(model, loss)
    lookup = only_lookup(model)
    owned = own(
        parse_parts(config["optimizer"]), list(parameters), [spec.name for spec in lookup.specs]
    )
    tables, table_groups = place_tables(lookup, config, owned, trainer, device)
    if ranks.is_chief:
        show_placement(tables.placement(), ranks.world_size, run, view)
    model.to(device)
    if isinstance(loss, nn.Module):
        loss.to(device)
    for tensor in (*model.parameters(), *model.buffers(), *parameters.values()):
        ranks.copy_from_chief(tensor.data)  # a model may draw from where no seed reaches
    give_counts(model, dataset, ranks)
    seed_rank(config["seed"], ranks.rank)
    if trainer.compile and not config["loop"]["_target_"].startswith(
        "runner.training.loops.debug."
    ):
        compile_dense(model, device)  # debug looks into modules, which a compiled half has not
    optimizers = build_optimizers(
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
        average=make_average(parameters, trainer.ema),
        clip=trainer.clip,
        log_gradients=trainer.log_gradients,
        schema=dataset.schema,
    )
    return context, owned


def set_up(task: Task, context: Context, trainer: TrainerSettings) -> None:
    """Collective. What the task brings, and what holds for parameters of its as well.

    Raises: ConfigError for a parameter of the task's that nothing would train.
    """
    setup = getattr(task, "setup", None)
    if setup is not None:
        setup(context)
    parameters = parameters_of(context)
    trained = {id(p) for o in context.optimizers().values() for p in parameters_in(o)}
    for name, parameter in parameters.items():
        if id(parameter) not in trained:
            raise ConfigError(
                f"{type(task).__name__}: {name} has no optimizer: ctx.add_optimizer in setup gives "
                "it one, requires_grad_(False) freezes it"
            )
    context.names = {id(p): name for name, p in parameters.items()}
    tables = [spec.name for spec in context.tables.layout.tables]
    context.penalties = penalize(parse_penalties(trainer.penalties), parameters, tables)


def make_rates(
    config: Mapping[str, Any],
    context: Context,
    owned: Ownership,
    total_steps: int | None,
    steps_per_epoch: int | None,
) -> Rates:
    """The full learning rates of all optimizers, and what scales them.

    Raises: ConfigError for a schedule that does not fit the run's length.
    """
    full = {name: float(o.param_groups[0]["lr"]) for name, o in context.optimizers().items()}
    full |= {name: tables.settings.lr for name, tables in context.table_groups.items()}
    build = partial(build_schedule, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
    scaling = settings_from(TrainerSettings, config["trainer"]).lr_scaling
    scale = rate_scale(scaling.rule, scaling.batches)
    full = {name: rate * scale for name, rate in full.items()}
    schedules = own_schedules(config["optimizer"].get("schedules") or {}, owned)
    own = {name: build(node, where=where) for name, (node, where) in schedules.items()}
    return Rates(full, build(config["scheduler"]), own)


def only_lookup(model: nn.Module) -> TableLookup:
    lookups = [m for m in model.modules() if isinstance(m, TableLookup)]
    if len(lookups) != 1:
        raise ConfigError(f"a model holds one TableLookup for all its tables, not {len(lookups)}")
    return lookups[0]


def place_tables(
    lookup: TableLookup,
    config: Mapping[str, Any],
    owned: Ownership,
    trainer: TrainerSettings,
    device: torch.device,
) -> tuple[Tables, dict[str, Tables]]:
    """Collective. Gives the model's tables memory, initial weights and their fused optimizers.

    Returns: all of them, and those that have a rate of their own by its name.
    """
    sparse = parse_sparse(config["optimizer"]["sparse"])
    build = table_builder(
        settings_from(ShardingSettings, config["sharding"]),
        this_process() if dist.is_initialized() else None,
        owned,
        sparse,
        seed=config["seed"],
        device=device,
        batch_size=trainer.batch_size * trainer.accumulate,
    )
    tables, groups = build_table_groups(
        lookup.specs, lookup.features, sparse, owned, build, device=device
    )
    lookup.place(tables)
    return tables, groups


def show_placement(
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
    view.note(placement_text(placement, world_size))
    if file is not None:
        pieces = [asdict(piece) for piece in placement]
        write_json(file, {"world_size": world_size, "pieces": pieces})


def make_average(
    parameters: Mapping[str, nn.Parameter], settings: Averaging
) -> MovingAverage | None:
    """Of parameters that have their initial weights, the same on all ranks."""
    if settings.decay is None:
        return None
    return MovingAverage(
        parameters,
        decay=settings.decay,
        warmup=settings.warmup,
        evaluate=settings.evaluate,
    )
