"""`remote=ray`: one training as a job of a Ray cluster. This process needs no GPU and no torch.

Rank 0's record of the run comes back: configuration, result, metrics and log. It is written into a
run directory on this machine. Checkpoints stay where the job ran, in `remote.dir`, unless
`remote.bring_back` asks for them: then their files come, and are verified here.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.compose import ComposedConfig
from runner.config.hydra_text import quote_hydra_value
from runner.config.rules import check_config
from runner.config.settings import ONLINE_LOOP, TRAIN_LOOP
from runner.distributed.ray_nodes import NodeRole, call_on_nodes
from runner.errors import ConfigError, UserError, first_line, raise_combined, system_errors
from runner.launch import print_status
from runner.machine.imports import missing_extra
from runner.rundir.checkpoint import open_checkpoint, saved_steps
from runner.rundir.checkpoint.files import write_file
from runner.rundir.checkpoint.folder import TEMPORARY_PREFIX, commit_checkpoint
from runner.rundir.identity import check_belongs
from runner.rundir.location import check_writable, create_and_lock
from runner.rundir.readers import last_line, numeric_values, read_optional_json
from runner.rundir.regular_files import MAX_LOG_BYTES, open_for_append, read_bytes, replacing
from runner.rundir.secrets import mask_secrets

RECORD_FILES = ("config.yaml", "meta.json", "metrics.jsonl", "perf.jsonl", "result.json", "log.txt")
# of a checkpoint, or of the fitted transforms, as received from a cluster
BROUGHT_FILE = re.compile(
    r"(?:data|checkpoints/step-(?P<step>0|[1-9]\d{0,17}))/(?P<file>[A-Za-z0-9_][A-Za-z0-9_.-]{0,200})"
)


def run_remotely(composed: ComposedConfig, flags: Sequence[str], allowed: Sequence[str]) -> int:
    """Run the composed command line on a cluster; return its exit code.

    Args:
        composed: the configuration, not yet checked.
        flags: words that are not overrides, such as `--allow PACKAGE`.

    Raises:
        ConfigError: for mistakes in the configuration, and for another loop than train.
        UserError: if Ray is not installed, or the cluster cannot be reached.
    """
    all_problems = check_config(
        composed.config,
        composed.default_config,
        added_keys=composed.added_keys,
        allowed=allowed,
        known_problems=composed.problems,
    )
    # The cluster may have a device that this machine lacks; the job checks it again there.
    local_keys = ("trainer.device=", "trainer.amp_dtype=")
    problems = [p for p in all_problems if not p.startswith(local_keys)]
    problems += missing_extra("remote=ray", "ray", "ray")
    if (composed.config.get("loop") or {}).get("_target_") not in (TRAIN_LOOP, ONLINE_LOOP):
        problems.append(
            "remote=ray: is for loop=train and loop=online; leave it out, and evaluate where the "
            "run's folder is"
        )
    raise_combined([*composed.problems, *problems])
    settings = composed.config["remote"]
    ranks_per_node = composed.config["trainer"]["num_processes"]
    if settings["nodes"] > 1 and settings["dir"] is None:
        raise ConfigError(
            f"remote.nodes={settings['nodes']}: the ranks of all nodes write into one run "
            "directory; remote.dir names its folder, which all nodes must see"
        )
    check_writable(composed.run_dir)
    request = {
        "words": [
            *flags,
            *(o for o in composed.overrides if not _is_local_override(o, settings["nodes"])),
            "hydra.mode=RUN",
        ],
        "dir": settings["dir"],
        "bring_back": settings["bring_back"],
    }
    answer = read_answer(_submit_to_ray(settings, request, ranks_per_node))
    folder = write_run_dir(composed, answer.files) if answer.signature is not None else None
    _print_outcome(answer, folder)
    return answer.code


def _is_local_override(override: str, nodes: int) -> bool:
    """Return whether an override is for this process instead of the job."""
    key = override.split("=", 1)[0].lstrip("+~")
    if nodes > 1 and key == "trainer.num_processes":  # torchrun starts that many on each node
        return True
    return key.split(".")[0] == "remote" or key in ("hydra.run.dir", "hydra.mode")


def _submit_to_ray(
    settings: Mapping[str, Any], request: Mapping[str, Any], ranks_per_node: int
) -> Any:
    import ray

    try:
        ray.init(
            address=settings["address"],
            runtime_env=dict(settings["runtime_env"]) or None,
            log_to_driver=True,
            include_dashboard=False if settings["address"] is None else None,
        )
    except Exception as error:  # Ray raises errors of many classes
        raise UserError(f"remote.address={settings['address']}: {first_line(error)}") from error
    try:
        return call_on_nodes(train_on_cluster, request, settings, ranks_per_node)
    except ray.exceptions.RayError as error:
        return {"code": 1, "files": {}, "last": f"{type(error).__name__}: {error}"}
    finally:
        ray.shutdown()


def train_on_cluster(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the training in separate processes; return rank 0's record of it. Runs on the cluster."""
    role = NodeRole(**request["node"]) if "node" in request else None
    start = [sys.executable] if role is None else role.command()
    directory = request["dir"]
    place = nullcontext(directory) if directory else tempfile.TemporaryDirectory(prefix="runner-")
    with place as folder:
        os.makedirs(folder, exist_ok=True)
        run_dir = Path(folder) / "run"
        log = Path(folder) / (f"job-{role.number}.log" if role and role.number else "job.log")
        words = [*request["words"], f"hydra.run.dir={quote_hydra_value(str(run_dir))}"]
        with open_for_append(log) as output:
            process = subprocess.run(
                [*start, "-m", "runner", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        files = {}
        for name in RECORD_FILES:
            with suppress(OSError):  # it does not exist, or is not a file
                files[name] = read_bytes(run_dir / name, MAX_LOG_BYTES)
        files |= _read_checkpoints(run_dir, request.get("bring_back", "none"))
        return {
            "code": process.returncode,
            "files": files,
            "place": str(run_dir) if directory else None,
            "last": last_line(log),
        }


def _read_checkpoints(run_dir: Path, which: str) -> dict[str, bytes]:
    """Return the files of the chosen checkpoints, and the corresponding fitted transforms."""
    steps = saved_steps(run_dir / "checkpoints")
    if which == "none" or not steps:
        return {}
    if which != "all":
        best = read_optional_json(run_dir / "result.json").get("best") or {}
        steps = [s for s in steps if s == steps[-1] or (which == "best" and s == best.get("step"))]
    folders = [run_dir / "data", *(run_dir / f"checkpoints/step-{step}" for step in steps)]
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return {path.relative_to(run_dir).as_posix(): path.read_bytes() for path in paths}


@dataclass(frozen=True)
class Answer:
    """A cluster's answer about a job, checked to have the form that `train_on_cluster` returns."""

    code: int  # the exit code
    last: str  # the last line of the job's output
    files: Mapping[str, bytes]  # the contents of the run's record by name
    signature: str | None  # of the run; None if no run was started
    result: Mapping[str, Any]  # of the run; empty if it has none
    place: str | None  # path of the run directory on the cluster


def read_answer(answer: Any) -> Answer:
    """Validate the answer of a cluster, whose files will be written on this machine.

    Raises:
        UserError: if it is not the record of a run.
    """
    files = answer.get("files") if isinstance(answer, dict) else None
    if not isinstance(files, dict) or type(answer.get("code")) is not int:
        raise UserError(
            "remote: the cluster's answer is no record of a job; run the same version of the "
            "package here and there"
        )
    for name, content in files.items():
        known = name in RECORD_FILES or BROUGHT_FILE.fullmatch(str(name))
        if not known or not isinstance(content, bytes):
            raise UserError(f"remote: the cluster sends {name!r}, which is no file of a record")
    meta, result = (_parse_mapping(n, files.get(n)) for n in ("meta.json", "result.json"))
    signature = meta.get("signature")
    is_hash = isinstance(signature, str) and re.fullmatch(r"[0-9a-f]{1,64}", signature)
    if "meta.json" in files and not is_hash:
        raise UserError(f"remote: the cluster's meta.json has no signature, but {signature!r}")
    place = answer.get("place")
    return Answer(
        answer["code"],
        str(answer.get("last") or ""),
        files,
        signature if is_hash else None,
        result,
        None if place is None else str(place),
    )


def _parse_mapping(name: str, content: bytes | None) -> dict[str, Any]:
    """Return the content of a JSON file; {} if it is missing.

    Raises:
        UserError: if it is not a mapping.
    """
    try:
        value = {} if content is None else json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"remote: the cluster's {name} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"remote: the cluster's {name} is damaged: it holds no mapping")
    return value


def write_run_dir(composed: ComposedConfig, files: Mapping[str, bytes]) -> Path:
    """Write the record into a run directory on this machine.

    Raises:
        UserError: if a file cannot be written.
    """
    signature = str(json.loads(files["meta.json"])["signature"])
    folder, lock = create_and_lock(composed.run_dir, name=composed.name, signature=signature)
    try:
        with system_errors(f"{folder}: cannot be written"):
            for name in RECORD_FILES:
                if name in files:
                    with replacing(folder / name) as file:
                        file.write(mask_secrets(files[name].decode(errors="replace")))
            _write_checkpoints(folder, files)
    finally:
        lock.release()
    return folder


def _write_checkpoints(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the received checkpoints, each verified, and the fitted transforms.

    Files of other names are left out, since the cluster chooses the names.

    Raises:
        DamagedError: for a checkpoint that differs from the saved one.
    """
    matched = [(match, files[name]) for name in files if (match := BROUGHT_FILE.fullmatch(name))]
    for match, content in matched:
        if match["step"] is None:
            (folder / "data").mkdir(exist_ok=True)
            write_file(folder / "data" / match["file"], [content])
    checkpoints = folder / "checkpoints"
    for step in sorted({int(match["step"]) for match, _ in matched if match["step"]}):
        temporary = checkpoints / f"{TEMPORARY_PREFIX}step-{step}-{secrets.token_hex(4)}"
        temporary.mkdir(parents=True)
        for match, content in matched:
            if match["step"] == str(step):
                write_file(temporary / match["file"], [content])
        commit_checkpoint(temporary, checkpoints / f"step-{step}")
        check_belongs(open_checkpoint(checkpoints / f"step-{step}"), folder)


def _print_outcome(answer: Answer, folder: Path | None) -> None:
    result = answer.result
    status = result.get("status", "failed")
    if answer.code != 0:
        print_status(f"failed: {result.get('error') or answer.last}")
    metrics = result.get("metrics")
    for name, value in numeric_values(metrics if isinstance(metrics, dict) else {}).items():
        print(f"{name:<32} {value:.5f}")
    if folder is not None:
        print(f"{status} at step {result.get('step')}: {folder}")
    if answer.place:
        print(f"checkpoints: {answer.place}")
    if folder is not None and (steps := saved_steps(folder / "checkpoints")):
        print(f"brought back: {', '.join(f'step {step}' for step in steps)}")
