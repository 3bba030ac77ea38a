"""The map from ids to rows once more, as a dictionary with plain loops."""

from __future__ import annotations

import numpy as np

from runner.data.growing.settings import NO_ID, Growth


class DictMap:
    """Does what `IdMap` promises, one id at a time, and counts sightings exactly."""

    def __init__(self, num_rows: int, growth: Growth) -> None:
        self.growth, self.num_ids = growth, num_rows - 2
        self.rows: dict[int, int] = {}
        self.use: dict[int, int] = {}
        self.sightings: dict[int, int] = {}
        self.updates = 0

    def look_up(self, ids: list[int]) -> list[int]:
        return [1 if i == NO_ID else self.rows.get(i, 0) for i in ids]

    def free_rows(self) -> list[int]:
        taken = set(self.rows.values())
        return [row for row in range(2, self.num_ids + 2) if row not in taken]

    def observe(self, ids: list[int]) -> list[int]:
        self.updates += 1
        ids = [i for i in ids if i != NO_ID]
        held = {i for i in ids if i in self.rows}
        for i in ids:
            if i in held:
                self._note_use(i)
        evicted = self._evict(held)
        for i in ids:
            if i not in self.rows:
                self.sightings[i] = self.sightings.get(i, 0) + 1
        earned = [
            i
            for i in dict.fromkeys(ids)
            if i not in self.rows and self.sightings[i] >= self.growth.min_count
        ]
        for i, row in zip(earned, self.free_rows()):
            self.rows[i] = row
            for _ in range(ids.count(i)):
                self._note_use(i)
        return evicted

    def _note_use(self, i: int) -> None:
        evict = self.growth.evict
        if evict is not None:
            self.use[i] = self.updates if evict.by == "lru" else self.use.get(i, 0) + 1

    def _evict(self, held: set[int]) -> list[int]:
        evict = self.growth.evict
        if evict is None or self.updates % evict.every:
            return []
        wanted = max(int(evict.share * self.num_ids), 1) - len(self.free_rows())
        others = sorted((self.use[i], row, i) for i, row in self.rows.items() if i not in held)
        evicted = []
        for _, row, i in others[: max(wanted, 0)]:
            del self.rows[i], self.use[i]
            evicted.append(row)
        if evict.by == "lfu":
            self.use = {i: use // 2 for i, use in self.use.items()}
        return sorted(evicted)


def some_updates(num_updates: int, *, seed: int, size: int = 60) -> list[np.ndarray]:
    """Ids that drift: those of an update are near its number, with some from anywhere."""
    rng = np.random.default_rng(seed)
    updates = []
    for k in range(num_updates):
        near = rng.integers(3 * k, 3 * k + 40, rng.integers(0, size))
        far = rng.integers(-(2**63), 2**63 - 1, rng.integers(0, 3))
        missing = np.full(rng.integers(0, 2), NO_ID)
        updates.append(rng.permutation(np.concatenate([near, far, missing])))
    return updates
