"""The rules between and within fields that a type cannot say. Checked before torch is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, nearest
from runner.intervals import parse_interval
from runner.metrics.settings import MetricSettings
from runner.optim.parts import check_own_schedules, parse_parts
from runner.optim.penalty_settings import parse_penalties
from runner.optim.scaling import RULES as RULES_OF_SCALING
from runner.optim.schedule import check_schedule
from runner.optim.settings import ClipSettings, check_clip, parse_sparse
from runner.optim.sharding import check_sharding
from runner.patience import check_waiting
from runner.targets import check_target_names, lies_in
from runner.typecheck import check_types

Config = Mapping[str, Any]

# What a key takes besides what its type says; the first is what most want.
CHOICES: dict[str, tuple[str, ...]] = {
    "trainer.device": ("auto", "cpu", "cuda"),
    "trainer.amp_dtype": ("bf16", "fp16"),
    "trainer.log_gradients": ("global", "parameters"),
    "checkpoint.step": ("best", "last"),  # or a number
    "checkpoint.monitor.direction": ("max", "min"),
    "loop.pick": ("all", "latest"),
    "loop.score": ("auto", "before"),
    "loop.then": ("train",),
    "trainer.lr_scaling.rule": tuple(RULES_OF_SCALING),
    "search.sampler": ("tpe", "random", "grid", "quasi-random", "gp", "nsga2"),
    "search.pruner": ("none", "median", "asha"),
}
SPLITS = ("train", "validation", "test")
NEEDED = (  # nodes that every job reads
    "model.net",
    "model.loss",
    "dataset",
    "optimizer.sparse",
    "optimizer.dense",
    "scheduler",
    "task",
    "loop",
    "trainer",
    "checkpoint.monitor",
    "sharding",
    "metrics",
)
POSITIVE = (
    "trainer.max_steps",
    "trainer.max_epochs",
    "trainer.batch_size",
    "trainer.accumulate",
    "trainer.num_threads",
    "trainer.num_processes",
    "trainer.rank_timeout_s",
    "trainer.lr_scaling.batches",
    "checkpoint.keep",
    "loop.max_steps",
    "loop.max_batches",
    "loop.start",
    "loop.updates",
    "loop.max_trials",
    "loop.max_batch_size",
    "launcher.slots",
    "search.num_trials",
    "search.pruner_first",
    "search.pruner_after",
)
NOT_NEGATIVE = ("seed", "launcher.retries", "trainer.profile.updates", "trainer.profile.after")
INTERVALS = {  # whether a time is allowed
    "trainer.log_every": True,
    "trainer.eval_every": False,
    "checkpoint.save_every": True,
}
FROM_A_RUN = "runner.loops.evaluate.evaluate"
TRAINS = "runner.loops.train.train"
ONLINE = "runner.loops.online.online"
DEBUGS = "runner.loops.debug.debug"
STREAMS = "runner.data.live."
TUNES = ("runner.loops.tune_batch_size.tune_batch_size", "runner.loops.tune_lr.tune_lr")
BEGINS_AFRESH = (TRAINS, ONLINE, *TUNES)


def check(
    config: Config,
    plain: Config,
    *,
    added: Collection[str] = (),
    allowed: Sequence[str],
    from_run: bool = False,
) -> list[str]:
    """Every mistake in a resolved configuration, a message each. Imports no torch.

    Args: plain: the same options without overrides (for types); added: keys given with `+`;
    allowed: packages a `_target_` may lie in; from_run: whether it was taken from a run directory.
    """
    problems = check_types(config, plain, added)
    wrong = {p.split("=")[0].split(":")[0] for p in problems}
    problems += check_target_names(config, allowed)
    for rule in RULES:
        # A rule would trip over, or repeat, what the type check has already said of the same key.
        problems += [p for p in _safely(rule, config) if p.split("=")[0].split(":")[0] not in wrong]
    problems += list(_loop(config, from_run))
    problems += list(_dense_optimizer(config, allowed))
    return list(dict.fromkeys(problems))


def get(config: Config, key: str) -> Any:
    """The value at a dotted key, or None."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _safely(rule: Callable[[Config], Iterator[str]], config: Config) -> list[str]:
    try:
        return list(rule(config))
    except (TypeError, AttributeError, KeyError):
        return []  # of a wrong type, or missing: said already, or said by `_whole`


