"""Checks which run a checkpoint belongs to, and refuses checkpoints of other runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.checkpoint.folder import open_checkpoint, saved_steps, step_folders
from runner.rundir.checkpoint.manifest import Checkpoint, DamagedError, link_to, read_manifest
from runner.rundir.readers import read_signed_meta


@dataclass(frozen=True)
class RunIdentity:
    """The identity of a run, which stays when its directory is moved or copied."""

    id: str | None  # drawn when the run began; None for runs of earlier versions
    signatures: frozenset[str]  # all signatures so far, since a resume may change settings


def run_identity(meta: Mapping[str, Any]) -> RunIdentity:
    """Return the identity of the run of a `meta.json`."""
    before = {str(note.get("signature_before")) for note in meta.get("resumes") or ()}
    return RunIdentity(meta.get("run_id"), frozenset({meta["signature"], *before}))


def signed_settings_at(meta: Mapping[str, Any], signature: str) -> dict[str, Any]:
    """Return the signed settings that a run had under one of its signatures, by dotted key.

    They are the present settings without the changes of later resumes.
    """
    settings, current = dict(meta.get("identity") or {}), meta["signature"]
    for note in reversed(meta.get("resumes") or ()):
        if current == signature:
            break
        if "signature_before" in note and "refused" not in note:
            settings |= {key: before for key, before, _ in note.get("changed", ())}
            current = note["signature_before"]
    return settings


def check_owner(saved: Checkpoint, identity: RunIdentity) -> None:
    """Check that a checkpoint was written by this run, or by the run that it is a copy of.

    Raises:
        UserError: if it was not; the message says how to use its weights.
    """
    signature = saved.values.get("signature")
    if saved.manifest.run_id != identity.id:
        raise UserError(_foreign(saved, "by another run"))
    if signature not in identity.signatures:
        raise UserError(_foreign(saved, f"with other settings (signature {signature})"))


def check_chain(saved: Checkpoint) -> None:
    """Check that a checkpoint follows the one before it, if that is there and whole.

    Raises:
        UserError: if another one is there: the two are of copies of a run that diverged.
    """
    before = saved.manifest.before
    if before is None or before.step >= saved.step:  # the same step was saved twice
        return
    folder = step_folders(saved.path.parent).get(before.step)
    if folder is None:
        return
    try:
        link = link_to(read_manifest(folder))
    except DamagedError:
        return
    if link != before:
        how = f"after another checkpoint of step {before.step} than the one beside it"
        raise UserError(_foreign(saved, how))


def check_belongs(saved: Checkpoint, run_dir: Path) -> Checkpoint:
    """Return a checkpoint of a run directory, if it was written by the run that is there.

    A folder without a `meta.json` is no run directory, and nothing is checked.

    Raises:
        UserError: if it was written by another run, or the run's record cannot be read.
    """
    if (run_dir / "meta.json").exists():
        check_owner(saved, run_identity(read_signed_meta(run_dir)))
        check_chain(saved)
    return saved


_ENDED = {
    "completed": "has completed",
    "interrupted": "was interrupted",
    "pruned": "was pruned",
}  # status -> its wording in messages


def why_not_done(run_dir: Path, result: Mapping[str, Any]) -> str | None:
    """Return why a run with a completed result is not done: its last checkpoint is not whole.

    Returns:
        None if it is done, also if the result names no checkpoint, as in evaluations and earlier
        versions.

    Raises:
        UserError: if the checkpoint belongs to another run, or if there is none at all.
    """
    recorded = result.get("checkpoint")
    if recorded is None:
        return None
    folder = run_dir / "checkpoints"
    step = recorded.get("step") if isinstance(recorded, dict) else None  # None: it was edited
    path = folder / f"step-{step}"
    try:
        saved = check_belongs(open_checkpoint(path), run_dir)
    except DamagedError as error:
        return str(error)
    except UserError:
        if path.is_dir():
            raise
        check_not_lost(run_dir, result)
        return f"{path} is gone"
    is_named = asdict(link_to(saved.manifest)) == recorded
    return None if is_named else f"{path} is not the one that it saved"


def check_not_lost(run_dir: Path, result: Mapping[str, Any]) -> None:
    """Check that there is a checkpoint to continue from where a run has ended.

    Raises:
        UserError: if its result names a checkpoint, and there is none at all; starting again at
            step 0 would replace the result.
    """
    recorded = result.get("checkpoint")
    folder = run_dir / "checkpoints"
    step = recorded.get("step") if isinstance(recorded, dict) else None
    if recorded is None or (folder / f"step-{step}").is_dir() or saved_steps(folder):
        return
    ended = _ENDED.get(str(result.get("status")), "has failed")
    raise UserError(
        f"{run_dir} {ended}, but its checkpoint of step {step} is gone, and "
        f"there is no other. Its result stays valid; to train again from the start: rm "
        f"{run_dir / 'result.json'}, and the same command"
    )


def _foreign(saved: Checkpoint, how: str) -> str:
    return (
        f"{saved.path} is a whole checkpoint, but was written {how}: it does not belong here. "
        "Remove it, and the run goes on from its own; to start a new run from its weights, move "
        "it elsewhere and name it as checkpoint.init_from"
    )
