"""Hashes texts to 64-bit integers, so that vocabularies and hashed columns handle integers only.

No Python object is made per text. Two different texts get the same number with a probability of
2**-64: among ten million distinct texts, one such pair is expected in 400,000 data sets.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from runner.data.core.transforms import splitmix64


def hash_texts(texts: pa.Array) -> np.ndarray:
    """Hash texts or bytes, plain or dictionary-encoded: [R] int64, the same on every machine.

    The hash of a missing text is undefined; callers must check the validity.
    """
    if pa.types.is_dictionary(texts.type):
        entry_hashes = hash_texts(texts.dictionary)
        indices = texts.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return entry_hashes[indices] if len(entry_hashes) else np.zeros(len(texts), np.int64)
    if len(texts) == 0:
        return np.zeros(0, np.int64)
    if not pa.types.is_large_string(texts.type) and not pa.types.is_large_binary(texts.type):
        texts = texts.cast(pa.large_binary())
    _, offset_buffer, data_buffer = texts.buffers()
    ends = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    return _hash(data[ends[0] : ends[-1]], ends - ends[0])


def _hash(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Mix every word of 8 bytes with its position, then their sum once more, with the length."""
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    word_at = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))  # unaligned on purpose
    lengths = np.diff(offsets)
    total = np.zeros(len(lengths), np.uint64)
    rows = np.flatnonzero(lengths)
    position = 0
    while len(rows):
        rest = lengths[rows] - 8 * position
        words = word_at[offsets[rows] + 8 * position]
        shift = np.uint64(8) * (8 - np.clip(rest, 1, 8)).astype(np.uint64)
        total[rows] += splitmix64(words << shift, position)  # masks out bytes of the next text
        position += 1
        rows = rows[rest > 8]
    return splitmix64(total, 0x5EED).view(np.int64) ^ lengths * np.int64(0x1F123BB5)
