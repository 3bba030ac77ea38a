"""The declarations of the keys against the YAMLs, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from omegaconf import OmegaConf

from runner.config import reference
from runner.config.compose import compose
from runner.config.declarations import (
    NO_DEFAULT,
    Declaration,
    find_range_problem,
    read_declarations,
)
from runner.config.locations import CONF
from runner.config.option_fields import OptionField, read_fields
from runner.config.options import list_groups
from runner.config.rules import check_config
from runner.config.settings import SETTINGS_BY_NODE, SETTINGS_BY_TARGET, TrainerSettings
from runner.config.signature import compute_signature, signature_fields, signed_as
from runner.config.targets import ALLOWED_PACKAGES
from runner.config_key import Key
from runner.config_value import check_arguments
from runner.errors import ConfigError

# Options that have every key with its declared default and comment; others change some defaults.
FULL_OPTIONS = {
    "trainer": ["default"],
    "checkpoint": ["default"],
    "delivery": ["default"],
    "launcher": ["default"],
    "remote": ["ray"],
    "search": ["tpe"],
    "sharding": ["auto"],
    "metrics": ["default"],
    "loop": ["train", "eval", "online", "debug", "tune_batch_size", "tune_lr"],
}


def find_option(group: str, name: str) -> Path:
    return next(o.path for o in dict(list_groups())[group] if o.name == name)


def walk(settings: type, prefix: str) -> Iterator[tuple[str, Declaration]]:
    for name, declaration in read_declarations(settings).items():
        yield f"{prefix}{name}", declaration
        if declaration.settings is not None:
            yield from walk(declaration.settings, f"{prefix}{name}.")


def nodes() -> Iterator[tuple[str, Path, str, type]]:
    """Yield a name for the test, the YAML, the dotted node in it, and the settings of the node."""
    yield "config.yaml", CONF / "config.yaml", "", SETTINGS_BY_NODE[""]
    for group, names in FULL_OPTIONS.items():
        for name in names:
            path = find_option(group, name)
            settings = SETTINGS_BY_NODE.get(group)
            if settings is None:
                values: Any = OmegaConf.load(path)
                settings = SETTINGS_BY_TARGET[values["_target_"]]
            yield f"{group}={name}", path, group, settings


NODES = {name: rest for name, *rest in nodes()}


def read_yaml(path: Path, node: str) -> tuple[dict[str, OptionField], Any]:
    """Return the fields of a YAML by dotted key, and its values below the node's own prefix."""
    group = node.split(".")[0]
    values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return {f.key: f for f in read_fields(path, group)}, {group: values} if group else values


def without_free_keys(keys: Collection[str], declared: Mapping[str, Declaration]) -> set[str]:
    """Leave out the entries of dictionaries, whose keys the user chooses."""
    free = tuple(f"{k}." for k, d in declared.items() if d.settings is None)
    return {key for key in keys if not key.startswith(free)}


def test_every_declared_option_is_held_against_its_yaml():
    held = {settings for _, _, settings in NODES.values()}
    assert held == {*SETTINGS_BY_NODE.values(), *SETTINGS_BY_TARGET.values()}


@pytest.mark.parametrize("name", NODES)
def test_a_yaml_has_the_keys_defaults_and_comments_of_the_declarations(name):
    path, node, settings = NODES[name]
    found, values = read_yaml(path, node)
    declared = dict(walk(settings, f"{node}." if node else ""))
    assert without_free_keys(found, declared) - {node} == set(declared)
    for key, declaration in declared.items():
        assert found[key].comment == declaration.key.doc, key
        if declaration.settings is None and declaration.default is not NO_DEFAULT:
            value = values
            for part in key.split("."):
                value = value[part]
            assert value == declaration.default, key
            assert type(value) is type(declaration.default) or isinstance(value, int), key


@pytest.mark.parametrize("name", ["throughput", "memory", "weights", "activations"])
def test_a_watching_callback_takes_the_keys_of_its_yaml_with_its_defaults(name):
    values: Any = OmegaConf.to_container(OmegaConf.load(find_option("callbacks", name)))
    module, _, class_name = values[name].pop("_target_").rpartition(".")
    taken = signature(getattr(import_module(module), class_name)).parameters
    assert taken.keys() == values[name].keys()
    for key, parameter in taken.items():
        if parameter.default not in (Parameter.empty, ()):  # () watches nothing; the YAML has more
            default = parameter.default
            assert (list(default) if isinstance(default, tuple) else default) == values[name][key]


