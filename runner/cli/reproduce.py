"""`reproduce DIR`: repeats a run in another directory and compares the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli.verb_parser import VerbParser
from runner.config.hydra_text import is_override, shell_override
from runner.errors import UserError
from runner.rundir.json_files import read_json, write_json
from runner.rundir.location import fill_template, unwritable
from runner.rundir.mirror.fetch import local_run
from runner.rundir.run_files import TUNED_FILE, read_meta, read_result
from runner.sweep.plan import override_key

if TYPE_CHECKING:
    from runner.config.compose import ComposedConfig

_RUN_DIR_KEY = "hydra.run.dir"
_PLACES = tuple(
    f"dataset.{n}" for n in ("path", "validation_path", "test_path", "schema", "learnt")
)  # settings of paths, from which the data may have been moved


def reproduce(words: Sequence[str], allow: Sequence[str]) -> int:
    """Repeat a run.

    Returns:
        0 if the result is the same bit for bit, 1 if it is not, otherwise the exit code of the run.

    Raises:
        UserError: before anything is started.
    """
    from runner.cli.flags import parse_flags, refuse_flags
    from runner.config.composed_checks import check_composed
    from runner.config.targets import allowed_packages
    from runner.launch import check_parts, launch, print_status, run_spec

    flags = parse_flags(words)
    if not flags.overrides or is_override(flags.overrides[0]):
        raise UserError(f"reproduce: name a run: reproduce DIR [{_RUN_DIR_KEY}=NEW]")
    folder, overrides = local_run(flags.overrides[0]), flags.overrides[1:]
    refuse_flags(flags, f"reproduce {folder} repeats one run")
    meta = read_meta(folder)
    if meta.get("kind") != "eval" and "checkpoint.step" in map(override_key, overrides):
        raise UserError(
            "reproduce: checkpoint.step chooses a checkpoint, and a training that is repeated "
            f"reads none; `python -m runner loop=eval {shell_override('run', folder)} "
            "checkpoint.step=N` evaluates one"
        )
    composed = _compose(folder, meta, overrides, flags.config_dirs)
    allowed = allowed_packages(allow)
    check_composed(composed, allowed)
    check_parts(composed, allowed)
    spec = run_spec(composed)
    if any(not o.startswith("hydra.") for o in overrides):
        # data that were moved are read at their new paths, and compared with the recorded hash
        places = [o for o in overrides if override_key(o) in _PLACES]
        original = run_spec(_compose(folder, meta, places, flags.config_dirs)).signature_fields
        if places and "data" in (recorded := meta.get("identity") or {}):
            original = {**original, "data": recorded["data"]}
        _check_same_signature(folder, original, spec.signature_fields)
    for line in list_drift(meta, spec.signature_fields):
        print_status(f"note: {line}")
    result = read_result(folder)
    composed, note = _at_evaluated_step(folder, composed, result or {})
    if note:
        print_status(f"note: {note}")
    for line in list_stream_drift(result or {}, folder, composed.config["dataset"]):
        print_status(f"note: {line}")
    if result is None or result.get("status") != "completed":
        status = "has no result" if result is None else f"is {result.get('status')}"
        print_status(f"note: {folder} {status}, so the repetition will have another length")
    target = _new_run_dir(composed, spec.signature)
    print_status(f"running {folder} again in {target}")
    new_run = replace(composed, run_dir=str(target))
    _keep_tuned_values(composed, folder, target)
    code = launch(new_run, allowed=allowed, command=sys.orig_argv)
    return code or _compare(folder, target)


def make_parser() -> VerbParser:
    """Return the parser, which shows the arguments of `reproduce`."""
    parser = VerbParser(
        "reproduce",
        "Repeat a run in a new directory and compare the results bit for bit. Changes since the\n"
        "run (code, versions, data, machine) are listed first. The exit code is 1 if the result\n"
        "is not the same.",
        examples=("reproduce outputs/dlrm", "reproduce outputs/dlrm trainer.num_threads=1"),
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the run")
    parser.add_words("overrides", "KEY=VALUE", "settings that are no part of the signature")
    return parser


def _compose(
    folder: Path, meta: Mapping[str, Any], overrides: Sequence[str], config_dirs: Sequence[str]
) -> ComposedConfig:
    """Return the run's own configuration, for an evaluation together with the evaluated run.

    Raises:
        UserError: if that run no longer exists.
    """
    from runner.config.compose import compose
    from runner.config.paths import drop_places_of_run
    from runner.launch import with_kept_schema, with_kept_transforms

    composed = compose(overrides, config_dirs=config_dirs, from_run=folder)
    drop_places_of_run(composed.config, composed.saved_config)
    composed = with_kept_transforms(composed)
    schema = composed.config["dataset"].get("schema")
    if isinstance(schema, str) and not os.path.exists(os.path.expanduser(schema)):
        composed = with_kept_schema(composed)
    source = (meta.get("source") or {}).get("path")
    if meta.get("kind") != "eval" or source is None:
        return composed
    if not Path(source).exists():
        raise UserError(
            f"{folder}: is an evaluation of {source}, which is not there any more; put "
            "that folder back"
        )
    run = Path(source) if (Path(source) / "meta.json").exists() else None
    return replace(composed, source_run=run)


def _at_evaluated_step(
    folder: Path, composed: ComposedConfig, result: Mapping[str, Any]
) -> tuple[ComposedConfig, str]:
    """Return the configuration with the step that an evaluation read, and a note; it may be empty.

    Its run may have gone on since, so that its best or last step is another one.
    """
    from runner.rundir.checkpoint import saved_steps

    run, checkpoint, step = composed.source_run, composed.config["checkpoint"], result.get("step")
    is_follower = bool(composed.config["loop"].get("follow"))
    if run is None or checkpoint.get("path") or is_follower or step in (None, checkpoint["step"]):
        return composed, ""
    if step not in saved_steps(run / "checkpoints"):
        return composed, (
            f"{run} no longer has the checkpoint of step {step}, which {folder} evaluated; "
            f"checkpoint.step={checkpoint['step']} is another one now"
        )
    config = {**composed.config, "checkpoint": {**checkpoint, "step": step}}
    return replace(composed, config=config), ""


def _check_same_signature(
    folder: Path, original: Mapping[str, Any], changed: Mapping[str, Any]
) -> None:
    """Check that overrides do not change the signature.

    Raises:
        UserError: naming the signed settings that differ.
    """
    from runner.rundir.diff import diff_settings, format_changes

    changes = diff_settings(original, changed)
    if changes:
        raise UserError(
            f"reproduce repeats {folder} as it is, and this would be another run:\n"
            f"{format_changes(changes)}"
        )


def list_drift(meta: Mapping[str, Any], fields: Mapping[str, Any]) -> list[str]:
    """List changes since the run that may affect its result.

    These are code, versions of packages, data, machine, and the set of signed settings.

    Args:
        fields: signed settings of the repetition.
    """
    from runner.config.locations import PROJECT
    from runner.rundir.diff import diff_settings
    from runner.rundir.provenance import changed_own_code, git_state, package_versions

    drift = [*_list_code_drift(meta.get("git") or {}, git_state(PROJECT) or {})]
    if changed_code := changed_own_code(meta.get("own_code") or {}):
        drift.append(f"your code: {', '.join(changed_code)} changed since")
    current = {"python": ".".join(map(str, sys.version_info[:3])), **package_versions()}
    recorded = {"python": meta.get("python"), **(meta.get("versions") or {})}
    drift += [
        f"{name}: {recorded.get(name) or 'not there'} then, {current.get(name) or 'not there'} now"
        for name in dict.fromkeys([*recorded, *current])
        if recorded.get(name) != current.get(name)
    ]
    for key, before, now in diff_settings(meta.get("identity") or {}, fields):
        if key == "data":
            drift.append(f"the data: fingerprint {before} then, {now} now")
        elif not key.startswith("source."):  # settings that another version does not have
            drift.append(f"{key}: {before} then, {now} now")
    if meta.get("cpus") != os.cpu_count():
        drift.append(f"the machine: {meta.get('cpus')} CPUs then, {os.cpu_count()} now")
    changed = [r for r in meta.get("resumes") or () if r.get("changed")]
    if changed:
        drift.append(
            f"settings were changed at {len(changed)} of its resumes; the repetition uses the last "
            "ones from the start"
        )
    changed = [r for r in meta.get("resumes") or () if r.get("code_changed")]
    if changed:
        drift.append(f"your code was changed at {len(changed)} of its resumes")
    return drift


def list_stream_drift(
    result: Mapping[str, Any], folder: Path, dataset: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the changes in files that a run had read from a folder as a stream.

    The stream grows, so no fingerprint covers its content. The hash of the last file is known;
    for the others the modification time is compared.
    """
    from runner.data.core.file_hashes import hash_file_anew
    from runner.data.streaming.folder import list_names

    place, stream = result.get("stream_place") or {}, Path(str(dataset.get("path")))
    last = place.get("file")
    if last is None or not stream.is_dir():
        return
    names = [name for name in list_names(stream) if name <= last]
    if len(names) != place.get("files", len(names)):
        yield f"the stream: had {place['files']} files up to {last}, and has {len(names)} now"
    ended = (folder / "result.json").stat().st_mtime
    changed = [name for name in names if (stream / name).stat().st_mtime > ended]
    if last in names and last not in changed and "xxh3" in place:
        changed += [last] * (hash_file_anew(stream / last) != place["xxh3"])
    if changed:
        more = f" and {len(changed) - 3:,} more" * (len(changed) > 3)
        yield f"the stream: {', '.join(changed[:3])}{more} changed after the run had read it"


