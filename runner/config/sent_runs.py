"""Restricts what is taken from a run directory that others may have written.

Such a run directory was not written by this user's runner.

Its configuration names environment variables, files and output places. A received directory could
put a password into a URL, or write wherever its user may. So a run that another user, or the user
of another machine, has started reads only variables that the command line names, and writes outside
itself only where the command line allows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.config.interpolation import EnvRead
from runner.config.paths import PATH_KEYS
from runner.errors import UserError
from runner.rundir.secrets import HARMLESS_NAMES

# a local file, which Kafka's client sends to obtain a token
_SENT_FILE = "sasl.oauthbearer.assertion.file"
# Places to which a training writes, and the overrides that disable this
_PLACES = {
    ("checkpoint", "mirror"): "checkpoint.mirror=null",
    ("delivery", "to"): "delivery.to=null delivery.every=null",
}
_AGAIN = "give it again on the command line if you want it"
_PATHS = frozenset(".".join(key) for key in PATH_KEYS)


def find_sent_reads(
    stored: Mapping[str, EnvRead],
    now: Mapping[str, EnvRead],
    token_env: str | None,
    words: Sequence[str],
) -> tuple[tuple[str, str], ...]:
    """Return key and variable of what a received run would read from the environment.

    Keys of local paths are not included, since these are sent nowhere.

    Args:
        stored: what the run's own configuration reads.
        now: what the job's configuration reads.
        token_env: the variable that the run's own configuration names for the token of a server.
        words: overrides of the command line, which may name the variables.
    """
    reads = [
        (key, variable)
        for key, read in now.items()
        for variable in sorted(read.variables)
        if key in stored and stored[key].text == read.text and not _is_local_path(key, read.value)
    ]
    if token_env is not None:
        reads.append(("dataset.token_env", str(token_env)))
    in_words = {name for word in words for name in re.findall(r"\w+", word)}
    return tuple((k, v) for k, v in reads if v in os.environ and v not in in_words | HARMLESS_NAMES)


def _is_local_path(key: str, value: Any) -> bool:
    return re.sub(r"\[\d+\]$", "", key) in _PATHS and "://" not in str(value)


def check_sent_reads(reads: Iterable[tuple[str, str]], allowed: Sequence[str]) -> list[str]:
    """Return a message for each variable not named by `--allow`."""
    return [
        f"{key}: reads the variable {variable}, which is not done for a run directory that "
        f"others may have written; if you trust the run, --allow {variable} or "
        f"RUNNER_ALLOW={variable} permits it"
        for key, variable in reads
        if variable not in allowed
    ]


def check_sent_files(config: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """Return a message for a local file that a received run would send."""
    file = ((config.get("dataset") or {}).get("client") or {}).get(_SENT_FILE)
    if file is None or any(_SENT_FILE in word for word in words):
        return []
    key = f"dataset.client.{_SENT_FILE}"
    return [
        f"{key}={file}: sends a file, which is not done for a run directory that others may have "
        f"written; {_AGAIN}"
    ]


def asks_of_machine(word: str) -> bool:
    """Return whether a word of a sweep's command reads the environment or names such a place."""
    names = ("token_env", "mirror", "delivery", _SENT_FILE)
    return re.search(r"\$\{.*:", word) is not None or any(name in word for name in names)


def check_sent_places(config: Mapping[str, Any], words: Sequence[str]) -> None:
    """Check that the command line names each outside place to which a resume would write.

    Raises:
        UserError: for a place that is not named there.
    """
    places = {word.rpartition("=")[2].rstrip("/") for word in words}
    keys = {word.partition("=")[0].lstrip("+") for word in words}
    for (group, name), without in _PLACES.items():
        place = (config.get(group) or {}).get(name)
        key = f"{group}.{name}"
        if place is not None and key not in keys and str(place).rstrip("/") not in places:
            raise UserError(
                f"{key}={place}: is a place outside the run, which is not taken from a run "
                f"directory that others may have written; {_AGAIN}, or {without}"
            )
