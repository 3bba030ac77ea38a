"""`explain KEY [overrides]`: what a key is, its value, where that was set, and what it changes."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from runner.cli.verb_parser import VerbParser
from runner.config.locations import CONF
from runner.config.option_fields import OptionField, key_of_options, read_fields
from runner.config.options import list_groups
from runner.config.overrides import own_key, parse_overrides
from runner.config.signature import signed_as
from runner.errors import UserError, nearest_hint, raise_combined
from runner.rundir.diff import flatten

if TYPE_CHECKING:
    from runner.config.compose import ComposedConfig

_CHANGES = {
    "yes": "enters the signature: another value is another run, with another result",
    "no": "does not enter the signature: a run has the same result but for rounding, and "
    "`resume` may change it",
    "when set": "enters the signature while it is set: another value is another run",
    "when on": "enters the signature while its rule is on: another value is another run",
    "in global_batch": "enters the signature as a factor of the rows of an update: another number "
    "of rows is another run",
}
_FIRST_GROUPS = ("experiments", "recipe", "search")  # they override other groups' options


def explain(words: Sequence[str], allow: Sequence[str]) -> int:
    """Print the description of a key, and the origin of its value.

    Raises:
        UserError: for an unknown key, naming the nearest, and for wrong overrides.
    """
    from runner.config.compose import compose_job

    args = make_parser().parse(words)
    keys = [word for word in args.words if "=" not in word and not word.startswith("~")]
    if not keys:
        raise UserError(
            "explain: name a key, such as trainer.batch_size; `python -m runner ls` lists groups"
        )
    key = keys[0]
    overrides = [word for word in args.words if word != key]
    if key.startswith("hydra."):
        raise UserError(
            f"explain {key}: Hydra's own keys are printed by `python -m runner --cfg hydra`"
        )
    groups = dict(list_groups(args.config_dir))
    composed = compose_job(overrides, config_dirs=args.config_dir)
    raise_combined(composed.problems)
    if (group := key.replace(".", "/")) in groups:
        chosen = composed.choices.get(group)
        choice = "none" if chosen is None else f"{group}={chosen}"
        print(f"{group} is a group of options; this job has {choice}")
        print(f"  `ls {group}` lists the options, `ls {group}=OPTION` the keys of one")
        return 0
    sources = list(_sources(composed, groups))
    fields = [field for _, fields in sources for field in fields]
    values = {f.key: yaml.safe_load(f.default) for f in fields if not f.is_written}
    values |= flatten(composed.config)
    key = own_key(key, {known.removeprefix("model.net.") for known in values})
    inside = [known for known in values if known.startswith(f"{key}.")]
    if key not in values and not inside:
        if (found := key_of_options(key, args.config_dir)) is not None:
            raise UserError(f"{key} is a key of {found[0]}: explain {key} {found[1]}")
        last = [known for known in values if known.endswith(f".{key}")]
        names = [*values, *groups]
        near = f"; there are: {', '.join(last)}" if last else nearest_hint(key, names, count=3)
        raise UserError(f"explain {key}: no such key{near}; `python -m runner ls` lists groups")
    group_text = f"a group of {len(inside)} keys: {', '.join(inside)}"
    print(f"{key}: {_written(values[key]) if key in values else group_text}")
    settings = [(path, field) for path, fields in sources for field in fields if field.key == key]
    fields_of = {f.key: f for f in reversed(fields) if f.description}
    described = fields_of.get(key) or fields_of.get(key.rpartition(".")[0])
    if described is not None:
        print(f"  {described.description}")
    if settings:
        kind = [settings[-1][1].type_name, settings[-1][1].range]
        if (declared := settings[-1][1].declared) is not None:
            kind.append(declared.unit)
        if any(kind):
            print(f"  type     {', '.join(filter(None, kind))}")
    written = [(path, field) for path, field in settings if field.is_written]
    if not written:  # a group of keys that the file does not list as one
        within = [p for p, fs in sources for f in fs if f.is_written and f.key in inside]
        written = [(path, OptionField(key, "", "", "")) for path in within[:1]]
    print(f"  set by   {_set_by(key, composed, written, groups)}")
    print(f"  changes  {_changes(key)}")
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `explain`."""
    parser = VerbParser(
        "explain",
        "Describe a key of the configuration, its value with these overrides, the file and "
        "line that set it, and whether another value makes another run.",
        examples=("explain trainer.accumulate", "explain model.net.dropout model=dcn recipe=bars"),
    )
    parser.add_words("words", "KEY [OVERRIDE]", "a dotted key, and overrides of the job")
    parser.add_config_dirs()
    return parser


