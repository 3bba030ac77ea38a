"""Measures oneDNN's matrix products beside PyTorch's own: updates of each model, in turns.

    python -m bench.products [--pairs 6] [--updates 2] [--rows 4096] [MODEL ...]

A training takes oneDNN's on AMD's CPUs with AVX-512 (`runner.models.layers.linear`). Each model has
the settings of its YAML; models of histories have a quarter of the rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from bench.models import HISTORY, OF_HISTORIES, ROWS, names
from bench.norms import measure
from bench.paired import alternate, machine, turns_parser, turns_row


def main(arguments: Sequence[str]) -> int:
    """Print a row of a table for each model."""
    given = turns_parser(__doc__ or "", pairs=6, updates=2, rows=ROWS).parse_args(arguments)
    print("| model | oneDNN, ms | PyTorch, ms | ratio | 95% interval |\n|---|---|---|---|---|")
    for name in given.models or names():
        ours, plain = (_measure(name, given, takes_onednn=takes) for takes in (True, False))
        print(turns_row(name, alternate(ours, plain, given.pairs), given.updates), flush=True)
    print(machine(1))
    return 0


def _measure(name: str, given: argparse.Namespace, *, takes_onednn: bool) -> Callable[[], float]:
    """Return a function that times the updates of a turn with one of both kinds of products."""
    from runner.models.layers import linear

    rows = given.rows // 4 if name in OF_HISTORIES else given.rows
    total = (given.pairs + 2) * given.updates * rows
    words = [f"model={name}", *(HISTORY if name in OF_HISTORIES else ())]
    words += [f"dataset.rows={{train: {total}, validation: 0, test: 0}}", "trainer.eval_every=null"]
    words += [f"trainer.batch_size={rows}", "trainer.num_threads=1"]
    chunk = measure(words, given.updates)

    def timed() -> float:
        linear.has_faster_onednn = lambda: takes_onednn  # type: ignore[assignment]
        return chunk()

    return timed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
