"""Checks a whole configuration, before torch is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from runner.config.early_stopping import check_monitored_metrics
from runner.config.intervals import parse_interval
from runner.config.rules.delivery import check_delivery
from runner.config.rules.hardware import (
    check_device,
    check_num_processes,
    check_pipeline,
    check_precision,
    check_tf32,
)
from runner.config.rules.keys import REQUIRED_NODES, Config, get_key
from runner.config.rules.lbfgs import check_lbfgs
from runner.config.rules.loops import (
    check_eval_batch_size,
    check_evaluation,
    check_loop,
    check_profiler_window,
    check_stream,
    check_tuning,
)
from runner.config.rules.sharding import check_sharding_rules, check_sparse_dist
from runner.config.rules.warm_start import check_warm_start, check_warm_start_sources
from runner.config.settings import EVALUATE_LOOP, SPLITS
from runner.config.targets import check_target_names, is_in_packages
from runner.config.typecheck import check_types
from runner.errors import ConfigError, UserError, nearest_hint
from runner.metrics.settings import MetricSettings
from runner.models.norm_scope import check_batch_statistics, check_hidden_settings
from runner.models.row_scope import check_item_memory, check_loss_row_scope
from runner.models.table_widths import check_widths
from runner.models.unused_settings import check_loss_correction
from runner.optim.lr_schedule import build_schedule, check_schedule
from runner.optim.param_groups import check_schedules, parse_parameter_groups
from runner.optim.penalty_settings import parse_penalties
from runner.optim.settings import parse_sparse

Rule = Callable[[Config], Iterator[str]]
TIME_LIMIT = "runner.training.callbacks.watch.time_limit.TimeLimit"


def check_config(
    config: Config,
    default_config: Config,
    *,
    added_keys: Collection[str] = (),
    allowed: Sequence[str],
    from_run: bool = False,
    source_config: Config | None = None,
    known_problems: Sequence[str] = (),
    has_loss: bool = True,
    has_begun: bool = False,
) -> list[str]:
    """Return a message for every mistake in a resolved configuration. Imports no torch.

    A rule may fail on a value that is missing or of a wrong type, which another message reports.
    If none does, the rule itself is wrong, and its error is raised.

    Args:
        default_config: the same options without overrides, for the types.
        added_keys: keys given with `+`.
        from_run: whether the configuration was taken from a run directory.
        known_problems: mistakes found before.
        has_loss: whether a loss is computed on the rows of a batch; a prediction has none, so that
            its rows may be divided in any way.
        has_begun: whether there are weights to continue from; then a warm start is not checked.
    """
    problems = check_types(config, default_config, added_keys)
    reported_keys = {re.split(r"[=:\[]", p)[0] for p in problems}
    problems += check_target_names(config, allowed)
    evaluates = get_key(config, "loop._target_") == EVALUATE_LOOP
    rules: tuple[Rule, ...] = (
        *CONFIG_RULES,
        partial(check_loop, from_run=from_run),
        partial(check_tf32, from_run=from_run),
        partial(check_profiler_window, source_config=source_config or {}),
        partial(check_loss_correction, from_run=from_run),
        partial(_check_dense_optimizer, allowed=allowed),
    )
    if not has_begun:
        rules += (check_warm_start, partial(check_warm_start_sources, from_run=from_run))
    if has_loss:
        rules += (partial(check_loss_row_scope, from_run=from_run), check_eval_batch_size)
        rules += () if evaluates else (check_batch_statistics, check_item_memory)
    failures = []
    for rule in rules:
        rule_problems, failure = _run_rule(rule, config)
        # A rule would repeat what the type check has already reported about a key.
        problems += [p for p in rule_problems if not _names_any(p, reported_keys)]
        failures += [failure] if failure is not None else []
    if failures and not problems and not known_problems:
        raise failures[0]
    return list(dict.fromkeys(problems))


def _names_any(problem: str, keys: Collection[str]) -> bool:
    # a key without a dot is also an English word: name=..., and not "name a folder"
    return not set(re.findall(r"\w+(?:\.\w+)+|\w+(?==)", problem)).isdisjoint(keys)


def _run_rule(rule: Rule, config: Config) -> tuple[list[str], Exception | None]:
    """Return the findings of a rule, up to the error with which it fails.

    Raises:
        UserError: for a file that a rule reads and that is damaged.
    """
    problems: list[str] = []
    try:
        for problem in rule(config):
            problems.append(problem)
    except ConfigError as error:
        problems += error.problems
    except UserError:
        raise
    except Exception as error:
        return problems, error
    return problems, None


def _ask(parse: Callable[[Config], object]) -> Rule:
    """Return a rule that calls a group's parser, which gives the reason for refusing a value."""

    def rule(config: Config) -> Iterator[str]:
        parse(config)
        yield from ()

    return rule


