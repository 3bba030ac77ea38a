"""Weights & Biases, which runs in a process of its own (wandb_process.py).

In our process, wandb 0.31 would delay the start (import and `init` take 1.4 s, without a network
8 s), replace `sys.exit` and the exception hook, and wait in an exit handler for uploads that never
end if the network is lost. Another process may be slow, hang, crash and be killed without harm.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from runner.errors import UserError
from runner.machine.imports import child_import_path
from runner.metrics.names import TRAIN_EVALUATION
from runner.reporting.trackers.tracker import TRACKERS_FILE, Histogram, RunInfo
from runner.rundir.readers import read_optional_json
from runner.rundir.run_files import read_config, read_meta

FINISH_LIMIT_S = 20
NODE = "runner.reporting.trackers.wandb.WandB"
_EVALUATED = ("validation", "test", TRAIN_EVALUATION)


class WandB:
    """Tracks a run in Weights & Biases.

    The key comes from WANDB_API_KEY or `wandb login`, never from the configuration.

    Args:
        project: the project of the run.
        entity: the user or team; None for the default of the key.
        mode: online, offline, or auto, which is online if there is a key and the server answers,
            unless WANDB_MODE is offline or disabled.
        tags: tags of the run.
        notes: what the run is for, in words.
        artifact: best or last: that checkpoint becomes an artifact of type `model` when the run
            ends. It is a reference: hashes, sizes and place of the files, which are not uploaded.
            The checkpoint of a warm start is named as what it was made from.

    Raises:
        ValueError: if the mode or the artifact is unknown.
    """

    def __init__(
        self,
        *,
        project: str,
        entity: str | None = None,
        mode: Literal["auto", "online", "offline"] = "auto",
        tags: Sequence[str] = (),
        notes: str | None = None,
        artifact: Literal["best", "last"] | None = None,
    ) -> None:
        if mode not in ("auto", "online", "offline"):
            raise ValueError(f"tracker.wandb.mode={mode!r} must be auto, online or offline")
        if artifact not in (None, "best", "last"):
            raise ValueError(f"tracker.wandb.artifact={artifact!r} must be best, last or null")
        self._options = {"project": project, "entity": entity, "mode": mode, "tags": list(tags)}
        self._options["notes"] = notes
        self._artifact = artifact
        self._run_dir: Path | None = None  # folder of a run whose checkpoint becomes an artifact
        self._parent: Path | None = None  # source of the run's initial weights
        self._parts: dict[str, dict[str, float]] = {}  # split -> last metrics of tasks and slices
        self._id = ""
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._messages: deque[str] = deque()

    def start(self, run: RunInfo, state: Mapping[str, Any] | None) -> None:
        self._id = state["id"] if state else secrets.token_hex(4)
        if self._artifact is not None and not run.get("shared"):
            self._run_dir = Path(run["dir"])
            init = (run["config"].get("checkpoint") or {}).get("init_from")
            self._parent = Path(init) if init else None
        # without this, the telemetry of wandb can delay the end by 8 s
        env = {"WANDB_ERROR_REPORTING": "false"} | os.environ
        # -P, so that a folder `wandb` in the working directory is not imported as the library
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.reporting.trackers.wandb_process"],
            env=env | {"PYTHONPATH": child_import_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for us only, and one signal kills its children too
        )
        threading.Thread(target=self._write, daemon=True, name="wandb rows").start()
        self._reader = threading.Thread(target=self._read, daemon=True, name="wandb messages")
        self._reader.start()
        self._send(
            **self._options,
            id=self._id,
            name=run["name"],
            dir=str(run["dir"]),
            config=run["config"],
            group=run.get("group"),
            job_type=run.get("job_type"),
            shared=run.get("shared", False),
        )

    def log(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the process of wandb ended with code {self._process.returncode}")
        parts = {name: value for name, value in metrics.items() if "/" in name}
        if parts and split in _EVALUATED:
            self._parts[split] = parts
        self._send(step=step, row={f"{split}/{name}": value for name, value in metrics.items()})

    def log_histograms(self, split: str, step: int, histograms: Mapping[str, Histogram]) -> None:
        assert self._process is not None
        bins = {f"{split}/{name}": (h.counts, h.edges) for name, h in histograms.items()}
        self._send(step=step, row={}, histograms=bins)

    def state(self) -> dict[str, Any]:
        return {"id": self._id}

    def finish(self, status: str) -> None:
        if self._process is None:
            return
        self._send_tables()
        self._send_artifact()
        self._send(finish=status)
        self._lines.put(None)
        try:
            code = self._process.wait(FINISH_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._messages.append(
                f"not everything was sent within {FINISH_LIMIT_S} s; `wandb sync` sends the rest "
                "from the folder wandb in the run directory"
            )
        else:
            if code != 0:
                raise RuntimeError(f"the process of wandb ended with code {code}")
        if self._reader is not None:
            self._reader.join(1.0)  # its last messages

    def messages(self) -> list[str]:
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def _send_artifact(self) -> None:
        if self._run_dir is None or self._artifact is None:
            return
        from runner.rundir.find_checkpoint import find_checkpoint

        try:
            checkpoint = find_checkpoint(self._run_dir, self._artifact, warn=self._messages.append)
        except UserError as error:
            self._messages.append(f"no artifact: {error}")
            return
        parent = parent_artifact(self._parent) if self._parent else None
        self.log_folder(
            "checkpoint", "model", checkpoint.path, checkpoint.step, self._artifact, parent
        )

    def log_folder(
        self, name: str, kind: str, folder: Path, step: int, alias: str, parent: str | None
    ) -> None:
        """Log a folder as an artifact by reference.

        Args:
            name: of the artifact, before the run's id.
            alias: another name in addition to the step's.
            parent: the artifact that it was made from; None for none.
        """
        facts = {"name": name, "type": kind, "step": step, "alias": alias, "parent": parent}
        self._send(artifact=str(folder.absolute()), **facts)

    def _send_tables(self) -> None:
        """Send a table of the last metrics of tasks and slices of each evaluated split."""
        tables = {}
        for split, parts in self._parts.items():
            names = list(dict.fromkeys(key.partition("/")[0] for key in parts))
            places = list(dict.fromkeys(key.partition("/")[2] for key in parts))
            rows = [[place, *(parts.get(f"{n}/{place}") for n in names)] for place in places]
            tables[f"{split}/slices"] = [["slice", *names], rows]
        if tables:
            self._send(tables=tables)

    def _send(self, **line: Any) -> None:
        self._lines.put(json.dumps(line, default=str) + "\n")

    def _write(self) -> None:
        """Write lines in a thread, since a full pipe would block training."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            while (line := self._lines.get()) is not None:
                self._process.stdin.write(line)
                self._process.stdin.flush()
            self._process.stdin.close()
        except BrokenPipeError:
            return  # the process has ended, which log() sees by its exit code

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._messages.append(json.loads(line)["message"])


