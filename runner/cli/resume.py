"""`resume DIR [overrides]`: continues a run in its own directory, from its newest checkpoint."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.cli.flags import Flags, parse_flags, refuse_flags
from runner.cli.verb_parser import VerbParser
from runner.config.hydra_text import is_override, quote_hydra_value, shell_override
from runner.errors import UserError
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.mirror.fetch import local_run
from runner.rundir.run_files import read_meta
from runner.sweep.plan import override_key


def resume(words: Sequence[str], allow: Sequence[str]) -> int:
    """Continue a run or a sweep. Only the given overrides change the run's own configuration.

    Raises:
        UserError: if it cannot be resumed, before anything is changed.
    """
    from runner.config.compose import compose
    from runner.config.sent_runs import check_sent_places
    from runner.config.targets import allowed_packages
    from runner.launch import launch
    from runner.rundir.diff import diff_settings, format_changes

    flags = parse_flags(words)
    if not flags.overrides or is_override(flags.overrides[0]):
        raise UserError("resume: name a run: resume DIR [key=value ...]")
    folder = local_run(flags.overrides[0])
    if os.path.lexists(folder / "study.db"):
        return _resume_sweep(folder, flags, allow)
    meta = read_meta(folder)
    if meta.get("kind") != "train":
        raise UserError(f"{folder}: an evaluation, which has nothing to resume; run it again")
    _check_flags(folder, flags)
    composed = compose(flags.overrides[1:], config_dirs=flags.config_dirs, from_run=folder)
    composed = replace(composed, has_begun=bool(saved_steps(folder / "checkpoints")))
    if composed.was_sent:
        check_sent_places(composed.config, flags.overrides)
    changes = diff_settings(composed.source_config, composed.saved_config)
    notes = []
    if changes:
        notes.append(f"resuming {folder} with\n{format_changes(changes)}")
        keys = {key for key, _, _ in changes}
        notes += filter(None, [describe_schedule_change(composed.saved_config, keys)])
    return launch(
        composed, allowed=allowed_packages(allow), command=sys.orig_argv, resume=folder, notes=notes
    )


def make_parser() -> VerbParser:
    """Return the parser, which shows the arguments of `resume`."""
    parser = VerbParser(
        "resume",
        "Continue a run in its directory from its newest complete checkpoint, or a sweep with\n"
        "the jobs that are not done. The configuration is that of the run, with the overrides.",
        examples=("resume outputs/dlrm", "resume outputs/dlrm trainer.max_steps=20000"),
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the run or sweep")
    parser.add_words(
        "overrides",
        "KEY=VALUE",
        "settings to change; of a sweep launcher.KEY and search.num_trials",
    )
    parser.add_switch("--dry-run", "of a sweep: only list its jobs")
    parser.add_value("--rerun", "changed", "of a sweep: repeat the jobs that ran with other code")
    return parser


def _resume_sweep(folder: Path, flags: Flags, allow: Sequence[str]) -> int:
    """Repeat the command of a sweep, in its own directory.

    Only settings of the sweep as a whole can be changed: slots, retries, number of trials.

    Raises:
        UserError: for other overrides and flags, or if the sweep's command is unknown.
    """
    from runner.cli.multirun import multirun
    from runner.config.sent_runs import asks_of_machine
    from runner.config.targets import allowed_packages
    from runner.sweep.database import is_own_command, read_facts

    refuse_flags(
        flags, f"resume {folder} continues a sweep", accepted=("-m", "--dry-run", "--rerun")
    )
    place = folder.absolute()
    facts = read_facts(place)
    recorded = facts.get("words")
    if not isinstance(recorded, list) or not all(isinstance(word, str) for word in recorded):
        raise UserError(f"{folder}: its command was not recorded; give that command again")
    is_own = is_own_command(facts)
    elsewhere = [w for w in recorded if _leads_elsewhere(w) or (not is_own and asks_of_machine(w))]
    new_overrides = [w for w in flags.overrides[1:] if w not in elsewhere]
    if missing := [w for w in elsewhere if w not in flags.overrides[1:]]:
        raise UserError(
            f"{folder}: was started with {' '.join(missing)}, which is not taken from a "
            "folder that others may have written; add these words to `resume` if they are yours"
        )
    refused = [w for w in new_overrides if not re.match(r"launcher\.|search\.num_trials=", w)]
    if refused:
        raise UserError(
            f"{refused[0]}: would make another sweep; `resume` can change only launcher.KEY and "
            "search.num_trials; to add values to a grid, give its command with more values, which "
            "runs only the new jobs"
        )
    original = parse_flags([w for w in recorded if override_key(w) != "hydra.sweep.dir"])
    cwd = facts.get("cwd")
    if not is_own:
        _check_sent_folders(folder, original.config_dirs, flags.config_dirs, cwd)
    words = [
        w for w in original.overrides if override_key(w) not in map(override_key, new_overrides)
    ]
    words += [*new_overrides, f"hydra.sweep.dir={quote_hydra_value(str(place))}"]
    if is_own and isinstance(cwd, str) and Path(cwd).is_dir():
        os.chdir(cwd)  # relative paths of the command are relative to it
    repeated = replace(original, overrides=tuple(words), dry_run=flags.dry_run, rerun=flags.rerun)
    return multirun(repeated, allowed_packages(allow), allow)


def _check_sent_folders(
    folder: Path, recorded_folders: Sequence[str], given_folders: Sequence[str], cwd: object
) -> None:
    """Check that a received sweep does not enter a folder, where code could be mistaken for ours.

    Relative paths of its command (`recorded_folders`) are relative to its original folder `cwd`.

    Raises:
        UserError: for a folder.
    """
    known = list(map(os.path.abspath, given_folders))
    for place in recorded_folders:
        if os.path.abspath(place) not in known:
            raise UserError(
                f"{folder}: was started with --config-dir {place}, which is not taken from "
                "a folder that others may have written; add it to `resume` if it is yours"
            )
    if isinstance(cwd, str) and os.path.isdir(cwd) and not os.path.samefile(cwd, os.curdir):
        raise UserError(
            f"{folder}: was started in {cwd}, and a folder that others may have written does not "
            f"choose where jobs run; if the sweep is yours, give this command in {cwd}"
        )


def _leads_elsewhere(word: str) -> bool:
    """Return whether a word names programs or machines that would run jobs."""
    key = override_key(word)
    own_keys = ("hydra.sweep.dir", "hydra.mode")
    return re.match(r"(hydra|remote)([./]|$)", key) is not None and key not in own_keys


def _check_flags(folder: Path, flags: Flags) -> None:
    """Check that the words request the same run in the same directory.

    Raises:
        UserError: for a word that does not.
    """
    refuse_flags(flags, f"resume {folder} continues one run")
    for word in flags.overrides[1:]:
        key = word.split("=", 1)[0].lstrip("+~")
        if key == "hydra.run.dir":
            raise UserError(f"{word}: resume continues in {folder} itself")
        if key == "checkpoint.step" and not word.endswith("=last"):
            other = shell_override("checkpoint.init_from", folder / "checkpoints" / "step-N")
            raise UserError(
                f"{word}: resume goes on from the newest whole checkpoint; {other} starts a new "
                "run from the weights of another one"
            )
        if key in ("run", "loop", "loop._target_"):
            raise UserError(
                f"{word}: resume continues the training; `python -m runner loop=eval "
                f"{shell_override('run', folder)}` evaluates"
            )


def describe_schedule_change(config: Mapping[str, Any], changed: set[str]) -> str:
    """Return a note on the effect of another length on the schedule; empty if there is none."""
    scheduler = config.get("scheduler") or {}
    kind = scheduler.get("kind") or scheduler.get("_target_")
    warmup = scheduler.get("warmup") or 0
    if not changed & {"trainer.max_steps", "trainer.max_epochs"}:
        return ""
    if kind == "constant" and (isinstance(warmup, str) or not 0 < warmup < 1):
        return ""
    return (
        f"the schedule ({kind}) is that of a run of the new length from the next update on: the "
        "learning rate may jump, and the result is not that of a run which had this length from "
        "its start"
    )
