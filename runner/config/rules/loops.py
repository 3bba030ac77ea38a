"""Rules for the loops: their starting points, and what they do not support."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.config.rules.keys import Config, get_key
from runner.config.settings import (
    DEBUG_LOOP,
    EVALUATE_LOOP,
    ONLINE_LOOP,
    SPLITS,
    TRAIN_LOOP,
    TUNE_BATCH_SIZE_LOOP,
    TUNE_LR_LOOP,
)
from runner.config.targets import is_in_packages
from runner.errors import unknown_choice
from runner.models.row_scope import loss_row_scope
from runner.rundir.checkpoint.manifest import MANIFEST_FILE
from runner.rundir.find_checkpoint import why_not_found

STREAM_DATASETS = "runner.data.streaming."
TUNING_LOOPS = (TUNE_BATCH_SIZE_LOOP, TUNE_LR_LOOP)
NEW_RUN_LOOPS = (TRAIN_LOOP, ONLINE_LOOP, *TUNING_LOOPS)


def check_loop(config: Config, from_run: bool) -> Iterator[str]:
    """Check what the loop starts from: nothing, a run or a checkpoint."""
    target = get_key(config, "loop._target_")
    if target == EVALUATE_LOOP and not from_run:
        yield (
            "loop=eval: needs what to evaluate: run=DIR (a run directory) or checkpoint.path=DIR, "
            "such as `python -m runner loop=eval run=outputs/latest`"
        )
    path = get_key(config, "checkpoint.path")
    if get_key(config, "loop.follow"):
        if path is not None or config.get("run") is None:
            yield "loop.follow=true: follows a training under way: run=DIR, its run directory"
    elif target == EVALUATE_LOOP and from_run:
        missing = why_not_found(Path(path or config["run"]), get_key(config, "checkpoint.step"))
        yield from filter(None, [missing])
    step, init = (get_key(config, f"checkpoint.{key}") for key in ("step", "init_from"))
    is_new = target in NEW_RUN_LOOPS and not from_run
    if is_new and init is not None and step != "best" and not (Path(init) / MANIFEST_FILE).exists():
        yield (
            f"checkpoint.step={step}: is for evaluations of a run, and a start takes its best "
            f"step; checkpoint.init_from={init}/checkpoints/step-N takes another one"
        )
    if target != EVALUATE_LOOP and path is not None:
        yield (
            f"checkpoint.path={path}: is what loop=eval evaluates; checkpoint.init_from={path} "
            "starts a training from its weights"
        )
    if target in NEW_RUN_LOOPS and config.get("run") is not None:
        yield (
            f"run={config['run']}: is for loops that start from a run, such as loop=eval; "
            "`python -m runner resume DIR` continues one, checkpoint.init_from=DIR starts from its "
            "weights"
        )


def check_evaluation(config: Config) -> Iterator[str]:
    """Check which splits are evaluated."""
    trainer = config["trainer"]
    on_the_way = trainer.get("eval_splits", ["validation"])  # older runs lack the key
    yield from _check_splits("trainer.eval_splits", on_the_way)
    if "validation" not in on_the_way:
        yield (
            f"trainer.eval_splits=[{', '.join(on_the_way)}]: must hold validation, by which the "
            "best checkpoint is chosen; trainer.eval_every=null evaluates only at the end"
        )
    if final := get_key(config, "loop.final_splits"):  # an empty list is allowed
        yield from _check_splits("loop.final_splits", final)
    chosen = get_key(config, "loop.split")
    if isinstance(chosen, list):
        yield from _check_splits("loop.split", chosen)
        if get_key(config, "loop.follow") and len(chosen) > 1:
            yield (
                f"loop.split=[{', '.join(chosen)}]: loop.follow=true follows one split; start a "
                "process for each"
            )


def check_eval_batch_size(config: Config) -> Iterator[str]:
    """Check that evaluations compare as many rows with each other as training does."""
    trainer = config["trainer"]
    size = trainer.get("eval_batch_size")
    if size is not None and size != trainer["batch_size"] and loss_row_scope(config) is not None:
        yield (
            f"trainer.eval_batch_size={size}: the loss compares the rows of a batch with each "
            "other, so an evaluation in other batches has another loss; null takes "
            f"trainer.batch_size={trainer['batch_size']}"
        )


def _check_splits(key: str, splits: list[str]) -> Iterator[str]:
    if not splits:
        yield f"{key}=[]: needs a split: {', '.join(SPLITS)}"
    for split in dict.fromkeys(splits):
        if split not in SPLITS:
            yield unknown_choice(key, split, SPLITS)
        if splits.count(split) > 1:
            yield f"{key}={split}: is listed twice"


def check_stream(config: Config) -> Iterator[str]:
    """Check that a stream has a loop that can learn from it, and that loop=online can run."""
    target = get_key(config, "loop._target_")
    dataset = str(get_key(config, "dataset._target_"))
    if dataset.startswith(STREAM_DATASETS) and target not in (ONLINE_LOOP, DEBUG_LOOP):
        name = dataset.rpartition(".")[2]
        if target == EVALUATE_LOOP:
            yield (
                f"dataset={name}: is a stream, which has no splits; labelled rows evaluate a run: "
                "dataset=parquet dataset.schema=SCHEMA dataset.path=FILE dataset.test_path=FILE"
            )
        else:
            yield f"dataset={name}: is a stream, which has no epochs and no splits: loop=online"
    if target != ONLINE_LOOP:
        return
    epochs = get_key(config, "trainer.max_epochs")
    if epochs is not None and epochs > 1:
        yield many_epochs(epochs)
    for name in ("early_stop", "lr_on_plateau", "batch_on_plateau"):
        rule = get_key(config, f"trainer.{name}") or {}
        if rule.get("patience") or rule.get("threshold") is not None:
            yield (
                f"trainer.{name}: waits for evaluations of a split, and loop=online has none: "
                f"trainer.{name}.patience=null"
            )
    if get_key(config, "dataset.mix"):
        yield (
            "dataset.mix=true: stores train rows in random order, and loop=online takes them in "
            "the order of the files: dataset.mix=false"
        )


def many_epochs(epochs: int | str) -> str:
    """Return the message for several passes over the rows in a loop with one pass."""
    return (
        f"trainer.max_epochs={epochs}: loop=online learns from each row once: "
        "trainer.max_epochs=1, or trainer.max_steps=N"
    )


def tells_rows(config: Config) -> bool:
    """Return whether the dataset is ours and no stream, so that its rows can be counted."""
    target = str(get_key(config, "dataset._target_"))
    return is_in_packages(target, ("runner",)) and not target.startswith(STREAM_DATASETS)


def rows_not_told(key: str) -> str:
    """Return the message for an `auto` key with a dataset whose rows cannot be counted."""
    return (
        f"{key}=auto: follows from the number of train rows, which a stream and a dataset of your "
        "own do not tell before the training; give a number"
    )


def check_profiler_window(config: Config, source_config: Config) -> Iterator[str]:
    """Refuse a profiler window in a loop that would not record it.

    Args:
        source_config: of the run that it starts from; a window that was set there is ignored.
    """
    key = "trainer.profile.updates"
    updates, loop = get_key(config, key), str(get_key(config, "loop._target_"))
    is_old = updates == get_key(source_config, key)
    if not updates or is_old or get_key(config, "loop.then") == "train":
        return
    instead = {
        DEBUG_LOOP: "loop.summary=true times the modules in its few updates",
        EVALUATE_LOOP: "an evaluation has none",
        **dict.fromkeys(TUNING_LOOPS, "with loop.then=train the training that follows is recorded"),
    }
    if loop in instead:
        yield (
            f"{key}={updates}: the loop {loop.rpartition('.')[2]} records no updates, loop=train "
            f"and loop=online do; {instead[loop]}"
        )


def check_tuning(config: Config) -> Iterator[str]:
    """Check the bounds of the tuning loops against each other."""
    if get_key(config, "loop._target_") not in TUNING_LOOPS:
        return
    loop = config["loop"]
    if "low" in loop and not loop["low"] < loop["high"]:
        yield f"loop.low={loop['low']}: must be below loop.high={loop['high']}"
    start, cap = loop.get("start"), loop.get("max_batch_size")
    if start and cap and start > cap:
        yield f"loop.start={start}: is above loop.max_batch_size={cap}"
