"""The process that mirrors a run while it trains, so that training never waits for a store.

It looks for a new checkpoint every second. Its standard input tells it to finish; it answers in
lines of JSON: when it has begun, and when all is uploaded. It ends with the run's process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from runner.distributed.parent_death import die_with_parent
from runner.errors import UserError
from runner.machine.imports import child_import_path
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.masked_streams import mask_standard_streams
from runner.rundir.mirror.push import MirrorWriter

LOOK_EVERY_S = 1.0
_FINISH = "finish\n"


class MirrorProcess:
    """Mirrors a run directory from its start until `finish`."""

    def __init__(self, folder: Path, url: str) -> None:
        """Start the process, and wait until it has written the first state.

        Raises:
            UserError: if the store refuses it.
        """
        self.url = url
        # -P, so that nothing in the working directory is imported in place of a library
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(folder), url],
            env=os.environ | {"PYTHONPATH": child_import_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C and a signal to the group are for the training
        )
        problem = self._answer()
        if problem:
            self.stop()
            raise UserError(problem)

    def finish(self) -> str:
        """Upload the last state; return why that failed, or an empty text."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_FINISH)
            self._process.stdin.flush()
        except BrokenPipeError:
            return "the process that mirrors the run is gone"
        problem = self._answer()
        self.stop()
        return problem

    def stop(self) -> None:
        """End the process, whatever it is doing; the mirror has its last complete state."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return str(json.loads(line)["problem"]) if line else "the process that mirrors it has died"


def main(parent: int, folder: Path, url: str) -> None:
    """Mirror the folder until standard input says to finish or ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent, signal.SIGKILL)
    mask_standard_streams()
    try:
        writer = MirrorWriter(folder, url)
        writer.push()
    except (UserError, OSError) as error:
        return _say(str(error))
    _say("")
    mirrored, failing = saved_steps(folder / "checkpoints"), False
    while not select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]:
        steps = saved_steps(folder / "checkpoints")
        if steps == mirrored and not failing:
            continue
        problem = _try_push(writer)
        if problem and not failing:
            print(f"checkpoint.mirror: {problem}; it is tried again", file=sys.stderr, flush=True)
        if failing and not problem:
            print(f"checkpoint.mirror: {url} is up to date again", file=sys.stderr, flush=True)
        mirrored, failing = steps, bool(problem)
    if sys.stdin.readline() == _FINISH:
        _say(_try_push(writer))


def _try_push(writer: MirrorWriter) -> str:
    try:
        writer.push()
    except (UserError, OSError) as error:
        return str(error)
    return ""


def _say(problem: str) -> None:
    print(json.dumps({"problem": problem}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
