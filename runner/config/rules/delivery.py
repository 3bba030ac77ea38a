"""The requirements of a delivery."""

from __future__ import annotations

import os
from collections.abc import Iterator
from glob import glob

from runner.config.rules.keys import Config, get_key
from runner.config.rules.loops import STREAM_DATASETS, TUNING_LOOPS
from runner.config.settings import ONLINE_LOOP, TRAIN_LOOP


def check_delivery(config: Config) -> Iterator[str]:
    """Check that there is a place, a training and a checkpoint to deliver from."""
    every, to = get_key(config, "delivery.every"), get_key(config, "delivery.to")
    if every is None:
        for name in ("to", "rows_from"):
            if (value := get_key(config, f"delivery.{name}")) is not None:
                yield f"delivery.{name}={value}: nothing is delivered without delivery.every"
        return
    target = get_key(config, "loop._target_")
    if target in TUNING_LOOPS:
        yield f"delivery.every={every}: only loop=train and loop=online deliver"
    if target not in (TRAIN_LOOP, ONLINE_LOOP):
        return  # an evaluation has the settings of its run
    if to is None:
        yield f"delivery.every={every}: delivery.to is not set: the folder to write"
    if get_key(config, "checkpoint.keep") == 0:
        yield (
            f"delivery.every={every}: a delivery is written from a checkpoint, and "
            "checkpoint.keep=0 writes none"
        )
    dataset, rows = str(get_key(config, "dataset._target_")), get_key(config, "delivery.rows_from")
    if rows is None and dataset.startswith(STREAM_DATASETS):
        yield (
            f"delivery.every={every}: a stream has no test split on which the first artifact could "
            "be compared with the model; name a file of labelled rows by delivery.rows_from=FILE"
        )
    if rows is not None and "://" not in str(rows) and not glob(os.path.expanduser(str(rows))):
        yield f"delivery.rows_from={rows}: no such path"
