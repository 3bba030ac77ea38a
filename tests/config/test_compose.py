from pathlib import Path

import pytest
from omegaconf import OmegaConf

from runner.cli.multirun import expand_grid
from runner.config import groups
from runner.config.compose import compose
from runner.config.composed_checks import check_composed
from runner.config.hydra_text import is_override
from runner.config.option_fields import read_fields
from runner.config.targets import ALLOWED_PACKAGES
from runner.errors import ConfigError
from runner.rundir.mirror.fetch import local_run


def write_config_folder(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [str(tmp_path)]


def test_the_default_configuration_has_no_mistakes_and_is_plain():
    composed = compose([])
    check_composed(composed, ALLOWED_PACKAGES)
    assert type(composed.config["model"]["net"]) is dict
    assert type(composed.config["model"]["net"]["top"]) is list
    assert composed.name == "dlrm_synthetic"
    assert composed.run_dir == "outputs/{name}/{time}_{signature}"
    assert "hydra" not in composed.config


@pytest.mark.parametrize(
    "places",
    [
        ["hydra.run.dir='a, b/${name}'", "hydra/launcher=basic", "hydra.sweep.dir=${oc.env:HOME}"],
        ["hydra.run.dir=1/x", "hydra.mode=MULTIRUN"],
    ],
)
def test_where_a_job_lies_is_set_as_hydra_would_and_composes_nothing_anew(places):
    words = ["optimizer=adam", *places]
    compose(["optimizer=adam", *(w for w in places if ".dir=" not in w)])
    before = groups._compose.cache_info().misses
    found = compose(words).hydra
    assert groups._compose.cache_info().misses == before
    wanted = groups._compose(("optimizer=adam", *places), (), ()).hydra
    for node in (found, wanted):
        node._set_flag("readonly", False)
        node.overrides.hydra = sorted(node.overrides.hydra)
    assert OmegaConf.to_container(found) == OmegaConf.to_container(wanted)
    assert compose(["optimizer=adam"]).run_dir == "outputs/{name}/{time}_{signature}"


@pytest.mark.parametrize("places", [(), ("hydra.run.dir={rate}/x",)])
def test_an_option_of_the_user_that_was_edited_is_read_again(tmp_path, places):
    for rate in (0.25, 0.5, 0.125):
        text = f"sparse: {{kind: sgd, lr: {rate}}}\ndense: {{_target_: torch.optim.SGD, lr: 0.1}}\n"
        dirs = write_config_folder(tmp_path, optimizer__mine=text)
        words = ["optimizer=mine", *(place.format(rate=rate) for place in places)]
        composed = compose(words, config_dirs=dirs)
        assert composed.config["optimizer"]["sparse"]["lr"] == rate


@pytest.mark.parametrize("scheduler", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "adamw", "rowwise_adagrad", "sgd"])
def test_every_combination_of_options_composes_without_mistakes(optimizer, scheduler):
    trackers = {"constant": "none", "linear": "tensorboard", "cosine": "both"}
    words = [f"optimizer={optimizer}", f"scheduler={scheduler}", f"tracker={trackers[scheduler]}"]
    composed = compose([*words, "trainer.amp=true"])
    check_composed(composed, ALLOWED_PACKAGES)
    assert composed.choices["optimizer"] == optimizer
    assert composed.config["scheduler"]["kind"] == scheduler


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_objectives_are_those_that_are_named_and_each_job_takes_any_key(plus):
    words = [
        "search=nsga2",
        f"{plus}search.objectives={{validation/auc: max, validation/loss: min}}",
    ]
    search = compose(words).config["search"]
    assert search["objectives"] == {"validation/auc": "max", "validation/loss": "min"}
    words = ["search=quick", f"{plus}search.each_job={{model.net.norm: batch}}"]
    before = compose(words[:1]).config["search"]["each_job"]
    composed = compose(words)
    assert not composed.problems
    assert composed.config["search"]["each_job"] == {**before, "model.net.norm": "batch"}


def test_updates_given_on_the_command_line_displace_epochs_of_a_file_and_it_is_said():
    composed = compose(["trainer.max_steps=10"])
    assert composed.config["trainer"]["max_steps"] == 10
    assert composed.config["trainer"]["max_epochs"] is None
    assert composed.notes == (
        "trainer.max_steps from the command line displaces trainer.max_epochs=1",
    )
    check_composed(composed, ALLOWED_PACKAGES)


