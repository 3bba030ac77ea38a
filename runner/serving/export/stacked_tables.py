"""Embedding tables of one width as one plain weight, whole or quantised, for exported graphs.

B batch, F features, D width, V values of a jagged tensor, R rows of all tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK_ROWS = 1 << 18  # rows quantised at once


class Rows(nn.Module):
    """A weight whose rows are looked up, [R, D]. A row takes 4 D bytes in FP32, 2 D in FP16."""

    def __init__(self, weight_RD: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight_RD)
        self.weight: Tensor

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows as float32, [..., D]."""
        return functional.embedding(rows, self.weight).float()


class IntegerRows(nn.Module):
    """Rows as integers with a scale and an offset each, rounded to the nearest.

    With 8 bits a row takes D + 8 bytes, with 4 bits D / 2 + 8: two values share a byte.
    """

    def __init__(self, weight_RD: Tensor, bits: int, *, for_onnx: bool = False) -> None:
        super().__init__()
        self.dim, self.bits, self.for_onnx = weight_RD.shape[1], bits, for_onnx
        # in blocks: float32 of all rows would take several times the table's memory
        parts = [_round_rows(block, bits) for block in torch.split(weight_RD, BLOCK_ROWS)]
        self.register_buffer("codes", torch.cat([codes for codes, _ in parts]))
        self.register_buffer("scale_low", torch.cat([scale_low for _, scale_low in parts]))
        self.codes: Tensor
        self.scale_low: Tensor

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows as float32, [..., D]."""
        codes = functional.embedding(rows, self.codes)
        if self.bits == 4:
            # the exporter to ONNX makes int8 of a shifted uint8; a division takes twice as long
            high = codes // 16 if self.for_onnx else codes >> 4
            codes = torch.stack((codes & 15, high), dim=-1).flatten(-2)[..., : self.dim]
        scale_low = functional.embedding(rows, self.scale_low)
        return codes.float() * scale_low[..., :1] + scale_low[..., 1:]


def _round_rows(weight_RD: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the codes of rows, [R, D] or with 4 bits [R, D / 2], and scale and offset, [R, 2]."""
    low_R1 = weight_RD.amin(1, keepdim=True)
    scale_R1 = (weight_RD.amax(1, keepdim=True) - low_R1) / (2**bits - 1)
    steps = (weight_RD - low_R1) / scale_R1.clamp(min=torch.finfo(torch.float32).tiny)
    codes_RD = steps.round_().clamp_(0, 2**bits - 1).to(torch.uint8)
    if bits == 4:
        codes_RD = functional.pad(codes_RD, (0, weight_RD.shape[1] % 2))
        codes_RD = codes_RD[:, 0::2] | codes_RD[:, 1::2] << 4
    return codes_RD, torch.cat((scale_R1, low_R1), dim=1)


def make_rows(weight_RD: Tensor, quantise: str | None, *, for_onnx: bool = False) -> nn.Module:
    """Return the rows of a weight, whole or quantised, with operators that ONNX has if asked."""
    if quantise is None:  # a file gets the whole storage of a weight; NumPy's is that of the weight
        return Rows(torch.from_numpy(weight_RD.numpy()))
    if quantise == "fp16":
        return Rows(weight_RD.half())
    return IntegerRows(weight_RD, int(quantise.removeprefix("int")), for_onnx=for_onnx)


def _join_rows(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of all parts, [R, D], without a copy if they are contiguous in memory."""
    first, storage = parts[0], parts[0].untyped_storage().data_ptr()
    starts = [part.data_ptr() for part in parts]
    ends = [part.data_ptr() + part.nbytes for part in parts]
    are_pieces = all(
        part.is_contiguous() and part.untyped_storage().data_ptr() == storage for part in parts
    )
    if not are_pieces or starts[1:] != ends[:-1]:
        return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), first.shape[1]), first.stride())


class StackedTables(nn.Module):
    """Pooled look-ups in tables of one width, which are stacked in one weight.

    Args:
        weights: [R, D] of each table.
        table_of: the table of each feature.
        mean: whether each feature is pooled by its mean instead of its sum.
        quantise: see `make_rows`.
        for_onnx: use operators that ONNX has; the sums may differ in the last digit.
    """

    first_F: Tensor
    mean_F1: Tensor

    def __init__(
        self,
        weights: Sequence[Tensor],
        table_of: Sequence[int],
        mean: Sequence[bool],
        *,
        quantise: str | None = None,
        for_onnx: bool = False,
    ) -> None:
        super().__init__()
        self.rows = make_rows(_join_rows(weights), quantise, for_onnx=for_onnx)
        self.dim: int = weights[0].shape[1]
        self.is_whole, self.for_onnx, self.any_mean = quantise is None, for_onnx, any(mean)
        first = [0]
        for weight in weights:
            first.append(first[-1] + len(weight))
        self.register_buffer("first_F", torch.tensor([first[t] for t in table_of]))
        self.register_buffer("mean_F1", torch.tensor(mean)[:, None])

    def forward(self, values_V: Tensor, lengths_FB: Tensor, weights_V: Tensor | None) -> Tensor:
        """Return [B, F, D].

        Args:
            values_V: ids in the feature's own table, feature-major.
            lengths_FB: number of ids of every bag.
            weights_V: weights of the ids, or None.
        """
        num_features, size = lengths_FB.shape
        lengths = lengths_FB.reshape(-1)
        if self.for_onnx:
            starts = lengths.cumsum(0) - lengths
            marks = torch.zeros(values_V.shape[0] + 1, dtype=torch.int64, device=lengths.device)
            marks = marks.index_add(0, starts, torch.ones_like(lengths))
            bag_V = marks.cumsum(0)[:-1] - 1
            x_VD = self.rows(values_V + self.first_F[bag_V // size])
            if weights_V is not None:
                x_VD = x_VD * weights_V[:, None]
            zeros = torch.zeros(num_features * size, self.dim, device=x_VD.device)
            pooled = zeros.index_add(0, bag_V, x_VD)
        else:
            first = self.first_F[:, None].expand(num_features, size).reshape(-1)
            rows_V = values_V + first.repeat_interleave(lengths, output_size=values_V.shape[0])
            offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
            if isinstance(self.rows, Rows) and self.is_whole:
                table = self.rows.weight
            else:
                table = self.rows(rows_V)
                rows_V = torch.arange(rows_V.shape[0], device=rows_V.device)
            pooled = functional.embedding_bag(
                rows_V,
                table,
                offsets,
                mode="sum",
                include_last_offset=True,
                per_sample_weights=weights_V,
            )
        pooled_FBD: Tensor = pooled.view(num_features, size, self.dim)
        if self.any_mean:
            scale_FB = lengths_FB.clamp(min=1).float().reciprocal()
            scale_FB = torch.where(self.mean_F1, scale_FB, 1.0)
            pooled_FBD = pooled_FBD * scale_FB[:, :, None]
        return pooled_FBD.transpose(0, 1)
