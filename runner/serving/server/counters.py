"""Counts answers over all workers, for `/metrics` in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context

import numpy as np

CODES = (200, 400, 404, 408, 413, 415, 500, 503)  # the codes of all answers to inferences
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_VERSION_BYTES = 64
_NUMBERS = (
    *(f"code_{code}" for code in CODES),
    *(f"bucket_{n}" for n in range(len(BUCKETS_S) + 1)),
    *("seconds", "rows", "batches", "deltas", "delta_errors", "in_flight", "up"),
)
_COUNTERS = {
    "rows": "Rows that were scored.",
    "batches": "Batches that were scored, each of one or more requests.",
    "deltas": "Deltas that were applied, by each worker.",
    "delta_errors": "Deltas that could not be applied.",
}
_PLACES = {name: place for place, name in enumerate(_NUMBERS)}


class Counters:
    """Numbers that each worker writes in a row of its own, and every worker can read.

    It can be handed to processes that are started, and outlives a worker that ends.
    """

    def __init__(self, num_workers: int) -> None:
        context = get_context("spawn")
        self._numbers = context.RawArray("d", num_workers * len(_NUMBERS))
        self._versions = context.RawArray("c", num_workers * _VERSION_BYTES)
        self._num_workers = num_workers

    def row(self, worker: int, version: str) -> WorkerCounters:
        """Return the row of a worker, for the process that is this worker at present."""
        counters = WorkerCounters(self._table[worker], self._version_table[worker : worker + 1])
        counters.set("in_flight", 0)
        counters.set_version(version)
        return counters

    def is_up(self, worker: int) -> bool:
        """Return whether a worker answers; it stays true after its end until `set_down`."""
        return bool(self._table[worker, _PLACES["up"]])

    def set_down(self, worker: int) -> None:
        """Record that a worker has ended."""
        self._table[worker, [_PLACES["in_flight"], _PLACES["up"]]] = 0

    @property
    def _table(self) -> np.ndarray:
        return np.frombuffer(self._numbers, np.float64).reshape(self._num_workers, -1)

    @property
    def _version_table(self) -> np.ndarray:
        return np.frombuffer(self._versions, f"S{_VERSION_BYTES}")

    def text(self, model: str) -> str:
        """Return all numbers, added up over the workers."""
        total = dict(zip(_NUMBERS, self._table.sum(axis=0).tolist()))
        is_up = self._table[:, _PLACES["up"]] > 0
        versions = [v.decode() for v in self._version_table[is_up].tolist()]
        lines: list[str] = []
        lines += _metric("requests_total", "counter", "Inference requests by status code.")
        lines += [f'runner_requests_total{{code="{c}"}} {total[f"code_{c}"]:.0f}' for c in CODES]
        for name, about in _COUNTERS.items():
            lines += _metric(f"{name}_total", "counter", about)
            lines.append(f"runner_{name}_total {total[name]:.0f}")
        lines += _metric("queue_depth", "gauge", "Requests that are read, wait or are scored.")
        lines.append(f"runner_queue_depth {total['in_flight']:.0f}")
        lines += _metric("model_info", "gauge", "Workers that serve a version of the model.")
        for version in sorted(set(versions)):
            labels = f'model="{model}",version="{version}"'
            lines.append(f"runner_model_info{{{labels}}} {versions.count(version)}")
        lines += _metric(
            "request_seconds", "histogram", "Time from a request's head to its answer."
        )
        lines += _histogram(total)
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP runner_{name} {about}", f"# TYPE runner_{name} {kind}"]


def _histogram(total: dict[str, float]) -> Iterator[str]:
    count = 0.0
    for n, bound in enumerate((*BUCKETS_S, "+Inf")):
        count += total[f"bucket_{n}"]
        yield f'runner_request_seconds_bucket{{le="{bound}"}} {count:.0f}'
    yield f"runner_request_seconds_sum {total['seconds']:.6f}"
    yield f"runner_request_seconds_count {count:.0f}"


class WorkerCounters:
    """The row of one worker. Only its event loop writes it.

    Args:
        numbers: float64, a place for each of `_NUMBERS`.
        version: [1], bytes.
    """

    def __init__(self, numbers: np.ndarray, version: np.ndarray) -> None:
        self._numbers, self._version = numbers, version

    def get(self, name: str) -> float:
        return float(self._numbers[_PLACES[name]])

    def set(self, name: str, value: float) -> None:
        self._numbers[_PLACES[name]] = value

    def add(self, name: str, value: float = 1.0) -> None:
        self._numbers[_PLACES[name]] += value

    def observe(self, code: int, seconds: float) -> None:
        """Count an answer and its latency."""
        self.add(f"code_{code}")
        self.add(f"bucket_{int(np.searchsorted(BUCKETS_S, seconds))}")
        self.add("seconds", seconds)

    def set_version(self, version: str) -> None:
        self._version[0] = version.encode()
