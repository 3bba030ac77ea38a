"""`resume DIR [overrides]`: go on with a run in its own directory, from its newest checkpoint."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.cli.flags import Flags, parse_flags
from runner.errors import UserError
from runner.rundir.run import read_meta
from runner.sweep.local_process import quote_hydra_value
from runner.sweep.plan import override_key


def resume(words: Sequence[str], allow: Sequence[str]) -> int:
    """Only the overrides given are laid on the run's own configuration."""
    from runner.config.compose import compose_from_run
    from runner.config.targets import allowed_packages
    from runner.launch import launch, print_status
    from runner.rundir.diff import diff_settings, format_changes

    flags = parse_flags(words)
    if not flags.overrides or "=" in flags.overrides[0]:
        raise UserError("resume: which run? resume DIR [key=value ...]")
    folder = Path(flags.overrides[0])
    if (folder / "study.db").exists():
        return _resume_sweep(folder, flags, allow)
    meta = read_meta(folder)
    if meta.get("kind") != "train":
        raise UserError(f"{folder}: an evaluation, which has nothing to resume; run it again")
    _check_flags(folder, flags)
    composed = compose_from_run(folder, flags.overrides[1:], config_dirs=flags.config_dirs)
    changes = diff_settings(composed.source_config, composed.saved_config)
    if changes:
        print_status(f"resuming {folder} with\n{format_changes(changes)}")
        note = describe_schedule_change(composed.saved_config, {key for key, _, _ in changes})
        if note:
            print_status(note)
    return launch(composed, allowed=allowed_packages(allow), command=sys.orig_argv, resume=folder)


def _resume_sweep(folder: Path, flags: Flags, allow: Sequence[str]) -> int:
    """The command that made a sweep, again, in its own directory.

    Only what belongs to the sweep as a whole can be said anew: slots, retries, number of trials.
    """
    from runner.cli.multirun import multirun
    from runner.config.targets import allowed_packages
    from runner.sweep.database import read_facts

    place = folder.absolute()
    facts = read_facts(place)
    if not isinstance(facts.get("words"), list):
        raise UserError(f"{folder}: says no command; give the one that made it again")
    fresh = [w for w in flags.overrides[1:] if not re.match(r"launcher\.|search\.num_trials=", w)]
    if fresh:
        raise UserError(
            f"{fresh[0]}: another sweep; resume takes launcher.KEY=... and search.num_trials=N; "
            "the command of a grid with more values runs what is new"
        )
    again = parse_flags([w for w in facts["words"] if override_key(w) != "hydra.sweep.dir"])
    words = [
        w for w in again.overrides if override_key(w) not in map(override_key, flags.overrides[1:])
    ]
    words += [*flags.overrides[1:], f"hydra.sweep.dir={quote_hydra_value(str(place))}"]
    if Path(facts["cwd"]).is_dir():
        os.chdir(facts["cwd"])  # paths of the command are meant from there
    own = replace(again, overrides=tuple(words), dry_run=flags.dry_run, rerun=flags.rerun)
    return multirun(own, allowed_packages(allow), allow)


def _check_flags(folder: Path, flags: Flags) -> None:
    """A resume is the same run in the same place. Raises: UserError for what says otherwise."""
    if flags.multirun or flags.cfg or flags.help:
        raise UserError("resume: goes on with one run; -m, --cfg and --help are for new ones")
    for word in flags.overrides[1:]:
        key = word.split("=", 1)[0].lstrip("+~")
        if key == "hydra.run.dir":
            raise UserError(f"{word}: resume goes on in {folder} itself")
        if key in ("run", "loop", "loop._target_"):
            raise UserError(
                f"{word}: resume goes on training; `python -m runner loop=eval run={folder}` "
                "evaluates"
            )


def describe_schedule_change(config: Mapping[str, Any], changed: set[str]) -> str:
    """What another length makes of the schedule; empty if nothing."""
    scheduler = config.get("scheduler") or {}
    kind, warmup = scheduler.get("kind"), scheduler.get("warmup") or 0
    if not changed & {"trainer.max_steps", "trainer.max_epochs"}:
        return ""
    if kind == "constant" and not 0 < warmup < 1:
        return ""
    return (
        f"the schedule ({kind}) is that of a run of the new length from the next update on: the "
        "learning rate may jump, and the result is not that of a run that had this length at once"
    )
