"""The flags of the command line: ours are parsed here, Hydra's by Hydra's parser."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from runner.config.locations import CONF
from runner.errors import UserError, raise_combined, unknown_flag


@dataclass(frozen=True)
class Flags:
    """The flags and overrides of a command line."""

    overrides: tuple[str, ...]
    config_dirs: tuple[str, ...]
    multirun: bool
    cfg: str | None  # --cfg job|hydra|all
    package: str | None
    resolve: bool
    help: bool
    dry_run: bool  # ours: list the jobs of a sweep, and their state
    rerun: bool  # ours: `--rerun changed` repeats the jobs that ran with other code
    is_hydra_only: bool  # --hydra-help, --info and --shell-completion, which Hydra answers alone
    argv: tuple[str, ...]  # flags before overrides, as required by Hydra's parser


def extract_allow(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without `--allow PACKAGE`, and those packages.

    Raises:
        UserError: for a flag without a package.
    """
    needs = UserError("--allow: needs a package, such as --allow mymodels")
    allow, rest = _extract_values(argv, ("--allow",), needs)
    return rest, allow


def _extract_values(
    argv: Sequence[str], flags: Sequence[str], without_value: UserError
) -> tuple[list[str], list[str]]:
    """Return the values of a flag, which may be repeated, and the other words."""
    values: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word in flags:
            value = next(words, None)
            if value is None:
                raise without_value
            values.append(value)
        elif word.startswith(f"{flags[0]}="):
            values.append(word.removeprefix(f"{flags[0]}="))
        else:
            rest.append(word)
    return values, rest


def parse_flags(argv: Sequence[str]) -> Flags:
    """Parse a command line without a verb and without `--allow`.

    Raises:
        UserError: for an unknown flag, naming the nearest, and for one that has no
            effect without another.
    """
    from hydra._internal.utils import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = "python -m runner"
    parser.exit_on_error = False
    # --config-dir may come twice, and between overrides, which Hydra's parser does not allow.
    dirs, words = extract_config_dirs(argv)
    dry_run = "--dry-run" in words
    words, rerun = extract_rerun([w for w in words if w != "--dry-run"])
    try:
        args, unknown = parser.parse_known_intermixed_args(words)
    except argparse.ArgumentError as error:  # such as -model, which argparse parses as -m
        dashed = [i for i, word in enumerate(words) if word.startswith("-")]
        hints = [hint for i in dashed if (hint := setting_hint(words[i], words[i + 1 :]))]
        raise UserError(f"{error}{''.join(hints[:1])}") from error
    if unknown:
        if meant_key := setting_hint(unknown[0], words[words.index(unknown[0]) + 1 :]):
            raise UserError(f"{unknown[0]}: no such flag{meant_key}")
        known = [*parser._option_string_actions, "--allow", "--dry-run", "--rerun"]
        raise UserError(unknown_flag(unknown[0], known))
    for flag in ("config_path", "config_name", "experimental_rerun"):
        if getattr(args, flag):
            name = flag.replace("_", "-")
            raise UserError(
                f"--{name}: the runner has one primary configuration; --config-dir DIR adds a "
                "folder of yours to its groups, experiments=NAME holds a whole experiment"
            )
    if (args.package or args.resolve) and not args.cfg:
        flag = "--package" if args.package else "--resolve"
        raise UserError(f"{flag}: says what --cfg prints; add --cfg job")
    overrides = tuple(args.overrides)
    return Flags(
        overrides=overrides,
        config_dirs=tuple(dirs),
        multirun=args.multirun,
        cfg=args.cfg,
        package=args.package,
        resolve=args.resolve,
        help=args.help,
        dry_run=dry_run,
        rerun=rerun,
        is_hydra_only=bool(args.hydra_help or args.info or args.shell_completion),
        argv=(*(w for w in words if w not in overrides), *overrides),
    )


def setting_hint(word: str, rest: Sequence[str]) -> str:
    """Return `; a setting is one word: KEY=VALUE` for a word that names a group or a key of one.

    Args:
        word: such as `--model`, `--model=dcn` or `trainer.max_steps`.
        rest: the words after it, the first of which may be the value.
    """
    key, _, value = word.lstrip("-").partition("=")
    group = key.split(".")[0]
    if group not in ("name", "seed") and not (group.isidentifier() and (CONF / group).is_dir()):
        return ""
    value = value or next((w.lstrip("=") for w in rest[:2] if w != "="), "")
    is_value = value and "=" not in value and not value.startswith("-")
    return f"; a setting is one word: {key}={value if is_value else 'VALUE'}"


def refuse_flags(flags: Flags, why: str, *, accepted: Collection[str] = ()) -> None:
    """Refuse flags that a command would ignore, since it would train instead of printing a list.

    Args:
        why: the reason, which ends each message.

    Raises:
        UserError: with every such flag.
    """
    values = {
        "-m: starts new jobs": flags.multirun,
        "--cfg: prints the configuration of a new job": flags.cfg,
        "--dry-run: lists the jobs of a sweep": flags.dry_run,
        "--rerun: repeats jobs of a sweep": flags.rerun,
        "--info, --hydra-help and --shell-completion: stand alone": flags.is_hydra_only,
    }
    raise_combined(
        f"{text}; {why}"
        for text, value in values.items()
        if value and text.partition(":")[0] not in accepted
    )


def extract_rerun(argv: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words without `--rerun changed`, and whether that was among them.

    Raises:
        UserError: for a value other than `changed`.
    """
    words = [part for w in argv for part in (w.split("=", 1) if w.startswith("--rerun=") else [w])]
    if "--rerun" not in words:
        return words, False
    place = words.index("--rerun")
    what = words[place + 1] if place + 1 < len(words) else ""
    if what != "changed":
        raise UserError(
            f"--rerun {what}: must be changed: --rerun changed repeats the jobs that ran "
            "with other code"
        )
    return [*words[:place], *words[place + 2 :]], True


def extract_config_dirs(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the folders of `--config-dir`, which may be repeated, and the other words.

    Raises:
        UserError: for a flag without a folder.
    """
    needs = UserError("--config-dir: needs a folder")
    return _extract_values(argv, ("--config-dir", "-cd"), needs)


def is_search(overrides: Sequence[str]) -> bool:
    """Return whether a command line requests a search. The jobs of a search forbid it."""
    words = [o.lstrip("+") for o in overrides]
    return any(w.startswith("search=") for w in words) and not is_single_run(overrides)


def is_single_run(overrides: Sequence[str]) -> bool:
    """Return whether a command line forbids several jobs."""
    return "hydra.mode=RUN" in overrides
