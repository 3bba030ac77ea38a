"""Deliveries: a training writes a whole artifact for servers first, and then deltas.

Each is written from a checkpoint, in the thread that has written the checkpoint, so that training
waits only for the copy of its state. A resumed training reads from the folder what was delivered.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runner.config.rules.loops import STREAM_DATASETS
from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.data.growing.id_map import sort_held_rows
from runner.errors import UserError, describe_error, shell_path, system_errors
from runner.models.layers.embedding import LINEAR_SUFFIX
from runner.rundir.checkpoint import Checkpoint, read_tensors, tensor_shapes
from runner.rundir.checkpoint.manifest import read_manifest
from runner.rundir.lock import FolderLock
from runner.rundir.run import Run
from runner.serving.artifact.delta import PREFIX, DeltaFolder, open_delta
from runner.serving.artifact.delta_moves import find_moves
from runner.serving.artifact.folder import Artifact, Task, open_artifact
from runner.serving.artifact.model_facts import model_facts
from runner.serving.artifact.weights import read_artifact_weights
from runner.serving.export.delta_write import (
    ModelVersion,
    check_same_model,
    find_difference,
    graph_weights,
    write_delta,
)
from runner.serving.export.graphs import TableChoice, without_tables
from runner.serving.export.run_inputs import find_run_inputs, with_vocabularies
from runner.serving.rows.encode import Transforms
from runner.serving.rows.transforms import read_transforms
from runner.serving.write_aside import write_aside
from runner.training.job import Job
from runner.training.state import EMA_PREFIX, GROWING_PREFIX

FULL = "full"  # the folder of the whole artifact, which the deltas apply to
EXPORT_LOG = "export.log"  # in the run directory: the output of the export of the whole artifact
# by which a process knows that it is one of several ranks
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOG_CHARACTERS = 400


class FolderDelivery:
    """Delivers into a folder: `full`, then a `delta-STEP` for every delivery.

    The whole artifact is made by `export` in a separate process, which checks it against the
    evaluation. If the folder has one already, in any format, deltas to that one are written.

    Args:
        to: the folder.
        rows_from: labelled rows to check the whole artifact on; None: the test split.
    """

    def __init__(self, *, to: str, rows_from: str | None = None) -> None:
        self.folder, self._rows_from = Path(to), rows_from
        self._export: tuple[int, subprocess.Popen[bytes]] | None = None  # step, process
        # the last delivered version; None before the first
        self._last: tuple[Artifact, dict[str, np.ndarray]] | None = None

    def start(self, job: Job) -> None:
        """Lock the folder, and keep references to the model, whose tables are not copied.

        Raises:
            UserError: for a dataset whose raw rows are not known, and a folder that cannot be
                written, that another training writes, or that holds another model.
        """
        assert job.run is not None
        with system_errors(f"delivery.to={self.folder}: cannot be written"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.folder)
        for stale in (*self.folder.glob(f".{PREFIX}*.tmp-*"), *self.folder.glob(f".{FULL}.tmp-*")):
            shutil.rmtree(stale, ignore_errors=True)
        self._job, self._run = job, job.run
        self._raw = self._read_raw_inputs(job.run)
        model = job.context.model
        with without_tables(model):
            self._model = copy.deepcopy(model).cpu()
        if (self.folder / FULL).exists():
            self._check_holds_this_model(open_artifact(self.folder / FULL))

    def _check_holds_this_model(self, base: Artifact) -> None:
        """Check that deltas can continue the folder; show a note if another run has written it.

        Raises:
            UserError: if it is of another model.
        """
        run = base.manifest["run"]
        try:
            check_same_model(base, self._version(base, {}, (), 0, None))
        except UserError as error:
            raise UserError(
                f"delivery.to={self.folder}: holds deliveries of run {run['name']}, another "
                "model; name another folder"
            ) from error
        if not self._is_of_this_run(base):
            self._job.view.note(
                f"delivery.to={self.folder}: holds deliveries of run {run['name']}, and those of "
                "this run go on from them"
            )

    def _is_of_this_run(self, artifact: Artifact) -> bool:
        """Tell whether this run has delivered an artifact. Runs over streams share signatures."""
        recorded, meta = artifact.manifest["run"], self._run.meta
        name = "id" if recorded.get("id") else "signature"  # earlier versions wrote no id
        return bool(recorded[name] == meta["run_id" if name == "id" else name])

    def _read_raw_inputs(self, run: Run) -> Transforms:
        """Return the raw columns of the run; ids of growing tables are not known yet.

        Raises:
            UserError: for a dataset whose raw rows are not known.
        """
        node = self._job.config["dataset"]
        if str(node["_target_"]).startswith(STREAM_DATASETS):
            transforms = read_transforms(node, run.dir)
            return replace(transforms, declared=transforms.features)
        return find_run_inputs(self._job.config, self._job.dataset, run.dir).raw

    def protected_steps(self) -> tuple[int, ...]:
        """Return the step whose checkpoint is being exported."""
        return () if self._export is None else (self._export[0],)

    def deliver(self, checkpoint: Path) -> None:
        """Deliver the weights of a checkpoint; the first are exported whole.

        Raises:
            UserError: if the export has failed, or the delta cannot be written.
        """
        manifest = read_manifest(checkpoint)
        if not self._is_base_ready(wait=False):
            if self._export is None:
                self._start_export(manifest.step)
            return
        self._write_delta(Checkpoint(manifest.step, checkpoint, {}, manifest))

    def finish(self, checkpoint: Path | None) -> None:
        """Deliver the last checkpoint; None stops a running export.

        Raises:
            UserError: as `deliver`.
        """
        if checkpoint is None:
            if self._export is not None:
                self._export[1].terminate()
                self._export[1].wait()
        else:
            self._deliver_last(checkpoint)
        self._lock.release()

    def _deliver_last(self, checkpoint: Path) -> None:
        view = self._job.view
        try:
            if self._export is not None and self._export[1].poll() is None:
                view.note(f"waiting for the whole artifact in {self.folder / FULL}")
            if not self._is_base_ready(wait=True):
                self._start_export(read_manifest(checkpoint).step)
                self._is_base_ready(wait=True)
            self.deliver(checkpoint)
        except Exception as error:  # of any kind: the run has ended well
            view.warn(
                f"the last weights were not delivered: {describe_error(error)}; "
                f"`python -m runner export {shell_path(self._run.dir)} --out MODEL` exports them"
            )

    def _is_base_ready(self, *, wait: bool) -> bool:
        """Return whether the whole artifact is there.

        Raises:
            UserError: if its export has failed; the next delivery tries again.
        """
        if self._export is not None and (wait or self._export[1].poll() is not None):
            step, process = self._export
            process.wait()
            self._export = None
            if process.returncode:
                log = self._run.dir / EXPORT_LOG
                end = log.read_text(errors="replace").strip()[-_LOG_CHARACTERS:]
                raise UserError(f"the export of step {step} has failed, as {log} says: {end}")
        return self._export is None and (self.folder / FULL).exists()

    def _start_export(self, step: int) -> None:
        """Export a checkpoint whole, in a process of its own."""
        words = [sys.executable, "-m", "runner", "export", str(self._run.dir)]
        words += ["--out", str(self.folder / FULL), f"checkpoint.step={step}"]
        words += [] if self._rows_from is None else ["--rows-from", self._rows_from]
        words += [word for name in self._job.allowed for word in ("--allow", name)]
        environment = {k: v for k, v in os.environ.items() if k not in _RANK_VARIABLES}
        with (self._run.dir / EXPORT_LOG).open("wb") as log:
            process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._export = step, process

    def _write_delta(self, saved: Checkpoint) -> None:
        if self._last is None:
            self._last = self._read_delivered()
        base, weights = self._last
        if self._is_of_this_run(base) and (base.step or 0) >= saved.step:
            return  # a resumed training repeats updates that were delivered
        new = self._read_version(base, saved)
        moves = find_moves(weights, new.weights, new.graphs, base.raw, new.raw)
        difference = find_difference(weights, new.weights, moves)
        if difference.is_empty:
            return
        out = self.folder / f"{PREFIX}{saved.step:012d}"
        if out.exists():  # of a run before this one
            out = out.with_name(f"{out.name}-{base.version}")
        with write_aside(out, "delivery.to") as folder:
            write_delta(folder, base, new, difference)
        self._last = replace(open_delta(out).applied_to(base), raw=new.raw), dict(new.weights)

    def _read_delivered(self) -> tuple[Artifact, dict[str, np.ndarray]]:
        """Read the whole artifact and all deltas on it."""
        artifact = open_artifact(self.folder / FULL)
        weights = read_artifact_weights(artifact)
        deltas = DeltaFolder(self.folder)
        while (path := deltas.take(artifact.version)) is not None:
            delta = open_delta(path)
            weights |= delta.changed_weights(artifact.graphs, weights)
            artifact = delta.applied_to(artifact)
        return artifact, weights

    def _read_version(self, base: Artifact, saved: Checkpoint) -> ModelVersion:
        """Read the weights of a checkpoint in the form that the graphs of an artifact have."""
        names = tensor_shapes(saved).keys()
        tables = {n for n in names if n.startswith("tables/") and n.endswith("/weight")}
        averages = {n for n in names if n.startswith(EMA_PREFIX)}
        averages = averages if base.manifest["weights"] == "ema" else set()
        dense = {n for n in names if n.startswith("dense/")}
        ids = {n for n in names if n.startswith(GROWING_PREFIX) and n.endswith("/ids")}
        tensors = read_tensors(saved, sorted(tables | averages | dense | ids))
        maps = {n.split("/")[1]: sort_held_rows(tensors.pop(n).numpy()) for n in ids}
        choice = TableChoice(
            base.manifest["quantise"],
            weights={
                name: _in_order_of_ids(name, tensors.pop(n), maps)
                for n in tables
                for name in [n.removeprefix("tables/")]
            },
        )
        specs, weights = graph_weights(self._model, self._job.dataset.schema, choice)
        for key in weights:
            name = key.partition("/")[2]
            if name.startswith("model."):
                short = name.removeprefix("model.")
                tensor = tensors.get(f"{EMA_PREFIX}{short}", tensors.get(f"dense/{short}"))
                assert tensor is not None, key
                weights[key] = tensor.numpy()
        raw = with_vocabularies(self._raw, {table: id_map for table, (id_map, _) in maps.items()})
        return replace(self._version(base, weights, specs, saved.step, saved.path), raw=raw)

    def _version(
        self,
        base: Artifact,
        weights: dict[str, np.ndarray],
        graphs: tuple[Any, ...],
        step: int,
        checkpoint: Path | None,
    ) -> ModelVersion:
        job = self._job
        tasks = tuple(Task(task.name, task.kind, task.one_of) for task in job.dataset.schema.tasks)
        facts = model_facts(job.config, self._run.meta, self._run.name, step, checkpoint)
        facts |= {name: base.manifest.get(name) for name in ("quantise", "weights")}
        facts |= {"versions": {"torch": version("torch")}}
        return ModelVersion(facts, graphs or base.graphs, tasks, self._raw, weights)


def _in_order_of_ids(
    name: str, weight_RD: torch.Tensor, maps: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> torch.Tensor:
    """Return the rows of a growing table in the order of its sorted ids; others unchanged.

    Args:
        name: `<table>/weight`.
        maps: table -> its sorted ids, and the row of each.
    """
    table = name.rpartition("/")[0].removesuffix(LINEAR_SUFFIX)
    if table not in maps:
        return weight_RD
    rows = torch.from_numpy(maps[table][1])
    return torch.cat((weight_RD[:FIRST_VALUE_ID], weight_RD[rows]))
