"""Overrides of the command line: read by Hydra's grammar, laid on a configuration one by one, so
that every mistake among them is told, not the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner.config import messages
from runner.config.settings import NODES_WITH_OWN_PARSER
from runner.errors import combined_error
from runner.optim.constructor_arguments import accepted_arguments

LENGTH_KEYS = ("trainer.max_steps", "trainer.max_epochs")
DENSE_KEY = "optimizer.dense"


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Raises: ConfigError naming every override that is no `key=value` of Hydra's grammar."""
    parser, parsed, problems = OverridesParser.create(), [], []
    for text in overrides:
        try:
            parsed.extend(parser.parse_overrides([text]))
        except HydraException as error:
            problems.append(messages.invalid_syntax(text, error))
    if problems:
        raise combined_error(problems)
    return parsed


def parse_job_overrides(overrides: Sequence[str]) -> list[Override]:
    """The same for one job. Raises: ConfigError also for an override of several values."""
    parsed = parse_overrides(overrides)
    problems = [
        messages.sweep_needs_multirun(str(o.input_line)) for o in parsed if o.is_sweep_override()
    ]
    if problems:
        raise combined_error(problems)
    return parsed


def drop_displaced_length(
    parsed: Sequence[Override], problems: list[str]
) -> tuple[list[Override], str | None]:
    """Of max_steps and max_epochs the command line's one displaces the file's one.

    Returns: the overrides, with one more if need be, and the key that displaces the other.
    """
    given = {
        o.key_or_group: o for o in parsed if o.key_or_group in LENGTH_KEYS and not o.is_delete()
    }
    chosen = [k for k, o in given.items() if o.value() is not None]
    if len(chosen) == 2:
        lines = " and ".join(str(given[k].input_line) for k in chosen)
        problems.append(f"{lines}: give one of them; each says how long the run is")
    if len(chosen) != 1 or len(given) == 2:
        return list(parsed), None
    other = LENGTH_KEYS[1 - LENGTH_KEYS.index(chosen[0])]
    return [*parsed, *parse_overrides([f"{other}=null"])], chosen[0]


def describe_displaced_length(length_key: str | None, config: DictConfig) -> tuple[str, ...]:
    """What is said of it, if there was something to displace."""
    if length_key is None:
        return ()
    other = LENGTH_KEYS[1 - LENGTH_KEYS.index(length_key)]
    was = OmegaConf.select(config, other)
    if was is None:
        return ()
    return (f"{length_key} from the command line displaces {other}={was}",)


def apply_override(config: DictConfig, override: Override) -> str | None:
    """Applies one override in place, as Hydra would; a message if it cannot be."""
    key, text = override.key_or_group, str(override.input_line)
    before = OmegaConf.select(config, key, throw_on_missing=False, default=None)
    if replaces_dense_optimizer(override):
        OmegaConf.update(config, key, override.value(), merge=False, force_add=True)
        return None
    is_node = isinstance(before, DictConfig) and not override.is_delete()
    if is_node and not isinstance(override.value(), dict):
        return messages.value_for_group(text, before, override.value())
    try:
        if not {key, key.rpartition(".")[0]}.isdisjoint(NODES_WITH_OWN_PARSER) and not (
            override.is_delete() or "@" in key
        ):
            # Its own parser knows the reason for what it refuses, better than "no such key".
            OmegaConf.update(config, key, override.value(), force_add=True)
            return None
        ConfigLoaderImpl._apply_overrides_to_config([override], config)
    except (HydraException, OmegaConfBaseException) as error:
        return messages.bad_override(override, config, error)
    return None


def replaces_dense_optimizer(override: Override) -> bool:
    """Whether it gives the dense optimizer anew, class and all settings, as that of a part does."""
    if override.key_or_group != DENSE_KEY or override.is_delete():
        return False
    value = override.value()
    return isinstance(value, dict) and "_target_" in value


def drop_unsupported_arguments(
    config: DictConfig, given: Sequence[Override], previous_target: Any
) -> tuple[str, ...]:
    """Of a class that the command line has put in another's place: settings that nobody gave it
    and that it does not take are left out. In place.

    Args: previous_target: the class that the settings were written for. Returns: what is said of it.
    """
    target, node = (OmegaConf.select(config, key) for key in (f"{DENSE_KEY}._target_", DENSE_KEY))
    if not isinstance(target, str) or target == previous_target or not isinstance(node, DictConfig):
        return ()
    known = accepted_arguments(target)
    named = {"_target_"}
    for override in given:
        (group, _, name), value = override.key_or_group.rpartition("."), override.value()
        if group == DENSE_KEY:
            named.add(name)
        elif override.key_or_group == DENSE_KEY and isinstance(value, dict):
            named |= {str(k) for k in value}
    others = [str(k) for k in node if known is not None and k not in {*known, *named}]
    if not others:
        return ()
    with open_dict(node):
        for name in others:
            del node[name]
    return (
        f"{DENSE_KEY}._target_={target} takes no {' and no '.join(others)}, which "
        f"{'was' if len(others) == 1 else 'were'} {previous_target}'s: left out",
    )
