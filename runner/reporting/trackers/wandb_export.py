"""An exported model as an artifact of the W&B run that trained it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner.errors import UserError
from runner.reporting.trackers.tracker import TRACKERS_FILE
from runner.reporting.trackers.wandb import WandB, parent_artifact
from runner.rundir.readers import read_optional_json
from runner.rundir.run_files import read_config, read_meta

NODE = "runner.reporting.trackers.wandb.WandB"


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
