"""The process in which wandb lives: a JSON object a line in, `{"message": ...}` lines out.

The first line says what to start, then come rows, then `{"finish": status}`; the end of the input
without it means that the run was killed.
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
    # wandb prints, and starts a process of its own that does: what we answer goes another way
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # ended by our input only, after its last row

    def say(message: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the run is gone, the rows still count
            print(json.dumps({"message": message}), file=answers, flush=True)

    options = json.loads(sys.stdin.readline())
    run = start_run(options, say)
    last_step, status = 0, "failed"
    for line in sys.stdin:
        sent = json.loads(line)
        if "finish" in sent:
            status = sent["finish"]
            break
        row = {**sent["row"], **to_wandb_histograms(sent.get("histograms", {}))}
        if options.get("beside"):  # the run's own steps are another process's: rows bring theirs
            run.log({**row, FOLLOW_STEP: sent["step"]})
            continue
        # wandb drops rows of earlier steps, such as the best step's test at the end of a run
        last_step = max(last_step, sent["step"])
        run.log(row, step=last_step)
    watchdog = threading.Timer(ORPHAN_LIMIT_S, lambda: os.killpg(0, signal.SIGKILL))
    watchdog.daemon = True  # for when there is nobody left to kill us
    watchdog.start()
    run.finish(exit_code=EXIT_CODES[status])


def to_wandb_histograms(histograms: Mapping[str, Any]) -> dict[str, Any]:
    """name -> (counts, edges), as wandb's own."""
    if not histograms:
        return {}
    import wandb

    return {n: wandb.Histogram(np_histogram=tuple(bins)) for n, bins in histograms.items()}


def start_run(options: Mapping[str, Any], say: Callable[[str], None]) -> Any:
    """The wandb run, offline if it cannot be had online."""
    if options["mode"] != "offline":
        try:
            return init_run(options, "online")
        except Exception as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            folder = Path(options["dir"]) / "wandb"
            say(f"offline ({first_line}); send it later: wandb sync {folder}/offline-run-*")
            import wandb

            wandb.teardown()  # the failed run would hold the id
    return init_run(options, "offline")


def init_run(options: Mapping[str, Any], mode: Literal["online", "offline"]) -> Any:
    import wandb

    settings: dict[str, Any] = {
        "init_timeout": START_LIMIT_S,
        "silent": True,
        "console": "off",
        # the run directory holds patch, command and versions; here they could leak a secret
        "disable_git": True,
        "disable_code": True,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_disable_stats": True,  # sampled every few seconds on cores that train
        "x_transaction_log_flush_interval": 1.0,  # else a kill loses the last 15 s of rows
    }
    if options.get("beside") and mode == "online":  # several writers of one run, this one no chief
        settings |= {"mode": "shared", "x_primary": False, "x_label": "follow"}
    known = wandb.Settings.model_fields  # those with x_ come and go between versions
    run = wandb.init(
        mode=None if "mode" in settings else mode,
        id=options["id"],
        resume="allow",
        dir=options["dir"],
        settings=wandb.Settings(**{k: v for k, v in settings.items() if k in known}),
        **{key: options[key] for key in ("project", "entity", "name", "config", "group")},
        job_type=options["job_type"],
        tags=options["tags"] or None,
    )
    if options.get("beside"):
        run.define_metric("follow/*", step_metric=FOLLOW_STEP)
    return run


if __name__ == "__main__":
    main()
