"""The only place that instantiates: a checked configuration in, a Job out.

Order: data schema -> model -> tables with their optimizer -> dense optimizer -> schedule ->
metrics -> trackers -> checkpointer. Imports torch; everything before it does not.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from runner.ahead import Length, ahead
from runner.callbacks import Callbacks
from runner.checkpoint import Checkpointer
from runner.compiling import compile_dense
from runner.config import Averaging, CheckpointSettings, TrainerSettings, settings_from
from runner.context import Context, parameters_in
from runner.data.dataset import Dataset, end_of_epoch
from runner.data.learnt import with_learnt
from runner.dist.group import join
from runner.dist.ranks import Ranks, this_process
from runner.ema import MovingAverage
from runner.errors import ConfigError, nearest
from runner.intervals import parse_interval
from runner.job import Cadence, Job, Rates
from runner.jsonfiles import write_json
from runner.layers.embedding import TableLookup
from runner.layers.recommender import Recommender
from runner.loops.start import find_checkpoint
from runner.losses import check_offered
from runner.memory import keep_freed_memory
from runner.metrics.make import make_metrics
from runner.metrics.settings import MetricSettings, result_keys
from runner.optim.layout import Placement
from runner.optim.owned import (
    DENSE,
    Ownership,
    build_optimizers,
    build_table_groups,
    own,
    own_schedules,
    table_builder,
)
from runner.optim.parts import parse_parts
from runner.optim.penalty import penalize
from runner.optim.penalty_settings import parse_penalties
from runner.optim.placed import placement_text
from runner.optim.scaling import rate_scale, scaling_note
from runner.optim.schedule import build_schedule
from runner.optim.settings import parse_sparse
from runner.optim.sharding import ShardingSettings
from runner.optim.tables import Tables
from runner.patience import RULES
from runner.precision import LossScale
from runner.ranking import check_rankings, give_counts
from runner.record import Run
from runner.state import dense_parameters, parameters_of, seed_rank
from runner.targets import resolve_target
from runner.task import Task
from runner.threads import usable_cores
from runner.trackers import Trackers
from runner.view import View

AMP_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def build(
    config: Mapping[str, Any],
    run: Run | None,
    *,
    view: View,
    allowed: Sequence[str] = (),
    name: str = "",
) -> Job:
    """Collective. Builds every part of the job.

    Args:
        config: resolved and checked, plain dictionaries. run: its open run directory, or None for
        loops that write nothing. allowed: packages a `_target_` may resolve to besides ours.
    Raises: UserError for what a configuration or the data can get wrong.
    """
    trainer = settings_from(TrainerSettings, config["trainer"])
    checkpoint = settings_from(CheckpointSettings, config["checkpoint"])
    make = partial(instantiate, allowed=allowed)
    device, ranks = prepare_device(trainer), this_process()
    seed_everything(config["seed"])

    source = source_of(config, checkpoint)
    dataset = make_dataset(config["dataset"], run, source, make, ranks)
    steps_per_epoch = count_steps(dataset, trainer, ranks)
    total_steps = trainer.max_steps or (steps_per_epoch or 0) * (trainer.max_epochs or 0)

    context, owned = make_context(config, trainer, dataset, device, run, view, allowed)
    task = make(config["task"])
    set_up(task, context, trainer)
    rates_for = partial(make_rates, config, context, owned)
    rates = rates_for(total_steps or None, steps_per_epoch)
    scaling = trainer.lr_scaling
    if source is None and scaling.rule != "constant":
        view.note(scaling_note(scaling.rule, scaling.batches, rates.full))
    measured = MetricSettings(**config["metrics"])
    metrics = partial(make_metrics, dataset.schema, device, measured)
    check_monitors(checkpoint, trainer, measured, dataset)
    cadence = make_cadence(trainer, checkpoint)
    rows = trainer.batch_size * trainer.accumulate * ranks.world_size
    if run is not None and source is None and steps_per_epoch is not None:
        length = Length(total_steps, steps_per_epoch, dataset.num_rows["train"], rows)
        for warning in ahead(cadence, trainer, length):
            view.warn(warning)
    check_rankings(measured, dataset, context.model)
    loop_settings = {k: v for k, v in config["loop"].items() if k != "_target_"}
    return Job(
        name=name,
        seed=config["seed"],
        config=config,
        trainer=trainer,
        checkpoint=checkpoint,
        cadence=cadence,
        loop=resolve_target(config["loop"]["_target_"], allowed),
        loop_settings=loop_settings,
        device=device,
        dataset=dataset,
        task=task,
        context=context,
        rates=rates,
        rates_for=rates_for,
        total_steps=total_steps,
        metrics=metrics,
        train_metrics=metrics(False),
        trackers=Trackers(
            {kind: make(node) for kind, node in config["tracker"].items() if ranks.is_chief},
            warn=view.warn,
        ),
        view=view,
        callbacks=make_callbacks(config.get("callbacks") or {}, ranks, allowed),
        run=run,
        checkpointer=None
        if run is None or source is not None
        else Checkpointer(run.dir / "checkpoints", keep=checkpoint.keep, warn=view.warn),
        source=None
        if source is None or loop_settings.get("follow")
        else find_checkpoint(source, checkpoint.step),
    )


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
    if ranks.is_chief and tables.placement():
        show_placement(tables.placement(), ranks.world_size, run, view)
    model.to(device)
    if isinstance(loss, nn.Module):
        loss.to(device)
    for tensor in (*model.parameters(), *model.buffers(), *parameters.values()):
        ranks.copy_from_chief(tensor.data)  # a model may draw from where no seed reaches
    give_counts(model, dataset, ranks)
    seed_rank(config["seed"], ranks.rank)
    if trainer.compile and not config["loop"]["_target_"].startswith("runner.loops.debug."):
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


def source_of(config: Mapping[str, Any], checkpoint: CheckpointSettings) -> Path | None:
    """The run directory or checkpoint folder that a loop only reads; None for a training."""
    source = checkpoint.path or config["run"]
    return None if source is None else Path(source)


def make_dataset(
    node: Mapping[str, Any],
    run: Run | None,
    source: Path | None,
    make: Callable[[Mapping[str, Any]], Dataset],
    ranks: Ranks,
) -> Dataset:
    """The dataset, with what its transforms learnt when the run, or its source, was first built."""
    home = None if run is None else run.dir
    if source is not None:  # a checkpoint's run is two folders above it
        home = source.parent.parent if source.parent.name == "checkpoints" else source
    dataset = make(node if home is None else with_learnt(node, home / "data"))
    if run is not None and source is None and ranks.is_chief:
        dataset.save_learnt(run.dir / "data")
    return dataset


def instantiate(node: Any, *, allowed: Sequence[str] = (), **more: Any) -> Any:
    """Calls what `_target_` names with the node's other keys, innermost first."""
    if isinstance(node, Mapping):
        values = {k: instantiate(v, allowed=allowed) for k, v in node.items() if k != "_target_"}
        if "_target_" not in node:
            return values
        target = resolve_target(node["_target_"], allowed)
        try:
            return target(**values, **more)
        except TypeError as error:
            if "argument" in str(error):
                raise ConfigError(f"{node['_target_']}: {error}") from error
            raise
        except ValueError as error:
            raise ConfigError(f"{node['_target_']}: {error}") from error
    if isinstance(node, list | tuple):
        return [instantiate(v, allowed=allowed) for v in node]
    return node


