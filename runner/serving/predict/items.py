"""Finds the best items of the rows of a prediction: among all items, or with an index.

B rows of a batch, I items, K best items, L sequence length, D width.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runner.data.tabular.table_recipe import TableRecipe
from runner.models.layers.sequences import is_event
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.serving.items.item_index import MAX_SCORES, ItemIndex
from runner.serving.items.item_table import item_ids, name_items
from runner.serving.rows.encode import Transforms
from runner.serving.rows.transforms import read_texts


class IndexSearch:
    """A search in an index of the same model."""

    def __init__(self, index: ItemIndex, top_k: int, *, leave_history_out: bool) -> None:
        self._index, self.ids = index, index.ids  # the raw id of each position
        self._top_k, self._leave_history_out = top_k, leave_history_out

    def find(self, vectors: Mapping[str, Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions [B, K] of the best items, best first, and their scores.

        A position is -1 where no item is left.

        Args:
            vectors: `row_vectors` of a prediction.
        """
        seen = None
        if self._leave_history_out and "history_BL" in vectors:
            ids_BL, length_B = vectors["history_BL"], vectors["history_length_B"]
            seen = ids_BL.cpu().numpy(), length_B.cpu().numpy()
        return self._index.find(vectors["query_BD"].cpu().numpy(), self._top_k, seen)


class ExactSearch:
    """A search over all items, on the model's device.

    As in the rankings of evaluations, it leaves out the rows of unknown and missing values and,
    with `leave_history_out`, the items of the row's history.

    Args:
        training: the table of the training, to find the texts of items; None: there is none.
    """

    def __init__(
        self,
        model: RetrievalModel,
        transforms: Transforms,
        top_k: int,
        *,
        leave_history_out: bool,
        training: TableRecipe | None,
    ) -> None:
        model.open_catalogue(leave_history_out=False)
        assert model.items_ID is not None
        self._items_ID = model.items_ID
        model.close_catalogue()
        declared, fitted = transforms.declared, transforms.fitted
        ids_I, self._num_special = item_ids(declared.ids, fitted, model.item.name)
        texts = None
        if training is not None:
            [spec] = [spec for spec in declared.ids if spec.name == model.item.name]
            texts = read_texts(training, fitted, spec)
        self.ids = name_items(ids_I, texts)
        self._top_k, self._leave_history_out = top_k, leave_history_out

    def find(self, vectors: Mapping[str, Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and scores, as `IndexSearch.find` does."""
        query_BD = vectors["query_BD"]
        step = max(1, MAX_SCORES // len(self._items_ID))
        items, scores = [], []
        for start in range(0, len(query_BD), step):
            rows = slice(start, start + step)
            scores_BI = query_BD[rows] @ self._items_ID.t()
            scores_BI[:, : self._num_special] = -torch.inf
            if self._leave_history_out and "history_BL" in vectors:
                self._leave_out(scores_BI, vectors, rows)
            best_BK, index_BK = scores_BI.topk(self._top_k, dim=1)
            items.append(index_BK.masked_fill(best_BK == -torch.inf, -1))
            scores.append(best_BK)
        return torch.cat(items).cpu().numpy(), torch.cat(scores).cpu().numpy()

    def _leave_out(self, scores_BI: Tensor, vectors: Mapping[str, Tensor], rows: slice) -> None:
        ids_BL, length_B = vectors["history_BL"][rows], vectors["history_length_B"][rows]
        row_BL = torch.arange(len(ids_BL), device=ids_BL.device)[:, None].expand_as(ids_BL)
        seen_BL = is_event(length_B, ids_BL.shape[1])
        scores_BI[row_BL[seen_BL], ids_BL[seen_BL]] = -torch.inf


ItemSearch = IndexSearch | ExactSearch