@pytest.mark.parametrize("group", ["search", "sharding"])
def test_other_options_of_a_declared_group_have_no_other_keys(group):
    declared = dict(walk(SETTINGS_BY_NODE[group], f"{group}."))
    for option in dict(list_groups())[group]:
        keys = {f.key for f in read_fields(option.path, group)}
        assert without_free_keys(keys, declared) <= declared.keys(), option.name


def test_every_key_is_described():
    for settings in (*SETTINGS_BY_NODE.values(), *SETTINGS_BY_TARGET.values()):
        for key, declaration in walk(settings, ""):
            assert declaration.key.doc, (settings, key)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (Key("", ge=1), 0, "k=0: must be at least 1"),
        (Key("", ge=0), -1, "k=-1: must not be negative"),
        (Key("", ge=0, lt=1, note="null: none"), 1.0, "must be at least 0 and below 1; null: none"),
        (Key("", gt=0, lt=math.inf), math.inf, "k=inf: must be above 0 and finite"),
        (Key("", gt=0), math.nan, "k=nan: must be above 0 and finite"),
        (Key("", ge=0, le=1), 1.5, "must be at least 0 and at most 1"),
        (Key("", ge=0, lt=2**63), 2**63, "must be at least 0 and below 2**63"),
        (Key("", choices=("auto", "cpu")), "cpus", "one of auto, cpu; nearest: 'cpu'"),
        (Key("", interval="progress"), "30min", "must not be a time: this key changes the result"),
        (Key("", interval="progress or time"), "often", "not an interval"),
    ],
)
def test_a_value_out_of_range_is_told(key, value, said):
    assert said in (find_range_problem("k", value, key) or "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (Key("", ge=1), 1),
        (Key("", ge=1), None),
        (Key("", ge=1), "5ep"),
        (Key("", gt=0, lt=math.inf), 1e300),
        (Key("", choices=("auto", "cpu")), None),
        (Key("", choices=("best", "last"), ge=0), 7),
        (Key("", choices=("auto",), pattern=r"cuda:\d+"), "cuda:3"),
        (Key("", interval="progress or time"), "30min"),
        (Key("", interval="progress"), None),
    ],
)
def test_a_value_in_range_is_accepted(key, value):
    assert find_range_problem("k", value, key) is None


def constructor(
    self: Any,
    schema: OptionField,
    build: Callable[[], int],
    *,
    width: Annotated[int, Key(ge=1)],
    widths: Annotated[Sequence[Annotated[int, Key(ge=1)]], Key(min_items=1)] = (8,),
    kind: Literal["all", "each"] = "all",
    shares: Mapping[str, Annotated[float, Key(ge=0, le=1)]] | None = None,
    on: bool = True,
    every: Annotated[int | str, Key(interval="progress")] = 1,
    **more: Any,
) -> None:
    check_arguments(constructor, locals())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"width": 0}, ["width=0: must be at least 1"]),
        ({"width": None}, ["width=null: expected whole number, got null"]),
        ({"width": True}, ["width=True: expected whole number, got true or false True"]),
        ({"widths": []}, ["widths=[]: needs at least 1 item"]),
        ({"widths": [3, 0]}, ["widths[1]=0: must be at least 1"]),
        ({"kind": "eech"}, ["kind=eech: must be one of all, each; nearest: 'each'"]),
        ({"kind": None}, ["kind=None: must be one of all, each"]),
        ({"shares": {"a": "x"}}, ["shares.a=x: expected number, got text 'x'"]),
        (
            {"width": 0, "on": 1, "widths": "x"},
            [
                "width=0: must be at least 1",
                "widths=x: expected list of whole number, got text 'x'",
                "on=1: expected true or false, got whole number 1",
            ],
        ),
    ],
)
def test_a_constructor_tells_all_arguments_that_are_not_as_annotated(given, said):
    with pytest.raises(ConfigError) as told:
        constructor(None, None, None, **{"width": 1, **given})
    assert list(told.value.problems) == said


def test_a_constructor_takes_what_is_as_annotated_and_leaves_other_types_alone():
    right = {"widths": (1, 2), "kind": "each", "shares": {"a": 1}, "every": "2ep", "more": -1}
    part, more = object(), object()
    for given in (right, {**right, "widths": [2]}):
        constructor(None, part, more, width=1, **given)
    with pytest.raises(ConfigError) as told:  # the same types are checked beside a wrong one
        constructor(None, part, more, width=0, **right)
    assert list(told.value.problems) == ["width=0: must be at least 1"]


