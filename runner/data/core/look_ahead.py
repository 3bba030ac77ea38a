"""Starts work ahead of its turn, and takes the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def look_ahead(begun: Iterable[T], count: int) -> Iterator[T]:
    """Yield items in order, such as futures, while at most `count` have been started."""
    waiting: deque[T] = deque()
    for item in begun:
        waiting.append(item)
        if len(waiting) == count:
            yield waiting.popleft()
    yield from waiting
