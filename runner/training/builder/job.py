"""Builds a job from a checked configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from runner.config.early_stopping import PATIENCE_RULES
from runner.config.intervals import parse_interval
from runner.config.settings import CheckpointSettings, TrainerSettings, make_settings
from runner.config.targets import resolve_part
from runner.data.core.dataset import Dataset, epoch_end_offset
from runner.data.core.fitted import with_fitted_transforms
from runner.distributed.global_batch import global_batch_size
from runner.distributed.ranks import Ranks, current_ranks
from runner.errors import ConfigError, nearest_hint
from runner.metrics.factory import make_metrics
from runner.metrics.settings import MetricSettings, result_keys
from runner.optim.lr_scaling import describe_lr_scaling
from runner.reporting.console import View
from runner.reporting.trackers import Trackers
from runner.rundir.checkpoint import Checkpoint, Checkpointer
from runner.rundir.find_checkpoint import find_checkpoint
from runner.rundir.run import Run
from runner.training.builder.context import (
    base_learning_rates,
    get_table_lookup,
    make_context,
    make_learning_rates,
    set_up_task,
)
from runner.training.builder.device import prepare_device, seed_everything
from runner.training.builder.instantiate import instantiate
from runner.training.builder.part_kinds import KINDS, check_parts
from runner.training.builder.pipeline import choose_pipeline
from runner.training.builder.preflight import RunLength, preflight_warnings
from runner.training.callbacks import Callbacks
from runner.training.catalogue import check_rankings
from runner.training.job import Cadence, Job


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
        view: where people read how the job goes.
        allowed: packages that a `_target_` may name besides ours.
        name: of the job.

    Raises:
        UserError: for mistakes in the configuration or the data.
    """
    trainer = make_settings(TrainerSettings, config["trainer"])
    checkpoint = make_settings(CheckpointSettings, config["checkpoint"])
    check_parts(config, allowed)
    device, ranks = prepare_device(trainer), current_ranks()
    seed_everything(config["seed"])

    source = resolve_source_path(config, checkpoint)
    dataset = make_dataset(config["dataset"], run, source, allowed, ranks)
    update_rows = global_batch_size(trainer.batch_size, trainer.accumulate, ranks.world_size)
    steps_per_epoch = count_steps_per_epoch(dataset, update_rows)
    total_steps = trainer.max_steps or (steps_per_epoch or 0) * (trainer.max_epochs or 0)

    context, parameter_groups, table_lrs = make_context(
        config, trainer, dataset, device, run, view, allowed
    )
    task = instantiate(config["task"], KINDS["task"], key="task", allowed=allowed)
    set_up_task(task, context, trainer)
    choose_pipeline(trainer, context, get_table_lookup(context.model), task)
    scaling = trainer.lr_scaling
    base_lrs = base_learning_rates(context, table_lrs, scaling)
    learning_rates_for = partial(make_learning_rates, config, base_lrs, parameter_groups)
    learning_rates = learning_rates_for(total_steps or None, steps_per_epoch)
    if source is None and scaling.rule != "constant":
        view.note(describe_lr_scaling(scaling.rule, scaling.batches, base_lrs))
    metric_settings = MetricSettings(**config["metrics"])
    metrics = partial(make_metrics, dataset.schema, device, metric_settings)
    check_monitors(checkpoint, trainer, metric_settings, dataset)
    cadence = make_cadence(trainer, checkpoint)
    if run is not None and source is None and steps_per_epoch is not None:
        length = RunLength(total_steps, steps_per_epoch, dataset.num_rows["train"], update_rows)
        for warning in preflight_warnings(cadence, trainer, length):
            view.warn(warning)
    check_rankings(metric_settings, dataset, context.model)
    loop_settings = {k: v for k, v in config["loop"].items() if k != "_target_"}
    return Job(
        name=name,
        seed=config["seed"],
        config=config,
        trainer=trainer,
        checkpoint=checkpoint,
        cadence=cadence,
        loop=resolve_part(config["loop"]["_target_"], allowed, KINDS["loop"], "loop"),
        loop_settings=loop_settings,
        device=device,
        dataset=dataset,
        task=task,
        context=context,
        learning_rates=learning_rates,
        learning_rates_for=learning_rates_for,
        total_steps=total_steps,
        make_metrics=metrics,
        train_metrics=metrics(False),
        trackers=Trackers(make_trackers(config["tracker"], ranks, allowed), warn=view.warn),
        view=view,
        callbacks=make_callbacks(config.get("callbacks") or {}, ranks, allowed),
        run=run,
        checkpointer=make_checkpointer(run if source is None else None, checkpoint.keep, view),
        source_checkpoint=find_source_checkpoint(source, checkpoint.step, loop_settings, view),
    )


def make_checkpointer(run: Run | None, keep: int, view: View) -> Checkpointer | None:
    """Build what saves the checkpoints of a training; None if there is no training's run."""
    if run is None:
        return None
    return Checkpointer(run.dir / "checkpoints", keep=keep, warn=view.warn)


