"""Fault 14: one of two ranks is killed or stopped in a step, a collective or a checkpoint.

`python -m tests.distributed.faults` prints a table of 60 trials. FAULT_SEED in the environment is
the seed of their moments, and TRACE_PIPELINE a pipeline, such as sparse_dist. A trial ends well if
all ranks end within the timeout, no process is left, and the resumed run equals one without a
fault.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import TINY, Process, Zygote
from tests.data.faults import own_cache
from tests.fault_table import Table, count_faults
from tests.reliability.cases import fault_seed
from tests.whole.compare_runs import differences

POINTS = ("step", "collective", "checkpoint")
FAULTS = {"killed": "TRACE_KILL", "stopped": "TRACE_STOP"}
TIMEOUT_S = 8  # after which a rank that waits for another fails
GONE_WITHIN_S = TIMEOUT_S + 52  # with the grace for ranks that hang, on a busy machine
SETTINGS = (
    *TINY,
    "dataset.rows={train: 3011, validation: 501, test: 500}",
    "trainer.max_steps=30",
    "trainer.batch_size=30",
    "trainer.accumulate=2",
    "trainer.num_processes=2",
    "sharding=row_wise",
    f"trainer.rank_timeout_s={TIMEOUT_S}",
)
TRACED = ("--allow", "tests", "task._target_=tests.distributed.traced.Traced")


@dataclass(frozen=True)
class Trial:
    fault: str
    point: str
    rank: int
    count: int


def trials(number: int, seed: int, counts: Sequence[Mapping[str, int]]) -> list[Trial]:
    """Return every fault at every point on both ranks in turn, each at a random time.

    Args:
        number: of trials.
        seed: of their times.
        counts: for each rank, how often it reaches each point in a run without a fault.
    """
    rng = random.Random(seed)
    kinds = [(f, p, r) for p in POINTS for f in FAULTS for r in (0, 1)]
    chosen = [kinds[i % len(kinds)] for i in range(number)]
    return [Trial(f, p, r, rng.randint(1, counts[r][p])) for f, p, r in chosen]


def count_points(runner: Zygote, untouched: Path) -> list[dict[str, int]]:
    """Train without a fault; return for each rank how often it reached each point."""
    process = start(runner, untouched, TRACE_COUNTS=f"{untouched}.counts")
    assert process.wait() == 0, f"the run without a fault fails: {process.text}"
    return [json.loads(Path(f"{untouched}.counts.{rank}").read_text()) for rank in (0, 1)]


def start(runner: Zygote, folder: Path, **env: str) -> Process:
    env = {"TRACE_FILE": f"{folder}.trace", **env}
    pipeline = f"trainer.pipeline={os.environ.get('TRACE_PIPELINE', 'auto')}"
    return runner.start(*TRACED, *SETTINGS, pipeline, f"hydra.run.dir={folder}", env=env)


def outcome(runner: Zygote, trial: Trial, folder: Path, untouched: Path) -> str:
    """Return `well`, `not reached` (the run ended before the fault), or what was wrong."""
    at = f"{trial.rank}:{trial.count}" + ("" if trial.point == "step" else f":{trial.point}")
    began = time.monotonic()
    process = start(runner, folder, **{FAULTS[trial.fault]: at})
    code = process.wait()
    took_s = time.monotonic() - began
    remaining = rank_pids(folder)
    if remaining:
        return f"left {len(remaining)} processes"
    if code == 0:
        same = not differences(folder, untouched)
        return "not reached" if same else "ended well with another result"
    if code != 1:
        return f"exit code {code}: {process.text[-300:]}"
    if took_s > GONE_WITHIN_S + 60:  # 60: the part of the run that came before
        return f"gone after {took_s:.0f} s"
    resumed = start(runner, folder)
    if resumed.wait() != 0:
        return f"resume failed: {resumed.text[-300:]}"
    found = differences(folder, untouched)
    return f"resume differs: {found[:3]}" if found else "well"


def rank_pids(folder: Path) -> list[int]:
    """Return the process ids of a run's ranks, which have its trace file in their environment."""
    name, pids = f"TRACE_FILE={folder}.trace".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and name in (process / "environ").read_bytes():
                pids.append(int(process.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return pids


def lost_ranks(table: Table, top: Path, *, short: bool) -> None:
    """Kill or stop a rank; the pipeline is that of TRACE_PIPELINE."""
    table.fault = "14: a rank of two is lost"
    runner, untouched = table.runner(), top / "untouched"
    counts = count_points(runner, untouched)
    for number, trial in enumerate(trials(1 if short else 60, fault_seed(), counts)):

        def judged(number: int = number, trial: Trial = trial) -> str:
            found = outcome(runner, trial, top / f"trial-{number}", untouched)
            assert found in ("well", "not reached"), found
            return f"{trial.fault} in a {trial.point}: {found}"

        table.judge(str(trial), judged)


if __name__ == "__main__":
    sys.exit(count_faults({"lost_ranks": lost_ranks}, __doc__, around=own_cache))
