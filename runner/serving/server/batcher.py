"""Scores waiting requests together in one thread, while others are read and answered."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from runner.serving.scorer import Scorer
from runner.serving.server.counters import WorkerCounters
from runner.serving.server.scoring import Outputs, Work, score_batch


@dataclass(frozen=True)
class Scored:
    """The outputs of a request, and the version of the model that gave all of them."""

    version: str
    outputs: Outputs
    index: str = ""  # the kind of index that found the nearest items; empty: none were asked for


@dataclass(frozen=True)
class _Waiting:
    work: Work
    result: asyncio.Future[Scored]


class Batcher:
    """A queue of requests, and the thread that scores them.

    Args:
        scorer: the model; deltas may be applied to it at any time.
        batch_rows: the most rows that requests are scored together with.
        wait_s: how long the first request of a batch waits for others.
    """

    def __init__(
        self, scorer: Scorer, *, batch_rows: int, wait_s: float, counters: WorkerCounters
    ) -> None:
        self.scorer = scorer
        self._batch_rows, self._wait_s = batch_rows, wait_s
        self._counters = counters
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._held: _Waiting | None = None  # did not fit into the batch before
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    @property
    def version(self) -> str:
        return self.scorer.version

    async def score(self, work: Work) -> Scored:
        """Wait until a request is scored.

        Raises:
            DataError: if a row of it cannot be scored.
        """
        waiting = _Waiting(work, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(waiting)
        return await waiting.result

    async def run(self) -> None:
        """Score batch after batch until this task is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                batch = await self._next_batch()
                version, index, answers = await loop.run_in_executor(
                    self._thread, self._score, [waiting.work for waiting in batch]
                )
                self._counters.add("batches")
                for waiting, answer in zip(batch, answers):
                    if waiting.result.done():  # its client is gone
                        continue
                    if isinstance(answer, Exception):
                        waiting.result.set_exception(answer)
                    else:
                        self._counters.add("rows", waiting.work.num_rows)
                        kind = index if waiting.work.top_k else ""
                        waiting.result.set_result(Scored(version, answer, kind))
        finally:
            self._thread.shutdown(wait=True)

    def _score(self, works: list[Work]) -> tuple[str, str, list[Outputs | Exception]]:
        scorer = self.scorer.snapshot()  # a delta may be applied meanwhile
        answers = score_batch(scorer, works)
        searched = any(w.top_k and not isinstance(a, Exception) for w, a in zip(works, answers))
        return scorer.version, scorer.index.kind if searched else "", answers

    async def _next_batch(self) -> list[_Waiting]:
        """Take the first request, and the following ones that fit and arrive in time."""
        loop = asyncio.get_running_loop()
        batch = [self._held or await self._queue.get()]
        self._held = None
        num_rows = batch[0].work.num_rows
        ends = loop.time() + self._wait_s
        while num_rows < self._batch_rows:
            if self._queue.empty() and not self._wait_s:
                break
            try:
                async with asyncio.timeout_at(ends if self._queue.empty() else None):
                    waiting = await self._queue.get()
            except TimeoutError:
                break
            num_rows += waiting.work.num_rows
            if num_rows > self._batch_rows:
                self._held = waiting
                break
            batch.append(waiting)
        return batch