def _whole(config: Config) -> Iterator[str]:
    for key in NEEDED:
        if not isinstance(get(config, key), Mapping):
            group = key.split(".")[0]
            yield f"{key}: is missing, and every job needs it; `ls {group}` lists its options"


def _numbers(config: Config) -> Iterator[str]:
    for key in POSITIVE:
        value = get(config, key)
        if isinstance(value, int | float) and value < 1:
            yield f"{key}={value}: must be at least 1"
    for key in NOT_NEGATIVE:
        value = get(config, key)
        if isinstance(value, int | float) and not value >= 0:
            yield f"{key}={value}: must not be negative"
    rate = get(config, "optimizer.dense.lr")
    if isinstance(rate, int | float) and not 0 <= rate < float("inf"):
        yield f"optimizer.dense.lr={rate}: a learning rate is a number from 0"
    seed = get(config, "seed")
    if isinstance(seed, int) and seed >= 2**63:
        yield f"seed={seed}: must be below 2**63"


def _choices(config: Config) -> Iterator[str]:
    for key, known in CHOICES.items():
        value = get(config, key)
        if value is None or value in known:
            continue
        if key == "checkpoint.step" and isinstance(value, int):
            if value < 0:
                yield f"{key}={value}: the number of an update, or best, or last"
        elif key == "trainer.device" and re.fullmatch(r"cuda:\d+", str(value)):
            continue
        else:
            yield f"{key}={value}: one of {', '.join(known)}{nearest(str(value), known)}"


def _length(config: Config) -> Iterator[str]:
    steps, epochs = get(config, "trainer.max_steps"), get(config, "trainer.max_epochs")
    if steps is None and epochs is None:
        yield "trainer.max_steps=null: exactly one of trainer.max_steps and trainer.max_epochs"
    elif steps is not None and epochs is not None:
        yield (
            f"trainer.max_steps={steps} and trainer.max_epochs={epochs}: exactly one may hold; "
            "set the other to null"
        )


def _intervals(config: Config) -> Iterator[str]:
    for key, timed in INTERVALS.items():
        try:
            parse_interval(get(config, key), key=key, timed=timed)
        except ConfigError as error:
            yield str(error)


def _monitor(config: Config) -> Iterator[str]:
    metric = get(config, "checkpoint.monitor.metric")
    if isinstance(metric, str):
        split, _, name = metric.partition("/")
        if split not in SPLITS or not name:
            yield (
                f"checkpoint.monitor.metric={metric}: write split/metric, such as validation/auc; "
                f"splits are {', '.join(SPLITS)}{nearest(split, SPLITS)}"
            )


def _callbacks(config: Config) -> Iterator[str]:
    for name, node in (config.get("callbacks") or {}).items():
        if not isinstance(node, Mapping) or not isinstance(node.get("_target_"), str):
            yield f"callbacks.{name}: needs a _target_: the class of the callback"
        elif lies_in(node["_target_"], ("runner.callbacks",)) and "every" in node:
            try:
                parse_interval(node["every"], key=f"callbacks.{name}.every", timed=True)
            except ConfigError as error:
                yield str(error)


def _precision(config: Config) -> Iterator[str]:
    trainer = config["trainer"]
    if not trainer.get("amp") or trainer.get("amp_dtype") != "fp16":
        return
    if trainer["device"] == "cpu" or (trainer["device"] == "auto" and not _may_have_cuda()):
        yield (
            "trainer.amp_dtype=fp16: needs a CUDA device "
            f"(trainer.device={trainer['device']}); bf16 works everywhere"
        )


def _device(config: Config) -> Iterator[str]:
    device = config["trainer"]["device"]
    if isinstance(device, str) and device.startswith("cuda") and not _may_have_cuda():
        yield f"trainer.device={device}: this machine shows no NVIDIA device; auto or cpu works"


