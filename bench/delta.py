"""A delta beside a whole export: processor time, bytes, and how long a scorer takes to go on to it.

    python -m bench.delta [--updates 20] [overrides]

Trains the default model shortly on generated rows, and exports its last checkpoint whole and as a
delta on one that is so many updates older. Both are checked against the evaluation, which is most
of their time; a training that delivers leaves that out, and writes in a thread.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.export import SMALL
from bench.paired import machine


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for the whole export, for the delta, and for a scorer that takes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=20)
    given, overrides = parser.parse_known_args(argv)
    from runner.rundir.checkpoint import open_checkpoint
    from runner.serving.artifact.folder import open_artifact
    from runner.serving.artifact.weights import read_artifact_weights
    from runner.serving.export.delta_write import find_difference
    from runner.serving.scorer import Scorer

    print(machine(1))
    with tempfile.TemporaryDirectory() as name:
        run, base, whole, delta = (Path(name) / n for n in ("run", "base", "whole", "delta"))
        words = [f"hydra.run.dir={run}", f"checkpoint.save_every={given.updates}"]
        _run([*SMALL, *overrides, *words, "checkpoint.keep=2"])
        last = max(int(p.name.removeprefix("step-")) for p in (run / "checkpoints").glob("step-*"))
        before = last - given.updates
        open_checkpoint(run / "checkpoints" / f"step-{before}")
        _run(["export", str(run), "--out", str(base), f"checkpoint.step={before}"])
        at = f"checkpoint.step={last}"
        jobs = {whole: [], delta: ["--since", str(base)]}
        for out, since in jobs.items():
            started = time.perf_counter()
            _run(["export", str(run), "--out", str(out), *since, at])
            seconds = time.perf_counter() - started
            size = sum(p.stat().st_size for p in out.iterdir()) / 1e6
            print(f"{out.name}: {size:.2f} MB, {seconds:.1f} s with its evaluation", flush=True)
        weights, newer = (read_artifact_weights(open_artifact(p)) for p in (base, whole))
        print(f"difference: {_processor_ms(lambda: find_difference(weights, newer)):.0f} ms")
        scorer = Scorer.load(base)
        print(f"taken by a scorer: {_processor_ms(lambda: scorer.apply_delta(delta)):.0f} ms")
    return 0


def _processor_ms(call: object) -> float:
    assert callable(call)
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1e3


def _run(words: Sequence[str]) -> None:
    command = [sys.executable, "-m", "runner", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
