"""Overrides of the command line, parsed by Hydra's grammar and applied to a configuration.

They are applied one by one, so that every mistake is reported, not only the first.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner.config import messages
from runner.config.declarations import read_declarations, settings_of
from runner.config.interpolation import find_value
from runner.config.part_arguments import read_arguments
from runner.config.settings import NODES_WITH_OWN_PARSER
from runner.config.settings.trainer import LENGTH_KEYS
from runner.config_value import matches_type
from runner.errors import raise_combined
from runner.optim.dense_arguments import dense_arguments

DENSE_KEY = "optimizer.dense"
# set as a whole: one kind of split excludes another, and only the named objectives count
WHOLE_KEYS = ("dataset.split", "search.objectives")
SPACE_KEY = "search.space"
EACH_JOB_KEY = "search.each_job"
HIDDEN_KEY = "model.net.hidden"  # alias on a command line for the one of these that a model has
HIDDEN_WIDTHS = ("deep", "top")  # widths of a model's main MLP; each has one of them


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides by Hydra's grammar.

    Raises:
        ConfigError: naming every override that is not `key=value`.
    """
    parsed: list[Override] = []
    problems: list[str] = []
    for text in overrides:
        try:
            parsed.append(_parse_override(text))
            if not parsed[-1].key_or_group:
                problems.append(f"{text}: names no key")
        except (HydraException, AttributeError) as error:  # the latter under `python -O`
            problems.append(messages.invalid_syntax(text, error))
    raise_combined(problems)
    return parsed


@lru_cache(maxsize=1024)  # the jobs of a sweep share most of them; no Override is modified
def _parse_override(text: str) -> Override:
    [override] = OverridesParser.create().parse_overrides([text])
    return override


