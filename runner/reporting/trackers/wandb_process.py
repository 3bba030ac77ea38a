"""The process that runs wandb: reads a JSON object per line, writes `{"message": ...}` lines.

The first line has the options of the run, then come rows, then `{"finish": status}`. If the input
ends without the last line, the run was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

START_LIMIT_S = 8
ORPHAN_LIMIT_S = 20
FOLLOW_STEP = "follow/step"
EXIT_CODES = {"completed": 0, "pruned": 0, "failed": 1, "interrupted": 130}


def main() -> None:
    """Track one run from standard input to its end."""
    # wandb and the process that it starts print to standard output, so messages get a copy of it
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its input, after the last row

    def say(message: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the run is gone, but its rows still count
            print(json.dumps({"message": message}), file=answers, flush=True)

    options = json.loads(sys.stdin.readline())
    run = start_run(options, say)
    last_step, status = 0, "failed"
    for line in sys.stdin:
        message = json.loads(line)
        if "finish" in message:
            status = message["finish"]
            break
        if "artifact" in message:
            log_artifact(run, message, say)
            continue
        if "tables" in message:
            log_tables(run, message["tables"], last_step)
            continue
        row = {**message["row"], **to_wandb_histograms(message.get("histograms", {}))}
        if options.get("shared"):  # the steps of the run belong to another process
            run.log({**row, FOLLOW_STEP: message["step"]})
            continue
        # wandb drops rows of earlier steps, such as the test of the best step at the end of a run
        last_step = max(last_step, message["step"])
        run.log(row, step=last_step)
    watchdog = threading.Timer(ORPHAN_LIMIT_S, lambda: os.killpg(0, signal.SIGKILL))
    watchdog.daemon = True  # in case the run that would kill this process is gone
    watchdog.start()
    run.finish(exit_code=EXIT_CODES[status])


def to_wandb_histograms(histograms: Mapping[str, Any]) -> dict[str, Any]:
    """Convert name -> (counts, edges) to histograms of wandb."""
    if not histograms:
        return {}
    import wandb

    return {n: wandb.Histogram(np_histogram=tuple(bins)) for n, bins in histograms.items()}


def log_artifact(run: Any, message: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Log a folder by reference, as an output of the run, and its source as an input.

    W&B records inputs only online; the metadata names them in any case.
    """
    import wandb

    step, parent = message["step"], message.get("parent")
    metadata = {"step": step, **({"made from": parent} if parent else {})}
    artifact = wandb.Artifact(f"{message['name']}-{run.id}", message["type"], metadata=metadata)
    artifact.add_reference(f"file://{message['artifact']}", checksum=True)
    if parent and not run.offline:
        try:
            run.use_artifact(parent)
        except Exception as error:  # of another project, or never logged: the metadata has it
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"the artifact {parent} is not linked as an input: {first_line}")
    run.log_artifact(artifact, aliases=[message["alias"], f"step-{step}"])


def log_tables(run: Any, tables: Mapping[str, Any], step: int) -> None:
    """Log tables of (columns, rows) by name."""
    import wandb

    shown = {n: wandb.Table(columns=head, data=rows) for n, (head, rows) in tables.items()}
    run.log(shown, step=step)


def start_run(options: Mapping[str, Any], say: Callable[[str], None]) -> Any:
    """Start the wandb run; `auto` is what WANDB_MODE says, or offline if online fails."""
    mode = os.environ.get("WANDB_MODE") if options["mode"] == "auto" else options["mode"]
    if mode not in ("offline", "disabled"):
        try:
            return init_run(options, "online")
        except Exception as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            folder = Path(options["dir"]) / "wandb"
            say(f"offline ({first_line}); send it later: wandb sync {folder}/offline-run-*")
            import wandb

            wandb.teardown()  # else the failed run would keep the id
    return init_run(options, "disabled" if mode == "disabled" else "offline")


def init_run(options: Mapping[str, Any], mode: Literal["online", "offline", "disabled"]) -> Any:
    """Start the wandb run in one mode; raises what wandb raises."""
    import wandb

    settings: dict[str, Any] = {
        "init_timeout": START_LIMIT_S,
        "silent": True,
        "console": "off",
        # patch, command and versions are in the run directory; in wandb they could leak a secret
        "disable_git": True,
        "disable_code": True,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_disable_stats": True,  # else sampled every few seconds on cores that train
        "x_transaction_log_flush_interval": 1.0,  # else a kill would lose the rows of 15 s
    }
    if options.get("shared") and mode == "online":  # one of several writers, and not the main one
        settings |= {"mode": "shared", "x_primary": False, "x_label": "follow"}
    known = wandb.Settings.model_fields  # settings with x_ differ between versions
    run = wandb.init(
        mode=None if "mode" in settings else mode,
        id=options["id"],
        resume="allow",
        dir=options["dir"],
        settings=wandb.Settings(**{k: v for k, v in settings.items() if k in known}),
        **{key: options[key] for key in ("project", "entity", "name", "config", "group")},
        job_type=options["job_type"],
        tags=options["tags"] or None,
        notes=options["notes"],
    )
    if options.get("shared"):
        run.define_metric("follow/*", step_metric=FOLLOW_STEP)
    return run


if __name__ == "__main__":
    main()
