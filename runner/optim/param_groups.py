"""Which optimizer owns which parameter: regular expressions on names, the first match wins.

Names are those of the model's parameters (`top.0.weight`), of a loss's (`loss.log_variances`) and
of its tables (`tables.user`). No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.errors import ConfigError, nearest_hint
from runner.optim.lr_schedule import check_schedule
from runner.optim.settings import parse_sparse

TABLE_PREFIX = "tables."  # before the names of tables
_KEYS = ("pattern", "name", "frozen", "dense", "sparse", "schedule")
_TAKEN = ("dense", "sparse")  # names of rates, of what no part owns


@dataclass(frozen=True)
class ParameterGroup:
    """An entry of `optimizer.parts`: what its pattern matches first has these settings."""

    name: str  # in the log: lr/<name>
    pattern: str
    frozen: bool = False
    dense: Mapping[str, Any] | None = None  # None: no settings of its own
    sparse: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None  # None: that of what no part owns


def parse_parameter_groups(
    optimizer: Mapping[str, Any], *, where: str = "optimizer"
) -> tuple[ParameterGroup, ...]:
    """Checked parts of an optimizer group, their settings laid over those of the group.

    `dense` without a `_target_` and `sparse` without a `kind` change only the keys they name.
    Raises: ConfigError that names the key, the rule and the nearest right name.
    """
    parts: list[ParameterGroup] = []
    for i, entry in enumerate(optimizer.get("parts") or []):
        key = f"{where}.parts[{i}]"
        part = _part(entry, optimizer, i, key)
        if part.name in _TAKEN or part.name in [other.name for other in parts]:
            raise ConfigError(f"{key}.name={part.name}: is taken; each part has a name of its own")
        parts.append(part)
    return tuple(parts)


def _part(entry: Any, optimizer: Mapping[str, Any], i: int, key: str) -> ParameterGroup:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key}={entry!r}: write {{pattern: REGEX, ...}}")
    for name in entry:
        if name not in _KEYS:
            raise ConfigError(
                f"{key}.{name}: is no key of a part{nearest_hint(name, _KEYS)}; known: "
                f"{', '.join(_KEYS)}"
            )
    if not isinstance(entry.get("pattern"), str) or not entry["pattern"]:
        raise ConfigError(f"{key}.pattern: is missing; a regular expression on parameter names")
    _compile(entry["pattern"], f"{key}.pattern")
    name, frozen = entry.get("name", f"part_{i}"), entry.get("frozen", False)
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{key}.name={name!r}: letters, digits and . _ - only")
    if not isinstance(frozen, bool):
        raise ConfigError(f"{key}.frozen={frozen!r}: true or false")
    given = [k for k in ("dense", "sparse", "schedule") if entry.get(k) is not None]
    if frozen and given:
        raise ConfigError(f"{key}.{given[0]}: what is frozen has no optimizer and no schedule")
    for k in given:
        if not isinstance(entry[k], Mapping):
            raise ConfigError(f"{key}.{k}={entry[k]!r}: a group of keys")
    own = {k: dict(entry[k]) for k in given}
    if "dense" in own and "_target_" not in own["dense"]:
        own["dense"] = {**optimizer["dense"], **own["dense"]}
    if "sparse" in own and "kind" not in own["sparse"]:
        own["sparse"] = {**optimizer["sparse"], **own["sparse"]}
    if "sparse" in own:
        parse_sparse(own["sparse"], f"{key}.sparse")
    if "schedule" in own:
        check_schedule(own["schedule"], where=f"{key}.schedule")
    return ParameterGroup(name, entry["pattern"], frozen, **own)


def check_schedules(optimizer: Mapping[str, Any], *, where: str = "optimizer") -> None:
    """Schedules of the tables and of the dense half. Raises: ConfigError."""
    for kind, node in (optimizer.get("schedules") or {}).items():
        if node is not None:
            check_schedule(node, where=f"{where}.schedules.{kind}")


def check_group_settings(
    parts: Sequence[ParameterGroup],
    owner: Mapping[str, int | None],
    *,
    where: str = "optimizer.parts",
) -> None:
    """Raises: ConfigError for settings of a kind of which a part owns nothing."""
    for i, part in enumerate(parts):
        names = [name for name, place in owner.items() if place == i]
        tables = [name for name in names if name.startswith(TABLE_PREFIX)]
        if part.sparse is not None and not tables:
            raise ConfigError(f"{where}[{i}].sparse: {part.pattern!r} owns no table")
        if part.dense is not None and len(names) == len(tables):
            raise ConfigError(f"{where}[{i}].dense: {part.pattern!r} owns tables only")


def match_patterns(
    names: Iterable[str], patterns: Sequence[str], *, where: str = "optimizer.parts"
) -> dict[str, int | None]:
    """For every name the place of the first pattern found in it, or None if there is none.

    A pattern may match anywhere in a name; anchor it with ^ and $. The key of pattern i in error
    messages is `where[i].pattern`.
    Raises: ConfigError for a pattern that is no regular expression, matches no name, or owns none
    because earlier patterns took all that it matches.
    """
    compiled = [_compile(p, f"{where}[{i}].pattern") for i, p in enumerate(patterns)]
    matches = {
        name: [i for i, pattern in enumerate(compiled) if pattern.search(name)] for name in names
    }
    for i, pattern in enumerate(patterns):
        matched = matching_names(matches, pattern, f"{where}[{i}].pattern")
        if all(matches[name][0] < i for name in matched):
            first = matches[matched[0]][0]
            raise ConfigError(
                f"{where}[{i}].pattern {pattern!r} owns nothing: all that it matches, such as "
                f"{matched[0]!r}, goes to {where}[{first}].pattern {patterns[first]!r}; "
                "the first match wins, so put it earlier"
            )
    return {name: found[0] if found else None for name, found in matches.items()}


def matching_names(names: Iterable[str], pattern: str, where: str) -> list[str]:
    """The names in which a pattern is found. Raises: ConfigError if there is none."""
    names = list(names)
    compiled = _compile(pattern, where)
    matched = [name for name in names if compiled.search(name)]
    if not matched:
        plain = re.sub(r"[^\w.]", "", pattern.replace("\\.", "."))
        raise ConfigError(
            f"{where} {pattern!r} matches no parameter{nearest_hint(plain, names, count=3)}"
        )
    return matched


def _compile(pattern: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{where} {pattern!r} is no regular expression: {error}") from error