def find_source_checkpoint(
    source: Path | None, step: int | str, loop_settings: Mapping[str, Any], view: View
) -> Checkpoint | None:
    """Find the checkpoint that a loop reads; None for a training, and for one that follows all."""
    if source is None or loop_settings.get("follow"):
        return None
    return find_checkpoint(source, step, warn=view.warn)


def resolve_source_path(config: Mapping[str, Any], checkpoint: CheckpointSettings) -> Path | None:
    """Return the run directory or checkpoint folder that a loop only reads; None for a training."""
    source = checkpoint.path or config["run"]
    return None if source is None else Path(source)


def make_dataset(
    node: Mapping[str, Any],
    run: Run | None,
    source: Path | None,
    allowed: Sequence[str],
    ranks: Ranks,
) -> Dataset:
    """Build the dataset, with the transforms fitted when the run, or its source, was first built.

    Args:
        node: the group `dataset`.
        run: its directory keeps the fitted transforms.
        source: the run or checkpoint that this job only reads; its transforms are used then.
        allowed: packages that a `_target_` may name besides ours.
        ranks: rank 0 writes the transforms.
    """
    folder = None if run is None else run.dir
    if source is not None:  # a checkpoint's run is two folders above it
        folder = source.parent.parent if source.parent.name == "checkpoints" else source
    if folder is not None:
        node = with_fitted_transforms(node, folder / "data")
    dataset: Dataset = instantiate(node, KINDS["dataset"], key="dataset", allowed=allowed)
    if run is not None and source is None and ranks.is_main:
        dataset.save_fitted_transforms(run.dir / "data")
    return dataset


def count_steps_per_epoch(dataset: Dataset, update_rows: int) -> int | None:
    """Return the updates of one epoch; None for a stream, whose length nobody knows.

    The last, shorter update counts, unless the dataset drops it.

    Raises:
        ConfigError: if no update is left.
    """
    if "train" not in dataset.num_rows:
        return None
    end = epoch_end_offset(dataset, 0, update_rows)
    if not end:
        raise ConfigError(
            f"dataset.rest=drop: the train split has {dataset.num_rows['train']:,} rows, "
            f"fewer than the {update_rows:,} of one update"
        )
    return -(-end // update_rows)


def make_cadence(trainer: TrainerSettings, checkpoint: CheckpointSettings) -> Cadence:
    """Parse the intervals of logging, evaluating and saving."""
    return Cadence(
        log_every=parse_interval(trainer.log_every, key="trainer.log_every", allow_time=True),
        eval_every=parse_interval(trainer.eval_every, key="trainer.eval_every"),
        save_every=parse_interval(
            checkpoint.save_every, key="checkpoint.save_every", allow_time=True
        ),
    )


def make_trackers(
    node: Mapping[str, Mapping[str, Any]], ranks: Ranks, allowed: Sequence[str]
) -> dict[str, Any]:
    """Build the trackers by name; only rank 0 has any."""
    return {
        name: instantiate(settings, KINDS["tracker"], key=f"tracker.{name}", allowed=allowed)
        for name, settings in node.items()
        if ranks.is_main
    }


def make_callbacks(
    node: Mapping[str, Mapping[str, Any]], ranks: Ranks, allowed: Sequence[str]
) -> Callbacks:
    """Build the callbacks that this rank calls: all on rank 0, elsewhere those of every rank."""
    kind, callbacks = KINDS["callbacks"], {}
    for name, settings in node.items():
        key = f"callbacks.{name}"
        cls = resolve_part(settings["_target_"], allowed, kind, key)
        if ranks.is_main or getattr(cls, "on_every_rank", False):
            callbacks[name] = instantiate(settings, kind, key=key, allowed=allowed)
    return Callbacks(callbacks, ranks=ranks, exist_on_any_rank=bool(node))


def check_monitors(
    checkpoint: CheckpointSettings,
    trainer: TrainerSettings,
    metric_settings: MetricSettings,
    dataset: Dataset,
) -> None:
    """Check that every monitored metric is one that the evaluation computes.

    Raises:
        ConfigError: for a metric that is not computed, and for a rule that waits for a validation
            split where there is none.
    """
    rules = {name: getattr(trainer, name) for name in PATIENCE_RULES}
    metrics = {"checkpoint.monitor": checkpoint.monitor.metric}
    metrics |= {f"trainer.{name}": r.metric for name, r in rules.items() if r.metric is not None}
    if "validation" not in dataset.num_rows:
        enabled = [n for n, r in rules.items() if r.patience or getattr(r, "threshold", None)]
        if enabled:
            raise ConfigError(
                f"trainer.{enabled[0]}: waits for the validation split; there is none"
            )
        return
    names = result_keys(metric_settings.eval, dataset.schema.tasks)
    known = [f"validation/{name}" for name in names]
    for key, metric in metrics.items():
        if metric not in known:
            raise ConfigError(
                f"{key}.metric={metric}: is not measured{nearest_hint(metric, known)}; "
                f"there are {', '.join(known)}"
            )
