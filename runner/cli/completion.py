"""`completion bash|zsh`: a script for the shell, which calls `completion candidates WORDS...`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError, nearest_hint

# then settings
_RUN_VERBS = ("resume", "refit", "reproduce", "export", "importance", "index", "schedule")
_PATH_VERBS = (
    *("report", "diff", "clean", "schema", "predict", "serve", "apply", "histories", "board"),
    *_RUN_VERBS,
)
# endings of keys that take a path: as in config/paths.py, and result folders
_PATH_KEYS = (
    *(".path", ".init_from", ".schema", "_path", ".learnt", ".write_to", ".dir"),
    *(".tls_roots", ".to", ".rows_from", ".hard_table"),
)
_FLAGS = ("-m", "--dry-run", "--help", "--cfg", "--config-dir", "--allow")

BASH_SCRIPT = """\
# Completes python -m runner. To have it: eval "$(python -m runner completion bash)"
_runner_complete() {
  local line="${COMP_LINE:0:COMP_POINT}" i from=-1 prefix
  local -a words
  read -ra words <<< "$line"
  [[ "$line" == *[[:space:]] ]] && words+=("")
  for ((i = 1; i + 2 < ${#words[@]}; i++)); do
    [[ "${words[i]}" == -m && "${words[i + 1]}" == runner ]] && { from=$((i + 2)); break; }
  done
  if ((from < 0)); then
    declare -F _python > /dev/null && _python "$@"
    return 0
  fi
  local cur="${words[-1]}"
  local -a ask=("${words[0]}" -m runner completion candidates "${words[@]:from}")
  mapfile -t COMPREPLY < <("${ask[@]}" 2> /dev/null)
  # bash replaces only what follows the last = or : of a word
  prefix="${cur%"${cur##*[=:]}"}"
  for i in "${!COMPREPLY[@]}"; do
    COMPREPLY[i]="${COMPREPLY[i]#"$prefix"}"
    case "${COMPREPLY[i]}" in *[=./]) ;; *) COMPREPLY[i]+=" " ;; esac
  done
}
complete -o nospace -o default -o bashdefault -F _runner_complete python python3
"""

ZSH_SCRIPT = """\
# Completes python -m runner. To have it: eval "$(python -m runner completion zsh)"
_runner_complete() {
  local i from=0
  local -a found whole open ask
  for ((i = 2; i + 1 < CURRENT; i++)); do
    [[ "${words[i]}" == -m && "${words[i+1]}" == runner ]] && { from=$((i + 2)); break }
  done
  if ((from == 0)); then
    (( $+functions[_python] )) && _python "$@" || _default
    return
  fi
  ask=("${words[1]}" -m runner completion candidates "${(@)words[from,CURRENT]}")
  found=("${(@f)$("${ask[@]}" 2> /dev/null)}")
  found=("${(@)found:#}")
  open=("${(@M)found:#*[=./]}")
  whole=("${(@)found:#*[=./]}")
  (( $#open )) && compadd -Q -S '' -- "${open[@]}"
  (( $#whole )) && compadd -Q -- "${whole[@]}"
  (( $#found )) || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u }
compdef _runner_complete python python3
"""
SCRIPTS = {"bash": BASH_SCRIPT, "zsh": ZSH_SCRIPT}


def completion(words: Sequence[str], allow: Sequence[str]) -> int:
    """Print the script for a shell, or the completions of the last word.

    Raises:
        UserError: for another shell.
    """
    if words[:1] == ["candidates"]:
        for text in sorted(set(complete_words(words[1:] or [""]))):
            print(text)
        return 0
    if len(words) != 1 or words[0] not in SCRIPTS:
        shell = words[0] if words else ""
        hint = nearest_hint(shell, SCRIPTS) if shell else ""
        raise UserError(f"completion {shell}: must be completion bash or completion zsh{hint}")
    print(SCRIPTS[words[0]], end="")
    return 0


def make_parser() -> VerbParser:
    """Return the parser, which shows the arguments of `completion`."""
    parser = VerbParser(
        "completion",
        "Print a script that completes words in a shell.\n"
        'In bash: eval "$(python -m runner completion bash)"',
    )
    parser.add_argument("shell", metavar="bash|zsh", help="the shell")
    return parser


def complete_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the completions of the last word, given those before it.

    Without completions the shell completes file names.
    """
    from runner.cli.commands import VERBS, verb_parser

    *before, current = words
    verb = before[0] if before and before[0] in VERBS else None
    if current.startswith("-"):
        known = verb_parser(verb).flags if verb else _FLAGS
        yield from (flag for flag in known if flag.startswith(current))
    elif verb == "completion":
        yield from (s for s in SCRIPTS if s.startswith(current))
    elif verb == "ls":
        yield from _complete_group(current)
    elif verb in _PATH_VERBS and (verb not in _RUN_VERBS or len(before) == 1):
        return
    else:
        if not before:
            yield from (v for v in VERBS if v.startswith(current))
        yield from complete_overrides(before, current)


def complete_overrides(before: Sequence[str], current: str) -> Iterator[str]:
    """Yield `group=option` and `key=value`, one dotted level at a time."""
    sign = current[: len(current) - len(current.lstrip("+~"))]
    key, equals, value = current[len(sign) :].partition("=")
    groups, keys = _known_options(before)
    if equals:
        yield from (f"{sign}{key}={v}" for v in _complete_value(key, value, groups, keys))
        return
    for name in groups:
        if name.startswith(key):
            yield f"{sign}{name}="
    for name in keys:
        if name.startswith(key):
            rest = name[len(key) :].partition(".")
            yield f"{sign}{key}{rest[0]}." if rest[1] else f"{sign}{name}="


def _known_options(before: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the options of each group, and the types of the keys of the chosen options."""
    from runner.cli.flags import extract_config_dirs
    from runner.config.locations import CONF
    from runner.config.option_fields import read_fields
    from runner.config.options import list_groups

    try:
        folders, _ = extract_config_dirs(before)
    except UserError:  # the folder is not completely typed yet
        folders = []
    values = dict(w.lstrip("+").partition("=")[::2] for w in before if "=" in w)
    groups: dict[str, list[str]] = {}
    keys = {f.key: f.type_name for f in read_fields(CONF / "config.yaml", "")}
    for group, options in list_groups([f for f in folders if Path(f).is_dir()]):
        groups[group] = [o.name for o in options]
        chosen = next((o for o in options if o.name == values.get(group)), None)
        chosen = chosen or next((o for o in options if o.is_default), None)
        if chosen is not None:
            fields = read_fields(chosen.path, group.replace("/", "."))
            keys |= {f.key: f.type_name for f in fields if f.type_name != "group of keys"}
    return groups, keys


def _complete_value(
    key: str, value: str, groups: dict[str, list[str]], keys: dict[str, str]
) -> Iterator[str]:
    done, comma, rest = value.rpartition(",")  # a sweep: optimizer=adam,sgd
    if key in groups:
        yield from (f"{done}{comma}{o}" for o in groups[key] if o.startswith(rest))
    elif keys.get(key) == "true or false":
        yield from (v for v in ("true", "false") if v.startswith(value))
    elif key == "run" or key.endswith(_PATH_KEYS):
        folder = Path(value).parent if not value.endswith("/") else Path(value)
        stem = "" if value.endswith("/") else Path(value).name
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name.startswith(stem or "") and (stem or not path.name.startswith(".")):
                yield f"{path}/" if path.is_dir() else str(path)


def _complete_group(current: str) -> Iterator[str]:
    from runner.config.options import list_groups

    group, equals, option = current.partition("=")
    for name, options in list_groups():
        if equals and name == group:
            yield from (f"{name}={o.name}" for o in options if o.name.startswith(option))
        elif not equals and name.startswith(current):
            yield name
