"""`python -m runner` on a machine whose wall clock jumps, by days and years, back and forth.

Entry `tests.whole.jumping_clock:main` of `tests.zygote`; CLOCK_SEED in the environment. The clocks
that never jump (`time.monotonic`, `time.perf_counter`) stay as they are, as on a real machine.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence

JUMPS_S = (-(30 * 365 * 86400), -86400, -3600, -1, 1, 3600, 86400, 10 * 365 * 86400)


def main(argv: Sequence[str] | None = None) -> int:
    dice = random.Random(int(os.environ["CLOCK_SEED"]))
    real, localtime, gmtime, strftime = time.time, time.localtime, time.gmtime, time.strftime
    offset_s = 0.0

    def jumping() -> float:
        nonlocal offset_s
        if dice.random() < 0.3:
            offset_s = float(dice.choice(JUMPS_S))
        return max(1.0, real() + offset_s)

    time.time = jumping
    time.time_ns = lambda: int(jumping() * 1e9)
    time.localtime = lambda s=None: localtime(jumping() if s is None else s)
    time.gmtime = lambda s=None: gmtime(jumping() if s is None else s)
    time.strftime = lambda text, t=None: strftime(text, localtime(jumping()) if t is None else t)
    from runner.__main__ import main as run

    return run(argv)
