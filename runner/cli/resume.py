"""`resume DIR [overrides]`: go on with a run in its own directory, from its newest checkpoint."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.cli.flags import Flags, split_flags
from runner.errors import UserError
from runner.rundir.run import read_meta
from runner.sweep.local_process import quoted
from runner.sweep.plan import key_of


def resume(words: Sequence[str], allow: Sequence[str]) -> int:
    """Only the overrides given are laid on the run's own configuration."""
    from runner.config.compose import compose_from_run
    from runner.config.signature import describe, differences
    from runner.config.targets import allowed_packages
    from runner.launch import launch, tell

    flags = split_flags(words)
    if not flags.overrides or "=" in flags.overrides[0]:
        raise UserError("resume: which run? resume DIR [key=value ...]")
    folder = Path(flags.overrides[0])
    if (folder / "study.db").exists():
        return _resume_sweep(folder, flags, allow)
    meta = read_meta(folder)
    if meta.get("kind") != "train":
        raise UserError(f"{folder}: an evaluation, which has nothing to resume; run it again")
    _check_words(folder, flags)
    composed = compose_from_run(folder, flags.overrides[1:], config_dirs=flags.config_dirs)
    changes = differences(composed.before, composed.record)
    if changes:
        tell(f"resuming {folder} with\n{describe(changes)}")
        note = schedule_note(composed.record, {key for key, _, _ in changes})
        if note:
            tell(note)
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
    again = split_flags([w for w in facts["words"] if key_of(w) != "hydra.sweep.dir"])
    words = [w for w in again.overrides if key_of(w) not in map(key_of, flags.overrides[1:])]
    words += [*flags.overrides[1:], f"hydra.sweep.dir={quoted(str(place))}"]
    if Path(facts["cwd"]).is_dir():
        os.chdir(facts["cwd"])  # paths of the command are meant from there
    own = replace(again, overrides=tuple(words), dry_run=flags.dry_run, rerun=flags.rerun)
    return multirun(own, allowed_packages(allow), allow)


def _check_words(folder: Path, flags: Flags) -> None:
    """A resume is the same run in the same place. Raises: UserError for what says otherwise."""
    if flags.multirun or flags.show or flags.help:
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


def schedule_note(config: Mapping[str, Any], changed: set[str]) -> str:
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