def parent_artifact(source: Path) -> str | None:
    """Return the name of the artifact of a run's checkpoint, if the run was tracked.

    Args:
        source: a run directory, of which it is the best one, or a checkpoint's own folder.
    """
    is_run = (source / TRACKERS_FILE).exists()
    run, alias = (source, "best") if is_run else (source.parent.parent, source.name)
    state = read_optional_json(run / TRACKERS_FILE).get("wandb") or {}
    return f"checkpoint-{state['id']}:{alias}" if state.get("id") else None


class TrackedExport:
    """The W&B run of a training, to which an export of it is added.

    Raises:
        UserError: if the run was not tracked by W&B.
    """

    def __init__(self, run: Path) -> None:
        options = dict((read_config(run).get("tracker") or {}).get("wandb") or {})
        self._state = read_optional_json(run / TRACKERS_FILE).get("wandb") or {}
        if options.pop("_target_", None) != NODE or not self._state.get("id"):
            raise UserError(
                f"export --wandb: {run} was not trained with tracker=wandb; leave --wandb out"
            )
        self._run = run
        self._tracker = WandB(**{**options, "artifact": None})

    def log(self, out: Path, step: int, say: Callable[[str], None]) -> None:
        """Log the exported folder by reference: hashes, sizes and place, nothing is uploaded."""
        name = str(read_meta(self._run).get("name") or self._run.name)
        # The folder of its files is a new one; the configuration is the run's, which W&B has.
        self._tracker.start({"name": name, "dir": self._run, "config": {}}, self._state)
        parent = parent_artifact(self._run / "checkpoints" / f"step-{step}")
        self._tracker.log_folder("export", "export", out, step, "latest", parent)
        self._tracker.finish("completed")
        for message in self._tracker.messages():
            say(message)
