"""Stochastic rounding of rows to 16 bits, as a function of seed, table, row, column and update.

Rounding to the nearest would lose every step below half the distance to the next number of 16
bits. Here the probability of rounding up is the relative distance from the lower neighbour, so that
the mean of many roundings is the number, and a number of 16 bits does not change. No random
generator is used, so that a resume, and another split of rows over ranks, round equally.
U rows of a batch, D width, T tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from runner.embeddings.interface import TableSpec

_DROPPED_BITS = {torch.bfloat16: 16, torch.float16: 13}  # of an fp32 number


class RowRounding:
    """Rounds the rows of some tables that are stored one after another."""

    def __init__(self, tables: Sequence[TableSpec], seed: int, dtype: torch.dtype) -> None:
        """Prepare the rounding.

        Args:
            tables: in the order of their rows.
            dtype: torch.bfloat16 or torch.float16.
        """
        self._dtype = dtype
        starts = np.cumsum([0, *(spec.num_rows for spec in tables)])
        self._starts_T = torch.from_numpy(starts[1:-1])
        # Added to the number of a stored row, its table's key and place make it that of the table
        offsets = [spec.first_row - int(start) for spec, start in zip(tables, starts)]
        digests = [hashlib.sha256(f"{seed}/{spec.name}".encode()).digest() for spec in tables]
        keys = [int.from_bytes(digest[:8], "little") for digest in digests]
        self._keys_T = np.array(keys, np.uint64)
        self._offsets_T = np.array(offsets, np.int64).astype(np.uint64)

    def round(self, weight_UD: Tensor, rows_U: Tensor, step: int) -> Tensor:
        """Return the weights of some rows after update `step`, [U, D] of the 16-bit type.

        Args:
            weight_UD: fp32.
            rows_U: their numbers among all stored rows.
        """
        if self._dtype is torch.bfloat16:  # the upper half of an fp32 number
            bits_UD = weight_UD.view(torch.int32) + self._noise(rows_U, weight_UD.shape[1], step)
            return bits_UD.bitwise_and_(-(1 << 16)).view(torch.float32).to(torch.bfloat16)
        # the distance of fp16 numbers around each weight; small ones are equally far apart
        exponent_UD = (weight_UD.view(torch.int32) & 0x7F800000).view(torch.float32)
        ulp_UD = exponent_UD.mul_(2.0**-10).clamp_(min=2.0**-24)
        noise_UD = (
            self._noise(rows_U, weight_UD.shape[1], step) * 2.0 ** -_DROPPED_BITS[self._dtype]
        )
        # exact: the sum fits into the 24 bits of fp32, of which the noise uses those beyond fp16
        return weight_UD.div(ulp_UD).add_(noise_UD).floor_().mul_(ulp_UD).to(torch.float16)

    def _noise(self, rows_U: Tensor, width: int, step: int) -> Tensor:
        """Return integers of as many bits as the rounding drops, [U, D] int32."""
        num_bits = _DROPPED_BITS[self._dtype]
        table_U = torch.bucketize(rows_U, self._starts_T, right=True).numpy()
        bases_T = _mix(self._keys_T + np.uint64(step)) + self._offsets_T
        hash_U = _mix(bases_T[table_U] + rows_U.numpy().astype(np.uint64))
        odd_D = _mix(np.arange(1, width + 1, dtype=np.uint64)) | np.uint64(1)
        # a multiple of a hash by an odd number is as uniform as the hash; its upper bits are taken
        product_UD = _low_int32(hash_U)[:, None] * _low_int32(odd_D)
        return (product_UD >> (32 - num_bits)).bitwise_and_((1 << num_bits) - 1)


def _low_int32(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.uint32).view(np.int32))


def _mix(values: np.ndarray) -> np.ndarray:
    """Return the finaliser of SplitMix64 (Steele et al. 2014) of uint64; it wraps around."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