def join_ranks(trainer: TrainerSettings) -> Ranks:
    """Collective. This process among the ranks that were started with it."""
    return join(chosen_device(trainer), timeout_s=trainer.rank_timeout_s)


def prepare_device(trainer: TrainerSettings) -> torch.device:
    """Chooses the device and sets what is global to the process: threads, precision, kernels."""
    # TorchRec's classes set off a deprecation notice of torch's that no user can act on
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    device = chosen_device(trainer)
    kind = device.type
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device=cuda: no CUDA device is visible; use trainer.device=cpu")
    if trainer.amp and trainer.amp_dtype == "fp16" and kind != "cuda":
        raise ConfigError("trainer.amp_dtype=fp16 needs CUDA; on CPU use trainer.amp_dtype=bf16")
    per_rank = max(1, usable_cores() // this_process().local_world_size)
    keep_freed_memory()
    torch.set_num_threads(trainer.num_threads or per_rank)
    torch.set_float32_matmul_precision("high" if trainer.tf32 else "highest")
    torch.use_deterministic_algorithms(trainer.deterministic)
    if kind == "cuda":
        torch.cuda.set_device(device)
    return device


def chosen_device(trainer: TrainerSettings) -> torch.device:
    """Of this process. Raises: ConfigError if its rank has no GPU of its own on its machine."""
    kind = trainer.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if kind != "cuda" or "RANK" not in os.environ:
        return torch.device(kind)
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"trainer.num_processes: this machine shows {torch.cuda.device_count()} GPUs, and each "
            "rank needs one of its own; trainer.device=cpu takes none"
        )
    return torch.device("cuda", local_rank)


