"""`resume DIR` of a sweep, and what other code has done: real commands, whose jobs are forks."""

import pytest

from tests.sweep.forked import sweep
from tests.sweep.test_sweep import board

TINY = (
    "dataset.rows={train: 600, validation: 200, test: 200}",
    "dataset.max_cardinality=100",
    "trainer.num_threads=1",
    "trainer.batch_size=100",
    "trainer.max_steps=4",
    "model.net.bottom=[8]",
    "model.net.top=[8]",
    "model.net.embedding_dim=4",
)


@pytest.mark.long
def test_a_grid_is_resumed_by_its_directory_and_run_again_after_a_change_of_code(
    runner, command, tmp_path, monkeypatch
):
    place = tmp_path / "a sweep"
    words = ["-m", "seed=1,2", *TINY, f"hydra.sweep.dir='{place}'"]
    sweep(runner, *words).check()
    code, out, _ = command("resume", str(place), "launcher.slots=2")
    assert code == 0
    assert "2 jobs, 2 done already, 2 at a time" in out
    code, out, _ = command("resume", str(place), "--dry-run")
    assert "2 jobs: 2 done" in out
    assert "seed=3: would make another sweep" in command.refused("resume", str(place), "seed=3")
    assert "--cfg: prints" in command.refused("resume", str(place), "--cfg", "job")
    monkeypatch.setattr(
        "runner.sweep.sweep_state.git_state", lambda project: {"commit": "other", "patch": ""}
    )
    code, out, err = command("resume", str(place))
    assert "2 done already" in out
    assert "ran other code than today's" in err
    assert "--rerun changed runs them again" in err
    code, out, _ = command("resume", str(place), "--dry-run", "--rerun", "changed")
    assert "2 jobs: 2 new" in out
    assert "--rerun changed" in command.refused("-m", "seed=1,2", "--rerun", "all")
    before = {p: p.read_bytes() for p in place.glob("*/result.json")}
    entry = "tests.sweep.forked:main_of_other_code"
    process = runner.start(*words, "--rerun", "changed", entry=entry)
    assert process.wait() == 0, process.text
    assert len(list(place.glob("*/result.json"))) == 4
    assert {p: p.read_bytes() for p in before} == before  # nothing is written over
    assert sorted(r["folder"].endswith("_2") for r in board(place)) == [True, True]


@pytest.mark.slow
def test_a_search_is_resumed_with_more_trials(runner, command, tmp_path):
    place = tmp_path / "s"
    words = ["search=random", "search.num_trials=2", *TINY, f"hydra.sweep.dir={place}"]
    sweep(runner, *words).check()
    assert len(board(place)) == 2
    code, out, _ = command("resume", str(place), "search.num_trials=5", "--dry-run")
    assert code == 0
    assert "5 jobs: 2 done, 3 to be chosen" in out
    assert "begins a new one" in command.refused("resume", str(place), "--rerun", "changed")


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["search=tpe", "search.pruner_first=5"], "search.pruner_first=5 has no effect with search."
         "pruner=none"),
        (["search=asha", "search.pruner_after=9"], "search.pruner_after=9 has no effect with search"
         ".pruner=asha"),
        (["search=asha", "search.pruner_first=2"], ""),
        (["search=quick", "search.pruner=none"], ""),  # what its option says is not told
        (["search=grid", "search.seed=3"], "search.seed=3 has no effect with search.sampler=grid"),
    ],
)  # fmt: skip
def test_a_setting_that_this_search_does_not_read_is_told(command, words, note):
    code, _, err = command(*words, "trainer.eval_every=2", "--dry-run")
    assert code == 0, err
    assert [line for line in err.splitlines() if "has no effect" in line] == [note] * bool(note)


def test_mistakes_in_a_search_are_reported_before_anything_starts(command):
    assert "nearest: 'tpe'" in command.refused("search=tep")
    message = command.refused("search=tpe", "optimizer.dense.lrr=interval(0,1)")
    assert "there is no key 'optimizer.dense.lrr'; nearest: 'optimizer.dense.lr'" in message
    message = command.refused("search=tpe", "model=choice(dcn, dlrm)")
    assert "models dcn, dlrm must have each key that is searched: search one model at" in message
    message = command.refused("search=tpe", "search.sampler=tpee")
    assert "search.sampler=tpee: must be one of tpe, random" in message
    assert "nearest: 'search.num_trials'" in command.refused("search=tpe", "search.num_trial=3")
    message = command.refused("search=tpe", "search.objectives={validation/acu: max}")
    assert "search.objectives: validation/acu: is not among the results" in message
    assert "search=random" in command.refused("-m", "optimizer.dense.lr=interval(0,1)")
    message = command.refused("search=tpe", "launcher.slots=1,2")
    assert "launcher.slots=1,2: holds for the whole sweep" in message
    assert "evaluates only at its end" in command.refused("search=asha")
    message = command.refused("search=asha", "trainer.max_steps=8", "trainer.eval_every=8")
    assert "(trainer.eval_every=8); trainer.eval_every=2 evaluates every 2 updates" in message
    message = command.refused("search=quasi_random", "search.seed=-1")  # its sequence takes none
    assert "search.seed=-1: must be at least 0 and below 2**63" in message
    message = command.refused("-m", "seed=1,2", "hydra/launcher=submitit_lokal")
    assert "nearest: 'submitit_local'" in message
    assert "nearest: 'remote.address'" in command.refused("remote=ray", "remote.adress=auto")
