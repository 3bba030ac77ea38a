"""Ends a training before the time that the machine is lent for is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

from runner.config.intervals import parse_interval
from runner.config_key import Key
from runner.errors import ConfigError

Duration = Annotated[
    str, Key(pattern=r"0*[1-9]\d* ?(s|min|h)", note="a time, such as '90s', '30min' or '6h'")
]


class TimeLimit:
    """Saves and leaves as at SIGTERM, so that the resumed run equals one never interrupted.

    It leaves `margin` before the limit, and earlier by the longest time that has passed between
    two updates so far, evaluations and saves included, since the next one may take as long.

    Args:
        limit: a duration, counted from when the job is built, which is seconds after the start of
            the process. A resumed run has the whole of it again.

    Raises:
        ConfigError: if a duration is malformed, or the margin is not below the limit.
    """

    stateless = True  # the limit is that of this process

    def __init__(
        self,
        *,
        limit: Duration,
        margin: Duration = "1min",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_s, self.margin_s = parse_seconds("limit", limit), parse_seconds("margin", margin)
        if self.margin_s >= self.limit_s:
            raise ConfigError(f"margin={margin}: must be less than limit={limit}")
        self.clock = clock
        self.text = limit
        self.began_s = clock()
        self.last_s = self.longest_s = 0.0

    def on_run_start(self, training: Any) -> None:
        self.last_s = self.clock()

    def on_update(self, training: Any, output: Any) -> None:
        now_s = self.clock()
        self.longest_s = max(self.longest_s, now_s - self.last_s)
        self.last_s = now_s
        left_s = self.limit_s - (now_s - self.began_s)
        if left_s <= self.margin_s + self.longest_s:
            training.pause(f"time_limit: {max(left_s, 0):,.0f} s of {self.text} are left")


def parse_seconds(key: str, value: int | str) -> int:
    """Return the seconds of a duration such as '30min'.

    Raises:
        ConfigError: if the value is not a duration.
    """
    duration = parse_interval(value, key=key, allow_time=True)
    if duration is None or duration.unit != "seconds":
        raise ConfigError(f"{key}={value}: must be a time, such as '90s', '30min' or '6h'")
    return duration.count
