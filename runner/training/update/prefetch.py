"""Batches on their way to the device, the next one copied while this one is learnt from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import torch

from runner.batch import Batch
from runner.training.update.context import Context

T = TypeVar("T")
PREFETCH_DEPTH = 1  # batches under way beside the one that is learnt from

FinishCopy = Callable[[], Batch]


def batches_on_device(
    context: Context, batches: Iterator[Batch], *, allow_prefetch: bool = True
) -> Generator[Batch, None, None]:
    """Collective where ids travel. The same batches, on the device, by the job's pipeline.

    Args: allow_prefetch: whether any batch may be on its way before the one in front of it was returned.
    """
    if allow_prefetch and context.sparse_dist is not None:
        return context.sparse_dist.batches(batches)
    return copy_to_device(
        batches,
        context.device,
        depth=PREFETCH_DEPTH if allow_prefetch and context.prefetch_to_device else 0,
    )


def copy_to_device(
    batches: Iterator[Batch], device: torch.device, *, depth: int = PREFETCH_DEPTH
) -> Generator[Batch, None, None]:
    """The same batches, in the same order, on the device.

    On CUDA from pinned memory by a stream of its own, so that copies run beside kernels; the
    training stream waits for a batch's copy only. A batch carries its own position in the stream,
    so that one that is under way when a checkpoint is written is not counted as seen.
    """
    if device.type == "cpu":
        yield from batches
        return
    copies = torch.cuda.Stream(device)

    def begin(batch: Batch) -> FinishCopy:
        pinned = batch.pin_memory()
        with torch.cuda.stream(copies):
            moved = pinned.to(device, non_blocking=True)
            done = copies.record_event()

        def finish() -> Batch:
            current = torch.cuda.current_stream(device)
            current.wait_event(done)
            # its memory belongs to the copying stream, which must not take it back too early
            moved.record_stream(current)
            return moved

        return finish

    yield from prefetch(batches, begin, depth=depth)


def prefetch(
    items: Iterator[T], begin: Callable[[T], Callable[[], T]], *, depth: int
) -> Iterator[T]:
    """Each item begun while up to `depth` before it are not asked for yet, and then finished.

    An error of the source is raised where its item would have come, after those before it.
    """
    under_way: deque[Callable[[], T]] = deque()
    error: BaseException | None = None
    source = iter(items)
    while True:
        while error is None and len(under_way) <= depth:
            try:
                under_way.append(begin(next(source)))
            except Exception as found:  # StopIteration too: told when its turn has come
                error = found
        if not under_way:
            assert error is not None
            if isinstance(error, StopIteration):
                return
            raise error
        yield under_way.popleft()()
