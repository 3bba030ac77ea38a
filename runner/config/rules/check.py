"""The rules between and within fields that a type cannot say. Checked before torch is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from runner.config.early_stopping import check_waiting
from runner.config.intervals import parse_interval
from runner.config.rules.hardware import device, pipeline, precision, ranks
from runner.config.rules.keys import (
    CHOICES,
    INTERVALS,
    NEEDED,
    NOT_NEGATIVE,
    POSITIVE,
    SPLITS,
    Config,
    get,
)
from runner.config.rules.lbfgs import closures
from runner.config.rules.loops import loop, stream, tuning, warm_start, window
from runner.config.rules.sharding import exchanges, sharding
from runner.config.rules.warm_start import warm_sources
from runner.config.targets import check_target_names, lies_in
from runner.config.typecheck import check_types
from runner.errors import ConfigError, nearest
from runner.metrics.settings import MetricSettings
from runner.models.row_scope import check_compared
from runner.optim.lr_schedule import check_schedule
from runner.optim.param_groups import check_own_schedules, parse_parts
from runner.optim.penalty_settings import parse_penalties
from runner.optim.settings import ClipSettings, check_clip, parse_sparse


def check(
    config: Config,
    plain: Config,
    *,
    added: Collection[str] = (),
    allowed: Sequence[str],
    from_run: bool = False,
    before: Config | None = None,
) -> list[str]:
    """Every mistake in a resolved configuration, a message each. Imports no torch.

    Args: plain: the same options without overrides (for types); added: keys given with `+`;
    allowed: packages a `_target_` may lie in; from_run: whether it was taken from a run directory;
    before: that run's own.
    """
    problems = check_types(config, plain, added)
    wrong = {p.split("=")[0].split(":")[0] for p in problems}
    problems += check_target_names(config, allowed)
    for rule in RULES:
        # A rule would trip over, or repeat, what the type check has already said of the same key.
        problems += [p for p in _safely(rule, config) if p.split("=")[0].split(":")[0] not in wrong]
    problems += list(loop(config, from_run))
    problems += _safely(partial(window, before=before or {}), config)
    problems += _safely(partial(warm_sources, from_run=from_run), config)
    problems += _safely(partial(check_compared, from_run=from_run), config)
    problems += list(_dense_optimizer(config, allowed))
    return list(dict.fromkeys(problems))


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
        elif lies_in(node["_target_"], ("runner.training.callbacks",)) and "every" in node:
            try:
                parse_interval(node["every"], key=f"callbacks.{name}.every", timed=True)
            except ConfigError as error:
                yield str(error)
            for key in ("histograms", "gradient_histograms"):
                if node.get(key) and not config.get("tracker"):
                    yield (
                        f"callbacks.{name}.{key}={node[key]}: metrics.jsonl holds numbers only; "
                        "histograms need tracker=tensorboard, wandb or both"
                    )


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


def _average(config: Config) -> Iterator[str]:
    decay = config["trainer"]["ema"]["decay"]
    if decay is not None and not 0 <= decay < 1:
        yield f"trainer.ema.decay={decay}: from 0 (the weights themselves), below 1; null: none"


def _name(config: Config) -> Iterator[str]:
    name = config.get("name")
    if isinstance(name, str) and not re.fullmatch(r"[\w][\w.+-]*", name):
        yield f"name={name}: names a folder: letters, digits and . _ + - only"


RULES: tuple[Callable[[Config], Iterator[str]], ...] = (
    _whole,
    _numbers,
    _choices,
    _length,
    _intervals,
    _monitor,
    check_waiting,
    _callbacks,
    precision,
    device,
    _judged,
    _warmup,
    ranks,
    sharding,
    pipeline,
    exchanges,
    _average,
    _name,
    warm_start,
    stream,
    tuning,
    closures,
)
