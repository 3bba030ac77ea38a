"""Look-ups of sequences, id by id, and of candidates that belong to no row.

B batch, S bags of a look-up (rows of the batch, then rows that hold candidates), K slots,
L sequence length, C candidates, V values of a jagged tensor, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Embeddings, Schema, SequenceFeature, SparseFeature
from runner.errors import nearest_hint
from runner.models.layers.embedding import TableLookup


class SequenceLookup(TableLookup):
    """Pooled features, sequences, and candidates of one table, all in one look-up of the tables.

    Place l of a sequence is a feature of its own, `name:l`, with one id a row or none: what it
    pools is the embedding itself. So every engine and every plan of sharding holds sequences, and
    an update of the tables is still one. Candidates are ids in rows of their own behind the batch.

    Args:
        features: pooled ones to look up. sequences: to look up id by id; one that is longer than
            its max_length keeps its newest.
        candidates: table that candidates come from; None: there are none.
    Raises: ValueError if there is nothing to look up, or nothing reads the candidates' table.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        features: Sequence[SparseFeature],
        sequences: Sequence[SequenceFeature],
        candidates: str | None = None,
        init: float | None = None,
    ) -> None:
        pooling = {f.table_name: f.pooling for f in features}
        places = [
            SparseFeature(
                f"{s.name}:{place}",
                s.num_rows,
                s.table_name,
                pooling=pooling.get(s.table_name, "sum"),  # one for a table; of one id all are same
            )
            for s in sequences
            for place in range(s.max_length)
        ]
        super().__init__(replace(schema, sparse=(*features, *places)), dim, init=init)
        self.pooled_features = tuple(features)
        self.sequences = tuple(sequences)
        blocks = [(f.name, f.table_name, 1) for f in features if not f.weighted]
        blocks += [(s.name, s.table_name, s.max_length) for s in sequences]
        own = [(slots, name) for name, table, slots in blocks if table == candidates]
        if candidates is not None and not own:
            raise ValueError(f"no feature without weights reads table {candidates!r}")
        # the block with most slots: candidates take the fewest rows there
        self.num_candidate_slots, self.candidate_feature = max(own) if own else (0, "")

    @property
    def draws_candidates(self) -> bool:
        return self.num_candidate_slots > 0

    def forward(self, batch: Batch, candidates_C: Tensor | None = None) -> Embeddings:
        """`rows` holds [B] `<name>:length` of each sequence and [B, L] `<name>:ids`, 0 behind it;
        with candidates, `shared_CD` is their embeddings and `whole` has `candidates`."""
        tables = self.tables_for(batch)
        kjt, known = self._build_kjt(batch, candidates_C)
        return self._split_embeddings(tables(kjt), batch.size, candidates_C, known)

    def lookup_ids(self, batch: Batch, candidates_C: Tensor | None = None) -> KeyedJaggedTensor:
        return self._build_kjt(batch, candidates_C)[0]

    def _build_kjt(
        self, batch: Batch, candidates_C: Tensor | None
    ) -> tuple[KeyedJaggedTensor, dict[str, Tensor]]:
        """What is looked up, and what is known of the sequences."""
        extra_KR, used_KR = self._arrange_candidates(candidates_C, batch.labels_BT.device)
        keys, values, lengths, weights = [], [], [], []
        weighted = any(f.weighted for f in self.pooled_features)
        found = _by_key(batch.sparse)
        for feature in self.pooled_features:
            ids_V, lengths_B, weights_V = found[feature.name]
            more_C = candidates_C if feature.name == self.candidate_feature else None
            used = _no_candidates(used_KR)[1] if more_C is None else used_KR
            values.append(ids_V if more_C is None else torch.cat((ids_V, more_C)))
            lengths.append(torch.cat((lengths_B, used.sum(0).to(lengths_B.dtype))))
            keys.append(feature.name)
            if weighted:
                weights.append(_pad_weights(weights_V, ids_V, len(values[-1])))
        known: dict[str, Tensor] = {}
        for name, ids_BL, mask_BL in self._padded(batch):
            known |= {f"{name}:ids": ids_BL, f"{name}:length": mask_BL.sum(1)}
            extra, used = (
                (extra_KR, used_KR) if name == self.candidate_feature else _no_candidates(used_KR)
            )
            used = used.expand(ids_BL.shape[1], -1)
            mask_LS = torch.cat((mask_BL.t(), used), dim=1)
            ids_LS = torch.cat((ids_BL.t(), extra.expand(ids_BL.shape[1], -1)), dim=1)
            values.append(ids_LS[mask_LS])  # sync: how many there are
            lengths.append(mask_LS.flatten().long())
            keys += [f"{name}:{place}" for place in range(ids_BL.shape[1])]
            if weighted:
                weights.append(torch.ones(values[-1].shape, device=ids_BL.device))
        kjt = KeyedJaggedTensor(
            keys=keys,
            values=torch.cat(values),
            lengths=torch.cat(lengths),
            weights=torch.cat(weights) if weighted else None,
            stride=batch.size + extra_KR.shape[1],
        )
        return kjt, known

    @torch.no_grad()
    def embed_all_rows(self, num_rows: int, device: torch.device, chunk: int = 16_384) -> Tensor:
        """Collective. [rows, D]: the candidates' table, looked up piece by piece."""
        parts = []
        for start in range(0, num_rows, chunk):
            ids_C = torch.arange(start, min(start + chunk, num_rows), device=device)
            parts.append(self.forward(_empty_batch(self, device), ids_C).shared_CD[0])
        return torch.cat(parts)

    def _padded(self, batch: Batch) -> list[tuple[str, Tensor, Tensor]]:
        """Each sequence's ids [B, L], the oldest first, and where there is one."""
        found = _by_key(batch.sequences) if batch.sequences is not None else {}
        padded = []
        for sequence in self.sequences:
            ids_V, lengths_B, _ = found[sequence.name]
            kept_B = lengths_B.clamp(max=sequence.max_length)
            place_L = torch.arange(sequence.max_length, device=ids_V.device)
            mask_BL = place_L < kept_B[:, None]
            at_BL = (lengths_B.cumsum(0) - kept_B)[:, None] + place_L
            at_BL = torch.where(mask_BL, at_BL, len(ids_V))  # a zero stands behind the values
            padded.append((sequence.name, functional.pad(ids_V, (0, 1))[at_BL], mask_BL))
        return padded

    def _arrange_candidates(
        self, candidates_C: Tensor | None, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Candidates as [K, rows] ids, and which of these places are used."""
        if candidates_C is None:
            return torch.zeros(1, 0, dtype=torch.int64, device=device), torch.zeros(
                1, 0, dtype=torch.bool, device=device
            )
        count = len(candidates_C)
        num_rows = -(-count // self.num_candidate_slots)
        padded = functional.pad(candidates_C, (0, num_rows * self.num_candidate_slots - count))
        used = torch.arange(len(padded), device=padded.device) < count
        return padded.view(self.num_candidate_slots, num_rows), used.view(
            self.num_candidate_slots, num_rows
        )

    def _split_embeddings(
        self,
        values_SE: Tensor,
        size: int,
        candidates_C: Tensor | None,
        known: dict[str, Tensor],
    ) -> Embeddings:
        widths = [
            len(self.pooled_features) * self.dim,
            *(s.max_length * self.dim for s in self.sequences),
        ]
        pooled_SE, *blocks = values_SE.split(widths, dim=1)
        sequences = tuple(block[:size].unflatten(1, (-1, self.dim)) for block in blocks)
        if candidates_C is None:
            return Embeddings(pooled_SE, sequences, per_row=known)
        names = [s.name for s in self.sequences]
        if self.candidate_feature in names:
            slots_RE = blocks[names.index(self.candidate_feature)][size:]
        else:
            place = [f.name for f in self.pooled_features].index(self.candidate_feature) * self.dim
            slots_RE = pooled_SE[size:, place : place + self.dim]
        slots_KRD = slots_RE.unflatten(1, (-1, self.dim)).transpose(0, 1)
        shared_CD = slots_KRD.flatten(0, 1)[: len(candidates_C)]
        whole = {"candidates": candidates_C}
        return Embeddings(pooled_SE[:size], sequences, (shared_CD,), known, whole)


def find_feature(schema: Schema, name: str, key: str) -> SparseFeature:
    """The sparse feature of this name. Raises: ValueError with the nearest one."""
    for feature in schema.sparse:
        if feature.name == name:
            return feature
    names = [f.name for f in schema.sparse]
    raise ValueError(
        f"{key}={name}: the dataset has no such sparse feature{nearest_hint(name, names)}; "
        f"there are {', '.join(names) or 'none'}"
    )


def find_sequence(schema: Schema, name: str | None, key: str) -> SequenceFeature:
    """The sequence of this name; None: the only one. Raises: ValueError with the nearest one."""
    names = [s.name for s in schema.sequences]
    if not names:
        raise ValueError("needs a sequence of ids; the dataset has none")
    if name is None and len(names) == 1:
        return schema.sequences[0]
    if name not in names:
        said = "has several" if name is None else f"has no such sequence{nearest_hint(name, names)}"
        shown = "null" if name is None else name
        raise ValueError(f"{key}={shown}: the dataset {said}; there are {', '.join(names)}")
    return schema.sequences[names.index(name)]


def _by_key(kjt: KeyedJaggedTensor) -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
    """Name -> values, lengths, weights."""
    counts, size = kjt.length_per_key(), kjt.stride()
    lengths_FB = kjt.lengths().view(len(counts), size)
    values = kjt.values().split(counts)
    given = kjt.weights_or_none()
    weights = [None] * len(counts) if given is None else given.split(counts)
    return {
        key: (v, lengths_B, w)
        for key, v, lengths_B, w in zip(kjt.keys(), values, lengths_FB.unbind(0), weights)
    }


def _no_candidates(used_KR: Tensor) -> tuple[Tensor, Tensor]:
    """No candidate in as many rows."""
    empty_1R = used_KR.new_zeros(1, used_KR.shape[1])
    return empty_1R.long(), empty_1R


def _pad_weights(weights_V: Tensor | None, ids_V: Tensor, num_ids: int) -> Tensor:
    """Of a feature's own ids, and 1 for each candidate behind them, `num_ids` together."""
    if weights_V is None:
        weights_V = torch.ones(ids_V.shape, device=ids_V.device)
    return functional.pad(weights_V, (0, num_ids - len(ids_V)), value=1.0)


def _empty_batch(lookup: SequenceLookup, device: torch.device) -> Batch:
    """A batch of no row, to look candidates up alone."""
    empty = torch.zeros(0, dtype=torch.int64, device=device)

    def no_ids(names: list[str]) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(keys=names, values=empty, lengths=empty, stride=0)

    return Batch(
        dense_BD=torch.zeros(0, 0, device=device),
        sparse=no_ids([f.name for f in lookup.pooled_features]),
        sequences=no_ids([s.name for s in lookup.sequences]),
        labels_BT=torch.zeros(0, 1, device=device),
        weights_B=torch.zeros(0, device=device),
        rows_B=empty,
        groups_BG=torch.zeros(0, 0, dtype=torch.int64, device=device),
        cursor=DataPosition(),
    )


def single_ids(batch: Batch, name: str) -> Tensor:
    """[B]: the ids of a feature that has one in every row. Raises: ValueError if one has not."""
    ids_V, lengths_B, _ = _by_key(batch.sparse)[name]
    if len(ids_V) != len(lengths_B):
        raise ValueError(f"feature {name!r}: needed is one id a row, there are lists")
    return ids_V