def _check_required_nodes(config: Config) -> Iterator[str]:
    for key in REQUIRED_NODES:
        if not isinstance(get_key(config, key), Mapping):
            group = key.split(".")[0]
            more = f"`python -m runner ls {group}` lists its options"
            yield f"{key}: is missing, and every job needs it; {more}"


def _check_dense_lr(config: Config) -> Iterator[str]:
    rate = get_key(config, "optimizer.dense.lr")
    if isinstance(rate, int | float) and not 0 <= rate < float("inf"):
        yield f"optimizer.dense.lr={rate}: a learning rate is a number from 0"


def _check_length(config: Config) -> Iterator[str]:
    steps, epochs = get_key(config, "trainer.max_steps"), get_key(config, "trainer.max_epochs")
    if steps is None and epochs is None:
        yield (
            "trainer.max_steps=null: set trainer.max_steps or trainer.max_epochs, which say how "
            "long the run is"
        )
    elif steps is not None and epochs is not None:
        yield (
            f"trainer.max_steps={steps} and trainer.max_epochs={epochs}: exactly one may hold; "
            "set the other to null"
        )


def _check_monitor(config: Config) -> Iterator[str]:
    metric = get_key(config, "checkpoint.monitor.metric")
    if isinstance(metric, str):
        split, _, name = metric.partition("/")
        if split not in SPLITS or not name:
            yield (
                f"checkpoint.monitor.metric={metric}: write split/metric, such as validation/auc; "
                f"splits are {', '.join(SPLITS)}{nearest_hint(split, SPLITS)}"
            )


def _check_own_metrics(config: Config) -> Iterator[str]:
    for name, node in (config["metrics"].get("own") or {}).items():
        key = f"metrics.own.{name}"
        if not isinstance(node, Mapping) or not isinstance(node.get("_target_"), str):
            yield f"{key}: needs a _target_: a class of torchmetrics"
            continue
        tasks = node.get("tasks")
        if tasks is not None and not (isinstance(tasks, list) and tasks):
            yield f"{key}.tasks={tasks}: a list of tasks, or null for all of them"


def _check_callbacks(config: Config) -> Iterator[str]:
    for name, node in (config.get("callbacks") or {}).items():
        if is_in_packages(node["_target_"], ("runner.training.callbacks",)) and "every" in node:
            try:
                parse_interval(node["every"], key=f"callbacks.{name}.every", allow_time=True)
            except ConfigError as error:
                yield str(error)
            for key in ("histograms", "gradient_histograms"):
                if node.get(key) and not config.get("tracker"):
                    yield (
                        f"callbacks.{name}.{key}={node[key]}: metrics.jsonl holds numbers only; "
                        "histograms need tracker=tensorboard, wandb or both"
                    )


