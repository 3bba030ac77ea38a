"""Writes verbs.md, the page of every verb and flag, from their parsers: `python -m docs.verbs`."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.cli.commands import VERBS, verb_parser

PAGE = Path(__file__).with_name("verbs.md")
HEADER = """\
# Verbs

Written by `python -m docs.verbs` from the parsers of the verbs; do not edit it by hand.

`python -m runner VERB --help` shows the same on a terminal. A command without a verb runs one job,
and with `-m` a job for each of several values ([a first run](first_run.md),
[sweeps](sweeps.md)); its words are options and [keys](reference.md).
"""


def render_verbs() -> str:
    """Return the page as Markdown: what each verb does, its words, its flags, and examples."""
    return "\n".join([HEADER, *(_render_verb(verb) for verb in VERBS)])


def _render_verb(verb: str) -> str:
    parser = verb_parser(verb)
    shown = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    rows = [f"| {_words(action)} | {_escape(action.help or '')} |" for action in shown]
    words = " ".join(_metavar(a) for a in shown if not a.option_strings)
    lines = [f"## {verb}", "", f"`{f'python -m runner {verb} {words}'.strip()}`", ""]
    lines += [" ".join((parser.description or "").split()), ""]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
    if parser.epilog:
        examples = [line.strip() for line in parser.epilog.splitlines()[1:]]
        lines += ["```sh", *examples, "```", ""]
    return "\n".join(lines)


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _words(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_metavar(action)}`".replace("|", "\\|")
    value = "" if action.nargs == 0 else f" {_metavar(action)}"
    return ", ".join(f"`{flag}{value}`" for flag in action.option_strings)


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("%%", "%").replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(render_verbs(), encoding="utf-8")
