"""A schedule of one's own: of the run, of the tables and of a part; killed, resumed, drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TINY, Zygote
from tests.whole.compare_runs import differences, read_rows

USER = "tests.whole.user_schedules"
SETTINGS = (
    *("--allow", "tests"),
    *TINY,
    "task._target_=tests.whole.traced.Traced",
    "trainer.log_every=1",
    "scheduler=own",
    f"scheduler._target_={USER}.Shrinking",
    "+scheduler.rate=0.9",
    f"+optimizer.schedules.sparse={{_target_: {USER}.staircase}}",
    "optimizer.parts=[{pattern: bias$, name: biases, schedule: "
    f"{{_target_: {USER}.Shrinking, rate: 0.8}}}}]",
)


def train(runner: Zygote, run: Path, kill: str = ""):
    env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
    return runner.run(*SETTINGS, f"hydra.run.dir={run}", env=env)


@pytest.fixture(scope="module")
def untouched(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("untouched") / "run"
    train(runner, run).check()
    return run


@pytest.mark.long
@pytest.mark.parity("C5")
def test_every_rate_follows_its_schedule(untouched):
    rows = read_rows(untouched, "train")
    assert [row["step"] for row in rows] == list(range(1, 41))
    for k, row in enumerate(rows, start=1):
        assert row["lr/dense"] == pytest.approx(1e-3 * 0.9**k)
        assert row["lr/biases"] == pytest.approx(1e-3 * 0.8**k)
        assert row["lr/sparse"] == pytest.approx(0.02 * 0.5 ** ((k - 1) // 10))


@pytest.mark.long
@pytest.mark.parametrize("kill", ["step:23", "eval:40"])
@pytest.mark.parity("C5", "E4")
def test_a_killed_run_goes_on_with_the_states_of_its_schedules(runner, untouched, tmp_path, kill):
    run = tmp_path / "run"
    train(runner, run, kill).check(-9)
    train(runner, run).check()
    assert differences(run, untouched) == []


def test_it_is_drawn_as_it_will_be(runner):
    done = runner.run("schedule", *SETTINGS).check()
    assert "Shrinking and staircase: rate / full rate over 40 updates" in done.text
    (last,) = [line for line in done.text.splitlines() if line.startswith("last")]
    assert f"{1e-3 * 0.9**40:.4g}" in last and f"{1e-3 * 0.8**40:.4g}" in last


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scheduler=own"], "scheduler._target_: has no default and must be given"),
        (["unmarked"], "not a part that scheduler takes"),
        (["staircaze"], "has no 'staircaze'; nearest: 'staircase'"),
        (["staircase", "+scheduler.dorp=0.5"], "dorp"),
        (["Half", "+scheduler.rate=0.9"], "scheduler (Half): has state() but no load_state()"),
        (["Constant", "+scheduler.value=-1"], "gave -1 for update 1; a factor of the full rate"),
        (["Constant", "+scheduler.value=fast"], "gave 'fast' for update 1, not a number"),
        (["Constant", "+scheduler.value=nan", "+scheduler.until=5"], "gave nan for update 6"),
    ],
)
def test_a_mistake_is_told(runner, tmp_path, words, said):
    if words != ["scheduler=own"]:
        words = ["scheduler=own", f"scheduler._target_={USER}.{words[0]}", *words[1:]]
    run = f"hydra.run.dir={tmp_path / 'run'}"
    assert said in runner.run("--allow", "tests", *TINY, *words, run).check(2).text
