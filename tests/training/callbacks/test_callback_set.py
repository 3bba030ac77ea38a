"""What may be a callback, and what is refused before anything is trained."""

from __future__ import annotations

import pytest

from runner.distributed.ranks import SINGLE_PROCESS
from runner.errors import ConfigError
from runner.training.callbacks import Callbacks
from runner.training.callbacks.statefulness import (
    find_assigned_attributes,
    first_difference,
    snapshot,
)
from tests.training.callbacks.own import Averager, Collector, Diary, Forgetful, Gambler


def made(**callbacks):
    return Callbacks(callbacks, ranks=SINGLE_PROCESS, exist_on_any_rank=True)


class Misspelt:
    def on_updates(self, training, output):
        """Would never be called."""


class Deaf:
    def update(self, training):
        """No event."""


class HalfSaved:
    def on_update(self, training, output):
        """Nothing."""

    def state(self):
        return {}


class SavesAnObject:
    def on_update(self, training, output):
        """Nothing."""

    def state(self):
        return {"what": object()}

    def load_state(self, saved):
        """Nothing."""


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (Misspelt(), r"callbacks.mine \(Misspelt\): on_updates is no event; nearest: 'on_update'"),
        (Deaf(), "has no event; there are on_run_start, on_update"),
        (HalfSaved(), r"has state\(\) but no load_state\(\)"),
        (SavesAnObject(), r"state\(\) must return a dict of JSON values"),
        (Forgetful(), r"changes self.count while it runs.*give it state\(\)"),
    ],
)
def test_what_is_no_callback_is_refused_and_named(callback, said):
    with pytest.raises(ConfigError, match=said):
        made(mine=callback)


def test_what_keeps_or_needs_no_state_is_taken():
    made(a=Averager(), b=Diary(file="x"), c=Gambler(), d=Collector())


def test_states_come_back_by_name_and_one_that_is_new_starts_afresh():
    before = made(a=Averager(), b=Averager())
    before.by_name["a"].average = 3.0
    saved = before.state()
    assert saved == {"a": [{"average": 3.0}], "b": [{"average": 0.0}]}
    after = made(a=Averager(), new=Averager(), diary=Diary(file="x"))
    after.load_state(saved)
    assert (after.by_name["a"].average, after.by_name["new"].average) == (3.0, 0.0)


def test_without_callbacks_nothing_is_kept():
    assert Callbacks(ranks=SINGLE_PROCESS).state() == {}


def test_assignments_outside_the_constructor_are_found_in_the_code():
    assert find_assigned_attributes(Forgetful) == ["count"]
    assert find_assigned_attributes(Averager) == ["average"]
    assert find_assigned_attributes(Collector) == find_assigned_attributes(Diary) == []


def test_a_change_deep_inside_shows_and_none_does_not():
    class Box:
        def __init__(self):
            self.deep = {"a": [1, {"b": {2.5, float("nan")}}]}
            self.other = Collector()

    box = Box()
    before = snapshot(box)
    assert first_difference(before, snapshot(box)) is None
    box.other.seen.append(1)
    assert first_difference(before, snapshot(box)) == "other"
    before = snapshot(box)
    box.deep["a"][1]["b"].add(3)
    assert first_difference(before, snapshot(box)) == "deep"
    before = snapshot(box)
    box.new = 1
    assert first_difference(before, snapshot(box)) == "new"