def _list_code_drift(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    drift = []
    commits = [str(git.get("commit") or "not in git")[:12] for git in (then, now)]
    if commits[0] != commits[1]:
        drift.append(f"the code: commit {commits[0]} then, {commits[1]} now")
    if (then.get("patch") or "") != (now.get("patch") or ""):
        words = ["with" if git.get("patch") else "without" for git in (then, now)]
        same = " other" if words == ["with", "with"] else ""
        drift.append(
            f"the code: {words[0]} uncommitted changes then, {words[1]}{same} ones now"
            + ("; the patch is in meta.json" if then.get("patch") else "")
        )
    return drift


def _new_run_dir(composed: ComposedConfig, signature: str) -> Path:
    """Return a directory that does not exist yet.

    Raises:
        UserError: if the requested directory exists.
    """
    text = fill_template(composed.run_dir, name=composed.name, signature=signature)
    target, number = Path(text), 1
    if text == composed.run_dir and target.exists():
        raise UserError(
            f"{_RUN_DIR_KEY}={target}: exists already; a repetition needs a new directory"
        )
    while target.exists():
        number += 1
        target = Path(f"{text}_{number}")
    return target


def _keep_tuned_values(composed: ComposedConfig, folder: Path, target: Path) -> None:
    """Make a training use the tuned values of its run: trials depend on time, and would differ.

    Raises:
        UserError: if they cannot be read, or the new directory cannot be written.
    """
    if composed.config["loop"].get("then") != "train" or not (folder / TUNED_FILE).exists():
        return
    tuned = read_json(folder / TUNED_FILE)
    try:
        target.mkdir(parents=True)
        write_json(target / TUNED_FILE, tuned)
    except OSError as error:
        raise UserError(unwritable(target, error)) from error


def _compare(folder: Path, target: Path) -> int:
    from runner.reporting.report.diff import compare_runs, show_metric_differences
    from runner.reporting.report.records import read_run
    from runner.reporting.report.terminal import make_console

    out = make_console()
    outcome = compare_runs(folder, target)
    if outcome.is_identical:
        out.print("identical, bit for bit:", *(f"\n  {line}" for line in outcome.same), sep="")
        return 0
    runs = [read_run(f, f.name) for f in (folder, target)]
    show_metric_differences(out, runs[0], runs[1], ["then", "now"])
    out.print("not the same:", *(f"\n  {line}" for line in outcome.different), sep="")
    return 1
