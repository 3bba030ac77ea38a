"""Builds the dataset of a job, and counts the updates of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.settings import ONLINE_LOOP, TRAIN_LOOP, TUNE_BATCH_SIZE_LOOP, TUNE_LR_LOOP
from runner.config.settings.loops import EVALUATE_LOOP, judged_splits
from runner.data.core.dataset import Dataset, epoch_end_offset
from runner.data.core.dataset_check import check_dataset, is_stream
from runner.data.core.fitted import (
    FITTED_FILE,
    check_fitted_transforms,
    keep_schema,
    saved_digest,
    with_fitted_transforms,
)
from runner.data.interactions.declaration import Interactions
from runner.data.prepare.fingerprint import build_recipe
from runner.data.tabular.table_recipe import TableRecipe
from runner.distributed.global_batch import rank_batch_size
from runner.distributed.ranks import current_ranks
from runner.errors import ConfigError
from runner.rundir.readers import read_optional_json
from runner.rundir.run import FITTED_DIGEST, SCHEMA_DIGEST, record_in_meta
from runner.training.builder.inputs import JobInputs
from runner.training.builder.model import finds_items


def makes_windows(dataset: Mapping[str, Any]) -> bool:
    """Tell whether train rows are windows of events, whose item is only one of several."""
    return getattr(_declared_events(dataset), "train_on", None) == "windows"


def describe_order_by_user(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if loop=online reads rows of events, which are ordered by user."""
    if config["loop"]["_target_"] == ONLINE_LOOP and _declared_events(config["dataset"]):
        yield (
            "loop=online takes the rows of events user by user, whatever their times, so that "
            "progressive metrics say nothing of how later events follow from earlier ones; to go "
            "on with newer events, train on old and new ones with checkpoint.init_from=RUN, and "
            "a split by time judges later ones"
        )


def _declared_events(dataset: Mapping[str, Any]) -> Interactions | None:
    """Return the declaration of events of a dataset, or None."""
    declared = getattr(build_recipe(dataset), "declared", None)
    return getattr(declared, "interactions", None)


def check_loop_of_stream(dataset: Dataset, loop: str) -> None:
    """Check that a loop accepts a stream; for loops of this package that is checked before torch.

    Raises:
        ConfigError: for a user's stream in a loop that counts epochs.
    """
    if is_stream(dataset) and loop in (TRAIN_LOOP, TUNE_BATCH_SIZE_LOOP, TUNE_LR_LOOP):
        name = type(dataset).__name__
        raise ConfigError(
            f"dataset: {name} is a stream (is_stream = True), which has no epochs: loop=online"
        )


def make_dataset(inputs: JobInputs, source: Path | None) -> Dataset:
    """Build the dataset, and check that it fulfils the interface of datasets.

    It uses the transforms that were fitted when the run, or its source, was first built.

    Args:
        inputs: of the job. The run's directory keeps the transforms.
        source: the run or checkpoint that this job only reads; its transforms are used then.
    """
    run, ranks, trainer = inputs.run, current_ranks(), inputs.trainer
    node = inputs.config["dataset"]
    folder = None if run is None else run.dir
    if source is not None:  # a checkpoint's run is two folders above it
        folder = source.parent.parent if source.parent.name == "checkpoints" else source
    recorded = None
    if folder is not None:
        recorded = read_optional_json(folder / "meta.json").get(FITTED_DIGEST)
        node = with_fitted_transforms(node, folder / "data", recorded)
    if inputs.config["loop"]["_target_"] == EVALUATE_LOOP:
        node = _without_unjudged_rows(node, inputs)
    dataset: Dataset = inputs.make_part("dataset", node)
    check_loop_of_stream(dataset, inputs.config["loop"]["_target_"])
    if folder is not None and recorded is not None and saved_digest(folder / "data") is None:
        check_fitted_transforms(dataset, folder / "data", recorded)
        place = folder / "data" / FITTED_FILE
        inputs.view.note(f"{place} was missing; it is made again, with the same content")
    if "judged" not in node:  # a table with `judged` need not have train rows
        check_dataset(
            dataset,
            batch_size=rank_batch_size(trainer.batch_size, trainer.accumulate),
            seed=inputs.config["seed"],
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
    if run is not None and source is None and ranks.is_main:
        dataset.save_fitted_transforms(run.dir / "data")
        if schema_digest := keep_schema(node, run.dir / "data"):
            record_in_meta(run, SCHEMA_DIGEST, schema_digest)
        digest = saved_digest(run.dir / "data")
        if digest is not None and digest != recorded:
            record_in_meta(run, FITTED_DIGEST, digest)
    return dataset


def _without_unjudged_rows(node: Mapping[str, Any], inputs: JobInputs) -> dict[str, Any]:
    """Return the node of an evaluation's table, changed to prepare only the evaluated splits.

    It is not changed if other rows are needed: if an evaluated split has no separate files, the
    transforms are not those of a run, events become histories, or the model counts items.
    """
    table = build_recipe(node) if node.get("learnt") else None
    if type(table) is not TableRecipe or table.declared.interactions is not None:
        return dict(node)
    splits = judged_splits(inputs.config["loop"]["split"], table.splits)
    has_own_files = (table.files.keys() - {"train"}).issuperset(splits)
    if not has_own_files or finds_items(inputs.config["model"]["net"], inputs.allowed):
        return dict(node)
    return {**node, "judged": splits}


def count_steps_per_epoch(dataset: Dataset, update_rows: int) -> int | None:
    """Return the number of updates in an epoch; None for a stream, or without train rows.

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
            f"fewer than the {update_rows:,} of one update; a smaller trainer.batch_size, or "
            "dataset.rest=short"
        )
    return -(-end // update_rows)
