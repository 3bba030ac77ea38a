"""trainer.pipeline: what happens to the next batches while one is learnt from."""

from __future__ import annotations

from runner.config.settings import TrainerSettings
from runner.errors import ConfigError
from runner.models.layers.embedding import TableLookup
from runner.training.update.context import Context
from runner.training.update.task import Task


def choose_pipeline(
    trainer: TrainerSettings, context: Context, lookup: TableLookup, task: Task
) -> None:
    """Gives the context the pipeline that the settings ask for, or that fits.

    Raises: ConfigError with the reason, for one that cannot be had.
    """
    context.prefetch_to_device = trainer.pipeline != "none"
    wanted = trainer.pipeline == "sparse_dist"
    if not (wanted or (trainer.pipeline == "auto" and context.device.type == "cuda")):
        return
    reason = find_sparse_dist_obstacle(context, lookup, task)
    if reason is None:
        from runner.training.update.sparse_dist_pipeline import (
            SparseDistPipeline,  # imports TorchRec's pipelines
        )

        context.sparse_dist = SparseDistPipeline(lookup, context.dense_optimizer, context.device)
    elif wanted:
        raise ConfigError(f"trainer.pipeline=sparse_dist: {reason}; auto takes what there is")


def find_sparse_dist_obstacle(context: Context, lookup: TableLookup, task: Task) -> str | None:
    """Why ids cannot be sent to their ranks before the update; None: they can."""
    if not context.tables.torchrec_modules():
        return "no table is held by TorchRec on several ranks"
    if lookup.draws_candidates:
        name = type(context.model).__name__
        return f"{name} draws candidates in its look-up, which are not known ahead"
    if not declares_single_lookup(type(task)):
        return (
            f"{type(task).__name__} does not say looks_up_once = True: that it looks up each batch "
            "that it takes once, and nothing else"
        )
    return None


def declares_single_lookup(task: type) -> bool:
    """Whether the class says so that has the last word on any method of the task: what a class says
    of its own steps does not hold for those that another puts in their place."""
    for cls in task.__mro__:
        if "looks_up_once" in vars(cls):
            return bool(vars(cls)["looks_up_once"])
        if any(callable(value) for value in vars(cls).values()):
            return False
    return False
