"""A sweep of stand-ins: in this process, or as `python -m tests.sweep.driver JSON` to be killed."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from runner.config.settings import SearchSettings
from runner.errors import UserError
from runner.machine.cores import usable_cores
from runner.sweep import forked_jobs
from runner.sweep.local_process import JOB_LOG_FILE, LocalProcess, job_command, job_environment
from runner.sweep.plan import CheckedJob, plan_sweep
from runner.sweep.run import SweepOptions, run_sweep
from runner.sweep.search import plan_search
from runner.sweep.space import read_space
from tests.sweep.stand_in import signature

LIGHT_SERVER = ("-c", "from runner.launch import fork_server as s; s.MODULES = (); s.main()")
STAND_IN = str(Path(__file__).with_name("stand_in.py"))


SEARCH = {f.name for f in fields(SearchSettings)} - {"space"}


def grid(**axes: Sequence) -> list[list[str]]:
    """Return overrides of each job, the last key varying fastest; `__` in a key means a dot."""
    keys = [key.replace("__", ".") for key in axes]
    lists = [v if isinstance(v, list | tuple | range) else [v] for v in axes.values()]
    return [[f"{k}={v}" for k, v in zip(keys, values)] for values in itertools.product(*lists)]


def search_run(
    directory: Path, space: Mapping, *, fixed=(), start=None, dry_run=False, rerun=False, **more
):
    """Run a search of stand-ins in this process; `more` has keys of the search and the launcher."""
    of_search = {k: more.pop(k) for k in list(more) if k in SEARCH}
    settings = SearchSettings(space=dict(space), **of_search)
    dimensions, _ = read_space(settings.space, [])
    check = checker(directory, more)
    options = SweepOptions(dry_run=dry_run, rerun=rerun, make_starter=start or stand_ins)
    plan, spec = plan_search(list(fixed), dimensions, settings, check)
    return run_sweep(plan, options, spec)


def checker(directory: Path, launcher: Mapping, direction: str = "max"):
    def check(overrides: Sequence[str]) -> CheckedJob:
        given = dict(o.split("=", 1) for o in overrides)
        if "bad" in given:
            raise UserError(f"bad={given['bad']}: there is no key 'bad'")
        config = {
            "seed": int(given.get("seed", 0)),
            "launcher": launcher,
            "checkpoint": {"monitor": {"metric": "validation/auc", "direction": direction}},
            "trainer": {"num_threads": given.get("trainer.num_threads"), "eval_every": 1},
            "metrics": {"eval": ["auc", "log_loss"], "train": []},
        }
        return CheckedJob(signature(overrides), "toy", config, str(directory))

    return check


def stand_ins(plan, flags, name):
    """Start stand-ins as the runner's own jobs are started."""
    threads = max(1, usable_cores() // plan.launcher.slots) if plan.launcher.slots > 1 else None

    def start(job, folder, slot):
        words = job_command(job, folder, flags, threads)[3:]
        env = dict(os.environ, **job_environment(plan, name))
        command = [sys.executable, "-I", "-S", STAND_IN, *words]
        return LocalProcess(command, folder / JOB_LOG_FILE, env)

    return start


def forked_stand_ins(plan, flags, name):
    """Start stand-ins as forks of a server that is the runner's own, but imports no libraries."""
    forked_jobs.SERVER = LIGHT_SERVER
    forks = forked_jobs.ForkedJobs(True)
    env = dict(os.environ, **job_environment(plan, name))

    def start(job, folder, slot):
        words = job_command(job, folder, flags, None)[3:]
        command = [sys.executable, "-m", "tests.sweep.stand_in", *words]
        return LocalProcess(command, folder / JOB_LOG_FILE, env, forks.starter(env, 1, 1))

    return start


class Empty:
    """A job that is done as soon as it is started, in the sweep's own process."""

    pid = 0

    def __init__(self, job, folder: Path) -> None:
        result = folder / "result.json"
        if result.exists():
            (folder / "started-though-completed").touch()
        meta = {"signature": job.signature, "overrides": job.overrides}
        (folder / "meta.json").write_text(json.dumps(meta))
        temporary = folder / ".result"
        done = {"status": "completed", "step": 1, "metrics": {"validation/auc": 0.5}}
        temporary.write_text(json.dumps(done))
        os.replace(temporary, result)

    def poll(self) -> int:
        return 0

    def fileno(self) -> int:
        return -1

    def send_signal(self, number: int) -> None: ...

    def kill(self) -> None: ...


def empty_jobs(plan, flags, name):
    return lambda job, folder, slot: Empty(job, folder)


def run(directory: Path, jobs, *, start=stand_ins, direction="max", dry_run=False, **launcher):
    """Run a sweep of stand-ins in this process and return its exit code."""
    check = checker(directory, launcher, direction)
    options = SweepOptions(dry_run=dry_run, make_starter=start)
    return run_sweep(plan_sweep(jobs, check), options)


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    starters = {"stand_ins": stand_ins, "forked": forked_stand_ins, "empty": empty_jobs}
    start = starters[request.pop("start", "stand_ins")]
    place, is_grid = Path(request.pop("directory")), "grid" in request
    try:
        if "space" in request:
            code = search_run(place, request.pop("space"), start=start, **request)
        else:
            code = run(place, grid(**request.pop("grid")), start=start, **request)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    if "torch" in sys.modules or ("optuna" in sys.modules and is_grid):
        code = 99
    sys.exit(code)
