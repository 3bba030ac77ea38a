"""The plan of a sweep: what varies, the keys of jobs, the directory."""

import pytest

from runner.config.compose import compose_job
from runner.config.composed_checks import check_composed, with_row_count
from runner.config.settings import SearchSettings
from runner.config.targets import ALLOWED_PACKAGES
from runner.errors import ConfigError
from runner.sweep.plan import CheckedJob, plan_sweep, slug
from runner.sweep.run_index import outcome_from_result
from runner.sweep.search import plan_search
from runner.sweep.space import read_space
from tests.sweep.driver import checker, grid
from tests.sweep.stand_in import signature

TEMPLATE = "outputs/sweeps/{name}_{signature}"


def plan(jobs, directory=TEMPLATE, **launcher):
    return plan_sweep(jobs, checker(directory, launcher))


def test_only_the_overrides_that_differ_are_shown():
    found = plan(grid(optimizer=["adam", "sgd"], trainer__max_steps=5, seed=[1, 2]))
    assert found.varying == ("optimizer", "seed")
    assert [job.label for job in found.jobs] == [
        "optimizer=adam seed=1",
        "optimizer=adam seed=2",
        "optimizer=sgd seed=1",
        "optimizer=sgd seed=2",
    ]
    assert found.jobs[0].overrides == ("optimizer=adam", "trainer.max_steps=5", "seed=1")


def test_an_override_that_only_some_jobs_have_varies():
    found = plan([["a=1"], ["a=1", "b=2"]])
    assert found.varying == ("b",)
    assert [dict(job.varying) for job in found.jobs] == [{}, {"b": "2"}]


def test_the_same_command_finds_the_same_directory_and_so_does_a_grown_grid():
    first = plan(grid(optimizer=["adam", "sgd"], lr=0.1, seed=[1, 2])).directory
    assert first.startswith("outputs/sweeps/toy_")
    assert plan(grid(lr=0.1, seed=[1, 2], optimizer=["adam", "sgd"])).directory == first
    assert plan(grid(optimizer=["adam", "sgd"], lr=0.1, seed=[1, 2, 3])).directory == first
    assert plan(grid(optimizer=["adam", "sgd"], lr=0.2, seed=[1, 2])).directory != first
    assert plan(grid(optimizer=["adam", "sgd"], lr=[0.1, 0.2], seed=[1, 2])).directory != first


def test_launcher_settings_do_not_change_the_directory():
    jobs = grid(seed=[1, 2])
    other = [[*job, "launcher.slots=2", "hydra.mode=MULTIRUN", "launcher=default"] for job in jobs]
    assert plan(other).directory == plan(jobs).directory
    assert plan(other).jobs == plan(jobs).jobs


def test_every_wrong_job_is_named_before_anything_starts():
    with pytest.raises(ConfigError, match=r"job 2 of 3 \(seed=1 bad=5\): bad=5: there is no key"):
        plan([["seed=1"], ["seed=1", "bad=5"], ["seed=2"]])
    with pytest.raises(ConfigError, match=r"2 mistakes\n.*job 1 .*bad=1.*\n.*job 2 .*bad=2"):
        plan(grid(bad=[1, 2]))
    with pytest.raises(ConfigError, match=r"job 1 of 4 \(seed=1\) and 3 more: bad=1"):
        plan(grid(bad=1, seed=[1, 2, 3, 4]))


def test_an_empty_grid_is_refused_as_empty():
    with pytest.raises(ConfigError, match="no jobs"):
        plan([])


def test_the_launcher_holds_for_the_whole_sweep():
    with pytest.raises(ConfigError, match=r"launcher.slots: holds for the whole sweep"):
        plan([["launcher.slots=1"], ["launcher.slots=2"]])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("launcher.slots=0", r"launcher.slots=0: .* at least 1"),
        ("launcher.timeout_s=-1", r"launcher.timeout_s=-1"),
        ("launcher.slot=2", r"there is no key 'launcher.slot'; nearest: 'launcher.slots'"),
    ],
)
def test_a_wrong_launcher_is_refused_with_the_job_that_has_it(word, message):
    composed = compose_job([word])
    with pytest.raises(ConfigError, match=message):
        check_composed(with_row_count(composed), ALLOWED_PACKAGES)


