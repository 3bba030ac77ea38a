"""Builds a job from a checked configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runner.config.intervals import parse_interval
from runner.config.settings import (
    FOLDER_DELIVERY,
    ONLINE_LOOP,
    CheckpointSettings,
    DeliverySettings,
    TrainerSettings,
    make_settings,
)
from runner.config.settings.loops import DEBUG_LOOP
from runner.config.targets import resolve_part
from runner.data.core.dataset import Dataset
from runner.data.core.dataset_check import is_stream
from runner.distributed.global_batch import global_batch_size, rank_batch_size
from runner.distributed.ranks import Ranks, current_ranks
from runner.embeddings.initialization import without_initial_weights
from runner.machine.cores import cpu_name
from runner.metrics.settings import MetricSettings
from runner.models.layers.recommender import Recommender
from runner.models.retrieval.next_item import NextItemModel
from runner.optim.lr_scaling import describe_lr_scaling
from runner.reporting.console import View
from runner.reporting.trackers import Trackers, check_tracker
from runner.rundir.checkpoint import Checkpoint, Checkpointer
from runner.rundir.find_checkpoint import describe_large, find_checkpoint
from runner.rundir.identity import check_belongs
from runner.rundir.run import Run
from runner.training.builder.context import make_context, set_up_task
from runner.training.builder.data import (
    count_steps_per_epoch,
    describe_order_by_user,
    make_dataset,
    makes_windows,
)
from runner.training.builder.device import prepare_device, seed_everything
from runner.training.builder.growing import with_rows
from runner.training.builder.hard_negatives import fill_negative_table
from runner.training.builder.inputs import JobInputs
from runner.training.builder.metrics import build_metrics
from runner.training.builder.model import describe_fewer_negatives
from runner.training.builder.optimizers import base_learning_rates, make_learning_rates
from runner.training.builder.part_kinds import KINDS, check_parts
from runner.training.builder.pipeline import choose_pipeline
from runner.training.builder.precision_probe import describe_bf16, lacks_bf16, multiply_by_float32
from runner.training.builder.preflight import RunLength, preflight_warnings
from runner.training.builder.tables import check_start, get_table_lookup
from runner.training.callbacks import Callbacks
from runner.training.catalogue import check_rankings, count_item_popularity
from runner.training.job import Cadence, Delivery, Job, LearningRates
from runner.training.update.compilation import compile_dense
from runner.training.update.context import Context
from runner.training.update.task import Task

# takes the updates of the run and of an epoch
MakeLearningRates = Callable[[int | None, int | None], LearningRates]


def build_job(
    config: Mapping[str, Any],
    run: Run | None,
    *,
    view: View,
    allowed: Sequence[str] = (),
    name: str = "",
) -> Job:
    """Build every part of the job.

    Collective.

    Args:
        config: resolved and checked, plain dictionaries.
        run: the open run directory; None for loops that write nothing.
        allowed: packages that a `_target_` may name besides ours.

    Raises:
        UserError: for mistakes in the configuration or the data.
    """
    trainer = make_settings(TrainerSettings, config["trainer"])
    checkpoint = make_settings(CheckpointSettings, config["checkpoint"])
    check_parts(config, allowed)
    device, ranks = prepare_process(trainer, config["seed"], view), current_ranks()
    inputs = JobInputs(config, trainer, device, run, view, tuple(allowed))
    place = checkpoint.path or config["run"]
    source = None if place is None else Path(place)  # that a loop only reads; None for a training
    if ranks.is_main:
        show_large_checkpoint(source, config["loop"], view)
    dataset = make_dataset(inputs, source)
    update_rows = global_batch_size(trainer.batch_size, trainer.accumulate, ranks.world_size)
    steps_per_epoch = count_steps_per_epoch(dataset, update_rows)
    total_steps = trainer.max_steps or (steps_per_epoch or 0) * (trainer.max_epochs or 0)
    context, task, learning_rates_for = _build_learner(inputs, dataset, trains=source is None)
    dataset = with_rows(dataset, context)
    learning_rates = _first_rates(dataset, learning_rates_for, total_steps, steps_per_epoch)
    if source is None:
        show_changed_settings(inputs, context.model, learning_rates)
    metric_settings = MetricSettings(**config["metrics"])
    metrics, train_metrics, own_directions = build_metrics(
        metric_settings, inputs, dataset, checkpoint
    )
    delivered = make_settings(DeliverySettings, config.get("delivery") or {})
    cadence = make_cadence(trainer, checkpoint, delivered)
    if run is not None and source is None and steps_per_epoch is not None:
        length = RunLength(total_steps, steps_per_epoch, dataset.num_rows["train"], update_rows)
        show_preflight_warnings(inputs, cadence, length, context.model)
    check_rankings(metric_settings, dataset, context.model)
    count_item_popularity(context.model, dataset, context.ranks, metric_settings)
    return Job(
        name=name,
        seed=config["seed"],
        config=config,
        trainer=trainer,
        checkpoint=checkpoint,
        metric_settings=metric_settings,
        cadence=cadence,
        loop=resolve_part(config["loop"]["_target_"], allowed, KINDS["loop"], "loop"),
        loop_settings={k: v for k, v in config["loop"].items() if k != "_target_"},
        device=device,
        dataset=dataset,
        task=task,
        context=context,
        learning_rates=learning_rates,
        learning_rates_for=learning_rates_for,
        total_steps=total_steps,
        make_metrics=metrics,
        train_metrics=train_metrics,
        own_directions=own_directions,
        trackers=Trackers(make_trackers(inputs, ranks), warn=view.warn),
        view=view,
        callbacks=make_callbacks(inputs, ranks),
        run=run,
        delivery=make_delivery(inputs, delivered) if ranks.is_main else None,
        allowed=inputs.allowed,
        checkpointer=make_checkpointer(run if source is None else None, checkpoint.keep, view),
        source_checkpoint=find_source_checkpoint(source, checkpoint.step, config["loop"], view),
    )


def prepare_process(trainer: TrainerSettings, seed: int, view: View) -> torch.device:
    """Prepare and return the device of this rank, and seed all generators."""
    device = prepare_device(trainer)
    if trainer.amp and device.type == "cpu":
        if lacks_bf16(cpu_name()):
            multiply_by_float32()
        if current_ranks().is_main:
            view.note(describe_bf16(cpu_name()))
    seed_everything(seed)
    return device


def _first_rates(
    dataset: Dataset, make_rates: MakeLearningRates, total_steps: int, steps_per_epoch: int | None
) -> LearningRates:
    """Return the learning rates at the start; none without train rows, as nothing is trained."""
    if "train" in dataset.num_rows or is_stream(dataset):
        return make_rates(total_steps or None, steps_per_epoch)
    return LearningRates({}, lambda update: 1.0)


def _build_learner(
    inputs: JobInputs, dataset: Dataset, *, trains: bool
) -> tuple[Context, Task, MakeLearningRates]:
    """Build the model with its optimizers, the task, and the function of their rates.

    Collective. Without `trains` weights come from a checkpoint, so that none are initialised.
    """
    config, trainer = inputs.config, inputs.trainer
    with nullcontext() if trains else without_initial_weights():
        context, groups, table_lrs = make_context(inputs, dataset)
    is_observed = config["loop"]["_target_"] == DEBUG_LOOP  # inside, which the compiler hides
    if trains and trainer.compile and not is_observed:
        num_rows = rank_batch_size(trainer.batch_size, trainer.accumulate)
        compile_dense(context.model, context.device, context.rows_at_once(num_rows))
    if trains:
        check_start(context.table_groups)
        fill_negative_table(inputs, context.model, dataset)
    task: Task = inputs.make_part("task", config["task"])
    set_up_task(task, context, trainer)
    choose_pipeline(trainer, context, get_table_lookup(context.model), task)
    base_lrs = base_learning_rates(context, table_lrs, trainer.lr_scaling)
    return context, task, partial(make_learning_rates, config, base_lrs, groups, inputs.allowed)


def show_changed_settings(
    inputs: JobInputs, model: Recommender, learning_rates: LearningRates
) -> None:
    """Show values that differ from the settings: fewer negatives, and scaled rates."""
    fewer = describe_fewer_negatives(model, inputs.config["model"]["net"])
    if fewer is not None:
        inputs.view.note(fewer)
    scaling = inputs.trainer.lr_scaling
    if scaling.rule != "constant":
        inputs.view.note(describe_lr_scaling(scaling.rule, scaling.batches, learning_rates.base))


def show_preflight_warnings(
    inputs: JobInputs, cadence: Cadence, length: RunLength, model: nn.Module
) -> None:
    """Show the `preflight_warnings` for the model and the dataset."""
    checkpoint = inputs.config["checkpoint"]
    is_online = inputs.config["loop"]["_target_"] == ONLINE_LOOP
    if is_online:  # it evaluates no split
        cadence = replace(cadence, eval_every=None)
    is_learnt = any(checkpoint.get(f"init_{key}") for key in ("linear", "from", "tables"))
    is_next_item = isinstance(model, NextItemModel)
    learns_every_place = is_next_item and getattr(model, "every_place", True)
    skips = makes_windows(inputs.config["dataset"]) and not learns_every_place
    for warning in preflight_warnings(
        cadence,
        inputs.trainer,
        length,
        is_next_item=is_next_item,
        skips_events=skips,
        is_warm=checkpoint["init_from"] is not None,
        evaluates_start=is_learnt and not is_online,
    ):
        inputs.view.warn(warning)
    for warning in describe_order_by_user(inputs.config):
        inputs.view.warn(warning)


def make_checkpointer(run: Run | None, keep: int, view: View) -> Checkpointer | None:
    """Build the checkpointer of a training; None if there is no run, or no checkpoint is kept."""
    if run is None or keep == 0:
        return None
    run_id = run.meta.get("run_id")
    return Checkpointer(run.dir / "checkpoints", keep=keep, warn=view.warn, run_id=run_id)


def make_delivery(inputs: JobInputs, settings: DeliverySettings) -> Delivery | None:
    """Build what delivers the model of a training; None if nothing does.

    It is a module of `runner` itself, so that its name is resolved like that of a part.
    """
    if inputs.run is None or settings.every is None:
        return None
    node = {"_target_": FOLDER_DELIVERY, "to": settings.to, "rows_from": settings.rows_from}
    delivery: Delivery = inputs.make_part("delivery", node)
    return delivery


def show_large_checkpoint(source: Path | None, loop: Mapping[str, Any], view: View) -> None:
    """Explain the wait for the checkpoint that a loop reads, if it is large."""
    if source is not None and not loop.get("follow") and (note := describe_large(source)):
        view.note(note)


def find_source_checkpoint(
    source: Path | None, step: int | str, loop: Mapping[str, Any], view: View
) -> Checkpoint | None:
    """Find the checkpoint that a loop reads; None for a training, and for one that follows all."""
    if source is None or loop.get("follow"):
        return None
    saved = find_checkpoint(source, step, warn=view.warn)
    # of a checkpoint's own folder that lies in a run directory, whose configuration is used
    return check_belongs(saved, source.parent.parent) if saved.path == source else saved


def make_cadence(
    trainer: TrainerSettings, checkpoint: CheckpointSettings, delivery: DeliverySettings
) -> Cadence:
    """Parse the intervals of logging, evaluating, saving and delivering."""
    return Cadence(
        log_every=parse_interval(trainer.log_every, key="trainer.log_every", allow_time=True),
        eval_every=parse_interval(trainer.eval_every, key="trainer.eval_every"),
        save_every=parse_interval(
            checkpoint.save_every, key="checkpoint.save_every", allow_time=True
        ),
        deliver_every=parse_interval(delivery.every, key="delivery.every"),
    )


def make_trackers(inputs: JobInputs, ranks: Ranks) -> dict[str, Any]:
    """Build the trackers by name; only rank 0 has any."""
    trackers = {
        name: inputs.make_part("tracker", node, f"tracker.{name}")
        for name, node in (inputs.config.get("tracker") or {}).items()
        if ranks.is_main
    }
    for name, tracker in trackers.items():
        check_tracker(f"tracker.{name}", tracker)
    return trackers


def make_callbacks(inputs: JobInputs, ranks: Ranks) -> Callbacks:
    """Build the callbacks of this rank: all on rank 0, on others those that every rank calls."""
    nodes, kind, callbacks = inputs.config.get("callbacks") or {}, "callbacks", {}
    for name, node in nodes.items():
        key = f"callbacks.{name}"
        cls = resolve_part(node["_target_"], inputs.allowed, KINDS[kind], key)
        if ranks.is_main or getattr(cls, "on_every_rank", False):
            callbacks[name] = inputs.make_part(kind, node, key)
    return Callbacks(callbacks, ranks=ranks, exist_on_any_rank=bool(nodes))
