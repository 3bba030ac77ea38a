"""Texts as 64-bit numbers, so that vocabularies and hashing know integers only. No Python objects.

Two different texts get the same number with a probability of 2**-64: among ten million distinct
ones a single such pair is expected in 400,000 data sets.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from runner.data.core.transforms import splitmix64

MISSING_HASH = 0  # what a missing value becomes; callers look at the validity before they use it


def hash_texts(texts: pa.Array) -> np.ndarray:
    """Texts or bytes, plain or dictionary-encoded -> [R] int64, the same on every machine."""
    if pa.types.is_dictionary(texts.type):
        of_value = hash_texts(texts.dictionary)
        indices = texts.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return of_value[indices] if len(of_value) else np.zeros(len(texts), np.int64)
    if len(texts) == 0:
        return np.zeros(0, np.int64)
    if not pa.types.is_large_string(texts.type) and not pa.types.is_large_binary(texts.type):
        texts = texts.cast(pa.large_binary())
    _, offset_buffer, data_buffer = texts.buffers()
    ends = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    return _hash(data[ends[0] : ends[-1]], ends - ends[0])


def _hash(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Every word of 8 bytes is mixed with its position, their sum and the length once more."""
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    word_at = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))  # unaligned on purpose
    lengths = np.diff(offsets)
    total = np.zeros(len(lengths), np.uint64)
    rows = np.flatnonzero(lengths)
    place = 0
    while len(rows):
        rest = lengths[rows] - 8 * place
        words = word_at[offsets[rows] + 8 * place]
        cut = np.uint64(8) * (8 - np.clip(rest, 1, 8)).astype(np.uint64)
        total[rows] += splitmix64(words << cut, place)  # bytes of the next text fall out on top
        place += 1
        rows = rows[rest > 8]
    return splitmix64(total, 0x5EED).view(np.int64) ^ lengths * np.int64(0x1F123BB5)