def test_a_job_written_twice_is_one_job():
    found = plan(grid(seed=[1, 1, 2]))
    assert [job.label for job in found.jobs] == ["seed=1", "seed=2"]
    assert "1 of 3 jobs are written twice" in found.notes[0]


def test_jobs_that_differ_in_nothing_signed_have_different_keys():
    found = plan([["seed=1", "tracker=none"], ["seed=1", "tracker=wandb"], ["seed=2"]])
    a, b, c = found.jobs
    assert a.signature == b.signature
    assert len({a.key, b.key, c.key}) == 3
    assert (a.shares_signature, b.shares_signature, c.shares_signature) == (True, True, False)
    assert "differ in nothing that makes the result" in found.notes[0]


def test_a_folder_is_named_for_people_and_safe_in_hydras_grammar():
    found = plan(grid(optimizer__dense__lr=[1, 2], optimizer__sparse__lr=["[0.1, 'x']", "a/b"]))
    names = [slug(job) for job in found.jobs]
    assert names[0] == f"dense.lr-1_sparse.lr-0.1-x_{signature(found.jobs[0].overrides)}"
    assert all(set(name).isdisjoint("/=, []'{}$") for name in names)
    long = plan(grid(a=["x" * 300, "y" * 300])).jobs[0]
    assert len(slug(long)) < 100


def test_a_folder_is_not_named_by_a_secret(monkeypatch):
    monkeypatch.setenv("SWEPT_TOKEN", "hunter2-secret9")
    found = plan(grid(url=["http://me:hunter2-secret9@here", "b"])).jobs[0]
    assert slug(found).startswith("url-http-me-oc.env-SWEPT_TOKEN-here_")


def test_if_the_names_of_jobs_vary_the_directory_is_named_by_the_swept_keys():
    def check(overrides):
        return CheckedJob(signature(overrides), overrides[0].split("=")[1], {}, TEMPLATE)

    found = plan_sweep(grid(model=["dlrm", "dcn"], seed=[1, 2]), check)
    assert found.directory.startswith("outputs/sweeps/sweep-model-seed_")


def monitor_checker(overrides):
    monitor = {"metric": overrides[0].split("=")[1], "direction": "max"}
    config = {
        "checkpoint": {"monitor": monitor},
        "metrics": {"eval": ["auc", "accuracy", "log_loss"]},
    }
    return CheckedJob(signature(overrides), "toy", config, TEMPLATE)


def test_a_best_value_of_another_metric_is_not_taken_for_the_one_that_ranks():
    key, result = "checkpoint.monitor.metric", {"status": "completed", "best": {"value": 0.4}}
    result["metrics"] = {"validation/auc": 0.7, "validation/accuracy": 0.4}
    axis = {"checkpoint__monitor__metric": ["validation/auc", "validation/accuracy"]}
    mixed = plan_sweep(grid(**axis, seed=[1, 2]), monitor_checker)
    assert "monitor different metrics (validation/auc, validation/accuracy)" in mixed.notes[0]
    assert outcome_from_result(result, mixed).best == 0.7
    dimensions, _ = read_space({key: "choice(validation/auc, validation/accuracy)"}, [])
    search, _ = plan_search(
        [], dimensions, SearchSettings(space={}, sampler="grid"), monitor_checker
    )
    assert not search.is_monitored and search.notes
    alike = plan_sweep(grid(checkpoint__monitor__metric="validation/auc", seed=1), monitor_checker)
    assert alike.is_monitored and not alike.notes


@pytest.mark.parametrize("text", ["hydra.run.dir=x", "hydra.sweep.subdir=x"])
def test_keys_of_hydras_own_sweeps_are_refused_instead_of_ignored(text):
    with pytest.raises(ConfigError, match="does not hold with -m"):
        plan([["seed=1", text], ["seed=2", text]])
