"""Look-ups of selected features by ids that a task chooses, such as items of no row.

N pairs, with one id of each feature; D width of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, Embeddings, Schema
from runner.errors import nearest_hint
from runner.models.layers.embedding import TableLookup


class Pairs(TableLookup):
    """The tables of some features with one id per row.

    Raises:
        ValueError: if the schema lacks one of the features.
    """

    def __init__(self, schema: Schema, names: Sequence[str], dim: int) -> None:
        by_name = {f.name: f for f in schema.sparse}
        for name in names:
            if name not in by_name:
                raise ValueError(
                    f"the dataset has no feature {name!r}{nearest_hint(name, by_name)}"
                )
        super().__init__(replace(schema, sparse=tuple(by_name[name] for name in names)), dim)

    def lookup_ids(self, batch: Batch) -> KeyedJaggedTensor:
        return self.jagged(self.ids_in(batch))

    def ids_in(self, batch: Batch) -> dict[str, Tensor]:
        """Return the ids of the batch's rows, [N] by feature."""
        return {name: batch.sparse[name].values() for name in self.features}

    def jagged(self, ids: Mapping[str, Tensor]) -> KeyedJaggedTensor:
        """Return ids by feature as one jagged tensor."""
        values = torch.cat([ids[name] for name in self.features])
        return KeyedJaggedTensor(
            keys=list(self.features), values=values, lengths=torch.ones_like(values)
        )

    def look_up(self, ids: Mapping[str, Tensor]) -> Embeddings:
        """Return the embeddings of any pairs, [N, number of features x D]."""
        assert self.tables is not None
        return Embeddings(self.tables(self.jagged(ids)))
