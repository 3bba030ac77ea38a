"""Bounded prefetching by one thread, which preserves the order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_Queue: TypeAlias = "queue.Queue[tuple[Any, BaseException | None]]"  # an item, or an error instead

_END = object()


def prefetch_in_thread(source: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Yield the items of `source` while a thread computes up to `depth` of them in advance.

    An exception in the source is raised in place of its item. Closing the iterator, or
    dropping it, ends the thread. The depth is 1 at least.
    """
    items: _Queue = queue.Queue(maxsize=depth)
    stop = threading.Event()
    thread = threading.Thread(
        target=_fill, args=(source, items, stop), name="prefetch", daemon=True
    )
    thread.start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stop.set()
        while thread.is_alive():  # it may be waiting for space in the queue
            with suppress(queue.Empty):
                while True:
                    items.get_nowait()
            thread.join(timeout=0.05)


def _fill(source: Iterator[T], items: _Queue, stop: threading.Event) -> None:
    try:
        for item in source:
            items.put((item, None))
            if stop.is_set():
                return
        items.put((_END, None))
    except BaseException as error:  # any error is raised in the consumer
        items.put((None, error))
