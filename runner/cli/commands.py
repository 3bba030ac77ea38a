"""Verbs: a first word without `=` on the command line, handled before Hydra is imported."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Sequence
from types import ModuleType

from runner.cli.flags import setting_hint
from runner.cli.verb_parser import VerbParser
from runner.errors import UserError, nearest_hint

# verb -> its description. The function of the same name, in a module of that name, takes the words
# after the verb and the allowed packages, and returns the exit code.
VERBS = {
    "ls": "[GROUP[=OPTION]]: list groups, options and keys",
    "explain": "KEY [overrides]: describe a key, its value, and the file that set it",
    "doctor": "check this machine and this installation",
    "init": "NAME: make a project folder with a table, a model, a task and a test",
    "schema": "PATH [--out FILE] [--label NAMES] ...: propose the YAML that declares a table",
    "prepare": "--schema FILE [--workers N] [--memory SIZE]: prepare data ahead of trainings",
    "data-serve": (
        "--schema FILE [--host ADDRESS] [--port N]: stream batches to trainings on other machines"
    ),
    "schedule": (
        "[DIR] [overrides] [--rows N] [--out FILE]: draw the learning rates over the updates"
    ),
    "resume": "DIR [overrides]: continue a run, or a sweep, where it stopped",
    "report": "DIR... [--sort KEY] [--html FILE]: show the results of runs and sweeps",
    "board": "[DIR] [--port N]: show all runs and sweeps below a folder on a live page",
    "diff": "A B: compare the settings and results of two runs",
    "reproduce": "DIR: repeat a run, and say whether the result is the same",
    "importance": (
        "DIR [--method METHOD] [--keep N --out FILE]: measure how much each feature matters"
    ),
    "clean": "[DIR...] [--older-than AGE] [--interrupted] [--yes]: delete runs without a result",
    "predict": "DIR INPUT... [--out DIR] [--keep COLUMN,...]: score files with the model of a run",
    "histories": "DIR EVENTS... --out FILE: make a row for each user of raw events, for `predict`",
    "refit": "DIR [overrides]: train the model of a run again on the rows of all its splits",
    "export": "DIR --out MODEL [--format NAME]: write the model as a folder that scores raw rows",
    "index": (
        "MODEL [--kind exact|hnsw|ivf] [--out DIR]: index a retrieval model's items for search"
    ),
    "serve": "MODEL [--host ADDRESS] [--port N]: answer HTTP requests with an exported model",
    "apply": "MODEL DELTA... --out NEW: update an exported model with deltas of `export --since`",
    "completion": "bash|zsh: print the script that completes words in a shell",
}


_EVALUATE, _SWEEP = "`python -m runner loop=eval run=DIR`", "`python -m runner -m KEY=A,B`"
# verbs of other tools -> the equivalent command
OTHER_WORDS = {
    **dict.fromkeys(("train", "fit", "run", "start"), "`python -m runner [KEY=VALUE ...]`"),
    **dict.fromkeys(("eval", "evaluate", "test", "validate"), _EVALUATE),
    **dict.fromkeys(("sweep", "multirun", "grid"), _SWEEP),
    **dict.fromkeys(("search", "tune", "hpo", "optimize"), "`python -m runner search=quick`"),
    **dict.fromkeys(("compare", "leaderboard"), "`python -m runner report DIR ...` or `diff A B`"),
    **dict.fromkeys(("infer", "score"), "`python -m runner predict DIR FILES`"),
    **dict.fromkeys(("list", "show", "options", "models"), "`python -m runner ls [GROUP]`"),
    **dict.fromkeys(("config", "print_config"), "`python -m runner --cfg job`"),
    "debug": "`python -m runner loop=debug`",
    "ui": "`python -m runner board`",
    "help": "`python -m runner --help`",
}


def is_verb(word: str) -> bool:
    """Return whether the first word is meant as a verb, known or not."""
    return bool(word) and not word.startswith(("-", "~", "+")) and "=" not in word


def run_verb(argv: Sequence[str], allow: Sequence[str]) -> int:
    """Run a verb; return its exit code.

    Raises:
        UserError: for an unknown verb, naming the nearest.
    """
    word, *rest = argv
    if word not in VERBS:
        listed = ", ".join(VERBS)
        if word.lower() in OTHER_WORDS:
            raise UserError(f"{word!r}: no such verb; {OTHER_WORDS[word.lower()]} does that")
        if hint := setting_hint(word, rest):
            raise UserError(f"{word!r}: no such verb; everything else is key=value{hint}")
        where = " (a folder? write resume DIR, or run=DIR)" if os.path.exists(word) else ""
        raise UserError(
            f"{word!r}: no such verb{nearest_hint(word, VERBS)}{where}. Verbs: {listed}; "
            "everything else is key=value, or one of Hydra's flags (--help)"
        )
    if "--help" in rest or "-h" in rest:
        verb_parser(word).print_help()
        return 0
    # With a handler here FBGEMM adds none, which would print lines of a view a second time.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        return int(getattr(_import_module(word), word.replace("-", "_"))(rest, allow))
    except UserError as error:
        text = str(error).removesuffix("; --help says more")
        if not text.startswith(f"{word}:") or "python -m runner" in text:
            raise
        raise UserError(f"{text}; `python -m runner {word} --help` has examples") from error


def verb_parser(verb: str) -> VerbParser:
    """Return the parser of a verb: the function `make_parser` of its module."""
    parser: VerbParser = _import_module(verb).make_parser()
    return parser


def _import_module(verb: str) -> ModuleType:
    return importlib.import_module(f"runner.cli.{verb.replace('-', '_')}")
