"""Rules of the loops: what each starts from, and what it cannot do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.rules.keys import SPLITS, Config, get
from runner.errors import nearest

FROM_A_RUN = "runner.training.loops.evaluate.evaluate"
TRAINS = "runner.training.loops.train.train"
ONLINE = "runner.training.loops.online.online"
DEBUGS = "runner.training.loops.debug.debug"
STREAMS = "runner.data.streaming."
TUNES = (
    "runner.training.loops.tune_batch_size.tune_batch_size",
    "runner.training.loops.tune_lr.tune_lr",
)
BEGINS_AFRESH = (TRAINS, ONLINE, *TUNES)


def loop(config: Config, from_run: bool) -> Iterator[str]:
    target = get(config, "loop._target_")
    split = get(config, "loop.split")
    if split is not None and split not in SPLITS:
        yield f"loop.split={split}: one of {', '.join(SPLITS)}{nearest(str(split), SPLITS)}"
    if target == FROM_A_RUN and not from_run:
        yield "loop=eval: needs what to evaluate: run=DIR (a run directory) or checkpoint.path=DIR"
    path = get(config, "checkpoint.path")
    if get(config, "loop.follow"):
        yield from _follow(config)
    if target != FROM_A_RUN and path is not None:
        yield (
            f"checkpoint.path={path}: is what loop=eval evaluates; checkpoint.init_from={path} "
            "starts a training from its weights"
        )
    if target in BEGINS_AFRESH and config.get("run") is not None:
        yield (
            f"run={config['run']}: is for loops that start from a run, such as loop=eval; "
            "`resume DIR` continues one, checkpoint.init_from=DIR starts from its weights"
        )


def _follow(config: Config) -> Iterator[str]:
    if get(config, "checkpoint.path") is not None or config.get("run") is None:
        yield "loop.follow=true: follows a training as it goes on: run=DIR, its run directory"
    for key in ("loop.poll_s", "loop.timeout_s"):
        if not get(config, key) > 0:
            yield f"{key}={get(config, key)}: must be more than 0 seconds"


def stream(config: Config) -> Iterator[str]:
    """What is learnt from once, in its order, and what has no end."""
    target = get(config, "loop._target_")
    dataset = str(get(config, "dataset._target_"))
    if dataset.startswith(STREAMS) and target not in (ONLINE, DEBUGS):
        name = dataset.rpartition(".")[2]
        yield f"dataset={name}: is a stream, which has no epochs and no splits: loop=online"
    if target != ONLINE:
        return
    epochs = get(config, "trainer.max_epochs")
    if epochs is not None and epochs > 1:
        yield f"trainer.max_epochs={epochs}: loop=online learns from each row once"
    for name in ("early_stop", "lr_on_plateau", "batch_on_plateau"):
        rule = get(config, f"trainer.{name}") or {}
        if rule.get("patience") or rule.get("threshold") is not None:
            yield f"trainer.{name}: waits for evaluations of a split, and loop=online makes none"
    if get(config, "dataset.mix"):
        yield (
            "dataset.mix=true: stores train rows in random order, and loop=online takes them in "
            "the order of the files: dataset.mix=false"
        )


def window(config: Config, before: Config) -> Iterator[str]:
    """A profile that nothing would record. Args: before: of the run it starts from, whose own
    window is no matter of this loop."""
    key = "trainer.profile.updates"
    updates, loop = get(config, key), str(get(config, "loop._target_"))
    if not updates or updates == get(before, key) or get(config, "loop.then") == "train":
        return
    instead = {
        DEBUGS: "loop.summary=true times the modules of its few",
        FROM_A_RUN: "an evaluation has none",
        **dict.fromkeys(TUNES, "with loop.then=train the training that follows is recorded"),
    }
    if loop in instead:
        yield (
            f"{key}={updates}: the loop {loop.rpartition('.')[2]} records no updates, loop=train "
            f"and loop=online do; {instead[loop]}"
        )


def tuning(config: Config) -> Iterator[str]:
    """Shares and ranges of the loops that look for a setting."""
    if get(config, "loop._target_") not in TUNES:
        return
    loop = config["loop"]
    for key in ("fall_off", "margin", "smoothing"):
        if key in loop and not 0 <= loop[key] < 1:
            yield f"loop.{key}={loop[key]}: a share from 0 up to, not including, 1"
    if "low" in loop and not 0 < loop["low"] < loop["high"]:
        low, high = loop["low"], loop["high"]
        yield f"loop.low={low}: needed is more than 0 and less than loop.high={high}"
    if loop.get("updates", 3) < 3:
        yield f"loop.updates={loop['updates']}: fewer than 3 tell nothing"
    if "diverged" in loop and not loop["diverged"] > 1:
        yield f"loop.diverged={loop['diverged']}: a multiple of the least loss: more than 1"
    start, cap = loop.get("start"), loop.get("max_batch_size")
    if start and cap and start > cap:
        yield f"loop.start={start}: is over loop.max_batch_size={cap}"


def warm_start(config: Config) -> Iterator[str]:
    init, target = get(config, "checkpoint.init_from"), get(config, "loop._target_")
    if target not in BEGINS_AFRESH:
        return
    if init is not None and not os.path.isdir(init):
        yield f"checkpoint.init_from={init}: no such folder"
    names, tables = (
        get(config, f"checkpoint.{key}") or {} for key in ("init_names", "init_tables")
    )
    if init is None and names:
        yield "checkpoint.init_names: renames weights of checkpoint.init_from, which is not set"
    if init is None and not tables and get(config, "checkpoint.init_optimizer"):
        yield "checkpoint.init_optimizer=true: of what checkpoint.init_from or init_tables take"
    if init is None and get(config, "checkpoint.init_average"):
        yield "checkpoint.init_average=true: of checkpoint.init_from, which is not set"
    for name, other in names.items():
        if not (other is None or (isinstance(other, str) and other)):
            yield f"checkpoint.init_names.{name}={other}: the name there, or null to leave it out"
    for table, given in tables.items():
        yield from _of_a_table(f"checkpoint.init_tables.{table}", given)


def _of_a_table(key: str, given: Any) -> Iterator[str]:
    if not isinstance(given, Mapping) or not isinstance(given.get("from"), str):
        yield f"{key}={given}: needed is {{from: DIR}}, and with another name table: NAME"
        return
    for name in given:
        if name not in ("from", "table"):
            yield f"{key}.{name}: is no key of it{nearest(str(name), ('from', 'table'))}"
    if not isinstance(given.get("table", ""), str):
        yield f"{key}.table={given['table']}: needed is the name of a table there"
    if not os.path.isdir(given["from"]):
        yield f"{key}.from={given['from']}: no such folder"