def _check_time_limits(config: Config) -> Iterator[str]:
    for name, node in (config.get("callbacks") or {}).items():
        if node["_target_"] != TIME_LIMIT:
            continue
        key = f"callbacks.{name}"
        try:
            limit, margin = (
                parse_interval(node.get(k, d), key=f"{key}.{k}", allow_time=True)
                for k, d in (("limit", None), ("margin", "1min"))
            )
        except ConfigError:
            continue  # the declarations of both keys allow times
        if limit is not None and margin is not None and margin.count >= limit.count:
            yield (
                f"{key}.margin={node.get('margin', '1min')}: must be less than "
                f"{key}.limit={node['limit']}"
            )


def _check_table_widths(net: Config) -> None:
    if "embedding_dim" in net and is_in_packages(net.get("_target_", ""), ("runner.models",)):
        check_widths(net["embedding_dim"])
        if (pairs := net.get("pairs")) and not isinstance(net["embedding_dim"], int):
            raise ConfigError(
                f"model.net.pairs={str(pairs).lower()}: multiplies vectors of all features, which "
                "need tables of one width, as in model.net.embedding_dim=16"
            )


def _check_dense_optimizer(config: Config, allowed: Sequence[str]) -> Iterator[str]:
    target = get_key(config, "optimizer.dense._target_")
    if isinstance(target, str) and is_in_packages(target, allowed):
        packages = ("torch.nn", "torchmetrics", "runner")
        if is_in_packages(target, packages) and not is_in_packages(target, ("runner.optim",)):
            yield (
                f"optimizer.dense._target_={target}: is not an optimizer; name a class of "
                "torch.optim"
            )
        elif target == "torch.optim.SparseAdam":
            yield (
                f"optimizer.dense._target_={target}: takes sparse gradients only, and the dense "
                "half has none; optimizer=adam updates only the rows of the batch in tables"
            )
    elif target is None:
        yield "optimizer.dense._target_: is missing; name a class of torch.optim"
    if get_key(config, "optimizer.dense.differentiable"):
        yield (
            "optimizer.dense.differentiable=true: is for gradients through the optimizer's update, "
            "which no loop computes; leave it out"
        )


def _check_warmup(config: Config) -> Iterator[str]:
    warmup, steps = get_key(config, "scheduler.warmup"), get_key(config, "trainer.max_steps")
    if steps is not None and isinstance(warmup, int) and warmup > steps:
        yield (
            f"scheduler.warmup={warmup}: longer than the run (trainer.max_steps={steps}); give "
            "fewer updates, or a fraction of the run such as 0.1"
        )
    elif (
        steps is not None
        and "kind" in config["scheduler"]
        and "ep" not in re.findall(r"[a-z]+", str(config["scheduler"]))
    ):
        build_schedule(config["scheduler"], steps)  # the length of an epoch is not known yet


def _check_name(config: Config) -> Iterator[str]:
    name = config.get("name")
    if isinstance(name, str) and not re.fullmatch(r"[\w][\w.+-]*", name):
        yield (
            f"name={name}: becomes a part of a folder's name, so it may have only letters, "
            "digits and . _ + -"
        )


CONFIG_RULES: tuple[Rule, ...] = (
    _check_required_nodes,
    _check_dense_lr,
    _check_length,
    _check_monitor,
    check_monitored_metrics,
    _check_own_metrics,
    _check_callbacks,
    _check_time_limits,
    check_precision,
    check_device,
    _ask(lambda config: parse_sparse(config["optimizer"]["sparse"])),
    _ask(lambda config: check_schedule(config["scheduler"])),
    _ask(lambda config: check_schedules(config["optimizer"])),
    _ask(lambda config: parse_parameter_groups(config["optimizer"])),
    _ask(lambda config: parse_penalties(config["trainer"].get("penalties"))),
    _ask(lambda config: MetricSettings(**config["metrics"])),
    _ask(lambda config: _check_table_widths(config["model"].get("net") or {})),
    _check_warmup,
    check_num_processes,
    check_sharding_rules,
    check_pipeline,
    check_sparse_dist,
    _check_name,
    check_delivery,
    check_stream,
    check_tuning,
    check_evaluation,
    check_lbfgs,
    check_hidden_settings,
)