def _may_have_cuda() -> bool:
    """Whether there is any device file of a GPU; torch, which knows better, comes later."""
    return any(any(Path("/dev").glob(pattern)) for pattern in ("nvidia*", "nvhost*", "dxg", "kfd"))


def _judged(config: Config) -> Iterator[str]:
    """Groups with a parser of their own, which knows why it refuses what a kernel would ignore."""
    for parse in (
        lambda: parse_sparse(config["optimizer"]["sparse"]),
        lambda: check_schedule(config["scheduler"]),
        lambda: check_own_schedules(config["optimizer"]),
        lambda: parse_parts(config["optimizer"]),
        lambda: check_clip(ClipSettings(**config["trainer"].get("clip", {}))),
        lambda: parse_penalties(config["trainer"].get("penalties")),
        lambda: MetricSettings(**config["metrics"]),
    ):
        try:
            parse()
        except ConfigError as error:
            yield str(error)


def _dense_optimizer(config: Config, allowed: Sequence[str]) -> Iterator[str]:
    target = get(config, "optimizer.dense._target_")
    if isinstance(target, str) and lies_in(target, allowed):
        ours = ("torch.nn", "torchmetrics", "runner")
        if lies_in(target, ours) and not lies_in(target, ("runner.optim",)):
            yield f"optimizer.dense._target_={target}: not an optimizer; a class of torch.optim"
    elif target is None:
        yield "optimizer.dense._target_: is missing; a class of torch.optim"


def _warmup(config: Config) -> Iterator[str]:
    warmup, steps = get(config, "scheduler.warmup") or 0, get(config, "trainer.max_steps")
    if steps is not None and warmup > steps:
        yield f"scheduler.warmup={warmup}: longer than the run (trainer.max_steps={steps})"


def _ranks(config: Config) -> Iterator[str]:
    size = config["trainer"]["num_processes"]
    loop = get(config, "loop._target_")
    if size > 1 and loop not in (TRAINS, FROM_A_RUN, *TUNES):
        name = str(loop).rpartition(".")[2]
        yield f"trainer.num_processes={size}: the loop {name} works in one process"
    if size > 1 and str(config["trainer"]["device"]).startswith("cuda:"):
        yield (
            f"trainer.device={config['trainer']['device']}: each of {size} ranks takes a GPU of "
            "its own; write cuda"
        )
    device = config["trainer"]["device"]
    on_cpu = device == "cpu" or (device == "auto" and not _may_have_cuda())
    # one process has all tables whole, so that any plan is as good as another
    kind = get(config, "optimizer.sparse.kind") if size > 1 else None
    yield from check_sharding(config["sharding"], kind, on_cpu=on_cpu and size > 1)


def _average(config: Config) -> Iterator[str]:
    decay = config["trainer"]["ema"]["decay"]
    if decay is not None and not 0 <= decay < 1:
        yield f"trainer.ema.decay={decay}: from 0 (the weights themselves), below 1; null: none"


def _name(config: Config) -> Iterator[str]:
    name = config.get("name")
    if isinstance(name, str) and not re.fullmatch(r"[\w][\w.+-]*", name):
        yield f"name={name}: names a folder: letters, digits and . _ + - only"


def _loop(config: Config, from_run: bool) -> Iterator[str]:
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


def _stream(config: Config) -> Iterator[str]:
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


def _tuning(config: Config) -> Iterator[str]:
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


def _warm_start(config: Config) -> Iterator[str]:
    init, target = get(config, "checkpoint.init_from"), get(config, "loop._target_")
    if init is not None and target in BEGINS_AFRESH and not os.path.isdir(init):
        yield f"checkpoint.init_from={init}: no such folder"


RULES: tuple[Callable[[Config], Iterator[str]], ...] = (
    _whole,
    _numbers,
    _choices,
    _length,
    _intervals,
    _monitor,
    check_waiting,
    _callbacks,
    _precision,
    _device,
    _judged,
    _warmup,
    _ranks,
    _average,
    _name,
    _warm_start,
    _stream,
    _tuning,
)
