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
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.config.compose import ComposedConfig
from runner.config.rules import check_config
from runner.config.settings import ONLINE_LOOP, TRAIN_LOOP
from runner.errors import ConfigError, UserError, raise_combined
from runner.launch import print_status
from runner.rundir.checkpoint import open_checkpoint, saved_steps
from runner.rundir.checkpoint.files import write_file
from runner.rundir.checkpoint.folder import TEMPORARY_PREFIX, commit_checkpoint
from runner.rundir.identity import check_belongs
from runner.rundir.json_files import write_text
from runner.rundir.location import check_writable, create_and_lock
from runner.rundir.readers import last_line, read_optional_json
from runner.rundir.secrets import mask_secrets

RECORD_FILES = ("config.yaml", "meta.json", "metrics.jsonl", "perf.jsonl", "result.json", "log.txt")
# of a checkpoint, or of the fitted transforms, as it comes from a cluster
BROUGHT_FILE = re.compile(
    r"(?:data|checkpoints/step-(?P<step>0|[1-9]\d{0,17}))/(?P<file>[A-Za-z0-9_][A-Za-z0-9_.-]{0,200})"
)


def run_remotely(composed: ComposedConfig, flags: Sequence[str], allowed: Sequence[str]) -> int:
    """Run the composed command line on a cluster; return its exit code.

    Args:
        composed: the configuration, not yet checked.
        flags: words that are no overrides, such as `--allow PACKAGE`.
        allowed: packages that a `_target_` may lie in.

    Raises:
        ConfigError: for mistakes in the configuration, and for another loop than train.
        UserError: if Ray is not installed, or the cluster cannot be reached.
    """
    all_problems = check_config(
        composed.config, composed.default_config, added_keys=composed.added_keys, allowed=allowed
    )
    # The cluster may have a device that this machine lacks; the job checks it again there.
    local_keys = ("trainer.device=", "trainer.amp_dtype=")
    problems = [p for p in all_problems if not p.startswith(local_keys)]
    if find_spec("ray") is None:
        problems.append("remote=ray: Ray is not installed: pip install '.[ray]'")
    raise_combined([*composed.problems, *problems])
    if (composed.config.get("loop") or {}).get("_target_") not in (TRAIN_LOOP, ONLINE_LOOP):
        raise ConfigError(
            "remote=ray: is for trainings; evaluate and export where the run's folder is"
        )
    settings = composed.config["remote"]
    check_writable(composed.run_dir)
    request = {
        "words": [
            *flags,
            *(o for o in composed.overrides if not _is_local_override(o)),
            "hydra.mode=RUN",
        ],
        "dir": settings["dir"],
        "bring_back": settings["bring_back"],
    }
    answer = _submit_to_ray(settings, request)
    folder = _write_run_dir(composed, answer["files"]) if "meta.json" in answer["files"] else None
    _print_outcome(answer, folder)
    return int(answer["code"])


def _is_local_override(override: str) -> bool:
    """Return whether an override is for this process and not for the job."""
    key = override.split("=", 1)[0].lstrip("+~")
    return key.split(".")[0] == "remote" or key in ("hydra.run.dir", "hydra.mode")


def _submit_to_ray(settings: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    import ray

    try:
        ray.init(
            address=settings["address"],
            runtime_env=dict(settings["runtime_env"]) or None,
            log_to_driver=True,
            include_dashboard=False if settings["address"] is None else None,
        )
    except Exception as error:  # Ray raises errors of many classes
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"remote.address={settings['address']}: {reason}") from error
    try:
        job = ray.remote(train_on_cluster).options(
            num_cpus=settings["num_cpus"], num_gpus=settings["num_gpus"], max_retries=0
        )
        answer: Any = ray.get(job.remote(request))
        return dict(answer)
    except ray.exceptions.RayError as error:
        return {"code": 1, "files": {}, "last": f"{type(error).__name__}: {error}"}
    finally:
        ray.shutdown()


