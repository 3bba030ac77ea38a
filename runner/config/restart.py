"""The configuration for a command that torchrun restarts, with fewer or more ranks than before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.rundir.readers import read_optional_json
from runner.rundir.run_files import read_config


def config_before_restart(run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of the run that this same command line has started.

    The words of a command that torchrun repeats do not change when a node is lost, so its
    `trainer.batch_size` is for the number of ranks at the first start. The recorded configuration
    has the number of rows of an update.

    Returns:
        Nothing, if there is no run or another command has started it.

    Raises:
        UserError: if the configuration is damaged.
    """
    meta = read_optional_json(run_dir / "meta.json")
    same = meta.get("overrides") == list(overrides) and (run_dir / "config.yaml").is_file()
    return read_config(run_dir) if same else {}
