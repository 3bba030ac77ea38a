"""TorchRec's SparseDist pipeline: ids go to their ranks while the batch before is learnt from."""

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
class _PipelinedBatch(Pipelineable):
    """A batch, and once it is on the device what each module of TorchRec's distributes of it."""

    batch: Batch
    ids_of: GetIds
    ids: list[KeyedJaggedTensor]

    def to(self, device: torch.device, non_blocking: bool = False) -> _PipelinedBatch:
        moved = self.batch.to(device, non_blocking)
        return _PipelinedBatch(moved, self.ids_of, self.ids_of(moved))

    def pin_memory(self) -> _PipelinedBatch:
        return _PipelinedBatch(self.batch.pin_memory(), self.ids_of, self.ids)

    def record_stream(self, stream: torch.Stream) -> None:
        self.batch.record_stream(stream)
        for kjt in self.ids:
            kjt.record_stream(stream)


class _LookupModules(nn.Module):
    """All that TorchRec has to know of a model: which module gets which ids."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.sharded = nn.ModuleList(modules)

    def forward(self, fed: _PipelinedBatch) -> list[object]:
        return [module(fed.ids[i]) for i, module in enumerate(self.sharded)]


class _PipelineStages(TrainPipelineSparseDist[_PipelinedBatch, Batch]):
    """TorchRec's stages with the update outside: `progress()` would run a forward, a backward and
    an optimizer of its own, where ours is cut at the look-ups (`task.py`)."""

    def iterate_batches(self, source: Iterator[_PipelinedBatch]) -> Iterator[Batch]:
        """Batches whose ids have arrived, or are on their way. Collective.

        While a batch is out, `looked_up` is to be called once its look-ups are under way.
        """
        self.fill_pipeline(source)
        while self.batches:
            self._set_module_context(self.contexts[0])
            self._wait_for_batch()
            if len(self.batches) > 1:  # how many ids will go where
                self.start_sparse_data_dist(self.batches[1], self.contexts[1])
            self.enqueue_batch(source)  # copied to the device
            fed = self.batches[0]
            assert fed is not None
            yield fed.batch
            self.start_next_dist()
            self.dequeue_batch()

    def start_next_dist(self) -> None:
        """Sends the ids of the next batch on their way, behind this one's embeddings."""
        if len(self.batches) > 1:
            self.wait_sparse_data_dist(self.contexts[1])


class SparseDistPipeline:
    """Batches through TorchRec's pipeline, for the look-ups of one model. Collective.

    A pass inside of a pass, such as an evaluation in the middle of a training, has a pipeline of
    its own; the outer one keeps its batches. A look-up of any other batch than the one that was
    handed out would get that one's embeddings without a word: it is refused.
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
        """The same batches in the same order, on the device.

        An error of the source is raised when it is met, up to two batches early: the other ranks
        would wait in vain for the ids that are not coming.
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
        before = self._handed_out
        if outer is not None:
            outer.detach()
        self._running.append(stages)
        self._lookup.set_observer(self._check_lookup)
        try:
            yield
        finally:
            stages.detach()
            self._running.remove(stages)
            self._handed_out = before
            if outer is None:
                self._lookup.set_observer(None)
            elif outer is self._running[-1]:
                outer.attach(sparse_dist=False)  # what is on its way stays on its way

    def _start_next_dist(self, *_: object) -> None:
        if self._running:
            self._running[-1].start_next_dist()

    def _check_lookup(self, batch: Batch) -> None:
        """Raises: UserError for a look-up of another batch, or a second one of the same."""
        if batch is not self._handed_out:
            raise UserError(
                "trainer.pipeline=sparse_dist: the ids of each batch are distributed ahead for one "
                "look-up of it, and this task or model looks up something else, or twice; "
                "trainer.pipeline=none can do it"
            )
        self._handed_out = None