def parse_job_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse the overrides of one job.

    Raises:
        ConfigError: as `parse_overrides`, and for an override with several values.
    """
    parsed = parse_overrides(overrides)
    raise_combined(
        messages.sweep_needs_multirun(str(o.input_line)) for o in parsed if o.is_sweep_override()
    )
    return parsed


def find_repeated(parsed: Sequence[Override]) -> list[tuple[Override, Override]]:
    """Return each override that a later one of the same key replaces, with the later one.

    A group of keys is merged into the earlier one, and replaces nothing.
    """
    last: dict[str, Override] = {}
    repeated: list[tuple[Override, Override]] = []
    for override in reversed(parsed):
        replaces = override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD)
        is_whole = replaces and not isinstance(override.value(), dict)
        if is_whole and override.package is None:
            later = last.setdefault(override.key_or_group, override)
            if later.input_line != override.input_line:
                repeated.insert(0, (override, later))
    return repeated


def drop_displaced_length(
    parsed: Sequence[Override], problems: list[str]
) -> tuple[list[Override], str | None]:
    """Let max_steps or max_epochs from the command line replace the other one from a file.

    Args:
        problems: receives a message if the command line has both.

    Returns:
        The overrides, with one more that sets the replaced key to null, and the key that
        replaces it, or None.
    """
    lengths: dict[str, tuple[Override, Any]] = {}
    for o in parsed:
        value = None if o.is_delete() or o.is_sweep_override() else o.value()
        if o.key_or_group == "trainer" and isinstance(value, dict):
            inner = {f"trainer.{name}": of for name, of in value.items()}
            lengths |= {key: (o, inner[key]) for key in LENGTH_KEYS if key in inner}
        elif o.key_or_group in LENGTH_KEYS and not o.is_delete():
            lengths[o.key_or_group] = (o, o.value())
    chosen = [k for k, (_, value) in lengths.items() if value is not None]
    if len(chosen) == 2:
        lines = " and ".join(dict.fromkeys(str(lengths[k][0].input_line) for k in chosen))
        problems.append(f"{lines}: give one of them; each says how long the run is")
        # so that the rules, which also check files, do not report the same mistake again
        return [*parsed, *parse_overrides([f"{chosen[1]}=null"])], None
    if len(chosen) != 1 or len(lengths) == 2:
        return list(parsed), None
    other = LENGTH_KEYS[1 - LENGTH_KEYS.index(chosen[0])]
    return [*parsed, *parse_overrides([f"{other}=null"])], chosen[0]


def describe_displaced_length(length_key: str | None, config: DictConfig) -> tuple[str, ...]:
    """Return the note about a replaced length, if the other key had a value."""
    if length_key is None:
        return ()
    other = LENGTH_KEYS[1 - LENGTH_KEYS.index(length_key)]
    displaced_value = find_value(config, other)
    if displaced_value is None:
        return ()
    return (f"{length_key} from the command line displaces {other}={displaced_value}",)


def name_hidden_widths(
    config: DictConfig, overrides: Sequence[Override], problems: list[str]
) -> list[Override]:
    """Let `model.net.hidden` set the widths of a model's main MLP, whatever their name.

    Only the key of the override changes, so that a configuration and its signature contain the
    model's name. If a model has none of `HIDDEN_WIDTHS`, or several, the key is unchanged, and
    refused as unknown.

    Args:
        problems: receives a message if the overrides use both names.
    """
    net = find_value(config, "model.net")
    key = own_key(HIDDEN_KEY, net if isinstance(net, DictConfig) else ())
    by_key = {o.key_or_group: str(o.input_line) for o in overrides}
    if key != HIDDEN_KEY and {key, HIDDEN_KEY} <= by_key.keys():
        problems.append(
            f"{by_key[HIDDEN_KEY]} and {by_key[key]}: give one of them; both set the widths of the "
            "model's main MLP"
        )
    return [replace(o, key_or_group=key) if o.key_or_group == HIDDEN_KEY else o for o in overrides]


def own_key(key: str, net: Container[object]) -> str:
    """Return the model's key for which `model.net.hidden` is an alias; other keys unchanged.

    Args:
        net: the names of the keys of `model.net`.
    """
    width_names = [name for name in HIDDEN_WIDTHS if name in net]
    if key != HIDDEN_KEY or len(width_names) != 1 or "hidden" in net:
        return key
    return f"model.net.{width_names[0]}"


def apply_override(config: DictConfig, override: Override) -> str | None:
    """Apply one override in place, as Hydra would; return a message if that is not possible."""
    key, text = override.key_or_group, str(override.input_line)
    before = find_value(config, key)
    value = None if override.is_delete() else override.value()
    is_whole = key in WHOLE_KEYS and isinstance(before, DictConfig) and isinstance(value, dict)
    if is_whole or replaces_part(override) or (key == EACH_JOB_KEY and isinstance(value, dict)):
        merge = key == EACH_JOB_KEY  # its keys are those of jobs, which are checked separately
        OmegaConf.update(config, key, value, merge=merge, force_add=True)
        return None
    if override.is_delete() and key == SPACE_KEY and before is not None:
        config.search.space = {}  # only keys of the command line are searched
        return None
    node, name = find_value(config, key.rpartition(".")[0]), key.rpartition(".")[2]
    if override.is_delete() and isinstance(node, DictConfig) and _is_needed(node, key):
        return f"{text}: every job has this key; {key}=VALUE gives it another value"
    if override.is_delete() and before is None and isinstance(node, DictConfig) and name in node:
        with open_dict(node):
            del node[name]  # Hydra does not find keys with the value null
        return None
    is_node = isinstance(before, DictConfig) and not override.is_delete()
    if is_node and not isinstance(override.value(), dict):
        return messages.value_for_group(text, before, override.value())
    if is_node and not override.value() and len(before):
        joined = "changes nothing, as given keys join those there"
        return f"{text}: {joined}; give those that are to change"
    above = _value_above(config, key)
    try:
        if not {key, key.rpartition(".")[0]}.isdisjoint(NODES_WITH_OWN_PARSER) and not (
            override.is_delete() or "@" in key
        ):
            # The node's own parser gives a better reason for a refusal than "no such key".
            OmegaConf.update(config, key, override.value(), force_add=True)
            return None
        ConfigLoaderImpl._apply_overrides_to_config([override], config)
    except (HydraException, OmegaConfBaseException, TypeError, ValueError) as error:
        if above is not None:  # OmegaConf has replaced it by a group
            OmegaConf.update(config, *above, merge=False)
        return messages.bad_override(override, config, error)
    return None


def _value_above(config: DictConfig, key: str) -> tuple[str, Any] | None:
    """Return the nearest parent key with a value, and the value; None if it is a group of keys."""
    while group := key.rpartition(".")[0]:
        above, _, name = group.rpartition(".")
        node = find_value(config, above)
        if isinstance(node, DictConfig) and name in node:
            value = find_value(config, group)
            return None if isinstance(value, DictConfig) else (group, value)
        key = group
    return None


def _is_needed(node: DictConfig, key: str) -> bool:
    """Return whether a key is the class of its node, or a value of a group that our code reads."""
    group, _, name = key.rpartition(".")
    settings = settings_of(group, node.get("_target_"))
    declared = read_declarations(settings).get(name) if settings is not None else None
    is_class = name == "_target_" and group != DENSE_KEY  # another rule checks its value
    return name in node and (is_class or (declared is not None and declared.settings is None))


def replaces_part(override: Override) -> bool:
    """Return whether an override sets a part as a whole, class and settings.

    This is the dense optimizer, or a net or loss of a user's own, with arguments different from
    ours.
    """
    key, value = override.key_or_group, None if override.is_delete() else override.value()
    if not isinstance(value, dict) or "_target_" not in value:
        return False
    is_own = not str(value["_target_"]).startswith("runner.")
    return key == DENSE_KEY or (is_own and key in ("model.net", "model.loss"))


def drop_unfit_arguments(
    config: DictConfig, config_without: DictConfig, recipe: str
) -> tuple[str, ...]:
    """Drop arguments of a recipe that the model does not take, in place; return a note on them.

    Args:
        config: the whole configuration, without the overrides of keys.
        config_without: the same without the recipe; it has the arguments of a user-defined net.
    """
    net = OmegaConf.select(config, "model.net")
    if not isinstance(net, DictConfig):
        return ()
    target = OmegaConf.select(net, "_target_", throw_on_missing=False)
    known = set(OmegaConf.select(config_without, "model.net") or ())
    declared = read_arguments(str(target))
    known |= set(declared.declared) if declared is not None else set()
    dropped = [str(k) for k in net if k not in known]
    with open_dict(net):
        for name in dropped:
            del net[name]
    if not set(HIDDEN_WIDTHS).isdisjoint(net):
        dropped = [name for name in dropped if name not in HIDDEN_WIDTHS]
    if not dropped:
        return ()
    return (f"recipe={recipe}: {target} takes no {', no '.join(dropped)}: left out",)


def drop_unsupported_arguments(
    config: DictConfig, overrides: Sequence[Override], previous_target: Any
) -> tuple[str, ...]:
    """Drop settings that a dense optimizer class does not take, in place; return a note on them.

    The class is one of the command line, whose settings stay: the class itself then refuses them.

    Args:
        previous_target: the class that the settings were written for.
    """
    target, node = (OmegaConf.select(config, key) for key in (f"{DENSE_KEY}._target_", DENSE_KEY))
    if not isinstance(target, str) or target == previous_target or not isinstance(node, DictConfig):
        return ()
    known: Any = dense_arguments(target)
    set_names = {"_target_"}
    for override in overrides:
        (group, _, name), value = override.key_or_group.rpartition("."), override.value()
        if group == DENSE_KEY:
            set_names.add(name)
        elif override.key_or_group == DENSE_KEY and isinstance(value, dict):
            set_names |= {str(k) for k in value}
    values: Any = OmegaConf.to_container(node, resolve=True)
    dropped = {}  # name -> its wording in the note
    for name in values if known is not None else ():
        is_taken = name in known and matches_type(values[name], known[name])
        if not is_taken and name not in set_names:  # Adafactor has two eps
            dropped[name] = f"such {name}" if name in known else name
    if not dropped:
        return ()
    with open_dict(node):
        for name in dropped:
            del node[name]
    return (
        f"{DENSE_KEY}._target_={target} takes no {' and no '.join(dropped.values())}, which "
        f"{'was' if len(dropped) == 1 else 'were'} {previous_target}'s: left out",
    )
