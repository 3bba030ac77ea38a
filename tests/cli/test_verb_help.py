"""Every verb says what it takes, and is completed from the same declaration."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runner.__main__ import main
from runner.cli.commands import VERBS, verb_parser
from runner.cli.completion import complete_words


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_every_flag_of_the_verb(verb, capsys):
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m runner {verb}")
    for flag in verb_parser(verb).flags:
        assert flag in shown


@pytest.mark.parametrize("verb", VERBS)
def test_flags_are_completed(verb):
    assert tuple(complete_words([verb, "--"])) == verb_parser(verb).flags


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"completion", "resume", "reproduce"}))
def test_a_misspelt_flag_is_refused_with_the_nearest_one(verb, capsys):
    flag = verb_parser(verb).flags[-1]
    assert main([verb, f"{flag}x"]) == 2
    assert f"no such flag; nearest: '{flag}'" in capsys.readouterr().err


def test_the_help_of_all_verbs_needs_no_torch():
    code = (
        "import sys; from runner.__main__ import main; from runner.cli.commands import VERBS\n"
        "for verb in VERBS: main([verb, '--help'])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
