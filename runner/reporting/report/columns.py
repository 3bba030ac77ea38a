"""Chooses the columns of a table of runs: varying settings and metrics; sorts the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.errors import UserError, nearest_keys
from runner.metrics.names import find_metric
from runner.reporting.report.leaderboard import rank_key, rank_runs
from runner.reporting.report.records import RunRecord, format_setting

# Parts of the identity that another column or setting shows more readably.
_REDUNDANT_KEYS = ("seed", "source.signature", "source.newest")
_ABSENT = object()
_UNSET = (_ABSENT, format_setting(None))


def varying_settings(runs: Sequence[RunRecord]) -> list[str]:
    """Return the settings in which the runs differ, options of groups first, without the seed.

    Left out are keys determined by the option of their group, data determined by other settings,
    keys whose parts are settings too, and keys with a single value that occur only together with a
    neighbour.
    """
    runs = [r for r in runs if r.settings]
    keys = dict.fromkeys(key for r in runs for key in r.settings)
    table = {key: tuple(_at(r, key) for r in runs) for key in keys}
    groups = {g for r in runs for g in r.choices}
    differing = [k for k in table if k not in _REDUNDANT_KEYS and len(set(table[k])) > 1]
    varying = [k for k in differing if k in groups]
    # a group within another one: `model/loss` mostly follows from `model`
    outer = {k: k.rpartition("/")[0] for k in varying}
    varying = [k for k in varying if outer[k] not in varying or not _follows(table, k, [outer[k]])]
    for key in differing:
        options = [k for k in varying if key.startswith(k.replace("/", ".") + ".")]
        if key not in (*groups, "data") and not any(_follows(table, key, [k]) for k in options):
            varying.append(key)
    in_parts = {k for k in varying if any(other.startswith(f"{k}.") for other in table)}
    varying = _without_companions([k for k in varying if k in groups or k not in in_parts], table)
    of_data = [k for k in varying if k.split(".")[0] == "dataset"]
    if "data" in differing and not (of_data and _follows(table, "data", of_data)):
        varying.append("data")
    return varying


def _at(run: RunRecord, key: str) -> Any:
    value = run.settings.get(key, _ABSENT)
    return format_setting(value) if value is not _ABSENT else _ABSENT


def _follows(table: Mapping[str, Sequence[Any]], key: str, others: Sequence[str]) -> bool:
    """Whether a setting is determined by the others: equal in all runs in which they are equal."""
    columns = [table[other] for other in others]
    return len(set(zip(*columns))) == len(set(zip(*columns, table[key])))


def _without_companions(keys: Sequence[str], table: Mapping[str, Sequence[Any]]) -> list[str]:
    """Leave out keys of one value that occur only together with a neighbour, the last first."""
    has = {k: [value not in _UNSET for value in table[k]] for k in keys}
    kept = list(keys)
    for key in reversed(keys):
        parent = key.rpartition(".")[0]
        siblings = [k for k in kept if k != key and k.rpartition(".")[0] == parent != ""]
        is_companion = not all(has[key]) and any(has[k] == has[key] for k in siblings)
        if is_companion and len(set(table[key]).difference(_UNSET)) < 2:
            kept.remove(key)
    return kept


def short_headings(keys: Sequence[str]) -> dict[str, str]:
    """Return the last two parts of each key, or the whole key if others have the same ending."""
    short = {k: ".".join(k.split(".")[-2:]) for k in keys}
    count = Counter(short.values())
    return {k: s if count[s] == 1 else k for k, s in short.items()}


def monitored_metric(runs: Sequence[RunRecord]) -> tuple[str, str]:
    """Return the metric that most runs monitor; if no run has measured it, another one.

    Returns:
        Its name, as split/metric, and its direction: max, min or one.
    """
    for (metric, direction), _ in Counter(r.monitor for r in runs).most_common():
        if any(metric in r.metrics for r in runs):
            return metric, direction
    names = list(dict.fromkeys(m for r in runs for m in r.metrics if "/" in m))  # no active_s
    if not names:
        return runs[0].monitor
    best = sorted(names, key=lambda n: (n.split("/")[0] == "train", n.split("/")[1] != "auc"))[0]
    return best, metric_direction(best, runs)


def metric_direction(metric: str, runs: Iterable[RunRecord] = ()) -> str:
    """Return max, min, or one (nearer to 1 is better).

    Args:
        metric: its name, as split/metric.
        runs: those whose results say what is better of a metric of one's own.
    """
    name = metric.split("/")[1] if "/" in metric else metric
    for run in runs:
        if (declared := (run.result.get("own_metrics") or {}).get(name)) in ("max", "min"):
            return str(declared)
    metric_facts = find_metric(name)
    if metric_facts:
        return metric_facts.direction
    return "min" if "loss" in name or name == "active_s" else "max"


def metric_columns(runs: Sequence[RunRecord], monitor: str) -> list[str]:
    """Return the metrics that are shown, in their order.

    The monitored metric comes first, then its namesake on the test split and the other metrics of
    that split. Where no run was tested, the split of the monitored metric takes its place.
    """
    names = dict.fromkeys(m for r in runs for m in r.metrics)
    tail = monitor.partition("/")[2]
    splits = Counter(n.partition("/")[0] for n in names)
    split = "test" if splits["test"] else monitor.partition("/")[0]
    secondary = [n for n in names if n.startswith(f"{split}/") and n != monitor]
    secondary.sort(key=lambda n: (n != f"test/{tail}", n.partition("/")[2].startswith("loss")))
    return [n for n in (monitor, *secondary) if n in names]


def sort_runs(
    runs: Sequence[RunRecord], key: str | None, monitor: tuple[str, str]
) -> list[RunRecord]:
    """Return the runs in the order of a key.

    Args:
        key: a metric (best first), a setting, or status, seed, seconds, step, label or created;
            None: the monitored metric.
        monitor: the monitored metric and its direction.

    Raises:
        UserError: for a key that no run has, naming the nearest.
    """
    if key is None:
        return rank_runs(runs, *monitor)
    if any(key in r.metrics for r in runs):
        direction = monitor[1] if key == monitor[0] else metric_direction(key, runs)
        # whoever names a metric wants its order, on a Pareto front or off it
        return sorted(runs, key=lambda run: rank_key(run, key, direction)[::2])
    facts = ("status", "seed", "seconds", "step", "label", "created")
    settings = dict.fromkeys(k for r in runs for k in r.settings)
    if key not in facts and key not in settings:
        names = dict.fromkeys([*(m for r in runs for m in r.metrics), *settings, *facts])
        known = {name.replace("/", "."): name for name in names}
        near = [repr(known[k]) for k in nearest_keys(key.replace("/", "."), known)]
        there_are = f"take a metric such as {monitor[0]}, a setting, or {', '.join(facts)}"
        hint = f"nearest: {', '.join(near)}" if near else there_are
        raise UserError(f"--sort {key}: no run has it; {hint}")

    def value(run: RunRecord) -> tuple[int, float, str]:
        fact = run.settings.get(key)
        if key in facts:
            fact = run.meta.get("created") if key == "created" else getattr(run, key)
        if isinstance(fact, int | float):
            return 0, float(fact), ""
        return (2, 0.0, "") if fact is None else (1, 0.0, str(fact))

    return sorted(runs, key=value)


def mixed_provenance(runs: Sequence[RunRecord]) -> list[str]:
    """Return notes on unintended differences: code, one's own too, packages and Python."""
    notes = []
    started = [r for r in runs if r.meta]
    codes = Counter(_code(r.meta) for r in started)
    if len(codes) > 1:
        listed = ", ".join(f"{code} ({count})" for code, count in codes.most_common(6))
        notes.append(f"made by {len(codes)} states of the code: {listed}")
    packages: dict[str, Counter[str]] = {}
    for run in started:
        versions_of_run = {"python": run.meta.get("python"), **(run.meta.get("versions") or {})}
        for name, version in versions_of_run.items():
            packages.setdefault(name, Counter())[str(version)] += 1
    for name, versions in packages.items():
        if len(versions) > 1:
            listed = ", ".join(f"{v} ({n})" for v, n in versions.most_common(6))
            notes.append(f"made with different versions of {name}: {listed}")
    files: dict[str, set[str]] = {}
    for run in started:
        for file, digest in (run.meta.get("own_code") or {}).items():
            files.setdefault(str(file), set()).add(str(digest))
    if changed := sorted(file for file, digests in files.items() if len(digests) > 1):
        more = f" and {len(changed) - 6:,} more" if len(changed) > 6 else ""
        notes.append(f"made by different states of your own code: {', '.join(changed[:6])}{more}")
    return notes


def _code(meta: Mapping[str, Any]) -> str:
    git = meta.get("git") or {}
    commit = str(git.get("commit") or "")[:8] or "not in git"
    return commit + ("+changes" if git.get("patch") else "")
