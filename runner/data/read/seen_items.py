"""Reads the items that users have seen, as written by `runner.data.interactions.seen`.

Shape legend: N rows of a split, B rows of a batch, V values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from runner.data.core.blocks import READ_ERRORS, open_blocks
from runner.data.prepare.shards import BLOCK_ROWS, SHARD_ROWS, shard_name
from runner.errors import DataError, first_line

START, STOP = "seen start", "seen stop"  # of the slice of a row; columns that batches do not have
ITEM = "item"  # the column of the pool


def pool_name(split: str) -> str:
    """Return the name for the files of a split's pool, used in place of a split's name."""
    return f"seen-{split}"


class SeenItems:
    """The items that the user of each row of a split has seen, read from the pool as needed.

    Memory holds 16 bytes for each row of the split, and the blocks of the most recent rows.

    Args:
        start_N: where the slice of each row starts in the pool.
        stop_N: where it ends.
    """

    def __init__(self, folder: Path, split: str, start_N: np.ndarray, stop_N: np.ndarray) -> None:
        self._folder, self._name = folder, pool_name(split)
        self._start_N, self._stop_N = start_N, stop_N
        self._blocks: dict[int, np.ndarray] = {}

    def find(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `runner.data.core.dataset.SeenItems`.

        Raises:
            DataError: naming a file of the pool that cannot be read.
        """
        start_B, stop_B = self._start_N[rows_B], self._stop_N[rows_B]
        length_B = stop_B - start_B
        row_V = np.repeat(np.arange(len(rows_B)), length_B)
        begin_B = np.cumsum(length_B) - length_B
        place_V = np.arange(len(row_V)) + np.repeat(start_B - begin_B, length_B)
        needed, block_V = np.unique(place_V // BLOCK_ROWS, return_inverse=True)
        self._read(needed)
        offsets = np.cumsum([0, *(len(self._blocks[n]) for n in needed)])
        items = np.concatenate([np.empty(0, np.int64), *(self._blocks[n] for n in needed)])
        return row_V, items[offsets[block_V] + place_V % BLOCK_ROWS]

    def _read(self, needed: Sequence[int] | np.ndarray) -> None:
        """Keep only the needed blocks in memory.

        Raises:
            DataError: naming the file that cannot be read.
        """
        self._blocks = {n: self._blocks[n] for n in needed if n in self._blocks}
        blocks_of_file = SHARD_ROWS // BLOCK_ROWS  # all files and blocks but the last are full
        missing = np.array([n for n in needed if n not in self._blocks], np.int64)
        for number in np.unique(missing // blocks_of_file):
            path = self._folder / shard_name(self._name, int(number))
            with closing(open_blocks(path)) as file:
                for block in missing[missing // blocks_of_file == number]:
                    try:
                        column = file.read([int(block % blocks_of_file)], [ITEM])[ITEM]
                    except READ_ERRORS as error:
                        raise DataError(f"{path}: cannot be read: {first_line(error)}") from error
                    self._blocks[int(block)] = column.to_numpy()
