"""`remote=ray`: one training as a job of a Ray cluster. This process needs no GPU and no torch.

What comes back is rank 0's record of the run: configuration, result, metrics, log. It is laid into
a run directory here. Checkpoints stay where the job ran, in `remote.dir`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.config.compose import Composed
from runner.config.rules import check
from runner.errors import ConfigError, UserError, mistakes
from runner.launch import tell
from runner.rundir.location import check_writable, make_locked
from runner.sweep.local_process import last_line

NAMES = ("config.yaml", "meta.json", "metrics.jsonl", "perf.jsonl", "result.json", "log.txt")
_TRAIN = "runner.training.loops.train.train"


def run_remotely(composed: Composed, flags: Sequence[str], allowed: Sequence[str]) -> int:
    """Runs the composed command line on a cluster; returns its exit code.

    Args: flags: words that are no overrides, such as `--allow PACKAGE`; allowed: the packages that
    a `_target_` may lie in.
    Raises: UserError if Ray is not there, or the cluster cannot be reached.
    """
    found = check(composed.config, composed.plain, added=composed.added, allowed=allowed)
    # what this machine lacks, the cluster may have; it is asked again there
    problems = [p for p in found if not p.startswith(("trainer.device=", "trainer.amp_dtype="))]
    if find_spec("ray") is None:
        problems.append("remote=ray: Ray is not installed: pip install '.[ray]'")
    if composed.problems or problems:
        raise mistakes([*composed.problems, *problems])
    if (composed.config.get("loop") or {}).get("_target_") != _TRAIN:
        raise ConfigError("remote=ray: trains; evaluate and export where the run's folder is")
    settings = composed.config["remote"]
    check_writable(composed.run_dir)
    request = {
        "words": [*flags, *(o for o in composed.overrides if not _is_here(o)), "hydra.mode=RUN"],
        "dir": settings["dir"],
    }
    answer = _on_cluster(settings, request)
    folder = _keep(composed, answer["files"]) if "meta.json" in answer["files"] else None
    _show(answer, folder)
    return int(answer["code"])


def _is_here(override: str) -> bool:
    """Whether an override is about this machine's part, not the job's."""
    key = override.split("=", 1)[0].lstrip("+~")
    return key.split(".")[0] == "remote" or key in ("hydra.run.dir", "hydra.mode")


def _on_cluster(settings: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    import ray

    try:
        ray.init(
            address=settings["address"],
            runtime_env=dict(settings["runtime_env"]) or None,
            log_to_driver=True,
            include_dashboard=False if settings["address"] is None else None,
        )
    except Exception as error:  # Ray raises plain ones too
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"remote.address={settings['address']}: {reason}") from error
    try:
        job = ray.remote(train_there).options(
            num_cpus=settings["num_cpus"], num_gpus=settings["num_gpus"], max_retries=0
        )
        answer: Any = ray.get(job.remote(request))
        return dict(answer)
    except ray.exceptions.RayError as error:
        return {"code": 1, "files": {}, "last": f"{type(error).__name__}: {error}"}
    finally:
        ray.shutdown()


def train_there(request: Mapping[str, Any]) -> dict[str, Any]:
    """On the cluster: the training as a process of its own, and rank 0's record of it."""
    with _folder(request["dir"]) as folder:
        place = Path(folder) / "run"
        log = Path(folder) / "job.log"
        words = [*request["words"], f"hydra.run.dir={json.dumps(str(place))}"]
        with log.open("ab") as output:
            done = subprocess.run(
                [sys.executable, "-m", "runner", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        files = {n: (place / n).read_bytes() for n in NAMES if (place / n).exists()}
        return {
            "code": done.returncode,
            "files": files,
            "place": str(place) if request["dir"] else None,
            "last": last_line(log),
        }


@contextmanager
def _folder(given: str | None) -> Any:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="runner-") as folder:
            yield folder
    else:
        os.makedirs(given, exist_ok=True)
        yield given


def _keep(composed: Composed, files: Mapping[str, bytes]) -> Path:
    """Lays the record into a run directory of this machine."""
    meta = json.loads(files["meta.json"])
    folder, lock = make_locked(
        composed.run_dir, name=composed.name, signature=str(meta["signature"])
    )
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
    finally:
        lock.release()
    return folder


def _show(answer: Mapping[str, Any], folder: Path | None) -> None:
    result = json.loads(answer["files"].get("result.json", b"{}"))
    status = result.get("status", "failed")
    if answer["code"] != 0:
        tell(f"failed: {result.get('error') or answer['last']}")
    metrics = result.get("metrics") or {}
    for name, value in metrics.items():
        print(f"{name:<32} {float(value):.5f}")
    if folder is not None:
        print(f"{status} at step {result.get('step')}: {folder}")
    if answer.get("place"):
        print(f"checkpoints: {answer['place']}")
