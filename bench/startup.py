"""How long a person waits: imports, composing, the first update, a mistake, `--help`.

    python -m bench.startup [--repeats 11] [--only help,mistake]

Every number is of whole processes, started anew each time, all kinds in turns. `beyond` is the time
to the end of the first update less that of a process that only imports torch and torchrec, taken
in pairs. A first process of each kind does not count: it prepares the data and compiles the
modules, as the first run of a day does. Processor time is that of the process and its children.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.paired import SHOWN, Estimate, estimate, machine, shown, table
from runner.config.locations import PROJECT

HEAVY = "import torch, torchrec"
OURS = (
    f"import time; {HEAVY}; began = time.perf_counter(); "
    "import runner.training.builder, runner.reporting.console; "
    "print('took', time.perf_counter() - began)"
)
COMPOSE = (
    "import time; began = time.perf_counter(); from runner.config.compose import compose_job; "
    "compose_job([]); print('took', time.perf_counter() - began)"
)
FIRST_STEP = ("--allow", "bench", "task._target_=bench.first_step.FirstStep")


@dataclass(frozen=True)
class Took:
    """Times of one process; `wall_s` ends with the process, or with what it printed."""

    wall_s: float
    cpu_s: float
    output: str


@dataclass(frozen=True)
class Kind:
    """One kind of process that is timed."""

    said: str
    command: Sequence[str]
    exit_code: int = 0
    at_most_s: float | None = None  # the target, where there is one
    wall_s: Callable[[Took, float], float] = lambda took, began_s: took.wall_s


def printed(took: Took, began_s: float) -> float:
    found = re.search(r"took (\S+)", took.output)
    assert found, took.output
    return float(found[1])


def first_update(took: Took, began_s: float) -> float:
    found = re.search(r"first step (\S+) (\S+)", took.output)
    assert found, took.output
    return float(found[2]) - began_s


def kinds(folder: Path) -> dict[str, Kind]:
    runner = ("-m", "runner")
    first = (*runner, *FIRST_STEP, f'hydra.run.dir="{folder}/{{time}}_{{signature}}"')
    return {
        "torch": Kind("import torch", ("-c", "import torch")),
        "heavy": Kind("import torch and torchrec", ("-c", HEAVY)),
        "ours": Kind("import our modules, after these", ("-c", OURS), wall_s=printed),
        "compose": Kind("import Hydra and compose", ("-c", COMPOSE), wall_s=printed),
        "first": Kind("end of the first update", first, wall_s=first_update),
        "mistake": Kind(
            "a mistake in the configuration", (*runner, "optimizr=adam"), exit_code=2, at_most_s=1.0
        ),
        "help": Kind("--help", (*runner, "--help"), at_most_s=0.5),
        "cfg": Kind("--cfg job", (*runner, "--cfg", "job"), at_most_s=0.5),
        "ls": Kind("ls", (*runner, "ls"), at_most_s=0.5),
    }


def run(kind: Kind, bytecode: Path) -> Took:
    """Time one fresh process.

    Raises:
        RuntimeError: if its exit code is not the expected one.
    """
    env = dict(os.environ, PYTHONPYCACHEPREFIX=str(bytecode))
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # containers set it; every start would compile torch
    began_s = time.time()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *kind.command],
            cwd=PROJECT,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.time() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode != kind.exit_code:
        raise RuntimeError(f"{kind.said}: exit code {process.returncode}\n{text}")
    took = Took(wall_s, used.ru_utime + used.ru_stime, text)
    return Took(kind.wall_s(took, began_s), took.cpu_s, text)


def report(kinds: dict[str, Kind], times: dict[str, list[Took]]) -> str:
    rows = []
    for name, kind in kinds.items():
        wall = estimate([took.wall_s for took in times[name]])
        cpu = estimate([took.cpu_s for took in times[name]])
        rows.append(row(kind.said, wall, cpu, kind.at_most_s))
    if {"first", "heavy"} <= kinds.keys():
        pairs = list(zip(times["first"], times["heavy"], strict=True))
        beyond = estimate([ours.wall_s - heavy.wall_s for ours, heavy in pairs])
        cpu = estimate([ours.cpu_s - heavy.cpu_s for ours, heavy in pairs])
        rows.append(row("first update, beyond importing torch and torchrec", beyond, cpu, 1.0))
    return table(("seconds, of fresh processes", *SHOWN, "cpu, median", "at most", ""), rows)


def row(said: str, wall: Estimate, cpu: Estimate, at_most_s: float | None) -> list[str]:
    target = ["", ""]
    if at_most_s is not None:
        target = [f"{at_most_s:.1f}", wall.verdict(at_most=at_most_s)]
    return [said, *shown(wall, digits=2), f"{cpu.median:.2f}", *target]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.startup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    with tempfile.TemporaryDirectory() as folder:
        every = kinds(Path(folder) / "runs")
        parser.add_argument("--repeats", type=int, default=11)
        parser.add_argument("--only", default=",".join(every), help="kinds, with commas between")
        options = parser.parse_args(argv)
        chosen = {name: every[name] for name in options.only.split(",")}
        print(machine("default"), flush=True)
        times: dict[str, list[Took]] = {name: [] for name in chosen}
        for kind in chosen.values():
            run(kind, Path(folder) / "bytecode")
        for _ in range(options.repeats):
            for name, kind in chosen.items():
                times[name].append(run(kind, Path(folder) / "bytecode"))
    print(report(chosen, times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