@pytest.mark.parametrize("bound", [0, -1.0, ".nan", ".inf"])
def test_a_bound_of_the_gradients_is_above_0(bound):
    composed = compose([f"trainer.clip.value={str(bound).lstrip('.')}"])
    [problem] = check_config(composed.config, composed.default_config, allowed=ALLOWED_PACKAGES)
    assert problem.startswith("trainer.clip.value=")
    assert problem.endswith("must be above 0 and finite; null does not clip")


@dataclass(frozen=True)
class NoiseSettings:
    scale: Annotated[float, Key("of the noise", ge=0)] = 0.0


@dataclass(frozen=True)
class GrownTrainerSettings(TrainerSettings):
    """A trainer with two keys more: this class is all that declares them."""

    warm_batches: Annotated[
        int, Key("batches before the clock starts", ge=0, lt=100, unit="batches", signed="no")
    ] = 3
    noise: Annotated[NoiseSettings, Key("noise of the gradients")] = field(
        default_factory=NoiseSettings
    )


YAML_LINES = """\
warm_batches: 3  # batches before the clock starts
noise:  # noise of the gradients
  scale: 0.0  # of the noise
"""


def test_one_declaration_and_its_yaml_line_are_all_that_a_new_key_needs(monkeypatch, tmp_path):
    before = compose([])
    monkeypatch.setitem(SETTINGS_BY_NODE, "trainer", GrownTrainerSettings)
    added = {"warm_batches": 3, "noise": {"scale": 0.0}}
    default = {**before.config, "trainer": {**before.config["trainer"], **added}}

    def problems(**changes: Any) -> list[str]:
        config = {**default, "trainer": {**default["trainer"], **changes}}
        return check_config(config, default, allowed=ALLOWED_PACKAGES)

    assert problems() == []
    assert problems(warm_batches="x") == [
        "trainer.warm_batches=x: expected whole number, got text 'x'"
    ]
    assert problems(warm_batches=100) == [
        "trainer.warm_batches=100: must be at least 0 and below 100"
    ]
    assert problems(noise={"scale": -0.5}) == ["trainer.noise.scale=-0.5: must not be negative"]
    assert "nearest: 'trainer.noise.scale'" in problems(noise={"scal": 1})[0]

    assert signed_as("trainer.warm_batches") == "no"
    assert "trainer.warm_batches" not in signature_fields(default, "d")
    assert signature_fields(default, "d")["trainer.noise.scale"] == 0.0
    assert compute_signature(default, "d") != compute_signature(before.config, "d")

    page = tmp_path / "default.yaml"
    page.write_text(find_option("trainer", "default").read_text() + YAML_LINES)
    found, values = read_yaml(page, "trainer")
    shown = found["trainer.warm_batches"]
    assert (shown.type_name, shown.range) == ("whole number", "at least 0 and below 100")
    assert shown.comment == shown.declared.doc == "batches before the clock starts"
    assert set(found) == {key for key, _ in walk(GrownTrainerSettings, "trainer.")}
    assert values["trainer"]["warm_batches"] == GrownTrainerSettings().warm_batches


def test_the_reference_page_is_the_one_that_would_be_written_now():
    now = reference.PAGE.read_text(encoding="utf-8")
    assert now == reference.render_reference(), "run python -m runner.config.reference"


def test_the_reference_page_says_type_default_range_unit_and_signature():
    lines = reference.PAGE.read_text(encoding="utf-8").splitlines()
    batch_size, *_ = [line for line in lines if line.startswith("| `trainer.batch_size` |")]
    assert batch_size == (
        "| `trainer.batch_size` | whole number | `4096` | at least 1 and below 2\\*\\*31; or "
        "auto | rows | in global_batch | rows of one rank and micro-batch; auto: by the number of "
        "train rows |"
    )
    [profile] = [line for line in lines if line.startswith("| `trainer.profile.updates` |")]
    assert profile.split(" | ")[5] == "no"  # as the whole group declares
    patience, *_ = [line for line in lines if line.startswith("| `trainer.early_stop.patience` |")]
    assert patience.split(" | ")[5] == "when on"
