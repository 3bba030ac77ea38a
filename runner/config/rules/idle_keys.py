"""Settings without an effect, since another key turns off their subject."""

from __future__ import annotations

import os
from collections.abc import Iterator

from runner.config.declarations import all_declarations
from runner.config.early_stopping import PATIENCE_RULES
from runner.config.fit_choices import is_of_catalogue
from runner.config.rules.keys import Config, get_key
from runner.config.settings import ONLINE_LOOP
from runner.embeddings.sharding_settings import DISK
from runner.metrics.names import RETRIEVAL_NETS, split_task
from runner.metrics.settings import MetricSettings

# key -> the keys of which one must be on
NEEDED = {
    "trainer.amp_dtype": ("trainer.amp",),
    "trainer.clip.tables": tuple(
        f"trainer.clip.{name}" for name in ("value", "parameter_norm", "global_norm")
    ),
    "trainer.ema.warmup": ("trainer.ema.decay",),
    "trainer.ema.evaluate": ("trainer.ema.decay",),
    "trainer.profile.after": ("trainer.profile.updates",),
    "trainer.early_stop.threshold": ("trainer.eval_every",),
    **{f"trainer.{rule}.patience": ("trainer.eval_every",) for rule in PATIENCE_RULES},
    "checkpoint.save_every": ("checkpoint.keep",),
    "metrics.max_slices": ("metrics.slice_by",),
    "loop.pick": ("loop.follow",),
    "loop.poll_s": ("loop.follow",),
    "loop.timeout_s": ("loop.follow",),
}
ONLINE_IDLE = ("trainer.eval_every", "trainer.eval_splits", "trainer.eval_batch_size")
# of dataset=synthetic: key -> the number of columns to which it applies
NEEDED_COLUMNS = {
    "sequence_length": "num_sequences",
    "mean_length": "num_lists",
    "missing": "num_numeric",
}


def find_idle_keys(config: Config, from_run: bool) -> Iterator[str]:
    """Yield a sentence for each key that is not at its default but has no effect.

    These are not mistakes: in a sweep over the other key, only some jobs turn it off.

    Args:
        from_run: whether it comes from a run, for which this was reported; a loop's keys are new.
    """
    declared = dict(all_declarations())
    for key, needed in NEEDED.items():
        value, default = get_key(config, key), declared[key].default
        is_new = key.startswith("loop.") or not from_run
        if is_new and value not in (None, default) and not any(get_key(config, k) for k in needed):
            shown = str(value).lower() if isinstance(value, bool) else value
            yield f"{key}={shown} has no effect without {' or '.join(needed)}"
    if from_run:
        return
    yield from _idle_metric_keys(config)
    for key in ONLINE_IDLE if get_key(config, "loop._target_") == ONLINE_LOOP else ():
        if (value := get_key(config, key)) not in (None, declared[key].default):
            yield f"{key}={value} has no effect with loop=online, which evaluates no split"
    scaling = config["trainer"]["lr_scaling"]
    if scaling["rule"] == "constant" and scaling["batches"] is not None:
        yield (
            f"trainer.lr_scaling.batches={scaling['batches']} has no effect with "
            "trainer.lr_scaling.rule=constant"
        )


def _idle_metric_keys(config: Config) -> Iterator[str]:
    metrics, net = config["metrics"], config["model"]["net"]["_target_"]
    metric_names = [split_task(str(name))[0].partition("@")[0] for name in metrics["eval"]]
    bins = metrics["ece_bins"]
    if bins != MetricSettings.ece_bins and "ece" not in metric_names:
        yield f"metrics.ece_bins={bins} has no effect, since metrics.eval lists no ece"
    has_rankings = any(map(is_of_catalogue, metrics["eval"]))
    for key, default in (("candidates", "rows"), ("relevant_from", None)):
        if metrics[key] != default and not has_rankings:
            yield (
                f"metrics.{key}={metrics[key]} has no effect, since metrics.eval lists no ranking, "
                "such as recall@10"
            )
    finds_items = net in RETRIEVAL_NETS or not net.startswith("runner.")
    if not metrics["leave_history_out"] and not finds_items:
        yield (
            f"metrics.leave_history_out=false has no effect, since {net.rpartition('.')[2]} scores "
            "rows and finds no items; model=sasrec and model=two_tower do"
        )


def _idle_sharding_keys(config: Config, defaults: Config) -> Iterator[str]:
    node = config["sharding"]
    plans = {"plan": node["plan"], **{f"tables.{k}": plan for k, plan in node["tables"].items()}}
    idle = {k: v for k, v in node.items() if k not in ("plan", "tables") and v != defaults[k]}
    if config["trainer"]["num_processes"] > 1:
        if "min_columns" in idle and "column_wise" not in plans.values():
            yield f"sharding.min_columns={idle['min_columns']} has no effect without column_wise"
        return
    idle = {k: plan for k, plan in plans.items() if plan not in ("auto", DISK)} | idle
    for key, value in idle.items():
        yield (
            f"sharding.{key}={value} has no effect in one process, which has all tables whole; "
            "trainer.num_processes=N shares them"
        )


def find_idle_beside_defaults(config: Config, default_config: Config) -> Iterator[str]:
    """Yield a sentence for each key of data, tables or sweeps that this job does not use."""
    dataset, defaults = config["dataset"], default_config["dataset"]
    for key, count in NEEDED_COLUMNS.items():
        if dataset.get(count) == 0 and dataset[key] != defaults.get(key):
            yield f"dataset.{key}={dataset[key]} has no effect with dataset.{count}=0"
    most = dataset.get("max_bad_rows")
    if dataset.get("on_bad_rows") == "error" and most != defaults.get("max_bad_rows"):
        yield f"dataset.max_bad_rows={most} has no effect without dataset.on_bad_rows=skip"
    yield from _idle_sharding_keys(config, default_config["sharding"])
    launcher, default_launcher = config.get("launcher") or {}, default_config.get("launcher") or {}
    if not os.environ.get("RUNNER_SWEEP"):
        for key, value in launcher.items():
            if value != default_launcher.get(key):
                yield f"launcher.{key}={value} has no effect on a single run; -m starts a sweep"