def train_on_cluster(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the training in a process of its own; return rank 0's record of it. On the cluster."""
    with _job_folder(request["dir"]) as folder:
        run_dir = Path(folder) / "run"
        log = Path(folder) / "job.log"
        words = [*request["words"], f"hydra.run.dir={json.dumps(str(run_dir))}"]
        with log.open("ab") as output:
            done = subprocess.run(
                [sys.executable, "-m", "runner", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        files = {n: (run_dir / n).read_bytes() for n in RECORD_FILES if (run_dir / n).exists()}
        files |= _read_checkpoints(run_dir, request.get("bring_back", "none"))
        return {
            "code": done.returncode,
            "files": files,
            "place": str(run_dir) if request["dir"] else None,
            "last": last_line(log),
        }


def _read_checkpoints(run_dir: Path, which: str) -> dict[str, bytes]:
    """Return the files of the chosen checkpoints, and the fitted transforms that belong to them."""
    steps = saved_steps(run_dir / "checkpoints")
    if which == "none" or not steps:
        return {}
    if which != "all":
        best = read_optional_json(run_dir / "result.json").get("best") or {}
        steps = [s for s in steps if s == steps[-1] or (which == "best" and s == best.get("step"))]
    folders = [run_dir / "data", *(run_dir / f"checkpoints/step-{step}" for step in steps)]
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return {path.relative_to(run_dir).as_posix(): path.read_bytes() for path in paths}


@contextmanager
def _job_folder(given: str | None) -> Any:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="runner-") as folder:
            yield folder
    else:
        os.makedirs(given, exist_ok=True)
        yield given


def _write_run_dir(composed: ComposedConfig, files: Mapping[str, bytes]) -> Path:
    """Write the record into a run directory on this machine."""
    meta = json.loads(files["meta.json"])
    folder, lock = create_and_lock(
        composed.run_dir, name=composed.name, signature=str(meta["signature"])
    )
    try:
        for name in RECORD_FILES:
            if name in files:
                write_text(folder / name, mask_secrets(files[name].decode(errors="replace")))
        _write_checkpoints(folder, files)
    finally:
        lock.release()
    return folder


def _write_checkpoints(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the checkpoints that came, each verified, and the fitted transforms.

    Files of other names are left out: a cluster says what they are called.

    Raises:
        DamagedError: for a checkpoint that is not what was saved.
    """
    named = [(match, files[name]) for name in files if (match := BROUGHT_FILE.fullmatch(name))]
    for match, content in named:
        if match["step"] is None:
            (folder / "data").mkdir(exist_ok=True)
            write_file(folder / "data" / match["file"], [content])
    checkpoints = folder / "checkpoints"
    for step in sorted({int(match["step"]) for match, _ in named if match["step"]}):
        temporary = checkpoints / f"{TEMPORARY_PREFIX}step-{step}-{secrets.token_hex(4)}"
        temporary.mkdir(parents=True)
        for match, content in named:
            if match["step"] == str(step):
                write_file(temporary / match["file"], [content])
        commit_checkpoint(temporary, checkpoints / f"step-{step}")
        check_belongs(open_checkpoint(checkpoints / f"step-{step}"), folder)


def _print_outcome(answer: Mapping[str, Any], folder: Path | None) -> None:
    result = json.loads(answer["files"].get("result.json", b"{}"))
    status = result.get("status", "failed")
    if answer["code"] != 0:
        print_status(f"failed: {result.get('error') or answer['last']}")
    metrics = result.get("metrics") or {}
    for name, value in metrics.items():
        print(f"{name:<32} {float(value):.5f}")
    if folder is not None:
        print(f"{status} at step {result.get('step')}: {folder}")
    if answer.get("place"):
        print(f"checkpoints: {answer['place']}")
    if folder is not None and (steps := saved_steps(folder / "checkpoints")):
        print(f"brought back: {', '.join(f'step {step}' for step in steps)}")
