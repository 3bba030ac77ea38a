"""What a callback may be, and what is refused before anything is trained."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runner.distributed.ranks import SINGLE_PROCESS
from runner.errors import ConfigError
from runner.training.callbacks import Callbacks
from tests.conftest import TINY
from tests.training.callbacks.user_callbacks import Averager, Diary, Gambler, Undeclared


def make_callbacks(**callbacks):
    return Callbacks(callbacks, ranks=SINGLE_PROCESS, exist_on_any_rank=True)


class Misspelt:
    def on_updates(self, training, output):
        """Would never be called."""


class WithoutEvents:
    def update(self, training):
        """No event."""


class SavesOnly(Undeclared):
    def state(self):
        return {}


class LoadsOnly(Undeclared):
    def load_state(self, saved):
        """Would never be called."""


class Saves(Undeclared):
    def __init__(self, state):
        self.returned = state

    def state(self):
        return self.returned

    def load_state(self, saved):
        """Nothing."""


class Contradictory(Averager):
    stateless = True


class SaysNo(Undeclared):
    stateless = False


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            Misspelt(),
            r"callbacks.mine \(Misspelt\): on_updates is not an event; nearest: 'on_update'",
        ),
        (WithoutEvents(), "has no event; there are on_run_start, on_epoch_start"),
        (SavesOnly(), r"callbacks.mine \(SavesOnly\): has state\(\) but no load_state\(\)"),
        (LoadsOnly(), r"callbacks.mine \(LoadsOnly\): has load_state\(\) but no state\(\)"),
        (Saves({"what": object()}), r"state\(\) must return a dict of JSON values: .*object"),
        (
            Saves({"loss": float("nan")}),
            r"state\(\) must return a dict of JSON values: Out of range float",
        ),
        (Saves([1.0]), r"state\(\) must return a dict of JSON values: not a dict but list"),
        (Contradictory(), r"says stateless = True, but has state\(\); remove one of the two"),
        (SaysNo(), "does not say what a resumed run must know of it"),
        (
            Undeclared(),
            r"callbacks.mine \(Undeclared\): does not say what a resumed run must know of it; "
            r"add state\(\).* and load_state\(saved\), or.* the class attribute stateless = True",
        ),
    ],
)
def test_an_object_that_is_not_a_callback_is_refused_and_named(callback, message):
    with pytest.raises(ConfigError, match=message):
        make_callbacks(mine=callback)


def test_callbacks_that_declare_a_state_or_none_are_taken():
    taken = make_callbacks(a=Averager(), b=Diary(file="x"), c=Gambler(), d=Saves({}))
    assert list(taken.by_name) == ["a", "b", "c", "d"]


def test_a_run_with_a_callback_that_declares_nothing_ends_before_it_trains(runner, tmp_path):
    run = tmp_path / "run"
    mine = "+callbacks.mine={_target_: tests.training.callbacks.user_callbacks.Undeclared}"
    done = runner.run(*TINY, "--allow", "tests", mine, f"hydra.run.dir={run}").check(2)
    assert "callbacks.mine (Undeclared): does not say what a resumed run must know" in done.text
    assert not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text()
    assert not list(run.glob("checkpoints/step-*"))


def test_stateless_callbacks_and_empty_states_leave_nothing_in_a_checkpoint():
    assert make_callbacks(a=Gambler(), b=Diary(file="x"), c=Saves({})).state() == {}


def test_each_rank_gets_its_own_state_back_also_where_that_of_another_is_empty():
    states = [{"mine": {}, "all": {}}, {"mine": {"seen": 5}, "all": {}}]
    ranks = SimpleNamespace(all_gather_object=lambda own: [states[0], own])
    given = {"mine": Saves({"seen": 5}), "all": Saves({})}
    saved = Callbacks(given, ranks=ranks, exist_on_any_rank=True).state()
    assert saved == {"mine": [{}, {"seen": 5}]}


def test_a_state_of_an_earlier_run_is_passed_over_by_a_callback_that_is_stateless_now():
    callbacks = make_callbacks(a=Gambler(), b=Averager())
    callbacks.load_state({"a": [{"draws": 3}], "b": [{"average": 2.0}]})
    assert callbacks.by_name["b"].average == 2.0


def test_a_rank_that_did_not_exist_takes_the_state_of_rank_0():
    callbacks = Callbacks({"a": Averager()}, ranks=SimpleNamespace(rank=2), exist_on_any_rank=True)
    callbacks.load_state({"a": [{"average": 1.0}, {"average": 2.0}]})
    assert callbacks.by_name["a"].average == 1.0


def test_states_are_loaded_by_name_and_a_new_callback_starts_afresh():
    before = make_callbacks(a=Averager(), b=Averager())
    before.by_name["a"].average = 3.0
    saved = before.state()
    assert saved == {"a": [{"average": 3.0}], "b": [{"average": 0.0}]}
    after = make_callbacks(a=Averager(), new=Averager(), diary=Diary(file="x"))
    after.load_state(saved)
    assert (after.by_name["a"].average, after.by_name["new"].average) == (3.0, 0.0)


def test_without_callbacks_the_state_is_empty():
    assert Callbacks(ranks=SINGLE_PROCESS).state() == {}
