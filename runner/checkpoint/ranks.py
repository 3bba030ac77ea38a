"""This process among the others that save the same checkpoint."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


class Ranks:
    """Collective to make. Alone, unless torch.distributed is up with several ranks."""

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        # a group of its own: the writing thread talks to the others while training uses theirs
        self.group = dist.new_group(backend="gloo") if several else None
        self.rank = dist.get_rank() if several else 0

    def gather(self, mine: Any) -> list[Any]:
        """Collective. What every rank gave, in the order of ranks."""
        if self.group is None:
            return [mine]
        everyone: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(everyone, mine, group=self.group)
        return everyone

    def share(self, value: Any) -> Any:
        """Collective. What rank 0 gave."""
        if self.group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]