def seed_everything(seed: int) -> None:
    """Seeds the generators that initial weights, dropout and tasks of one's own draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy takes 32 bits


def count_steps(dataset: Dataset, trainer: TrainerSettings, ranks: Ranks) -> int | None:
    """Updates of one epoch; the last, shorter batch counts, unless it is dropped. None: of a
    stream, nobody knows.

    Raises: ConfigError if that leaves none.
    """
    if "train" not in dataset.num_rows:
        return None
    num_rows = trainer.batch_size * trainer.accumulate * ranks.world_size
    end = end_of_epoch(dataset, 0, num_rows)
    if not end:
        raise ConfigError(
            f"dataset.rest=drop: the train split has {dataset.num_rows['train']:,} rows, "
            f"fewer than the {num_rows:,} of one update"
        )
    return -(-end // num_rows)


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
    build = table_builder(
        settings_from(ShardingSettings, config["sharding"]),
        this_process() if dist.is_initialized() else None,
        [spec.name for spec in lookup.specs],
        seed=config["seed"],
        device=device,
        batch_size=trainer.batch_size * trainer.accumulate,
    )
    sparse = parse_sparse(config["optimizer"]["sparse"])
    tables, groups = build_table_groups(
        lookup.specs, lookup.features, sparse, owned, build, device=device
    )
    lookup.place(tables)
    return tables, groups


def show_placement(
    placement: Sequence[Placement], world_size: int, run: Run | None, view: View
) -> None:
    """Which rank has which part of which table: for people, and in the run directory."""
    view.note(placement_text(placement, world_size))
    if run is not None:
        pieces = [asdict(piece) for piece in placement]
        write_json(run.dir / "sharding.json", {"world_size": world_size, "pieces": pieces})


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


def make_cadence(trainer: TrainerSettings, checkpoint: CheckpointSettings) -> Cadence:
    return Cadence(
        log_every=parse_interval(trainer.log_every, key="trainer.log_every", timed=True),
        eval_every=parse_interval(trainer.eval_every, key="trainer.eval_every"),
        save_every=parse_interval(checkpoint.save_every, key="checkpoint.save_every", timed=True),
    )


def make_callbacks(
    node: Mapping[str, Mapping[str, Any]], ranks: Ranks, allowed: Sequence[str]
) -> Callbacks:
    """Those that this rank calls: all of them on rank 0."""
    here = {
        name: instantiate(own, allowed=allowed)
        for name, own in node.items()
        if ranks.is_chief
        or getattr(resolve_target(own["_target_"], allowed), "on_every_rank", False)
    }
    return Callbacks(here, ranks=ranks, listed=bool(node))


def check_monitors(
    checkpoint: CheckpointSettings,
    trainer: TrainerSettings,
    settings: MetricSettings,
    dataset: Dataset,
) -> None:
    """Every monitored metric must be one that the evaluation computes."""
    waiting = {name: getattr(trainer, name) for name in RULES}
    metrics = {"checkpoint.monitor": checkpoint.monitor.metric}
    metrics |= {f"trainer.{name}": r.metric for name, r in waiting.items() if r.metric is not None}
    if "validation" not in dataset.num_rows:
        on = [n for n, r in waiting.items() if r.patience or getattr(r, "threshold", None)]
        if on:
            raise ConfigError(f"trainer.{on[0]}: waits for the validation split; there is none")
        return
    names = result_keys(settings.eval, dataset.schema.tasks)
    known = [f"validation/{name}" for name in names]
    for key, metric in metrics.items():
        if metric not in known:
            raise ConfigError(
                f"{key}.metric={metric}: is not measured{nearest(metric, known)}; "
                f"there are {', '.join(known)}"
            )
