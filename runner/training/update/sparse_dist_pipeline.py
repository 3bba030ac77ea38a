"""TorchRec's SparseDist pipeline: sends the ids of the next batch to their ranks early."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from runner.batch import Batch
from runner.errors import UserError
from runner.models.layers.embedding import TableLookup

GetIds = Callable[[Batch], list[KeyedJaggedTensor]]


@dataclass
class _PipelinedBatch(Pipelineable):  # type: ignore[misc]  # TorchRec has no types
    """A batch and, once it is on the device, the ids that each module of TorchRec distributes."""

    batch: Batch
    get_ids: GetIds
    ids: list[KeyedJaggedTensor]

    def to(self, device: torch.device, non_blocking: bool = False) -> _PipelinedBatch:
        moved = self.batch.to(device, non_blocking)
        return _PipelinedBatch(moved, self.get_ids, self.get_ids(moved))

    def pin_memory(self) -> _PipelinedBatch:
        return _PipelinedBatch(self.batch.pin_memory(), self.get_ids, self.ids)

    def record_stream(self, stream: torch.Stream) -> None:
        self.batch.record_stream(stream)
        for kjt in self.ids:
            kjt.record_stream(stream)


class _LookupModules(nn.Module):
    """What TorchRec has to know of a model: which module gets which ids."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.sharded = nn.ModuleList(modules)

    def forward(self, batch: _PipelinedBatch) -> list[object]:
        return [module(batch.ids[i]) for i, module in enumerate(self.sharded)]


class _PipelineStages(
    TrainPipelineSparseDist[_PipelinedBatch, Batch]  # type: ignore[misc]  # TorchRec has no types
):
    """TorchRec's stages, without the update.

    `progress()` would run a forward, a backward and an optimizer by itself, whereas our update is
    cut at the look-ups (`task.py`).
    """

    def iterate_batches(self, source: Iterator[_PipelinedBatch]) -> Iterator[Batch]:
        """Yield the batches whose ids have arrived or are under way.

        Collective. The consumer calls `start_next_dist` once the look-ups of its batch are under
        way; for a consumer that does not, it is called when the batch comes back.
        """
        self.fill_pipeline(source)
        while self.batches:
            self._set_module_context(self.contexts[0])
            self._wait_for_batch()
            if len(self.batches) > 1:  # exchange how many ids will go where
                self.start_sparse_data_dist(self.batches[1], self.contexts[1])
            self.enqueue_batch(source)  # copy it to the device
            pipelined = self.batches[0]
            assert pipelined is not None
            yield pipelined.batch
            self.start_next_dist()
            self.dequeue_batch()

    def start_next_dist(self) -> None:
        """Send the ids of the next batch, behind the embeddings of this one."""
        if len(self.batches) > 1:
            self.wait_sparse_data_dist(self.contexts[1])


class SparseDistPipeline:
    """Yields batches through TorchRec's pipeline, for the look-ups of one model.

    Collective. A pass inside another, such as an evaluation in the middle of a training, has stages
    of its own; the outer one keeps its batches. A look-up of any batch but the one handed out would
    silently get the wrong embeddings, so it is refused.
    """

    def __init__(
        self, lookup: TableLookup, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        assert lookup.tables is not None
        self._lookup, self._tables = lookup, lookup.tables
        self._model = _LookupModules(lookup.tables.torchrec_modules())
        self._optimizer, self._device = optimizer, device
        self._running: list[_PipelineStages] = []
        self._handed_out: Batch | None = None
        self._model.sharded[-1].register_forward_hook(self._start_next_dist)

    def batches(self, source: Iterator[Batch]) -> Generator[Batch, None, None]:
        """Yield the same batches in the same order, on the device.

        An error of the source is raised at once, up to two batches early: otherwise the other ranks
        would wait for ids that never come.
        """
        stages = _PipelineStages(self._model, self._optimizer, self._device)
        with self._activate(stages):
            for batch in stages.iterate_batches(map(self._wrap, source)):
                self._handed_out = batch
                yield batch

    def _wrap(self, batch: Batch) -> _PipelinedBatch:
        return _PipelinedBatch(
            batch.pin_memory() if self._device.type == "cuda" else batch, self._ids, []
        )

    def _ids(self, batch: Batch) -> list[KeyedJaggedTensor]:
        return self._tables.torchrec_inputs(self._lookup.lookup_ids(batch))

    @contextmanager
    def _activate(self, stages: _PipelineStages) -> Iterator[None]:
        outer = self._running[-1] if self._running else None
        handed_out_before = self._handed_out
        if outer is not None:
            outer.detach()
        self._running.append(stages)
        self._lookup.set_observer(self._check_lookup)
        try:
            yield
        finally:
            stages.detach()
            self._running.remove(stages)
            self._handed_out = handed_out_before
            if outer is None:
                self._lookup.set_observer(None)
            elif outer is self._running[-1]:
                outer.attach(sparse_dist=False)  # ids under way stay under way

    def _start_next_dist(self, *_: object) -> None:
        if self._running:
            self._running[-1].start_next_dist()

    def _check_lookup(self, batch: Batch) -> None:
        """Check that a look-up is the first one of the batch that was handed out.

        Raises:
            UserError: for another batch, or a second look-up of the same.
        """
        if batch is not self._handed_out:
            raise UserError(
                "trainer.pipeline=sparse_dist: the ids of each batch are distributed early for one "
                "look-up of it, and this task or model looks up something else, or twice; "
                "trainer.pipeline=none supports that"
            )
        self._handed_out = None
