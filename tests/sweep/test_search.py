"""Searches of stand-in jobs: every sampler, trials that fail, are killed, are stopped early."""

import json
import sqlite3
import time
import warnings
from contextlib import closing

import optuna
import pytest

from runner.config.settings import SearchSettings
from runner.errors import UserError
from runner.sweep.database import SweepDatabase
from runner.sweep.optuna_trials import Trials
from runner.sweep.plan import SweepJob
from runner.sweep.search import _check_same_settings
from runner.sweep.space import read_space
from tests.sweep.driver import search_run
from tests.sweep.stand_in import signature
from tests.sweep.test_killed import PATIENCE_S, begin, until
from tests.sweep.test_sweep import board, starts

SPACE = {"x": "interval(0, 1)", "c": "choice(a, b)"}
optuna.logging.set_verbosity(optuna.logging.ERROR)


def study(directory) -> optuna.Study:
    """Return the study as Optuna loads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.load_study(
            study_name=directory.name, storage=f"sqlite:///{directory / 'study.db'}"
        )


def points(directory) -> list[dict]:
    return [t.params for t in study(directory).trials]


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["tpe", "random", "quasi-random", "grid", "gp"])
def test_each_sampler_ends_with_its_number_of_trials_and_the_best_of_them(tmp_path, sampler):
    space = SPACE if sampler != "grid" else {"x": "range(0.1, 0.7, 0.1)", "c": "choice(a, b)"}
    assert search_run(tmp_path, space, sampler=sampler, num_trials=12) == 0
    found = study(tmp_path)
    assert [t.state.name for t in found.trials] == ["COMPLETE"] * 12
    rows = board(tmp_path)
    best = min(found.trials, key=lambda t: abs(t.params["x"] - 0.3))
    assert float(rows[0]["x"]) == best.params["x"]
    assert float(rows[0]["validation/auc"]) == pytest.approx(1 - abs(best.params["x"] - 0.3))
    assert found.best_trial.number == best.number
    assert list(starts(tmp_path).values()) == [1] * 12


@pytest.mark.slow
def test_later_trials_of_tpe_are_better_than_those_of_a_random_search(tmp_path):
    for sampler in ("tpe", "random"):
        assert search_run(tmp_path / sampler, {"x": "interval(0, 1)"}, sampler=sampler) == 0

    def late(sampler):
        values = [t.value for t in study(tmp_path / sampler).trials[10:]]
        return sum(values) / len(values)

    assert late("tpe") > late("random") + 0.05


def test_a_grid_is_every_combination_once(tmp_path):
    space = {"x": "choice(0.1, 0.2, 0.3)", "c": "choice(a, b)", "n": "range(1, 3)"}
    assert search_run(tmp_path, space, sampler="grid", num_trials=None) == 0
    assert len({json.dumps(p) for p in points(tmp_path)}) == 12


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_a_range_has_the_values_that_its_step_leads_to_however_many_digits(tmp_path, sampler):
    space = {"x": "range(1000, 1000.5, 0.125)", "z": "range(0.1, 0.7, 0.1)"}
    assert search_run(tmp_path, space, sampler=sampler, num_trials=24) == 0
    rows = {(r["x"], r["z"]) for r in board(tmp_path)}
    assert {x for x, _ in rows} == {"1000.0", "1000.125", "1000.25", "1000.375"}
    assert {z for _, z in rows} == {"0.1", "0.2", "0.3", "0.4", "0.5", "0.6"}
    assert len(rows) == 24 or sampler == "random"


def test_a_quasi_random_search_covers_every_eighth_of_each_dimension_with_eight_points(tmp_path):
    space = {"x": "interval(0, 1)", "z": "tag(log, interval(1, 256))"}
    assert search_run(tmp_path, space, sampler="quasi-random", num_trials=8) == 0
    found = points(tmp_path)
    assert sorted(int(8 * p["x"]) for p in found) == list(range(8))
    assert sorted(len(bin(int(p["z"]))) - 3 for p in found) == list(range(8))


@pytest.mark.slow
def test_a_longer_search_goes_on_with_the_trials_of_the_shorter_one(tmp_path, capsys):
    request = {"sampler": "quasi-random"}
    assert search_run(tmp_path / "s", SPACE, num_trials=3, **request) == 0
    first = points(tmp_path / "s")
    assert search_run(tmp_path / "s", SPACE, num_trials=5, **request) == 0
    assert "5 jobs, 3 done already" in capsys.readouterr().out
    assert points(tmp_path / "s")[:3] == first
    assert list(starts(tmp_path / "s").values()) == [1] * 5
    assert search_run(tmp_path / "s", SPACE, num_trials=4, **request) == 0
    assert len(points(tmp_path / "s")) == 5
    assert search_run(tmp_path / "q", SPACE, num_trials=5, **request) == 0
    assert points(tmp_path / "q") == points(tmp_path / "s")


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_a_search_that_is_stopped_between_trials_goes_on_as_if_it_had_not_been(tmp_path, sampler):
    goals = {"validation/auc": "max", "validation/log_loss": "min"} if sampler == "nsga2" else None
    request = {"sampler": sampler, "objectives": goals, "seed": 5}
    for count in (4, 11, 12, 15):
        assert search_run(tmp_path / "s", SPACE, num_trials=count, **request) == 0
    assert search_run(tmp_path / "q", SPACE, num_trials=15, **request) == 0
    assert points(tmp_path / "s") == points(tmp_path / "q")


@pytest.mark.slow
def test_several_objectives_give_a_pareto_front(tmp_path, capsys):
    space = {"x": "choice(0.1, 0.2, 0.3)", "y": "choice(1, 2)"}
    goals = {"validation/auc": "max", "validation/log_loss": "min"}
    assert search_run(tmp_path, space, sampler="grid", num_trials=None, objectives=goals) == 0
    rows = board(tmp_path)
    # the greatest auc is at x = 0.3, the smallest loss at y = 1: one job is best in both
    assert [(r["x"], r["y"]) for r in rows if r["front"] == "1"] == [("0.3", "1")]
    assert float(rows[0]["validation/log_loss"]) == 1
    assert "front" in capsys.readouterr().out
    other = tmp_path / "other"
    space = {"x": "choice(0.1, 0.3)", "y": "choice(auc)"}
    assert search_run(other, space, sampler="grid", num_trials=None, objectives=goals) == 0
    assert [r["front"] for r in board(other)] == ["1", "1"]  # the loss is the auc: none is better


def test_a_point_chosen_twice_is_run_once_and_ends_both_trials(tmp_path, capsys):
    code = search_run(tmp_path, {"x": "choice(0.1, 0.5)"}, sampler="random", num_trials=8, slots=2)
    assert code == 0
    found = study(tmp_path).trials
    assert len(found) == 8
    assert {(t.params["x"], t.value) for t in found} == {("0.1", 0.8), ("0.5", 0.8)}
    assert sorted(starts(tmp_path).values()) == [1, 1]
    assert "[8/8]" in capsys.readouterr().out
    assert search_run(tmp_path, {"x": "choice(0.1, 0.5)"}, sampler="random", num_trials=8) == 0


def test_a_point_chosen_again_while_a_resumed_job_runs_does_not_start_the_job_twice(tmp_path):
    request = {"sampler": "random", "fixed": ["steps=3", "step_s=0.05"], "slots": 2}
    assert search_run(tmp_path, {"x": "choice(0.1)"}, num_trials=1, **request) == 0
    (result,) = tmp_path.glob("*/result.json")
    result.unlink()  # as a kill of the sweep leaves its job
    (result.parent / "checkpoint").write_text("0")
    assert search_run(tmp_path, {"x": "choice(0.1)"}, num_trials=4, **request) == 0
    assert list(starts(tmp_path).values()) == [2]
    assert [(t.state.name, t.value) for t in study(tmp_path).trials] == [("COMPLETE", 0.8)] * 4


def test_a_trial_that_fails_counts_and_is_tried_again_by_the_next_start(tmp_path, capsys):
    space = {"x": "choice(0.1, 0.5)", "do": "choice(ok, sigkill_once)"}
    request = {"sampler": "grid", "num_trials": None}
    assert search_run(tmp_path, space, **request) == 1
    assert [t.state.name for t in study(tmp_path).trials] == ["COMPLETE", "FAIL"] * 2
    assert "failed: x=0.1 do=sigkill_once: killed by signal 9" in capsys.readouterr().err
    assert search_run(tmp_path, space, **request) == 0
    trials = study(tmp_path).trials
    assert [t.state.name for t in trials] == ["COMPLETE", "FAIL"] * 2 + ["COMPLETE"] * 2
    assert trials[4].params == trials[1].params
    assert sorted(starts(tmp_path).values()) == [1, 1, 2, 2]
    assert search_run(tmp_path, space, **request) == 0
    assert len(study(tmp_path).trials) == 6


def test_a_job_that_is_tried_again_is_not_stopped_early(tmp_path):
    space = {"x": "choice(0.3, 0.9)", "do": "choice(sigkill_once)"}
    fixed = ["evals=yes", "steps=3"]
    request = {"sampler": "grid", "num_trials": None, "pruner": "asha", "pruner_first": 2}
    assert search_run(tmp_path, space, fixed=fixed, **request) == 1
    (folder,) = {p.parent for p in tmp_path.glob("*/killed") if "x-0.3" in p.parent.name}
    (folder / "checkpoint").write_text("0")  # so that it evaluates again
    assert search_run(tmp_path, space, fixed=fixed, **request) == 0
    assert {r["status"] for r in board(tmp_path)} <= {"completed", "pruned"}


@pytest.mark.long
@pytest.mark.parametrize("pruner", ["asha", "median"])
def test_a_poor_job_is_stopped_early_and_the_best_is_found_all_the_same(tmp_path, pruner, capsys):
    space = {"x": "interval(0, 1)", "evals": "choice(9)", "steps": "choice(9)"}
    request = {"sampler": "quasi-random", "num_trials": 12}
    assert search_run(tmp_path / "whole", space, **request) == 0
    assert search_run(tmp_path / "short", space, pruner=pruner, **request) == 0
    whole, short = board(tmp_path / "whole"), board(tmp_path / "short")
    assert {r["status"] for r in whole} == {"completed"}
    assert {r["status"] for r in short} == {"completed", "pruned"}
    assert short[0]["x"] == whole[0]["x"]
    assert sum(int(r["step"]) for r in short) < 0.7 * sum(int(r["step"]) for r in whole)
    states = [t.state.name for t in study(tmp_path / "short").trials]
    assert states.count("PRUNED") == [r["status"] for r in short].count("pruned")
    assert "pruned" in capsys.readouterr().out
    before = starts(tmp_path / "short")
    assert search_run(tmp_path / "short", space, pruner=pruner, **request) == 0
    assert starts(tmp_path / "short") == before  # what was stopped is done


@pytest.mark.parametrize("pruner", ["asha", "median"])
def test_a_question_that_is_asked_again_has_the_same_answer_also_from_another_process(
    tmp_path, pruner
):
    """A job that was killed before it had the answer, or after it, asks again."""
    settings = SearchSettings(space=SPACE, sampler="random", pruner=pruner, pruner_after=1)
    dimensions, _ = read_space(settings.space, [])
    SweepDatabase(tmp_path, print).close()

    def opened():
        goals = {"validation/auc": "max"}
        return closing(Trials(tmp_path, dimensions, settings, goals, slots=1))

    with opened() as trials:
        for number, values in enumerate(((0.9, 0.95), (0.8, 0.7), (0.1,))):
            trials.ask()
            given = [trials.report(number, place, value) for place, value in enumerate(values, 1)]
            if number == 0:
                trials.tell(number, "completed", values[-1:])
        assert given == [True]
        assert trials.report(2, 1, 0.1)
    with opened() as trials:
        assert trials.report(2, 1, 0.1)
        assert not trials.report(0, 1, 0.9)


def test_asha_lets_one_in_three_go_on_at_each_rung(tmp_path):
    space = {
        "x": "choice(0.3, 0.4, 0.5, 0.6, 0.7, 0.8)",
        "evals": "choice(9)",
        "steps": "choice(9)",
    }
    assert search_run(tmp_path, space, sampler="grid", num_trials=None, pruner="asha") == 0
    # each one is worse than those before it, so only the first is among the best third
    assert [(r["x"], r["step"]) for r in sorted(board(tmp_path), key=lambda r: r["x"])] == [
        ("0.3", "9"),
        *((x, "1") for x in ("0.4", "0.5", "0.6", "0.7", "0.8")),
    ]


@pytest.mark.slow
def test_a_killed_search_goes_on_with_the_same_points_and_ends_as_a_quiet_one(tmp_path):
    request = {
        "space": {"x": "interval(0, 1)", "do": "choice(ok)", "steps": "choice(4)"},
        "fixed": ["step_s=0.03"],
        "sampler": "quasi-random",
        "num_trials": 8,
        "slots": 2,
    }
    for count in (2, 5):
        sweep = begin(tmp_path / "s", **request)
        until(lambda count=count: len(list((tmp_path / "s").glob("*/checkpoint"))) >= count)
        sweep.kill()
        sweep.communicate()
    last = begin(tmp_path / "s", **request)
    out, _ = last.communicate(timeout=60)
    assert last.returncode == 0, out
    quiet = begin(tmp_path / "q", **request)
    quiet.communicate(timeout=60)
    assert points(tmp_path / "s") == points(tmp_path / "q")

    def numbers(directory):
        return [(r["x"], r["status"], r["validation/auc"]) for r in board(directory)]

    assert numbers(tmp_path / "s") == numbers(tmp_path / "q")
    assert not list((tmp_path / "s").glob("*/started-though-completed"))


@pytest.mark.long
def test_ctrl_c_leaves_trials_open_and_the_same_command_ends_them(tmp_path):
    import signal

    request = {
        "space": {"x": "interval(0, 1)", "steps": "choice(40)"},
        "fixed": ["step_s=0.03"],
        "num_trials": 2,
    }
    sweep = begin(tmp_path, **request)
    until(lambda: list(tmp_path.glob("*/checkpoint")))
    sweep.send_signal(signal.SIGINT)
    out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 130, out
    assert [t.state.name for t in study(tmp_path).trials] == ["RUNNING"]
    again = begin(tmp_path, **request)
    out, _ = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, out
    assert [t.state.name for t in study(tmp_path).trials] == ["COMPLETE"] * 2


def test_a_lost_database_is_restored_from_the_run_directories(tmp_path, capsys):
    request = {"sampler": "quasi-random", "num_trials": 4}
    assert search_run(tmp_path, SPACE, **request) == 0
    (tmp_path / "study.db").write_bytes(b"no database " * 500)
    capsys.readouterr()
    assert search_run(tmp_path, SPACE, **{**request, "num_trials": 5}) == 0
    assert list(starts(tmp_path).values()) == [1] * 5
    said = capsys.readouterr().out
    assert "left alone" not in said and "[4/5] started" in said and "[5/5] completed" in said
    assert [t.state.name for t in study(tmp_path).trials] == ["COMPLETE"] * 5


def test_a_trial_that_the_search_cannot_have_chosen_is_refused(tmp_path):
    assert search_run(tmp_path, SPACE, num_trials=1) == 0
    db = sqlite3.connect(tmp_path / "study.db")
    forged = json.dumps({"name": "CategoricalDistribution", "attributes": {"choices": ["${x}"]}})
    where = "WHERE param_name='c'"
    db.execute(f"UPDATE trial_params SET param_value=0, distribution_json=? {where}", (forged,))
    db.commit()
    db.close()
    with pytest.raises(UserError, match=r"c=\$\{x\}, which this search cannot have chosen"):
        search_run(tmp_path, SPACE, num_trials=2)


@pytest.mark.parametrize(
    ("space", "goals", "message"),
    [
        (SPACE | {"y": "choice(1, 2)"}, None, "which chooses x, c; another hydra.sweep.dir"),
        ({"x": SPACE["x"]}, None, "which chooses x, c; another"),
        (SPACE | {"c": "choice(a, b, d)"}, None, "which chooses c from other values"),
        (SPACE | {"x": "tag(log, interval(0.1, 1))"}, None, "which chooses x from other values"),
        (SPACE, {"validation/loss": "min"}, "which optimises validation/auc; another"),
    ],
)
def test_another_search_in_the_same_folder_is_refused(tmp_path, space, goals, message):
    assert search_run(tmp_path, SPACE, sampler="random", num_trials=2) == 0
    with pytest.raises(UserError, match=message):
        search_run(tmp_path, space, sampler="random", num_trials=4, objectives=goals)
    wider = SPACE | {"x": "interval(0, 2)"}
    assert search_run(tmp_path, wider, sampler="random", num_trials=3) == 0
    assert len(points(tmp_path)) == 3


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        (["width=16"], "whose jobs had width=8; another hydra.sweep.dir begins a new one"),
        (["width=8", "depth=2"], "whose jobs had the default depth; another"),
        ([], "whose jobs had width=8; another"),
    ],
)
def test_a_search_with_other_fixed_settings_does_not_take_the_values_of_the_old(
    tmp_path, fixed, told
):
    """They steered the choice of the next trials, and the Pareto front was of the old values."""
    request = {"sampler": "random", "fixed": ["width=8"]}
    assert search_run(tmp_path, SPACE, num_trials=2, **request) == 0
    with pytest.raises(UserError, match=told):
        search_run(tmp_path, SPACE, num_trials=3, **(request | {"fixed": fixed}))
    unsigned = {"fixed": ["width=8", "trainer.num_threads=1", "tracker=none"]}
    assert search_run(tmp_path, SPACE, num_trials=3, **(request | unsigned)) == 0
    assert list(starts(tmp_path).values()) == [1, 1, 1], "done jobs are not run again"


def test_a_search_over_keys_with_a_plus_goes_on_where_it_was_stopped():
    jobs = [SweepJob(f"{n}", f"{n}", (f"++x={n}",), {"++x": f"{n}"}) for n in range(2)]
    _check_same_settings("here", jobs, [("0", jobs[0].overrides)])


def test_a_search_whose_jobs_all_failed_goes_on_with_mended_settings(tmp_path):
    request = {"sampler": "random", "num_trials": 2}
    assert search_run(tmp_path, SPACE, fixed=["do=raise"], **request) == 1
    assert search_run(tmp_path, SPACE, fixed=["do=ok"], **request) == 0


def test_a_search_whose_data_or_defaults_have_changed_does_not_take_the_old_values(
    tmp_path, monkeypatch
):
    assert search_run(tmp_path, SPACE, sampler="random", num_trials=2) == 0
    monkeypatch.setattr(
        "tests.sweep.driver.signature", lambda overrides: f"{signature(overrides)}x"
    )
    told = "had other data, defaults or code; another .*, and that of this folder goes on only as"
    with pytest.raises(UserError, match=told):
        search_run(tmp_path, SPACE, sampler="random", num_trials=3)


def test_a_locked_database_is_reported_before_anything_starts(tmp_path, monkeypatch):
    from runner.sweep.database import SweepDatabaseError

    assert search_run(tmp_path, SPACE, num_trials=1) == 0
    monkeypatch.setattr("runner.sweep.database.LOCK_TIMEOUT_S", 0.2)
    monkeypatch.setattr("runner.sweep.optuna_trials.LOCK_TIMEOUT_S", 0.2)
    with closing(sqlite3.connect(tmp_path / "study.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SweepDatabaseError, match=r"study.db is locked by another program"):
            search_run(tmp_path, SPACE, num_trials=2)
    assert search_run(tmp_path, SPACE, num_trials=2) == 0


def test_an_objective_that_is_not_in_the_results_ends_the_search_at_once(tmp_path, capsys):
    goals = {"validation/loss/part": "min"}
    assert search_run(tmp_path, SPACE, num_trials=9, objectives=goals) == 1
    error = capsys.readouterr().err
    assert "the sweep stopped: search.objectives: validation/loss/part: is not among" in error
    assert "validation/log_loss" in error
    assert len(starts(tmp_path)) == 1


def test_a_search_whose_jobs_all_fail_alike_stops_and_says_so_once(tmp_path, capsys):
    space = {"x": "interval(0, 1)", "do": "choice(raise)"}
    assert search_run(tmp_path, space, num_trials=20) == 1
    error = capsys.readouterr().err
    assert (
        "stopped: all of its 3 jobs failed with the same error, whatever values were chosen"
        in error
    )
    assert error.count("loss is not finite") + error.count("at step 3") == 1
    assert "; 2 other jobs failed with the same error" in error
    assert len(starts(tmp_path)) == 3
    # the same command tries them again, for the one who has mended the cause
    assert search_run(tmp_path, space, num_trials=20) == 1
    assert sorted(starts(tmp_path).values()) == [2, 2, 2]


@pytest.mark.parametrize("what", ["choice(raise, silent)", "choice(raise, ok)"])
def test_a_search_goes_on_where_another_choice_may_do_better(tmp_path, what):
    space = {"do": what, "x": "choice(0.1, 0.2, 0.3, 0.4)"}  # the first four jobs fail alike
    search_run(tmp_path, space, sampler="grid", num_trials=None)
    assert len(starts(tmp_path)) == 8


@pytest.mark.parametrize(
    ("space", "more", "message"),
    [
        ({"x": "interval(1, 0)"}, {}, "x: interval(1, 0): holds no value"),
        ({"x": "choice("}, {}, "search.space: x: choice(: cannot be read"),
        ({"x": "5"}, {}, "is no set of values to search"),
        ({"x": "tag(big, interval(1, 2))"}, {}, "there is no tag 'big' for a search; write choi"),
        ({"x": "tag(log, interval(0, 1))"}, {}, "must begin above 0, as in tag(log, interval(1"),
        (SPACE, {"rerun": True}, "--rerun changed: a search has chosen its jobs"),
        ({}, {}, "search.space: is empty"),
        ({"bad": "choice(1)"}, {}, "the search's space: bad=1: there is no key 'bad'"),
        (SPACE, {"sampler": "grid", "num_trials": None}, "x may be any number of an interval"),
        (SPACE, {"num_trials": None}, "only a grid has an end"),
        (SPACE, {"objectives": {"validation/acu": "max"}}, "nearest: 'validation/auc'"),
        (SPACE, {"objectives": {"validation/auc": "up"}}, "a direction is max or min"),
        (SPACE, {"objectives": {"validation/auc": "min"}}, "auc: min: max is better for valid"),
        (SPACE, {"objectives": {"test/log_loss": "max"}}, "max: min is better for test/log_loss"),
        (SPACE, {"pruner": "asha", "objectives": {"test/auc": "max"}}, "is not measured while"),
        (
            SPACE,
            {"pruner": "median", "objectives": {"validation/auc": "max", "active_s": "min"}},
            "stops jobs by one objective",
        ),
    ],
)
def test_an_impossible_search_is_refused_and_nothing_is_written(tmp_path, space, more, message):
    with pytest.raises(UserError) as error:
        search_run(tmp_path / "s", space, **more)
    assert message in str(error.value)
    assert not (tmp_path / "s").exists()


def test_a_dry_run_says_how_many_are_done_and_how_many_are_to_come(tmp_path, capsys):
    assert search_run(tmp_path / "s", SPACE, num_trials=6, dry_run=True) == 0
    assert "6 jobs: 6 to be chosen" in capsys.readouterr().out
    assert not (tmp_path / "s").exists()
    assert search_run(tmp_path / "s", SPACE, num_trials=2) == 0
    assert search_run(tmp_path / "s", SPACE, num_trials=6, dry_run=True) == 0
    assert "6 jobs: 2 done, 4 to be chosen" in capsys.readouterr().out
    assert len(study(tmp_path / "s").trials) == 2


@pytest.mark.long
def test_choosing_costs_little(tmp_path):
    from tests.sweep.driver import empty_jobs

    started = time.process_time()
    space = {"x": "interval(0, 1)"}
    assert search_run(tmp_path, space, num_trials=60, start=empty_jobs) == 0
    spent = (time.process_time() - started) / 60
    print(f"{1000 * spent:.1f} ms of processor time a trial")
    assert spent < 0.15
