"""Runs `python -m runner` in real processes without paying its imports each time.

One process imports everything, composes the defaults and computes nothing; each command is a fork
of it, a process of its own that may be killed. It speaks JSON lines on stdin and stdout. A script
that is such a fork gets a server of its own by one more fork, `fork_server`.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import pickle
import runpy
import signal
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from typing import TextIO

from runner.distributed.parent_death import stop_with_terminal

IMPORTED = (  # what a command imports
    "runner.training.builder",
    "runner.training.loops.debug",
    "runner.training.loops.evaluate",
    "runner.training.loops.train",
    "runner.models.dlrm",
)
is_warm = False  # whether this process, or that of which it is a fork, has imported it all
TINY = (
    "dataset.max_cardinality=200",
    "dataset.rows={train: 3000, validation: 500, test: 500}",
    "trainer.num_threads=1",
    "report=false",
    "trainer.batch_size=32",
    "trainer.log_every=7",
    "trainer.eval_every=11",
    "checkpoint.save_every=5",
    "trainer.max_steps=40",
    "model.net.bottom=[8]",
    "model.net.top=[8]",
    "model.net.embedding_dim=4",
)
SMALLEST = (
    "dataset.max_cardinality=20",
    "dataset.rows={train: 64, validation: 64, test: 64}",
    "trainer.batch_size=32",
    "trainer.max_steps=1",
    "trainer.num_threads=1",
    "report=false",
)


def serve() -> None:
    global is_warm
    import torch

    torch.set_num_threads(1)  # no pool of threads may exist when we fork
    for module in (*IMPORTED, *modules_of_a_run()):
        importlib.import_module(module)
    from runner.config.compose import compose_job
    from runner.config.composed_checks import check_composed
    from runner.config.targets import allowed_packages
    from runner.errors import UserError

    # What is composed, parsed and checked is kept, so that the forks need not do it again.
    check_composed(compose_job(TINY), allowed_packages(()))
    with suppress(UserError):
        compose_job(("trainer.no_such_key=1",))
    logging.getLogger().handlers.clear()  # what imports left; a fresh process has none yet
    is_warm = True
    gc.collect()
    gc.freeze()  # a fork's collector need not visit, and so copy, what was imported
    answer_requests()


def fork_server() -> tuple[int, TextIO, TextIO]:
    """Fork a server; return its process id, the pipe for requests and that with the answers."""
    assert is_warm and threading.active_count() == 1
    requests, ask = os.pipe()
    answers, answer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(requests)
        os.close(answer)
        return pid, os.fdopen(ask, "w"), os.fdopen(answers)
    try:
        os.dup2(requests, 0)
        os.dup2(answer, 1)
        for pipe in (requests, ask, answers, answer):
            os.close(pipe)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        answer_requests()
    finally:
        os._exit(0)


def answer_requests() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "ready" in request:
            answer = {}
        elif "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if pid == 0:
                become_runner(request)
            answer = {"pid": pid}
        print(json.dumps({**answer, "number": request["number"]}), flush=True)


def modules_of_a_run() -> list[str]:
    """Return the modules that a run imports on its way, as seen in a fork that trains."""
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        pid = os.fork()
        if pid == 0:
            request = {"output": os.devnull, "cwd": folder, "env": {}}
            become_runner({**request, "entry": "tests.zygote:run_and_tell", "args": [str(write)]})
        os.close(write)
        with os.fdopen(read, "rb") as answer:
            names = pickle.loads(answer.read())
        os.waitpid(pid, 0)
    return [name for name in names if name not in sys.modules]


def run_and_tell(words: list[str]) -> int:
    from runner.__main__ import main

    code = main([*SMALLEST, "hydra.run.dir=run"])
    imported = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None)]
    with os.fdopen(int(words[0]), "wb") as answer:
        pickle.dump(imported, answer)
    return code


def run_module(words: list[str]) -> int:
    """Run a module with its arguments, as `python -m` does."""
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    return 0


def become_runner(request: dict) -> None:
    """Never returns: exits with the command's exit code."""
    code = 70
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop_with_terminal()  # as `main` does for a command line of its own
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(request["cwd"])
        sys.path.insert(0, request["cwd"])  # as `python -m` does
        os.environ.update(request["env"])
        sys.argv = ["runner", *request["args"]]
        module, function = request.get("entry", "runner.__main__:main").split(":")
        code = getattr(importlib.import_module(module), function)(request["args"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as Python does at its end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
