"""The maps from raw ids to rows of all growing tables of a job.

B rows of a batch, F features, V ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, Schema
from runner.data.columns.vocabulary import FIRST_VALUE_ID, UNKNOWN_ID
from runner.data.growing.id_map import IdMap
from runner.data.growing.settings import Growth
from runner.distributed.ranks import Ranks
from runner.distributed.shards import set_rows
from runner.embeddings.initialization import draw_row_weights
from runner.embeddings.interface import EmbeddingTables, TableSpec
from runner.models.layers.embedding import LINEAR_SUFFIX


class GrowingIds:
    """Replaces raw ids in batches by rows, and lets the maps grow with the batches of a training.

    Every rank has the same maps: each sees the ids of the whole update, in the order of its rows.

    Args:
        growth: table -> its rules.
        schema: tells which features read the tables.
        tables: of the model, whose rows are reset when they are taken back.
        specs: of these tables.
        seed: of the run, for the weights of reset rows.
        log: takes the counts of each update.
    """

    def __init__(
        self,
        growth: Mapping[str, Growth],
        schema: Schema,
        tables: EmbeddingTables,
        specs: Sequence[TableSpec],
        *,
        seed: int,
        ranks: Ranks,
        log: Callable[[str, float], None],
    ) -> None:
        readers = schema.id_features
        num_rows = {f.table_name: f.num_rows for f in readers}
        self.maps = {table: IdMap(num_rows[table], rules) for table, rules in growth.items()}
        self._table_of = {f.name: f.table_name for f in readers if f.table_name in growth}
        self._tables, self._seed, self._ranks, self._log = tables, seed, ranks, log
        self._specs = {
            table: [s for s in specs if s.name.removesuffix(LINEAR_SUFFIX) == table]
            for table in growth
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the live state of all maps, which checkpoints hold, as `<table>/<name>`."""
        return {
            f"{table}/{name}": torch.from_numpy(values)
            for table, ids in self.maps.items()
            for name, values in ids.state.items()
        }

    def rebuild(self) -> None:
        """Go on from what has been written into `tensors`."""
        for ids in self.maps.values():
            ids.rebuild()

    def adopt(self, table: str, ids: np.ndarray) -> None:
        """Give rows to the ids of another run, as far as rows suffice, if no id has a row yet."""
        if not self.maps[table].num_held:
            self.maps[table].adopt(ids)

    def freeze(self) -> dict[str, np.ndarray]:
        """Renumber rows and move their weights in ascending order of the ids; return the ids.

        For a model that is not trained further: optimizer states are not moved.
        """
        vocabularies, state = {}, self._tables.state()
        for table, ids in self.maps.items():
            vocabularies[table], rows = ids.renumber()
            for spec in self._specs[table]:
                weight_RD = state[f"{spec.name}/weight"]
                new_rows = torch.arange(len(rows)) + FIRST_VALUE_ID
                set_rows(weight_RD, new_rows, weight_RD[torch.from_numpy(rows)])
        self._tables.take_over_weights()
        return vocabularies

    def look_up(self, batch: Batch) -> Batch:
        """Return a batch with the present rows of its ids, without changing the maps."""
        values_V = _join_values(batch)
        for table, at_V, _ in self._places(batch):
            values_V[at_V] = self.maps[table].look_up(values_V[at_V])
        return _with_values(batch, values_V)

    def grow(self, batch: Batch) -> Batch:
        """Count the ids of the next update in its order, and return its batch with their rows.

        Collective. Rows of weight 0 are not counted.

        Args:
            batch: the whole update of this rank, with raw ids.
        """
        values_V, places = _join_values(batch), self._places(batch)
        parts = self._ranks.all_gather_object(
            {table: values_V[at_V[is_counted_V]] for table, at_V, is_counted_V in places}
        )
        for table, at_V, is_counted_V in places:
            ids, ids_of_ranks = self.maps[table], [part[table] for part in parts]
            rows, evicted = ids.observe(np.concatenate(ids_of_ranks))
            if len(evicted):
                specs, draw = self._specs[table], ids.num_updates
                reset_rows(self._tables, specs, evicted, seed=self._seed, draw=draw)
            start = sum(map(len, ids_of_ranks[: self._ranks.rank]))
            uncounted = at_V[~is_counted_V]
            values_V[uncounted] = ids.look_up(values_V[uncounted])
            values_V[at_V[is_counted_V]] = rows[start : start + len(ids_of_ranks[self._ranks.rank])]
            self._log(f"growing/{table}/rows", float(ids.num_held))
            if len(rows):
                self._log(f"growing/{table}/shared", float((rows == UNKNOWN_ID).mean()))
        return _with_values(batch, values_V)

    def _places(self, batch: Batch) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return for each table the places of its ids, and which are in rows of weight above 0.

        Places are those in `_join_values`, row by row, then in the order of features.
        """
        counts_B = batch.weights_B.numpy() > 0
        at: dict[str, list[np.ndarray]] = {table: [] for table in self.maps}
        rows: dict[str, list[np.ndarray]] = {table: [] for table in self.maps}
        end = 0
        for kjt in _jagged_parts(batch):
            lengths_FB = kjt.lengths().numpy().reshape(len(kjt.keys()), -1)
            for name, length, lengths_B in zip(kjt.keys(), kjt.length_per_key(), lengths_FB):
                start, end = end, end + length
                if name in self._table_of:
                    at[self._table_of[name]].append(np.arange(start, end))
                    rows[self._table_of[name]].append(np.repeat(np.arange(batch.size), lengths_B))
        places = []
        for table in self.maps:
            at_V, row_V = np.concatenate(at[table]), np.concatenate(rows[table])
            if len(at[table]) > 1:
                order = np.argsort(row_V, kind="stable")
                at_V, row_V = at_V[order], row_V[order]
            places.append((table, at_V, counts_B[row_V]))
        return places


def _jagged_parts(batch: Batch) -> list[KeyedJaggedTensor]:
    return [kjt for kjt in (batch.sparse, batch.sequences) if kjt is not None]


def _join_values(batch: Batch) -> np.ndarray:
    """Return a copy of all ids of a batch, those of its sequences last."""
    return np.concatenate([kjt.values().numpy() for kjt in _jagged_parts(batch)])


def _with_values(batch: Batch, values_V: np.ndarray) -> Batch:
    sparse = _replace_values(batch.sparse, values_V[: len(batch.sparse.values())])
    if batch.sequences is None:
        return replace(batch, sparse=sparse)
    sequences = _replace_values(batch.sequences, values_V[len(batch.sparse.values()) :])
    return replace(batch, sparse=sparse, sequences=sequences)


def _replace_values(kjt: KeyedJaggedTensor, values_V: np.ndarray) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=kjt.keys(),
        values=torch.from_numpy(values_V),
        weights=kjt.weights_or_none(),
        lengths=kjt.lengths(),
        offsets=kjt.offsets(),
        stride=kjt.stride(),
        length_per_key=kjt.length_per_key(),
        offset_per_key=kjt.offset_per_key(),
    )


def reset_rows(
    tables: EmbeddingTables, specs: Sequence[TableSpec], rows: np.ndarray, *, seed: int, draw: int
) -> None:
    """Give rows of some tables new initial weights, and set their optimizer's states to zero.

    Every rank draws all weights and keeps those of its shards, so that any plan has the same. Call
    it between two updates.

    Args:
        specs: those whose rows are reset.
        rows: their numbers, the same in each of them.
        draw: number of this reset; each draws other weights.
    """
    state, rows_N = tables.state(), torch.from_numpy(rows)
    for spec in specs:
        for key, tensor in state.items():
            table, _, name = key.rpartition("/")
            if table != spec.name:
                continue
            if name == "weight":
                values = draw_row_weights(len(rows), spec, seed=seed, draw=draw)
            else:
                values = torch.zeros(len(rows), *tensor.shape[1:], dtype=tensor.dtype)
            set_rows(tensor, rows_N, values)
    tables.take_over_weights()
