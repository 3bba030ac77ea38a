"""Moves batches to the device, the next one while an update runs on the one before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import torch

from runner.batch import Batch
from runner.training.update.context import Context

T = TypeVar("T")
PREFETCH_DEPTH = 1  # batches prepared while another is in use


def batches_on_device(
    context: Context, batches: Iterator[Batch], *, allow_prefetch: bool = True
) -> Generator[Batch, None, None]:
    """Yield the same batches on the device, by the pipeline of the job.

    Collective where ids are sent between ranks.

    Args:
        allow_prefetch: whether a batch may be prepared before the one before it is used.
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
    """Yield the same batches on the device, in the same order.

    To CUDA they are copied from pinned memory on a separate stream, so that copies run beside
    kernels; the training stream waits only for the batch that it needs. A batch carries its
    position in the data, so that one still under way at a checkpoint does not count as seen.
    """
    if device.type == "cpu":
        yield from batches
        return
    copy_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(batch: Batch) -> Callable[[], Batch]:
        pinned = batch.pin_memory()
        with torch.cuda.stream(copy_stream):
            moved = pinned.to(device, non_blocking=True)
            done = copy_stream.record_event()

        def finish() -> Batch:
            current = torch.cuda.current_stream(device)
            current.wait_event(done)
            # the memory belongs to the copy stream, which must not reuse it too early
            moved.record_stream(current)
            return moved

        return finish

    yield from prefetch(batches, begin, depth=depth)


def prefetch(
    items: Iterator[T], begin: Callable[[T], Callable[[], T]], *, depth: int
) -> Iterator[T]:
    """Yield each item finished, with up to `depth` items after it begun already.

    An error of the source is raised in the place of its item, after all items before it.

    Args:
        begin: starts the work on an item; returns the function that finishes it.
        depth: how many items are begun while another one is in use.

    Raises:
        Exception: any error of the source, in the place of its item.
    """
    under_way: deque[Callable[[], T]] = deque()
    error: BaseException | None = None
    source = iter(items)
    while True:
        while error is None and len(under_way) <= depth:
            try:
                under_way.append(begin(next(source)))
            except Exception as raised:  # also StopIteration, in its turn
                error = raised
        if not under_way:
            assert error is not None
            if isinstance(error, StopIteration):
                return
            raise error
        yield under_way.popleft()()