def test_an_override_that_a_later_one_makes_void_is_told():
    words = ["seed=1", "optimizer=adam", "optimizer=adam", "optimizer=sgd", "seed=2", "name=a"]
    assert compose([*words, "checkpoint.monitor={metric: a}", "checkpoint.monitor={}"]).notes == (
        "seed=1: has no effect, seed=2 follows",
        "optimizer=adam: has no effect, optimizer=sgd follows",
        "optimizer=adam: has no effect, optimizer=sgd follows",
    )


def test_two_plus_signs_make_an_earlier_override_void_too():
    assert compose(["seed=1", "++seed=2"]).notes == ("seed=1: has no effect, ++seed=2 follows",)
    with pytest.raises(ConfigError, match=r"seed=1,2: has no effect, \+\+seed=3,4 follows"):
        expand_grid(["seed=1,2", "++seed=3,4"])


def test_nothing_is_displaced_when_the_other_is_given_as_null():
    composed = compose(["trainer.max_steps=10", "trainer.max_epochs=null"])
    assert composed.notes == ()
    check_composed(composed, ALLOWED_PACKAGES)
    check_composed(compose(["trainer.max_epochs=3"]), ALLOWED_PACKAGES)


def test_an_experiment_chooses_groups_and_sets_keys_and_the_command_line_wins(tmp_path):
    dirs = write_config_folder(
        tmp_path,
        experiments__mine="# @package _global_\n"
        "defaults:\n  - override /optimizer: adam\n"
        "seed: 7\ntrainer: {batch_size: 64, log_every: 5}\n",
    )
    composed = compose(["experiments=mine", "trainer.log_every=9"], config_dirs=dirs)
    check_composed(composed, ALLOWED_PACKAGES)
    config = composed.config
    assert config["seed"] == 7
    assert config["trainer"]["batch_size"] == 64
    assert config["trainer"]["log_every"] == 9
    assert config["optimizer"]["sparse"]["kind"] == "adam"
    assert composed.choices["optimizer"] == "adam"
    assert composed.choices["experiments"] == "mine"
    sgd = compose(["experiments=mine", "optimizer=sgd"], config_dirs=dirs)
    assert sgd.config["optimizer"]["sparse"]["kind"] == "sgd"


def test_hydras_own_search_path_works_too(tmp_path):
    write_config_folder(
        tmp_path, model__mine="# mine\nnet: {_target_: a.B}\nloss: {_target_: a.C}\n"
    )
    composed = compose(["model=mine", f"hydra.searchpath=[file://{tmp_path}]"])
    assert composed.config["model"]["net"] == {"_target_": "a.B"}
    with pytest.raises(ConfigError, match="model=mine: no such option"):
        check_composed(compose(["model=mine"]), ALLOWED_PACKAGES)


def test_interpolations_between_keys_are_resolved_everywhere():
    composed = compose(["trainer.log_every=${seed}", "seed=12"])
    assert composed.config["trainer"]["log_every"] == 12
    assert composed.saved_config["trainer"]["log_every"] == 12


def test_composing_again_is_not_touched_by_what_was_done_to_the_first():
    first = compose(["seed=3"])
    first.config["trainer"]["batch_size"] = 1
    assert compose(["seed=3"]).config["trainer"]["batch_size"] == 4096
    assert compose([]).config["seed"] == 0


def test_a_glob_of_a_grid_chooses_among_the_options_of_its_group(tmp_path):
    assert expand_grid(["optimizer=glob(ada*,exclude=adam*)"]) == [["optimizer=adagrad"]]
    write_config_folder(tmp_path, optimizer__adamine="# mine\nlr: 1\n")
    jobs = expand_grid(["optimizer=glob(adam*)", "seed=1"], config_dirs=[str(tmp_path)])
    names = ("adam", "adamine", "adamw")
    assert jobs == [[f"optimizer={name}", "seed=1"] for name in names]
    with pytest.raises(ConfigError, match=r"optimizer=glob\(zz\*\): a sweep over nothing"):
        expand_grid(["optimizer=glob(zz*)"])


def test_a_grid_expands_as_in_hydra_the_last_key_fastest():
    jobs = expand_grid(["optimizer=adam,sgd", "seed=range(2)", "model.net.top=[8,4]"])
    assert jobs == [
        [f"optimizer={o}", f"seed={s}", "model.net.top=[8,4]"]
        for o in ("adam", "sgd")
        for s in "01"
    ]


@pytest.mark.long
def test_yaml_can_ask_for_several_jobs(tmp_path):
    dirs = write_config_folder(
        tmp_path, experiments__many="# @package _global_\nhydra: {mode: MULTIRUN}\nseed: 1\n"
    )
    assert compose(["experiments=many"], config_dirs=dirs).is_multirun
    assert not compose(["experiments=many", "hydra.mode=RUN"], config_dirs=dirs).is_multirun


