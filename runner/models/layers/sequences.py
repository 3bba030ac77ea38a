"""Look-ups of sequences, id by id, and of candidates that belong to no row.

B batch, S bags of a look-up (rows of the batch, then R rows with candidates), K slots for
candidates in each of these rows, L sequence length, C candidates, V values of a jagged tensor,
D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Embeddings, Schema, SequenceFeature, SparseFeature
from runner.models.layers.embedding import TableLookup

PaddedSequence = tuple[str, Tensor, Tensor]  # its name, ids [B, L] and mask of its places [B, L]


class SequenceLookup(TableLookup):
    """Pooled features, sequences, and candidates of one table, in a single look-up of the tables.

    Place l of a sequence is a feature `name:l` with at most one id per row, so pooling it gives the
    embedding itself. So every engine and every sharding plan takes sequences, and the tables are
    still updated once. Candidates are ids in additional rows behind the batch.

    Args:
        dim: D, width of every table.
        features: features whose embeddings are pooled.
        sequences: sequences to look up id by id. One longer than its `max_length` keeps the newest.
        candidates: the table of the candidates; None if there are none.
        init: see `TableLookup`.

    Raises:
        ValueError: if there is nothing to look up, or if nothing reads the candidates' table.
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
                # a table has one pooling; over a single id all of them are the same
                pooling=pooling.get(s.table_name, "sum"),
            )
            for s in sequences
            for place in range(s.max_length)
        ]
        super().__init__(replace(schema, sparse=(*features, *places)), dim, init=init)
        self.pooled_features = tuple(features)
        self.sequences = tuple(sequences)
        blocks = [(f.name, f.table_name, 1) for f in features if not f.weighted]
        blocks += [(s.name, s.table_name, s.max_length) for s in sequences]
        readers = [(slots, name) for name, table, slots in blocks if table == candidates]
        if candidates is not None and not readers:
            raise ValueError(f"no feature without weights reads table {candidates!r}")
        # candidates take the fewest rows in the block with most slots
        self.num_candidate_slots, self.candidate_feature = max(readers) if readers else (0, "")

    @property
    def draws_candidates(self) -> bool:
        return self.num_candidate_slots > 0

    def forward(
        self,
        batch: Batch,
        candidates_C: Tensor | None = None,
        padded: Sequence[PaddedSequence] | None = None,
    ) -> Embeddings:
        """Look up a batch and candidates.

        Args:
            padded: the result of `padded` for the batch, if already known.

        Returns:
            Embeddings whose `per_row` has, for each sequence, its number of events as
            `<name>:length` [B] and its ids as `<name>:ids` [B, L], 0 behind the end. With
            candidates, `shared_CD` has their embeddings and `per_batch` their ids as `candidates`.
        """
        tables = self.tables_for(batch)
        kjt, per_row = self._build_kjt(batch, candidates_C, padded)
        embeddings = self._split_embeddings(tables(kjt), batch.size, candidates_C, per_row)
        return replace(embeddings, ids=kjt)

    def lookup_ids(
        self,
        batch: Batch,
        candidates_C: Tensor | None = None,
        padded: Sequence[PaddedSequence] | None = None,
    ) -> KeyedJaggedTensor:
        return self._build_kjt(batch, candidates_C, padded)[0]

    def _build_kjt(
        self,
        batch: Batch,
        candidates_C: Tensor | None,
        padded: Sequence[PaddedSequence] | None = None,
    ) -> tuple[KeyedJaggedTensor, dict[str, Tensor]]:
        """Return the ids to look up, and `per_row` of the embeddings."""
        extra_KR, used_KR = self._arrange_candidates(candidates_C, batch.labels_BT.device)
        keys, values, lengths, weights = [], [], [], []
        weighted = any(f.weighted for f in self.pooled_features)
        pooled = _by_key(batch.sparse)
        for feature in self.pooled_features:
            ids_V, lengths_B, weights_V = pooled[feature.name]
            more_C = candidates_C if feature.name == self.candidate_feature else None
            used = _no_candidates(used_KR)[1] if more_C is None else used_KR
            values.append(ids_V if more_C is None else torch.cat((ids_V, more_C)))
            lengths.append(torch.cat((lengths_B, used.sum(0).to(lengths_B.dtype))))
            keys.append(feature.name)
            if weighted:
                weights.append(_pad_weights(weights_V, ids_V, len(values[-1])))
        per_row: dict[str, Tensor] = {}
        for name, ids_BL, mask_BL in padded or self.padded(batch):
            per_row |= {f"{name}:ids": ids_BL, f"{name}:length": mask_BL.sum(1)}
            extra, used = (
                (extra_KR, used_KR) if name == self.candidate_feature else _no_candidates(used_KR)
            )
            used = used.expand(ids_BL.shape[1], -1)
            mask_LS = torch.cat((mask_BL.t(), used), dim=1)
            ids_LS = torch.cat((ids_BL.t(), extra.expand(ids_BL.shape[1], -1)), dim=1)
            values.append(ids_LS[mask_LS])  # sync: the number of ids
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
        return kjt, per_row

    @torch.no_grad()
    def embed_all_rows(self, num_rows: int, device: torch.device, chunk: int = 16_384) -> Tensor:
        """Collective. Return [rows, D], the candidates' table, looked up in chunks."""
        chunks = []
        for start in range(0, num_rows, chunk):
            ids_C = torch.arange(start, min(start + chunk, num_rows), device=device)
            chunks.append(self.forward(_empty_batch(self, device), ids_C).shared_CD[0])
        return torch.cat(chunks)

    def padded(self, batch: Batch) -> list[PaddedSequence]:
        """Return each sequence's name, ids [B, L], the oldest first, and mask of its places."""
        by_name = _by_key(batch.sequences) if batch.sequences is not None else {}
        padded = []
        for sequence in self.sequences:
            ids_V, lengths_B, _ = by_name[sequence.name]
            num_places_B = lengths_B.clamp(max=sequence.max_length)
            place_L = torch.arange(sequence.max_length, device=ids_V.device)
            mask_BL = place_L < num_places_B[:, None]
            index_BL = (lengths_B.cumsum(0) - num_places_B)[:, None] + place_L
            index_BL = torch.where(mask_BL, index_BL, len(ids_V))  # of the zero behind the values
            padded.append((sequence.name, functional.pad(ids_V, (0, 1))[index_BL], mask_BL))
        return padded

    def _arrange_candidates(
        self, candidates_C: Tensor | None, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return candidates as [K, R] ids, and which of these slots are used."""
        if candidates_C is None:
            return _no_candidates(torch.zeros(1, 0, dtype=torch.bool, device=device))
        count = len(candidates_C)
        num_rows = -(-count // self.num_candidate_slots)
        padded = functional.pad(candidates_C, (0, num_rows * self.num_candidate_slots - count))
        used = torch.arange(len(padded), device=padded.device) < count
        shape = (self.num_candidate_slots, num_rows)
        return padded.view(shape), used.view(shape)

    def _split_embeddings(
        self, values_SE: Tensor, size: int, candidates_C: Tensor | None, per_row: dict[str, Tensor]
    ) -> Embeddings:
        widths = [
            len(self.pooled_features) * self.dim,
            *(s.max_length * self.dim for s in self.sequences),
        ]
        pooled_SE, *blocks = torch.split(values_SE, widths, dim=1)
        sequences = tuple(torch.unflatten(block[:size], 1, (-1, self.dim)) for block in blocks)
        if candidates_C is None:
            return Embeddings(pooled_SE, sequences, per_row=per_row)
        names = [s.name for s in self.sequences]
        if self.candidate_feature in names:
            slots_RE = blocks[names.index(self.candidate_feature)][size:]
        else:
            place = [f.name for f in self.pooled_features].index(self.candidate_feature) * self.dim
            slots_RE = pooled_SE[size:, place : place + self.dim]
        slots_KRD = torch.unflatten(slots_RE, 1, (-1, self.dim)).transpose(0, 1)
        shared_CD = slots_KRD.flatten(0, 1)[: len(candidates_C)]
        per_batch = {"candidates": candidates_C}
        return Embeddings(pooled_SE[:size], sequences, (shared_CD,), per_row, per_batch)


def is_event(length_B: Tensor, num_places: int) -> Tensor:
    """Return [B, L], whether a place of a sequence with `length_B` events has one."""
    return torch.arange(num_places, device=length_B.device) < length_B[:, None]


def _by_key(kjt: KeyedJaggedTensor) -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
    """Return name -> values, lengths, weights."""
    counts, size = kjt.length_per_key(), kjt.stride()
    lengths = kjt.lengths().view(len(counts), size).unbind(0)
    values = torch.split(kjt.values(), counts)
    weights_V = kjt.weights_or_none()
    weights = [None] * len(counts) if weights_V is None else torch.split(weights_V, counts)
    return {
        key: (ids_V, lengths_B, w)
        for key, ids_V, lengths_B, w in zip(kjt.keys(), values, lengths, weights)
    }


def _no_candidates(used_KR: Tensor) -> tuple[Tensor, Tensor]:
    """Return ids and mask of no candidates, in as many rows."""
    empty_1R = used_KR.new_zeros(1, used_KR.shape[1])
    return empty_1R.long(), empty_1R


def _pad_weights(weights_V: Tensor | None, ids_V: Tensor, num_ids: int) -> Tensor:
    """Return `num_ids` weights: those of a feature's ids, then 1 for each candidate."""
    if weights_V is None:
        weights_V = torch.ones(ids_V.shape, device=ids_V.device)
    return functional.pad(weights_V, (0, num_ids - len(ids_V)), value=1.0)


def _empty_batch(lookup: SequenceLookup, device: torch.device) -> Batch:
    """Return a batch without rows, for a look-up of candidates alone."""
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
    """Return [B], the ids of a feature that has one id in every row.

    Rows without an id that only pad a batch, of weight 0, get id 0.

    Raises:
        ValueError: if another row has no id, or several; on a GPU only if that changes their
            number, since the host would wait for the lengths.
    """
    ids_V, lengths_B, _ = _by_key(batch.sparse)[name]
    if len(ids_V) == len(lengths_B) and not (lengths_B.is_cpu and bool((lengths_B != 1).any())):
        return ids_V
    has_id_B = lengths_B == 1
    if bool((has_id_B | (lengths_B == 0) & (batch.weights_B == 0)).all()):
        ids_B = ids_V.new_zeros(len(lengths_B))
        ids_B[has_id_B] = ids_V
        return ids_B
    raise ValueError(f"feature {name!r}: needs one id in every row; there are lists")
