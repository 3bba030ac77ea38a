"""Measures whether a CPU is slow with FBGEMM's kernel of row-wise Adagrad.

The machine code that FBGEMM writes for a row (src/SparseAdagrad.cc in its sources) has `movss`,
`divss` and `sqrtss` of SSE among instructions of AVX. Some processors save and restore the upper
halves of their registers at each change between the two: an Intel CPU with AMX takes 380 ns longer
for a row, of whatever width.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache

import torch

from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.interface import TableSpec, make_layout
from runner.machine.cores import cpu_name
from runner.optim.settings import SparseSettings

SLOW_FROM_S = 120e-9  # a row; our own row updates take 60 to 120 ns
_NUM_ROWS, _WIDTH = 512, 8
_REPEATS = 5


def prefers_fbgemm(kind: str, specs: Iterable[TableSpec]) -> bool:
    """Return whether FBGEMM's CPU kernel of an optimizer updates tables, and not our own code.

    Of row-wise Adagrad both give the same bits, so that the faster one may, but for a table that
    several features share: for such tables the processor's name decides, since a busy machine can
    measure either and a resume could differ by rounding. Adagrad is scalar code in FBGEMM, which
    takes 1.1 to 1.5 times as long as ours.
    """
    if kind != "rowwise_adagrad":
        return kind == "sgd"
    if any(len(spec.features) > 1 for spec in specs):
        return "AMD" in cpu_name()
    return adagrad_row_s() < SLOW_FROM_S


@cache
def adagrad_row_s() -> float:
    """Return by how many seconds an update of a row by row-wise Adagrad is longer than by SGD.

    It is measured once in a process, in some five milliseconds, by the processor time of one
    thread, so that others on the machine do not count.
    """
    ids, offsets = torch.arange(_NUM_ROWS), torch.arange(_NUM_ROWS + 1)
    layout = make_layout([TableSpec("probe", _NUM_ROWS, _WIDTH, ("ids",))], ["ids"], by_dim=False)
    num_threads, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for kind in ("sgd", "rowwise_adagrad"):
            tables = FbgemmTables(layout, SparseSettings(kind, lr=0.01), torch.device("cpu"))
            seconds.append(min(_update_s(tables, ids, offsets) for _ in range(_REPEATS)))
    finally:
        torch.set_num_threads(num_threads)
    sgd_s, adagrad_s = seconds
    return (adagrad_s - sgd_s) / _NUM_ROWS


def _update_s(tables: FbgemmTables, ids: torch.Tensor, offsets: torch.Tensor) -> float:
    pooled_BE = tables._look_up(ids, offsets, None)
    gradient_BE = torch.ones_like(pooled_BE)
    begin = time.thread_time()
    pooled_BE.backward(gradient_BE)  # type: ignore[no-untyped-call]
    return time.thread_time() - begin
