"""The inputs of the builder, and how it makes a part of a job from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from runner.config.settings import TrainerSettings
from runner.reporting.console import View
from runner.rundir.run import Run
from runner.training.builder.instantiate import instantiate
from runner.training.builder.part_kinds import KINDS


@dataclass(frozen=True)
class JobInputs:
    """The configuration of a job, and where it is built."""

    config: Mapping[str, Any]  # resolved and checked, plain dictionaries
    trainer: TrainerSettings  # of its group `trainer`
    device: torch.device  # of this rank
    run: Run | None  # the open run directory; None for loops that write nothing
    view: View  # shows the progress of the job
    allowed: tuple[str, ...] = ()  # packages that a `_target_` may name besides ours

    def make_part(self, kind: str, node: Mapping[str, Any], key: str = "", **more: Any) -> Any:
        """Call the target of a node, see `instantiate`; the default of its key is the kind's.

        Raises:
            UserError: for a part of another kind, or one that refuses its settings.
        """
        return instantiate(node, KINDS[kind], key=key or kind, allowed=self.allowed, **more)
