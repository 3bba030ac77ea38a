"""Flags of the command line: ours are taken out, Hydra's are read by Hydra's own parser."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import UserError, nearest_hint


@dataclass(frozen=True)
class Flags:
    """A command line taken apart."""

    overrides: tuple[str, ...]
    config_dirs: tuple[str, ...]
    multirun: bool
    cfg: str | None  # --cfg job|hydra|all
    package: str | None
    resolve: bool
    help: bool
    dry_run: bool  # ours: list the jobs of a sweep and what is done
    rerun: bool  # ours: `--rerun changed`: jobs that other code has done are run again
    is_hydra_only: bool  # --hydra-help, --info and --shell-completion, which Hydra answers alone
    argv: tuple[str, ...]  # flags before overrides, as Hydra's parser wants it


def extract_allow(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without `--allow PACKAGE`, and those packages."""
    rest: list[str] = []
    allow: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--allow":
            package = next(words, None)
            if package is None:
                raise UserError("--allow: names a package, such as --allow mymodels")
            allow.append(package)
        elif word.startswith("--allow="):
            allow.append(word.removeprefix("--allow="))
        else:
            rest.append(word)
    return rest, allow


def parse_flags(argv: Sequence[str]) -> Flags:
    """Raises: UserError for a flag that neither we nor Hydra know, naming the nearest."""
    from hydra._internal.utils import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = "python -m runner"
    parser.exit_on_error = False
    # One flag may come twice, and between overrides; Hydra's parser takes neither.
    dirs, words = extract_config_dirs(argv)
    dry_run = "--dry-run" in words
    words, rerun = extract_rerun([w for w in words if w != "--dry-run"])
    try:
        args, unknown = parser.parse_known_intermixed_args(words)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    if unknown:
        known = [*parser._option_string_actions, "--allow", "--dry-run", "--rerun"]
        raise UserError(
            f"{unknown[0]}: no such flag{nearest_hint(unknown[0], known)}; --help lists them"
        )
    for flag in ("config_path", "config_name", "experimental_rerun"):
        if getattr(args, flag):
            name = flag.replace("_", "-")
            raise UserError(
                f"--{name}: the runner has one primary configuration; --config-dir DIR adds a "
                "folder of yours to its groups, experiments=NAME holds a whole experiment"
            )
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


def extract_rerun(argv: Sequence[str]) -> tuple[list[str], bool]:
    """The words without `--rerun changed`, and whether that was among them."""
    words = [part for w in argv for part in (w.split("=", 1) if w.startswith("--rerun=") else [w])]
    if "--rerun" not in words:
        return words, False
    place = words.index("--rerun")
    what = words[place + 1] if place + 1 < len(words) else ""
    if what != "changed":
        raise UserError(f"--rerun {what}: --rerun changed runs again what other code has done")
    return [*words[:place], *words[place + 2 :]], True


def extract_config_dirs(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The folders of `--config-dir`, which may come several times, and the other words."""
    dirs: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word in ("--config-dir", "-cd"):
            folder = next(words, None)
            if folder is None:
                raise UserError("--config-dir: names a folder")
            dirs.append(folder)
        elif word.startswith("--config-dir="):
            dirs.append(word.removeprefix("--config-dir="))
        else:
            rest.append(word)
    return dirs, rest


def is_search(overrides: Sequence[str]) -> bool:
    """Whether the command line asks for a search, and does not forbid it (as jobs of one do)."""
    words = [o.lstrip("+") for o in overrides]
    return any(w.startswith("search=") for w in words) and not is_single_run(overrides)


def is_single_run(overrides: Sequence[str]) -> bool:
    return "hydra.mode=RUN" in overrides
