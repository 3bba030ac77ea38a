"""Messages about a wrong override: the key, the value, the rule and the nearest right thing."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf

from runner.config.declarations import all_declarations, choices_by_key
from runner.config.interpolation import find_value
from runner.config.option_fields import find_similar_keys, key_of_options
from runner.config.options import list_groups
from runner.config.other_names import keys_of_other_name
from runner.config.settings import FREELY_NAMED_NODES
from runner.config_value import matches_type
from runner.errors import explain_hint, nearest_hint, nearest_keys


def dotted_keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every key below a node, including groups of keys."""
    if isinstance(node, DictConfig):
        node = OmegaConf.to_container(node, resolve=False)  # type: ignore[assignment]
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{name}.")


def invalid_syntax(text: str, error: Exception) -> str:
    """Return the message for a word that is not an override in Hydra's grammar."""
    if re.match("--?[a-z]", text):
        return (
            f"{text!r}: not key=value; flags are of the command line: in Python, allow=[...] and "
            "config_dirs=[...] are arguments"
        )
    if "=" not in text and not text.startswith("~"):
        return f"{text!r}: not key=value (verbs such as resume come first: python -m runner VERB)"
    if isinstance(error, AttributeError) and sys.flags.optimize:  # asserts were removed
        return (
            f"{text}: cannot be read under python -O (PYTHONOPTIMIZE={sys.flags.optimize}), which "
            "leaves out steps of Hydra's parser; unset it"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [t for t in lines if not t.startswith(("Error parsing override", "See https"))]
    reason = (reasons or lines)[0]
    key, _, value = text.partition("=")
    if not re.fullmatch(r"[+~]*[A-Za-z_$][\w$-]*([./@][\w$-]+)*", key, re.ASCII):
        return (
            f"{text}: cannot be read: {key!r} is no key: a key is names with dots between them, "
            "such as trainer.max_steps, and a list is given as a whole: model.net.top=[64,32]"
        )
    quoted = "a value" if {"'", '"'} & set(value) else value
    word = shlex.quote(f'{key}="{quoted}"')
    return (
        f"{text}: cannot be read: {reason}. Commas, spaces, brackets and letters beyond a to z of "
        f"a text are quoted for the shell and for Hydra: {word}"
    )


def sweep_needs_multirun(text: str) -> str:
    """Return the message for an override with several values without `-m`."""
    return (
        f"{text}: several values; -m runs a job for each, key=[a,b] is a list, and "
        "'key=\"a,b\"' is one string"
    )


def unknown_option(group: str, option: Any, options: Sequence[str], config: DictConfig) -> str:
    """Return the message for an unknown option, with the key that may have been meant."""
    listed = ", ".join(options) or "none"
    text = f"{group}={option}: no such option of {group}{nearest_hint(option, options)}"
    meant_keys = [
        k
        for k, allowed in choices_by_key().items()
        if k.startswith(f"{group}.") and option in allowed
    ]
    number_keys = isinstance(option, int) and [
        k
        for k in dotted_keys(config)
        if k.startswith(f"{group}.") and type(find_value(config, k)) is int
    ]
    if Path("conf", group, f"{option}.yaml").is_file():
        text += "; ./conf has it: add --config-dir conf"
    elif meant_keys:
        text += f"; perhaps {meant_keys[0]}={option}"
    elif number_keys:
        text += f"; a value goes to one of its keys, such as {number_keys[0]}={option}"
    return f"{text}. Options: {listed}; `python -m runner ls {group}` says what each is"


def value_for_group(text: str, node: DictConfig, value: Any) -> str:
    """Return the message for a single value that was given to a group of keys."""
    keys = [str(k) for k in node]
    key = text.split("=")[0].lstrip("+~")
    choices = choices_by_key()
    meant_keys = [k for k in keys if value in choices.get(f"{key}.{k}", ())]
    hint = f"; perhaps {key}.{meant_keys[0]}={value}" if meant_keys else ""
    listed = f" ({', '.join(keys)})" if keys else ""
    return f"{text}: {key} is a group of keys{listed}, not one value{hint}"


def unknown_key(text: str, key: str, known: Collection[str]) -> str:
    """Return the message for an unknown key, with the options that have it, or the nearest keys."""
    if (option_key := key_of_options(key)) is not None:
        options, first = option_key
        return (
            f"{text}: there is no key {key!r} here: it is a key of {options}; "
            f"`python -m runner explain {key} {first}` says what that is"
        )
    if key == "model.net.hidden":  # see overrides.name_hidden_widths
        which = "both: name one" if "model.net.deep" in known else "neither: name one of its own"
        return (
            f"{text}: there is no key {key!r} here: it stands for model.net.deep or "
            f"model.net.top, of which this model has {which}; `python -m runner ls model=NAME` "
            "lists the keys of a model"
        )
    known = {*known, *(group for group, _ in list_groups() if "/" not in group)}
    if meant := keys_of_other_name(key):
        return f"{text}: there is no key {key!r}{explain_hint(meant)}"
    near = nearest_keys(key, {*known, *find_similar_keys(key)})
    if near and near[0] not in known and (option_key := key_of_options(near[0])) is not None:
        options, first = option_key
        return (
            f"{text}: there is no key {key!r}; nearest: {near[0]!r} of {options}; "
            f"`python -m runner explain {near[0]} {first}` says what that is"
        )
    return f"{text}: there is no key {key!r}{explain_hint([k for k in near if k in known])}"


def bad_override(override: Override, config: DictConfig, error: Exception) -> str:
    """Return why Hydra could not apply an override."""
    text, key = str(override.input_line), override.key_or_group
    message = f"{error} {error.__cause__ or ''}"
    if "@" in key or override.package is not None:
        return f"{text}: there is no group {key.split('@')[0]!r}"
    if key == "search.space" or key.startswith("search.space."):
        return (
            f"{text}: what is searched is given key by key, such as optimizer.dense.lr="
            "choice(0.01,0.001) or optimizer.dense.lr=interval(0.001,0.1); a key with a value, "
            "such as optimizer.dense.lr=0.01, is not searched"
        )
    known, value = list(dotted_keys(config)), override.value()
    names = key.split(".")
    for group in (".".join(names[:n]) for n in range(1, len(names) + 1)):
        if isinstance(find_value(config, group), ListConfig):
            return f"{text}: {group} is a list, which is given as a whole: {group}=[...]"
    inner = dotted_keys(value, f"{key}.") if isinstance(value, dict) else ()
    unknown = next((name for name in inner if name not in known), key)
    is_new = unknown not in known and not override.is_delete() and _may_hold(unknown, config)
    is_new &= isinstance(value, dict) or key.rpartition(".")[0] not in FREELY_NAMED_NODES
    if is_new and key_of_options(unknown) is None:
        word = shlex.quote(f"+{text}")
        return f"{text}: there is no key {unknown!r} yet; a key of one's own has a +: {word}"
    if unknown != key:
        return unknown_key(text, unknown, known)
    if find_value(config, key) is None and (
        "not in struct" in message or "does not exist" in message or "Could not" in message
    ):
        return unknown_key(text, key, known)
    return f"{text}: {hydra_error(error)}"


def _may_hold(key: str, config: DictConfig) -> bool:
    """Return whether an unknown key is in a group with keys chosen by the user."""
    group = key.rpartition(".")[0]
    node = find_value(config, group) if group else config
    if node is None:
        declared = dict(all_declarations()).get(group)
        return _may_hold(group, config) or (
            declared is not None and matches_type({}, declared.hint)
        )
    is_empty = isinstance(node, DictConfig) and not node
    return group in (*FREELY_NAMED_NODES, "metrics.own") or is_empty


def hydra_error(error: BaseException) -> str:
    """Return Hydra's own message about a YAML file or an override, without its search path."""
    lines = []
    for source in (error, error.__cause__):
        for line in str(source or "").splitlines():
            if re.match(
                r"\s*(Config search path|full_key|object_type|reference_type|Set the env)", line
            ):
                break
            if line.strip() and line.strip() not in lines:
                lines.append(line.strip())
    return "; ".join(lines)
