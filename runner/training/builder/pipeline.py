"""`trainer.pipeline`: how the next batches are prepared while an update runs."""

from __future__ import annotations

from runner.config.settings import TrainerSettings
from runner.errors import ConfigError
from runner.models.layers.embedding import TableLookup
from runner.training.update.context import Context
from runner.training.update.task import Task


def choose_pipeline(
    trainer: TrainerSettings, context: Context, lookup: TableLookup, task: Task
) -> None:
    """Give the context the pipeline that the settings name, or with `auto` the best that works.

    Raises:
        ConfigError: with the reason, for `sparse_dist` where it cannot work.
    """
    context.prefetch_to_device = trainer.pipeline != "none"
    required = trainer.pipeline == "sparse_dist"
    if not (required or (trainer.pipeline == "auto" and context.device.type == "cuda")):
        return
    reason = find_sparse_dist_obstacle(context, lookup, task)
    if reason is None:
        # imported late, since it imports TorchRec's pipelines
        from runner.training.update.sparse_dist_pipeline import SparseDistPipeline

        context.sparse_dist = SparseDistPipeline(lookup, context.dense_optimizer, context.device)
    elif required:
        raise ConfigError(
            f"trainer.pipeline=sparse_dist: {reason}; trainer.pipeline=auto takes what works"
        )


def find_sparse_dist_obstacle(context: Context, lookup: TableLookup, task: Task) -> str | None:
    """Return why ids cannot be sent to their ranks before the update; None if they can."""
    if context.growing is not None:
        return "a growing table gives rows to ids when their update begins, not before"
    if not context.tables.torchrec_modules():
        return "no table is held by TorchRec on several ranks"
    if lookup.draws_candidates:
        name = type(context.model).__name__
        return f"{name} draws candidates in its look-up, so its ids are not known before"
    if not declares_single_lookup(type(task)):
        return (
            f"{type(task).__name__} does not declare looks_up_once = True: that it looks up each "
            "batch that it takes once, and nothing else"
        )
    return None


def declares_single_lookup(task: type) -> bool:
    """Return whether a task declares `looks_up_once` for the methods that it really runs.

    The declaration of a class covers its own methods. A subclass that replaces any of them must
    declare it anew.
    """
    for cls in task.__mro__:
        if "looks_up_once" in vars(cls):
            return bool(vars(cls)["looks_up_once"])
        if any(callable(value) for value in vars(cls).values()):
            return False
    return False
