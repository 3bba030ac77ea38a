"""What a command goes on with when torchrun starts it again, on fewer or more ranks than before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.rundir.readers import read_optional_json
from runner.rundir.run_files import read_config


def config_before_restart(run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of the run that this same command line has begun.

    The words of a command that torchrun repeats do not change when a node is lost, so that its
    `trainer.batch_size` is of as many ranks as there were at the first start. The recorded
    configuration says how many rows an update has.

    Args:
        run_dir: of the command.
        overrides: of the command.

    Returns:
        Nothing, if there is no run or another command has begun it.

    Raises:
        UserError: if the configuration is damaged.
    """
    meta = read_optional_json(run_dir / "meta.json")
    same = meta.get("overrides") == list(overrides) and (run_dir / "config.yaml").is_file()
    return read_config(run_dir) if same else {}