def _sources(
    composed: ComposedConfig, groups: Mapping[str, Any]
) -> Iterator[tuple[Path, list[OptionField]]]:
    """Yield the files of the chosen options with their keys, in order of precedence."""
    chosen = [(g, str(o)) for g, o in composed.choices.items() if o is not None and g in groups]
    for group, names in sorted(chosen, key=lambda choice: choice[0] not in _FIRST_GROUPS):
        options = {option.name: option.path for option in groups[group]}
        for name in names.strip("[]").replace(" ", "").split(","):
            if name in options:
                yield from _with_bases(options[name], group)
    yield CONF / "config.yaml", read_fields(CONF / "config.yaml", "")


def _with_bases(path: Path, group: str) -> Iterator[tuple[Path, list[OptionField]]]:
    """Yield an option's file, and then those of its own group in its defaults list."""
    yield path, read_fields(path, group.replace("/", "."))
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for base in content.get("defaults", ()):
        if isinstance(base, str) and base != "_self_":
            yield from _with_bases(path.parent / f"{base}.yaml", group)


def _set_by(
    key: str,
    composed: ComposedConfig,
    settings: Sequence[tuple[Path, OptionField]],
    groups: Container[str],
) -> str:
    for override in reversed(parse_overrides(composed.overrides)):
        word, value = override.input_line, None if override.is_delete() else override.value()
        name = own_key(override.key_or_group, composed.config.get("model", {}).get("net", {}))
        names = [name] if name not in groups else []
        if isinstance(value, dict):
            names = [f"{name}.{inner}" for inner in dict(flatten(value))]
        if any(f"{key}.".startswith(f"{name}.") for name in names):
            return f"{word} of this command{_default(settings)}"
    for note in composed.notes:  # on derived keys
        named = re.split("[ =,;()]+", note)
        if key in named or ("." in (parent := key.rpartition(".")[0]) and parent in named):
            return f"{note}{_default(settings)}"
    if not settings and key.endswith("._target_"):
        return "the option that its group chooses; `ls` lists the groups"
    if not settings:
        return "the code: no file sets it"
    path, field = settings[0]
    return f"{_place(path, key)}: {field.default or 'a group of keys'}{_default(settings[1:])}"


def _default(settings: Sequence[tuple[Path, OptionField]]) -> str:
    if not settings:
        return ""
    path, field = settings[-1]
    return f"; {field.default} in {_place(path, field.key)}"


def _place(path: Path, key: str) -> str:
    """Return a file, relative to the folder of groups, and the line where it sets a key."""
    node: Any = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    line = 1
    parts = key.split(".")
    while parts and isinstance(node, yaml.MappingNode):
        entry = next((pair for pair in node.value if pair[0].value == parts[0]), None)
        if entry is not None:
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif line > 1:
            break
        parts.pop(0)  # the first parts are the option's own node
    shown = path.relative_to(CONF.parent) if path.is_relative_to(CONF.parent) else path
    return f"{shown}:{line}"


def _changes(key: str) -> str:
    if key.split(".")[0] == "dataset":
        return "is signed by the fingerprint of the data: where other rows come, it is another run"
    return _CHANGES[signed_as(key)]


def _written(value: Any) -> str:
    text = str(yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True))
    return text.removesuffix("\n").removesuffix("\n...").strip()
