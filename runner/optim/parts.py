"""Which optimizer owns which parameter: regular expressions on names, the first match wins.

No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from runner.errors import ConfigError, nearest


def owners(
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
        matched = [name for name, found in matches.items() if i in found]
        if not matched:
            plain = re.sub(r"[^\w.]", "", pattern.replace("\\.", "."))
            raise ConfigError(
                f"{where}[{i}].pattern {pattern!r} matches no parameter"
                f"{nearest(plain, matches, count=3)}"
            )
        if all(matches[name][0] < i for name in matched):
            first = matches[matched[0]][0]
            raise ConfigError(
                f"{where}[{i}].pattern {pattern!r} owns nothing: all that it matches, such as "
                f"{matched[0]!r}, goes to {where}[{first}].pattern {patterns[first]!r}; "
                "the first match wins, so put it earlier"
            )
    return {name: found[0] if found else None for name, found in matches.items()}


def _compile(pattern: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{where} {pattern!r} is no regular expression: {error}") from error
