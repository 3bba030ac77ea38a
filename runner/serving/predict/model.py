"""Loads the model of a run as evaluations use it, and scores encoded parts.

B rows of a batch, R rows of a part, T tasks, K best items, D width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from runner.batch import Batch, DataPosition, class_columns
from runner.config.settings import TrainerSettings, make_settings
from runner.data.core.columns import Columns
from runner.data.core.dataset import Dataset
from runner.data.read.collate import build_schema, collate
from runner.data.read.decode import InMemoryReader
from runner.data.read.index import BlockIndex
from runner.data.read.stream import BatchSlice
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.reporting.console import View
from runner.rundir.checkpoint import Checkpoint
from runner.serving.items.item_index import item_columns, open_index
from runner.serving.items.item_table import vectors_as_lists
from runner.serving.predict.items import ExactSearch, IndexSearch, ItemSearch
from runner.serving.predict.plan import index_model
from runner.serving.rows.encode import EncodedPart, Transforms
from runner.serving.rows.outputs import Outputs
from runner.training.builder.context import make_context, set_up_task
from runner.training.builder.device import prepare_device, seed_everything
from runner.training.builder.inputs import JobInputs
from runner.training.builder.part_kinds import check_parts
from runner.training.loops.evaluate_split import evaluate_batches
from runner.training.state import restore_weights
from runner.training.update.context import Context
from runner.training.update.prefetch import batches_on_device
from runner.training.update.task import Task


class _NoRows(Dataset):
    """The schema of a run whose data are not needed: a model asks for counts of training ids."""

    def __init__(self, columns: Columns) -> None:
        self.schema, self.growth = build_schema(columns), columns.growth
        self.num_rows, self.reachable, self.bad_rows = {}, {}, {}
        self.rest = "short"

    def batches(self, split: str, **order: Any) -> Iterator[Batch]:
        return iter(())

    def save_fitted_transforms(self, folder: Path) -> None:
        raise AssertionError("the run has its transforms")


class RunModel:
    """The model with the weights of one checkpoint, and their averages where evaluations use them.

    Every process has it whole; no process waits for another.

    Args:
        config: of the run, resolved and checked.
        allowed: packages that a `_target_` may name besides ours.

    Raises:
        ConfigError: for a part that cannot be built, or weights that do not fit it.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        checkpoint: Checkpoint,
        transforms: Transforms,
        allowed: Sequence[str],
    ) -> None:
        check_parts(config, allowed)
        trainer = make_settings(TrainerSettings, config["trainer"])
        device = prepare_device(trainer)
        seed_everything(config["seed"])
        with open(os.devnull, "w") as nowhere:
            dataset = _NoRows(transforms.columns)
            inputs = JobInputs(config, trainer, device, None, View(nowhere), tuple(allowed))
            parts = make_context(inputs, dataset)
        self.context: Context = parts[0]
        self.task: Task = inputs.make_part("task", config["task"])
        set_up_task(self.task, self.context, trainer)
        restore_weights(self.context, checkpoint)
        self.context.set_eval_mode()
        self.context.take_evaluation_weights()
        self.schema = dataset.schema
        self.transforms, self.checkpoint = transforms, checkpoint
        self.columns: Columns = transforms.columns
        # as an evaluation in one process has: rounding may depend on the size of a batch
        self.batch_size = trainer.batch_size * trainer.num_processes
        self._config = config

    @property
    def model(self) -> torch.nn.Module:
        return self.context.model

    def check_outputs(self, outputs: Outputs) -> None:
        """Check that the model has the requested outputs.

        Raises:
            ConfigError: for vectors of a model without retrieval, and for more items than exist.
        """
        if not outputs.needs_retrieval:
            return
        model, name = self.model, type(self.model).__name__
        names = [name for name in outputs.embeddings if name != "pooled"]
        flag = f"--top-k {outputs.top_k}" if outputs.top_k else f"--embeddings {', '.join(names)}"
        if not isinstance(model, RetrievalModel):
            raise ConfigError(
                f"{flag}: {name} scores rows and has no vector of a user or an item; "
                "model=two_tower and model=sasrec do. --embeddings pooled works for every model"
            )
        if not outputs.top_k:
            return
        try:
            model.check_catalogue()
        except ValueError as error:
            raise ConfigError(f"{flag}: {error}") from error
        if outputs.top_k > (num_items := model.item.num_rows - model.item.num_special):
            raise ConfigError(f"{flag}: there are {num_items:,} items; ask for as many at most")

    def make_scorer(
        self, outputs: Outputs, training: TableRecipe | None = None
    ) -> Callable[[EncodedPart], pa.Table]:
        """Return the function that scores a part: kept columns, then those of `outputs`.

        Bad rows have null values, except in kept columns that could be read.

        Args:
            training: the table of the training, to find the texts of the best items.

        Raises:
            ConfigError: for outputs that the model cannot give.
        """
        self.check_outputs(outputs)
        search = self._make_search(outputs, training) if outputs.top_k else None

        def score(part: EncodedPart) -> pa.Table:
            if isinstance(self.model, RetrievalModel):
                self.model.exposes_vectors = outputs.needs_retrieval
            with torch.no_grad():
                return self._score_part(part, outputs, search)

        return score

    def _make_search(self, outputs: Outputs, training: TableRecipe | None) -> ItemSearch:
        leave_out = bool(self._config["metrics"]["leave_history_out"])
        if outputs.index is not None:
            index = open_index(outputs.index, index_model(self._config, self.checkpoint))
            return IndexSearch(index, outputs.top_k, leave_history_out=leave_out)
        assert isinstance(self.model, RetrievalModel)
        return ExactSearch(
            self.model,
            self.transforms,
            outputs.top_k,
            leave_history_out=leave_out,
            training=training,
        )

    def _score_part(
        self, part: EncodedPart, outputs: Outputs, search: ItemSearch | None
    ) -> pa.Table:
        logits: list[Tensor] = []
        items: list[tuple[np.ndarray, np.ndarray]] = []
        by_name: dict[str, list[Tensor]] = {}
        with closing(batches_on_device(self.context, self._batches(part))) as batches:
            for batch, prediction, _ in evaluate_batches(self.context, self.task, batches):
                logits.append(prediction.logits_BT.float())
                vectors = {"user": "query_BD", "item": "item_BD"}
                for name in outputs.embeddings:
                    by_name.setdefault(f"embedding_{name}", []).append(
                        self.context.model.embed(batch).pooled_BE
                        if name == "pooled"
                        else prediction.aux[vectors[name]]
                    )
                if search is not None:
                    items.append(search.find(prediction.aux))
        logits_RT = torch.cat(logits).cpu().numpy()
        columns = {name: part.kept[name] for name in part.kept.column_names}
        for task, label in enumerate(self.columns.labels):
            score_R = logits_RT[:, task]
            if label.kind == "binary" and not outputs.logits:
                score_R = _sigmoid(score_R)
            columns[outputs.score_name(label)] = pa.array(score_R, mask=part.bad_R)
        for name, of_label in class_columns(self.schema.tasks).items():
            classes = [task.name.removeprefix(f"{name}.") for task in self.schema.tasks[of_label]]
            top_R = np.asarray(classes)[logits_RT[:, of_label].argmax(axis=1)]
            columns[f"class_{name}"] = pa.array(top_R, pa.string(), mask=part.bad_R)
        for name, tensors in by_name.items():
            columns[name] = vectors_as_lists(torch.cat(tensors).cpu().numpy(), part.bad_R)
        if search is not None:
            positions_RK, scores_RK = (np.concatenate(parts) for parts in zip(*items))
            columns |= item_columns(search.ids, positions_RK, scores_RK, part.bad_R)
        return pa.table(columns)

    def _batches(self, part: EncodedPart) -> Iterator[Batch]:
        block = BlockIndex.of_file((), [part.rows.num_rows], part.first_row)
        reader = InMemoryReader(block, self.columns, part.rows)
        rows = reader.read_rows(np.array([0]), slice(0, part.rows.num_rows))
        keys = [feature.name for feature in self.schema.sparse]
        sequences = [feature.name for feature in self.schema.sequences]
        growing = self.context.growing
        for start in range(0, len(rows), self.batch_size):
            stop = min(start + self.batch_size, len(rows))
            end = part.first_row + stop
            batch_slice = BatchSlice(((rows, start, stop),), end)
            batch = collate(batch_slice, keys, DataPosition(0, end), sequences)
            yield batch if growing is None else growing.look_up(batch)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return probabilities in float64, so that distinct float32 logits stay distinct."""
    with np.errstate(over="ignore"):
        probabilities: np.ndarray = 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
    return probabilities
