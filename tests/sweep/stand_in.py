"""Behaves like a job of the runner, in milliseconds: `python stand_in.py key=value...`.

Its overrides say what it does: `do=` is one of ok, raise, wrong, sigkill, sigkill_once, memory,
oom, silent, lost, debug, stubborn, mixed (one of MIXED by its signature); `steps=N` and `step_s=S`
set its length; with `evals=` it evaluates at each step and asks its sweep whether to go on. Its
result is `value=`, else 1 - |x - 0.3|, else a number made from its signature. It goes on from its
last step, as a run does from its checkpoint.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

MIXED = ["raise", "sigkill", "sigkill_once", "memory", *["ok"] * 36]
NOT_SIGNED = ("step_s=", "hydra.", "trainer.num_threads=", "tracker=", "launcher")


def signature(overrides) -> str:
    signed = sorted(o for o in overrides if not o.startswith(NOT_SIGNED))
    return hashlib.sha256(json.dumps(signed).encode()).hexdigest()[:8]


def write(path: Path, value) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value))
    os.replace(temporary, path)


def quality(overrides) -> float:
    """Return a number that depends on the signed overrides alone."""
    given = dict(o.split("=", 1) for o in overrides)
    if "x" in given:
        return 1 - abs(float(given["x"]) - 0.3)
    return int(signature(overrides), 16) / 16**8


def is_stopped(folder: Path, step: int, value: float, do: str) -> bool:
    """Write a row of metrics, and return whether the sweep stops the job."""
    with (folder / "metrics.jsonl").open("a") as rows:
        rows.write(json.dumps({"split": "validation", "step": step, "auc": value}) + "\n")
    if "RUNNER_PRUNING" not in os.environ:
        return False
    write(folder / ".evaluated.json", {"step": step})
    answer = folder / ".answer.json"
    while not answer.exists():
        time.sleep(0.002)
    (folder / ".evaluated.json").unlink()
    stop = json.loads(answer.read_text())
    answer.unlink()
    assert stop["step"] == step
    return stop["stop"]


def main(words: list[str]) -> int:
    given = dict(w.split("=", 1) for w in words)
    folder, do = Path(given["hydra.run.dir"]), given.get("do", "ok")
    overrides = [w for w in words if not w.startswith("hydra.")]
    if do == "mixed":
        do = MIXED[int(signature(overrides), 16) % len(MIXED)]
    folder.mkdir(exist_ok=True)
    with (folder / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    lock = (folder / ".lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("another process is writing here")
        return 2
    if do == "debug":
        return 0
    if do == "wrong":
        print("error: the data has no column 'label'", file=sys.stderr)
        return 2
    result_path = folder / "result.json"
    if result_path.exists() and json.loads(result_path.read_text())["status"] == "completed":
        (folder / "started-though-completed").touch()
        return 0
    result_path.unlink(missing_ok=True)
    own = signature(overrides)
    write(folder / "meta.json", {"signature": own, "overrides": words, "git": None})
    result = {"status": "completed", "step": 0, "metrics": {}, "best": None, "error": None}
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, _: asked.append(n))

    checkpoint = folder / "checkpoint"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(done + 1, int(given.get("steps", 1)) + 1):
        time.sleep(float(given.get("step_s", 0)))
        with (folder / "steps").open("a") as steps:
            steps.write(f"{step}\n")
        write(checkpoint, step)
        result["step"] = step
        if "evals" in given and is_stopped(folder, step, quality(overrides) * step, do):
            value = quality(overrides) * step
            pruned = {"status": "pruned", "metrics": {"validation/auc": value}}
            write(result_path, result | pruned)
            return 0
        if asked and do != "stubborn":
            write(result_path, result | {"status": "interrupted"})
            return 128 + asked[0]
    if do == "raise":
        message = "ValueError: loss is not finite\nat step 3 of 'top.0'"
        write(result_path, result | {"status": "failed", "error": message})
        return 1
    if do == "sigkill" or (do == "sigkill_once" and not (folder / "killed").exists()):
        (folder / "killed").touch()
        print("a line of progress, which is no error", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "memory":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
        bytearray(1 << 30)
    if do == "oom":
        bytearray(b"x" * (1 << 20)) * 1000
    if do in ("silent", "lost"):
        return 7 if do == "silent" else 0
    value = float(given.get("value", quality(overrides)))
    metrics = {"validation/auc": value, "test/auc": value - 0.01, "test/loss": "NaN"}
    y = given.get("y", str(2 - value))  # auc: a loss that rises with it
    metrics["validation/log_loss"] = value if y == "auc" else float(y)
    best = {"step": result["step"], "value": value}
    print("threads", given.get("trainer.num_threads"), "sweep", os.environ.get("RUNNER_SWEEP"))
    write(result_path, result | {"metrics": metrics, "best": best})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
