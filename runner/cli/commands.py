"""Verbs: a bare first word on the command line, handled before Hydra is imported."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence

from runner.errors import UserError, nearest_hint

# verb -> module:function and what it does. A function takes the words after the verb and the
# allowed packages, and returns the exit code.
VERBS: dict[str, tuple[str, str]] = {
    "resume": (
        "runner.cli.resume:resume",
        "DIR [overrides]: go on with a run, or a sweep, where it stopped",
    ),
    "schema": (
        "runner.cli.schema:schema",
        "PATH [--validation PATH] [--test PATH] [--out FILE]: propose the YAML of a table",
    ),
    "schedule": (
        "runner.cli.schedule:schedule",
        "[DIR] [overrides] [--rows N] [--out FILE]: draw the learning rates over the updates",
    ),
    "report": (
        "runner.cli.report:report",
        "DIR... [--sort KEY] [--html FILE]: what runs and sweeps came to",
    ),
    "diff": ("runner.cli.diff:diff", "A B: settings and results of two runs side by side"),
    "reproduce": (
        "runner.cli.reproduce:reproduce",
        "DIR: run a run again elsewhere, and say whether the same comes out",
    ),
    "clean": (
        "runner.cli.clean:clean",
        "[DIR...] [--older-than AGE] [--interrupted] [--yes]: delete runs that came to nothing",
    ),
    "completion": ("runner.cli.completion:completion", "bash|zsh: a script for the shell"),
    "ls": ("runner.cli.list_options:ls", "[GROUP[=OPTION]]: groups, options, fields"),
}


def is_verb(word: str) -> bool:
    """Whether the first word is meant as a verb, right or wrong."""
    return bool(word) and not word.startswith(("-", "~", "+")) and "=" not in word


def run_verb(argv: Sequence[str], allow: Sequence[str]) -> int:
    """Raises: UserError for a verb that does not exist, naming the nearest."""
    word, *rest = argv
    if word not in VERBS:
        listed = ", ".join(VERBS)
        where = " (a folder? write resume DIR, or run=DIR)" if os.path.exists(word) else ""
        raise UserError(
            f"{word!r}: no such verb{nearest_hint(word, VERBS)}{where}. Verbs: {listed}; everything "
            "else is key=value, or one of Hydra's flags (--help)"
        )
    module, function = VERBS[word][0].split(":")
    return int(getattr(importlib.import_module(module), function)(rest, allow))
