"""What varies between runs, which metrics they have, and who is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runner.errors import UserError, nearest_hint
from runner.metrics.settings import find_metric
from runner.reporting.report.leaderboard import rank_runs
from runner.reporting.report.records import RunRecord, format_setting

# Part of what makes a run, but said by something else that a person reads sooner.
_REDUNDANT_KEYS = ("seed", "source.signature", "source.newest")
_ABSENT = object()


def varying_settings(runs: Sequence[RunRecord]) -> list[str]:
    """Settings in which the runs differ, but for seeds; options of groups first.

    A key that follows from the option of its group, or data that follow from other settings,
    stand for nothing of their own and are left out.
    """
    runs = [r for r in runs if r.settings]
    keys = list(dict.fromkeys(key for r in runs for key in r.settings))
    groups = {g for r in runs for g in r.choices}
    differing = [
        k
        for k in keys
        if k not in _REDUNDANT_KEYS and len({_at(r, k) for r in runs}) > 1 and k != "data"
    ]
    kept = [k for k in differing if k in groups]
    for key in differing:
        if key in kept:
            continue
        options = [g for g in kept if key.startswith(g.replace("/", ".") + ".")]
        if not any(_is_determined_by(runs, key, [g]) for g in options):
            kept.append(key)
    if len({_at(r, "data") for r in runs}) > 1:
        of_data = [k for k in kept if k.split(".")[0] == "dataset"]
        if not of_data or not _is_determined_by(runs, "data", of_data):
            kept.append("data")
    return kept


def _at(run: RunRecord, key: str) -> Any:
    value = run.settings.get(key, _ABSENT)
    return format_setting(value) if value is not _ABSENT else _ABSENT


def _is_determined_by(runs: Sequence[RunRecord], key: str, others: Sequence[str]) -> bool:
    """Whether the others' values leave only one for the key."""
    seen: dict[tuple[Any, ...], Any] = {}
    return all(
        seen.setdefault(tuple(_at(r, o) for o in others), _at(r, key)) == _at(r, key) for r in runs
    )


def short_headings(keys: Sequence[str]) -> dict[str, str]:
    """The last two parts of a key where they tell it from the others, else the whole."""
    short = {k: ".".join(k.split(".")[-2:]) for k in keys}
    count = Counter(short.values())
    return {k: s if count[s] == 1 else k for k, s in short.items()}


def monitored_metric(runs: Sequence[RunRecord]) -> tuple[str, str]:
    """The metric that most of the runs were judged by, if any has it; else one they have.

    Returns: its name, as split/metric, and max or min.
    """
    for (metric, direction), _ in Counter(r.monitor for r in runs).most_common():
        if any(metric in r.metrics for r in runs):
            return metric, direction
    names = list(dict.fromkeys(m for r in runs for m in r.metrics))
    if not names:
        return runs[0].monitor
    best = sorted(names, key=lambda n: (n.split("/")[0] == "train", n.split("/")[1] != "auc"))[0]
    return best, metric_direction(best)


def metric_direction(metric: str) -> str:
    """max, min, or one (nearer to 1 is better)."""
    name = metric.split("/")[1] if "/" in metric else metric
    known = find_metric(name)
    return known.direction if known else "min" if "loss" in name else "max"


def metric_columns(runs: Sequence[RunRecord], monitor: str) -> list[str]:
    """The monitored metric, its namesake on the test split, other metrics of test, then the rest
    of validation where there is no test."""
    names = dict.fromkeys(m for r in runs for m in r.metrics)
    tail = monitor.partition("/")[2]
    splits = Counter(n.partition("/")[0] for n in names)
    split = "test" if splits["test"] else monitor.partition("/")[0]
    others = [n for n in names if n.startswith(f"{split}/") and n != monitor]
    others.sort(key=lambda n: (n != f"test/{tail}", n.partition("/")[2].startswith("loss")))
    return [n for n in (monitor, *others) if n in names]


def sort_runs(
    runs: Sequence[RunRecord], key: str | None, monitor: tuple[str, str]
) -> list[RunRecord]:
    """Args: key: a metric (best first), a setting, or status, seed, seconds, step, name, created.

    Raises: UserError for a key that no run has, naming the nearest.
    """
    if key is None:
        return rank_runs(runs, *monitor)
    if any(key in r.metrics for r in runs):
        direction = monitor[1] if key == monitor[0] else metric_direction(key)
        return rank_runs(runs, key, direction)
    facts = ("status", "seed", "seconds", "step", "label", "created")
    settings = dict.fromkeys(k for r in runs for k in r.settings)
    if key not in facts and key not in settings:
        known = [*dict.fromkeys(m for r in runs for m in r.metrics), *settings, *facts]
        raise UserError(f"--sort {key}: no run has it{nearest_hint(key, known)}")

    def value(run: RunRecord) -> tuple[int, float, str]:
        found = run.settings.get(key)
        if key in facts:
            found = run.meta.get("created") if key == "created" else getattr(run, key)
        if isinstance(found, int | float):
            return 0, float(found), ""
        return (2, 0.0, "") if found is None else (1, 0.0, str(found))

    return sorted(runs, key=value)


def mixed_provenance(runs: Sequence[RunRecord]) -> list[str]:
    """What the runs have not in common, though nobody asked for it: code, versions, Python."""
    notes = []
    told = [r for r in runs if r.meta]
    codes = Counter(_code(r.meta) for r in told)
    if len(codes) > 1:
        listed = ", ".join(f"{code} ({count})" for code, count in codes.most_common(6))
        notes.append(f"made by {len(codes)} states of the code: {listed}")
    packages: dict[str, Counter[str]] = {}
    for run in told:
        for name, version in {"python": run.meta.get("python"), **_versions(run.meta)}.items():
            packages.setdefault(name, Counter())[str(version)] += 1
    for name, found in packages.items():
        if len(found) > 1:
            listed = ", ".join(f"{v} ({n})" for v, n in found.most_common(6))
            notes.append(f"made with different versions of {name}: {listed}")
    return notes


def _versions(meta: Mapping[str, Any]) -> dict[str, Any]:
    return dict(meta.get("versions") or {})


def _code(meta: Mapping[str, Any]) -> str:
    git = meta.get("git") or {}
    commit = str(git.get("commit") or "")[:8] or "not in git"
    return commit + ("+changes" if git.get("patch") else "")
