"""The speed of updates, and the share of the time that is spent outside them."""

from __future__ import annotations

import time
from statistics import median
from typing import Annotated, Any

from runner.config.intervals import parse_interval
from runner.config_key import Key
from runner.config_value import check_arguments


class Throughput:
    """Writes a row of perf.jsonl about speed at each interval.

    The row holds examples and updates a second over all ranks, the median, 95th percentile and
    largest time of an update, and the share of wall time that was spent outside updates (in logs,
    evaluations and saves).

    Args:
        warn_below: warn when the speed is below this share of the fastest interval; 0: never.
    """

    stateless = True  # the speed of another process, perhaps on another machine, does not compare

    def __init__(
        self,
        *,
        every: Annotated[int | str, Key(interval="progress or time")] = 100,
        warn_below: Annotated[float, Key(ge=0, le=1, note="0: never")] = 0.5,
    ) -> None:
        check_arguments(Throughput.__init__, locals())
        self.every = parse_interval(every, key="every", allow_time=True)
        self.warn_below = warn_below
        self.updates_s: list[float] = []
        self.best = 0.0  # examples a second
        self.examples, self.began_s = 0, 0.0  # at the start of the interval

    def on_run_start(self, training: Any) -> None:
        self._begin(training)

    def on_update(self, training: Any, output: Any) -> None:
        self.updates_s.append(training.now.active_s - training.before.active_s)
        if training.due(self.every):
            self._report(training)
            self._begin(training)

    def _begin(self, training: Any) -> None:
        self.updates_s, self.examples = [], training.state.examples
        self.began_s = time.monotonic()

    def _report(self, training: Any) -> None:
        ordered = sorted(self.updates_s)
        active_s = max(sum(ordered), 1e-9)
        wall_s = max(time.monotonic() - self.began_s, active_s)
        speed = (training.state.examples - self.examples) / active_s
        training.log_speed(
            {
                "throughput/examples_per_s": speed,
                "throughput/updates_per_s": len(ordered) / active_s,
                "throughput/update_s_median": median(ordered),
                "throughput/update_s_p95": ordered[int(0.95 * (len(ordered) - 1))],
                "throughput/update_s_max": ordered[-1],
                "throughput/outside_updates": 1 - active_s / wall_s,
            }
        )
        if speed < self.warn_below * self.best:
            training.warn(
                f"step {training.step:,}: throughput: {speed:,.0f} examples/s, "
                f"{speed / self.best:.0%} of the best so far ({self.best:,.0f}); "
                "trainer.profile.updates=20 records what takes the time"
            )
        self.best = max(self.best, speed)
