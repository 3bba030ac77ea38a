"""The comparison with RecBole: both have the same rows, and a missing RecBole is named."""

from __future__ import annotations

import sys

import pytest

from bench import recbole
from bench.histories import draw_events
from runner.errors import UserError

ANSWERS = """#!{python}
import json, sys
print(json.dumps({{"rows": 7}}), flush=True)
for line in sys.stdin:
    print(json.dumps({{"rows": int(line) * 3, "cpu_s": 0.5}}), flush=True)
"""
MISSING = """#!/bin/sh
echo "Traceback (most recent call last):" >&2
echo "ModuleNotFoundError: No module named 'recbole'" >&2
exit 1
"""


def interpreter(folder, text):
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_recbole_holds_out_two_events_of_each_user_that_are_not_ours(tmp_path):
    events = draw_events(200)
    recbole.write_events(events, tmp_path)
    header, *lines = (tmp_path / "events" / "events.inter").read_text().splitlines()
    assert header.split("\t") == ["user:token", "item:token", "time:float"]
    rows = [tuple(map(int, line.split("\t"))) for line in lines]
    ours = list(zip(*events.to_pydict().values()))
    assert rows[: len(ours)] == ours
    last = max(time for *_, time in ours)
    held_out = sorted((user, time) for user, _, time in rows[len(ours) :])
    users = sorted({user for user, *_ in ours})
    assert held_out == [(user, last + number) for user in users for number in (1, 2)]


def test_a_turn_is_so_many_updates_and_has_the_processs_own_processor_time(tmp_path):
    theirs = recbole.RecBole(
        interpreter(tmp_path, ANSWERS.format(python=sys.executable)), tmp_path, 8
    )
    assert theirs.built == {"rows": 7}
    turns = theirs.turns()
    next(turns), next(turns)
    assert theirs.measured == [{"rows": recbole.CHUNK * 3, "cpu_s": 0.5}] * 2
    theirs.close()


def test_an_interpreter_without_recbole_is_named_with_the_error(tmp_path):
    with pytest.raises(UserError, match="ended with 1: ModuleNotFoundError: No module named"):
        recbole.RecBole(interpreter(tmp_path, MISSING), tmp_path, 8)
    with pytest.raises(UserError, match="nowhere: No such file"):
        recbole.RecBole("/nowhere", tmp_path, 8)
