"""Work that is begun ahead of its turn, and taken in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def look_ahead(begun: Iterable[T], count: int) -> Iterator[T]:
    """Yield items in their order, such as futures, of which at most `count` have been asked for."""
    waiting: deque[T] = deque()
    for item in begun:
        waiting.append(item)
        if len(waiting) == count:
            yield waiting.popleft()
    yield from waiting