@pytest.mark.parametrize(
    ("model", "own"), [("deepfm", "deep"), ("mlp", "deep"), ("dlrm", "top"), ("masknet", "top")]
)
def test_hidden_is_a_name_for_the_widths_of_every_main_mlp(model, own):
    config = compose([f"model={model}", "model.net.hidden=[7,5]"])
    assert not config.problems
    assert config.config == compose([f"model={model}", f"model.net.{own}=[7,5]"]).config


def test_both_names_of_the_hidden_widths_in_one_command_are_refused():
    (problem,) = compose(["model=dcn", "model.net.hidden=[7]", "model.net.deep=[5]"]).problems
    assert problem.startswith("model.net.hidden=[7] and model.net.deep=[5]: give one of them")


@pytest.mark.parametrize(
    ("model", "which"), [("afn", "both: name one"), ("mmoe", "neither: name one of its own")]
)
def test_hidden_is_refused_where_it_does_not_say_which_widths_are_meant(model, which):
    (problem,) = compose([f"model={model}", "model.net.hidden=[7,5]"]).problems
    assert "there is no key 'model.net.hidden'" in problem
    assert f"model.net.deep or model.net.top, of which this model has {which};" in problem


@pytest.mark.long
def test_a_split_on_the_command_line_replaces_that_of_an_experiment(tmp_path):
    dirs = write_config_folder(
        tmp_path,
        experiments__mine="# @package _global_\ndefaults:\n- override /dataset: parquet\n"
        "dataset:\n  path: x\n  split: {random: {train: 0.9, validation: 0.1}}\n",
    )
    given = "dataset.split={time: {validation: 1d, test: 1d}}"
    composed = compose(["experiments=mine", given], config_dirs=dirs)
    assert composed.config["dataset"]["split"] == {"time": {"validation": "1d", "test": "1d"}}
    assert compose(["dataset=synthetic", given]).problems, "such data have no split of rows"


def test_a_tilde_in_the_place_of_results_is_the_home_as_in_every_other_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    composed = compose(['hydra.run.dir="~/runs/a"', 'hydra.sweep.dir="~/sweeps"'])
    assert (composed.run_dir, composed.sweep_dir) == ("/home/me/runs/a", "/home/me/sweeps")
    assert local_run("~/runs/a") == Path("/home/me/runs/a")
    assert not is_override("~/runs/a") and is_override("~tracker")


def test_an_option_of_ones_own_group_is_put_elsewhere_by_a_plus(tmp_path):
    dirs = write_config_folder(tmp_path, nets__small="top: [7]\n")
    composed = compose(["+nets@model.net=small"], config_dirs=dirs)
    assert composed.config["model"]["net"]["top"] == [7]


ALIASES = "a: &a [1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi")
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ALIASES, "x.yaml: refused: its aliases stand for more than 100,000 values"),
        ("a: &a [*a]\n", "x.yaml: refused: its aliases stand for more than 100,000 values"),
        (f"a: {'[' * 600}{']' * 600}\n", "is nested too deeply, or its defaults"),
        ("defaults: [x]\n", "is nested too deeply, or its defaults name each other"),
    ],
    ids=["aliases", "an alias in itself", "too deep", "itself"],
)
def test_yaml_without_end_is_refused_at_once(text, message, tmp_path):
    dirs = write_config_folder(tmp_path, experiments__x=f"# @package _global_\n{text}")
    with pytest.raises(ConfigError, match=message):
        compose(["experiments=x"], config_dirs=dirs)
    if "aliases" in message:
        with pytest.raises(ConfigError, match=message):
            read_fields(tmp_path / "experiments" / "x.yaml", "")


def test_what_a_yaml_sets_of_hydra_without_effect_is_told(tmp_path):
    parts = "callbacks: {x: {_target_: a.B}}, launcher: {_target_: a.C}"
    text = f"# @package _global_\nhydra: {{{parts}, sweep: {{dir: d}}, run: {{dir: e}}}}\n"
    dirs = write_config_folder(tmp_path, experiments__x=text)
    composed = compose(["experiments=x"], config_dirs=dirs)
    assert [problem.partition(":")[0] for problem in composed.problems] == [
        "hydra.launcher",
        "hydra.callbacks",
    ]
    assert composed.problems[0].endswith("hydra.launcher.KEY=VALUE go on the command line")
    assert (composed.run_dir, composed.sweep_dir) == ("e", "d")
