"""Assigns parameters to groups of settings: regular expressions on names, first match wins.

The names are those of the model's parameters (`top.0.weight`), of the parameters of its loss
(`loss.log_variances`) and of its tables (`tables.user`). No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.errors import ConfigError, nearest_hint, raise_combined
from runner.optim.lr_schedule import find_schedule_problems
from runner.optim.setting_checks import check_pattern_entry
from runner.optim.settings import find_sparse_problems

TABLE_PREFIX = "tables."  # prefix of the names of tables
_KEYS = ("pattern", "name", "frozen", "dense", "sparse", "schedule")
_TAKEN = ("dense", "sparse")  # names of the rates of parameters without a group


@dataclass(frozen=True)
class ParameterGroup:
    """An entry of `optimizer.parts`: settings for the parameters that its pattern matches first."""

    name: str  # its rate is logged as lr/<name>
    pattern: str
    frozen: bool = False
    dense: Mapping[str, Any] | None = None  # None: the settings of `optimizer.dense`
    sparse: Mapping[str, Any] | None = None  # None: the settings of `optimizer.sparse`
    schedule: Mapping[str, Any] | None = None  # None: the schedule of the dense half or tables


def parse_parameter_groups(optimizer: Mapping[str, Any]) -> tuple[ParameterGroup, ...]:
    """Check the entries of `parts`, and add missing settings from those of the optimizer.

    `dense` without a `_target_` and `sparse` without a `kind` change only the keys that they name.

    Args:
        optimizer: the `optimizer` group.

    Raises:
        ConfigError: with the key, the rule and the nearest right name.
    """
    groups: list[ParameterGroup] = []
    for i, entry in enumerate(optimizer.get("parts") or []):
        key = f"optimizer.parts[{i}]"
        group = _parse_group(entry, optimizer, i, key)
        if group.name in _TAKEN or group.name in [other.name for other in groups]:
            raise ConfigError(f"{key}.name={group.name}: is taken; each part has a name of its own")
        groups.append(group)
    return tuple(groups)


def _parse_group(entry: Any, optimizer: Mapping[str, Any], i: int, key: str) -> ParameterGroup:
    pattern = check_pattern_entry(entry, _KEYS, key, "a part", example="pattern: REGEX, ...")
    _compile(pattern, f"{key}.pattern")
    name, frozen = entry.get("name", f"part_{i}"), entry.get("frozen", False)
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{key}.name={name!r}: must consist of letters, digits and . _ -")
    if not isinstance(frozen, bool):
        raise ConfigError(f"{key}.frozen={frozen!r}: must be true or false")
    keys = [k for k in ("dense", "sparse", "schedule") if entry.get(k) is not None]
    if frozen and keys:
        raise ConfigError(f"{key}.{keys[0]}: a frozen part has no optimizer and no schedule")
    for k in keys:
        if not isinstance(entry[k], Mapping):
            raise ConfigError(f"{key}.{k}={entry[k]!r}: must be a group of keys")
    settings = {k: dict(entry[k]) for k in keys}
    for side, required in (("dense", "_target_"), ("sparse", "kind")):
        if side in settings and required not in settings[side]:
            settings[side] = {**optimizer[side], **settings[side]}
    problems: list[str] = []
    if "sparse" in settings:
        problems += find_sparse_problems(settings["sparse"], f"{key}.sparse")
    if "schedule" in settings:
        problems += find_schedule_problems(settings["schedule"], f"{key}.schedule")
    raise_combined(problems)
    return ParameterGroup(name, pattern, frozen, **settings)


def check_schedules(optimizer: Mapping[str, Any]) -> None:
    """Check the schedules of the tables and of the dense half.

    Raises:
        ConfigError: for a wrong setting.
    """
    problems: list[str] = []
    for kind, node in (optimizer.get("schedules") or {}).items():
        key = f"optimizer.schedules.{kind}"
        if isinstance(node, Mapping):
            problems += find_schedule_problems(node, key)
        elif node is not None:
            problems.append(f"{key}={node!r}: must be a group of keys, such as {{kind: cosine}}")
    raise_combined(problems)


def check_group_settings(groups: Sequence[ParameterGroup], owner: Mapping[str, int | None]) -> None:
    """Check that a group with settings for tables, or for dense parameters, owns some of them.

    Args:
        owner: for every parameter and table, the number of the group that owns it.

    Raises:
        ConfigError: for a group with settings for a kind of parameters of which it owns none.
    """
    for i, group in enumerate(groups):
        names = [name for name, number in owner.items() if number == i]
        tables = [name for name in names if name.startswith(TABLE_PREFIX)]
        if group.sparse is not None and not tables:
            raise ConfigError(f"optimizer.parts[{i}].sparse: {group.pattern!r} owns no table")
        if group.dense is not None and len(names) == len(tables):
            raise ConfigError(f"optimizer.parts[{i}].dense: {group.pattern!r} owns tables only")


def match_patterns(names: Iterable[str], patterns: Sequence[str]) -> dict[str, int | None]:
    """Return, for every name, the number of the first pattern that it matches, or None.

    A pattern may match anywhere in a name; anchor it with ^ and $.

    Raises:
        ConfigError: for a pattern that is not a regular expression, that matches no name, or that
            owns none because earlier patterns own all its matches.
    """
    keys = [f"optimizer.parts[{i}].pattern" for i in range(len(patterns))]
    compiled = [_compile(pattern, key) for pattern, key in zip(patterns, keys)]
    matches = {
        name: [i for i, pattern in enumerate(compiled) if pattern.search(name)] for name in names
    }
    for i, pattern in enumerate(patterns):
        matched = matching_names(matches, pattern, keys[i])
        if all(matches[name][0] < i for name in matched):
            first = matches[matched[0]][0]
            raise ConfigError(
                f"optimizer.parts[{i}].pattern {pattern!r} owns nothing: all that it matches, such "
                f"as {matched[0]!r}, belongs to optimizer.parts[{first}].pattern "
                f"{patterns[first]!r}; the first match wins, so put it earlier"
            )
    return {name: numbers[0] if numbers else None for name, numbers in matches.items()}


def matching_names(names: Iterable[str], pattern: str, where: str) -> list[str]:
    """Return the names that a pattern matches.

    Raises:
        ConfigError: if it matches none.
    """
    names = list(names)
    compiled = _compile(pattern, where)
    matched = [name for name in names if compiled.search(name)]
    if not matched:
        plain = re.sub(r"[^\w.]", "", pattern.replace("\\.", "."))
        shown = [*names[:8], *([f"{len(names) - 8} more"] if len(names) > 8 else [])]
        hint = nearest_hint(plain, names, count=3) or f"; there are {', '.join(shown)}"
        raise ConfigError(f"{where} {pattern!r} matches no parameter{hint}")
    return matched


def _compile(pattern: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{where} {pattern!r} is not a regular expression: {error}") from error
