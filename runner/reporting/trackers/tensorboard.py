"""TensorBoard event files in the run directory: `tensorboard --logdir outputs`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from runner.config_key import Key
from runner.reporting.trackers.tracker import Histogram, RunInfo

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Writes scalars as `split/metric` and histograms as `split/name`.

    A resumed run hides what the killed run wrote after its checkpoint.

    Args:
        flush_every_s: seconds between writes to disk.
    """

    def __init__(self, *, flush_every_s: Annotated[int, Key(ge=1)] = 30) -> None:
        self._flush_every_s = flush_every_s
        self._writer: SummaryWriter | None = None

    def start(self, run: RunInfo, state: Mapping[str, Any] | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(run["dir"]) / "tensorboard"
        resumed = any(folder.glob("events.*"))
        self._writer = SummaryWriter(
            str(folder),
            purge_step=run.get("step", 0) + 1 if resumed else None,
            max_queue=1000,  # a full queue would block training
            flush_secs=self._flush_every_s,
        )
        if not resumed:
            config = json.dumps(run["config"], indent=2, default=str)
            self._writer.add_text("config", "    " + config.replace("\n", "\n    "), 0)

    def log(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        assert self._writer is not None
        for name, value in metrics.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)

    def log_histograms(self, split: str, step: int, histograms: Mapping[str, Histogram]) -> None:
        assert self._writer is not None
        for name, histogram in histograms.items():
            self._writer.add_histogram_raw(
                f"{split}/{name}",
                min=histogram.edges[0],
                max=histogram.edges[-1],
                num=sum(histogram.counts),
                sum=histogram.total,
                sum_squares=histogram.sum_squares,
                bucket_limits=list(histogram.edges[1:]),
                bucket_counts=list(histogram.counts),
                global_step=step,
            )

    def state(self) -> dict[str, Any]:
        assert self._writer is not None
        self._writer.flush()  # a run that is killed later resumes here, with all points so far
        return {}

    def finish(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()

    def messages(self) -> list[str]:
        return []
