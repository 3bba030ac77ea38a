"""A count-min sketch with decay: how often ids without a row were seen recently.

Cormode and Muthukrishnan 2005, with conservative update (Estan and Varghese 2002) and with the
halving of TinyLFU (Einziger et al. 2017, arXiv:1512.00727), since a stream has no end.
N distinct ids, W cells in each of 4 lines.
"""

from __future__ import annotations

import numpy as np

from runner.data.core.transforms import splitmix64

NUM_LINES = 4
MAX_COUNT = 255  # the maximum of a cell
LEAST_CELLS = 1 << 18
CELLS_PER_ROW = 4


class CountSketch:
    """Counts of ids in bounded memory, which are never too low within a period.

    A period ends after W / 2 sightings; all counts are halved then. Within a period the count of an
    id is too high only if others have hit its cell in all 4 lines. Fewer than (1 - 3/4 exp(-1/4)) W
    cells of a line are in use, so for an id that is new the probability of that is below 3%. By the
    theorem, a count is too high by more than e / 2 with a probability of at most exp(-4), 1.8%.

    Args:
        num_rows: rows of the table; W is at least 4 times that.
    """

    def __init__(self, num_rows: int) -> None:
        width = max(LEAST_CELLS, 1 << (CELLS_PER_ROW * num_rows - 1).bit_length())
        self.cells = np.zeros((NUM_LINES, width), np.uint8)
        self.sightings = np.zeros(1, np.int64)  # of this period, and half of those before it
        self._shift = np.uint64(64 - (width.bit_length() - 1))

    def add(self, ids_N: np.ndarray, counts_N: np.ndarray) -> np.ndarray:
        """Add sightings of distinct ids, and return their counts so far, [N] int64.

        The result does not depend on the order of the ids.
        """
        places = [self._places(ids_N, line) for line in range(NUM_LINES)]
        counted = [cells[at] for cells, at in zip(self.cells, places)]
        total_N: np.ndarray = np.minimum(
            np.minimum.reduce(counted) + counts_N.astype(np.int64), MAX_COUNT
        )
        for cells, at in zip(self.cells, places):
            np.maximum.at(cells, at, total_N.astype(np.uint8))
        self.sightings += int(counts_N.sum())
        if int(self.sightings[0]) >= self.cells.shape[1] // 2:
            self.cells >>= 1
            self.sightings //= 2
        return total_N

    def _places(self, ids_N: np.ndarray, line: int) -> np.ndarray:
        mixed = splitmix64(ids_N.view(np.uint64), 0x5EE7 + line)
        return (mixed >> self._shift).view(np.int64)
