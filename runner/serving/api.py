"""The Python API: `compose` and `train` as on the command line, and `load` for a trained run.

docs/python.md shows it. Mistakes raise exceptions (`runner.errors`), and every call restores the
settings of the process that it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.config.compose import compose_job
from runner.config.composed_checks import check_composed, with_row_count
from runner.config.targets import allowed_packages
from runner.data.files.bad_rows import BadRows
from runner.data.files.read_files import RowChunk
from runner.errors import ConfigError, raise_combined
from runner.launch import launch_run
from runner.machine.imports import missing_extra
from runner.rundir.checkpoint import saved_steps
from runner.rundir.find_checkpoint import find_checkpoint
from runner.rundir.find_run import find_run
from runner.rundir.json_files import read_jsonl
from runner.rundir.run_files import read_config, read_result
from runner.serving.artifact.folder import Artifact, open_artifact
from runner.serving.export.plan import ExportSettings, plan_export
from runner.serving.items.item_table import vectors_as_matrix
from runner.serving.predict.plan import compose_for_prediction
from runner.serving.process_state import process_restored
from runner.serving.rows.encode import PartEncoder, check_input_types, with_types_of_roles
from runner.serving.rows.input import (
    MEMORY,
    InputPart,
    MemoryTable,
    check_kept_columns,
    cut_into_parts,
)
from runner.serving.rows.outputs import Outputs
from runner.serving.rows.transforms import find_training_table, read_transforms
from runner.serving.tables import as_arrow, like

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from runner.serving.predict.model import RunModel
    from runner.serving.rows.encode import EncodedPart

ROWS_AT_ONCE = 1 << 16  # about so many rows are encoded and scored together


def compose(
    overrides: Sequence[str] = (), *, allow: Sequence[str] = (), config_dirs: Sequence[str] = ()
) -> dict[str, Any]:
    """Compose a configuration from the arguments of a command line; return it resolved and checked.

    Args:
        overrides: such as `["model=dcn", "trainer.max_steps=100"]`.
        allow: packages of yours whose code the configuration may name.
        config_dirs: folders with groups and options of yours.

    Raises:
        ConfigError: with every mistake.
    """
    _check_texts(overrides=overrides, allow=allow, config_dirs=config_dirs)
    composed = compose_job(overrides, config_dirs=config_dirs)
    check_composed(with_row_count(composed), allowed_packages(allow))
    return composed.config


def _check_texts(**arguments: Collection[str | Path]) -> None:
    """Check that each argument, by its name, is a list of texts.

    Raises:
        ConfigError: for a single text, whose letters would be taken one by one, and other values.
    """
    raise_combined(
        f"{name}={texts!r}: must be a list of texts, such as {name}=['...']"
        for name, texts in arguments.items()
        if isinstance(texts, str)
        or not isinstance(texts, Collection)  # an iterator would be empty the second time
        or not all(isinstance(text, str | Path) for text in texts)
    )


def train(
    overrides: Sequence[str] = (), *, allow: Sequence[str] = (), config_dirs: Sequence[str] = ()
) -> TrainedRun:
    """Train in this process, as `python -m runner` with the same words does, and return the run.

    A run directory that exists is resumed, or returned if it is done.

    Args:
        overrides: such as `["model=dcn", "hydra.run.dir=outputs/mine"]`.
        allow: packages of yours whose code the configuration may name.
        config_dirs: folders with groups and options of yours.

    Raises:
        ConfigError: for mistakes, all at once, and for what needs processes of its own: sweeps and
            several ranks.
        RuntimeError: if the training failed; the run directory says why.
        KeyboardInterrupt: if it was interrupted; the same call goes on with it.
    """
    _check_texts(overrides=overrides, allow=allow, config_dirs=config_dirs)
    composed = compose_job(overrides, config_dirs=config_dirs)
    trainer = composed.config.get("trainer") or {}
    if composed.is_multirun or composed.config.get("search"):
        raise ConfigError("search: a sweep has jobs of its own: `python -m runner -m ...`")
    if composed.config.get("run") is not None:
        raise ConfigError(f"run={composed.config['run']}: train makes a run; load opens one")
    if trainer.get("num_processes", 1) != 1:
        raise ConfigError(
            f"trainer.num_processes={trainer['num_processes']}: several ranks are processes of "
            "their own: train them with `python -m runner`, then load the run"
        )
    command = ["python", "-m", "runner", *overrides]
    with process_restored():
        code, folder = launch_run(composed, allowed=allowed_packages(allow), command=command)
    if folder is None:
        raise ConfigError(
            f"loop={composed.choices.get('loop')}: makes no run directory to return; "
            "`python -m runner` runs it"
        )
    if code in (130, 143):
        raise KeyboardInterrupt
    if code != 0:
        raise RuntimeError(f"{folder}: {(read_result(folder) or {}).get('error') or 'failed'}")
    return TrainedRun(folder.absolute(), tuple(allow))


def load(folder: str | Path, *, allow: Sequence[str] = ()) -> TrainedRun:
    """Open a run.

    Args:
        folder: a run directory; the folder of a sweep, whose best job is meant; another folder,
            whose newest training is meant; `outputs/latest` is a link to the training that began
            last; or the URL of a mirror, which is fetched first. What was chosen is printed on
            stderr.
        allow: packages of yours whose code its configuration may name.

    Raises:
        UserError: if there is no run, or no job of the sweep has a result.
    """
    _check_texts(allow=allow)
    return TrainedRun(find_run(folder).absolute(), tuple(allow))


@dataclass(frozen=True)
class TrainedRun:
    """A run directory. Models are loaded when they are first asked for, and kept.

    Args:
        dir: the run directory.
        allow: packages whose code its configuration may name.
    """

    dir: Path
    allow: tuple[str, ...] = ()
    _scorers: dict[tuple[str, ...], _Scorer] = field(
        default_factory=dict, repr=False, compare=False
    )

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the result as a table, and the curves."""
        from runner.reporting.report.run_page import render_for_notebook

        return render_for_notebook(self.dir)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration; references to the environment stay references."""
        return read_config(self.dir)

    @property
    def metrics(self) -> dict[str, float]:
        """The final metrics, such as `test/auc`; empty if the run has not ended."""
        metrics = (read_result(self.dir) or {}).get("metrics") or {}
        return {name: float(value) for name, value in metrics.items()}

    @property
    def history(self) -> pd.DataFrame:
        """A row for each log point and evaluation, with `split`, `step`, `examples`, then metrics.

        Raises:
            UserError: where pandas is not installed.
        """
        raise_combined(missing_extra("history", "pandas", "pandas"))
        import pandas as pd

        frame = pd.DataFrame(read_jsonl(self.dir / "metrics.jsonl"))
        for name in frame.columns.drop("split", errors="ignore"):
            if not pd.api.types.is_numeric_dtype(frame[name]):
                frame[name] = [float(x) for x in frame[name].fillna("NaN")]  # it may be "Infinity"
        return frame

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Step -> folder of every whole checkpoint, ascending."""
        folder = self.dir / "checkpoints"
        return {step: folder / f"step-{step}" for step in saved_steps(folder)}

    def model(self, step: int | str = "best") -> nn.Module:
        """Return the model with the weights that an evaluation uses, in evaluation mode.

        Args:
            step: `best`, `last`, or the number of a checkpoint.

        Raises:
            UserError: for a step that is not there.
        """
        return self._scorer(step, ()).model.model

    def predict(
        self,
        table: Any,
        *,
        keep: Sequence[str] = (),
        outputs: Outputs = Outputs(),  # noqa: B008  (it is frozen)
        step: int | str = "best",
        overrides: Sequence[str] = (),
    ) -> Any:
        """Score the rows of a table, as `python -m runner predict` does those of files.

        Args:
            table: of pandas, polars or Arrow, with the columns of the training; no labels needed.
            keep: columns to carry over.
            outputs: the other columns of the result; by default the score of each task.
            step: `best`, `last`, or the number of a checkpoint.
            overrides: settings that differ from those of the run, such as
                `["dataset.on_bad_rows=skip"]`, which leaves bad rows without a score.

        Returns:
            A table of the same kind, with the rows in the same order.

        Raises:
            UserError: for a column that is missing or wrong, a bad row, and wrong settings.
        """
        _check_texts(keep=keep, overrides=overrides)
        columns = tuple(dict.fromkeys(keep))
        result = self._scorer(step, tuple(overrides)).score(as_arrow(table), columns, outputs)
        return like(result, table)

    def embeddings(
        self, table: Any, name: str = "pooled", *, step: int | str = "best"
    ) -> np.ndarray:
        """Return a vector for each row, [R, D] float32; NaN for a bad row that the run skips.

        Args:
            table: as for `predict`.
            name: `pooled`, all pooled look-ups side by side; or, of a retrieval model, `user` or
                `item`, whose product is the logit.
            step: `best`, `last`, or the number of a checkpoint.

        Raises:
            UserError: as for `predict`, and for vectors that the model does not have.
        """
        rows = self._scorer(step, ()).score(as_arrow(table), (), Outputs(embeddings=(name,)))
        return vectors_as_matrix(rows[f"embedding_{name}"])

    def export(
        self,
        out: str | Path,
        settings: ExportSettings = ExportSettings(),  # noqa: B008  (it is frozen)
        *,
        step: int | str = "best",
        overrides: Sequence[str] = (),
    ) -> Artifact:
        """Write the model as a folder that scores raw rows, as `python -m runner export` does.

        Args:
            out: the folder to write, which must not exist.
            settings: formats, quantised tables, which weights.
            step: `best`, `last`, or the number of a checkpoint.
            overrides: settings that differ from those of the run.

        Raises:
            UserError: for what cannot be exported, and for an artifact that is not what was
                evaluated, which is not kept.
        """
        allowed = allowed_packages(self.allow)
        _check_texts(overrides=overrides)
        words = (f"checkpoint.step={step}", *overrides)
        config = plan_export(str(self.dir), str(out), settings, words, allowed).config
        with process_restored():
            from runner.reporting.console import View
            from runner.serving.export.export import export_run

            view, out = View(), Path(out)
            export_run(config, out, settings, view=view, allowed=allowed, say=lambda text: None)
        return open_artifact(Path(out))

    def _scorer(self, step: int | str, overrides: tuple[str, ...]) -> _Scorer:
        words = (f"checkpoint.step={step}", *overrides)
        if words not in self._scorers:
            self._scorers[words] = _Scorer(self.dir, words, self.allow)
        return self._scorers[words]


class _Scorer:
    """A model with the transforms of its run, for tables in memory."""

    def __init__(self, run: Path, overrides: Sequence[str], allow: Sequence[str]) -> None:
        allowed = allowed_packages(allow)
        self._config = compose_for_prediction(run, overrides, allowed).config
        self._run, self._allowed = run, allowed
        self.transforms = read_transforms(self._config["dataset"], run)
        self._functions: dict[Outputs, Callable[[EncodedPart], pa.Table]] = {}

    @cached_property
    def model(self) -> RunModel:
        with process_restored():
            from runner.serving.predict.model import RunModel

            checkpoint = find_checkpoint(self._run, self._config["checkpoint"]["step"])
            return RunModel(self._config, checkpoint, self.transforms, self._allowed)

    def score(self, table: pa.Table, keep: Sequence[str], outputs: Outputs) -> pa.Table:
        """Score the rows of a table.

        Raises:
            UserError: for a column that is missing or wrong, for a bad row, and for outputs that
                the model cannot give.
        """
        check_kept_columns(keep, outputs.column_names(self.transforms.columns.labels))
        rows = MemoryTable(table, self.transforms.features, keep)
        types = with_types_of_roles(self.transforms, table.slice(0, 0)).schema
        check_input_types(self.transforms, types, str(MEMORY), same_format=True)
        dataset: Mapping[str, Any] = self._config["dataset"]
        skips = dataset.get("on_bad_rows") == "skip"
        bad = BadRows(dataset.get("max_bad_rows", 0) if skips else 0)
        encoder = PartEncoder(self.transforms, keep, rows.empty_rows(), skip_bad_rows=skips)
        batch_size = self.model.batch_size
        part_rows = max(1, round(ROWS_AT_ONCE / batch_size)) * batch_size
        results = []
        with process_restored():
            if outputs not in self._functions:
                names_items = bool(outputs.top_k) and outputs.index is None
                training = find_training_table(dataset, self._run) if names_items else None
                self._functions[outputs] = self.model.make_scorer(outputs, training)
            parts = cut_into_parts(rows.located_chunks(part_rows), part_rows, lambda _: True)
            if not table.num_rows:  # the columns of the result are those of a row without values
                empty_row = RowChunk(MEMORY, None, 0, 1, None)
                blank = encoder.encode(InputPart(0, 0, (empty_row,)))
                return self._functions[outputs](blank).slice(0, 0)
            for part in parts:
                encoded = encoder.encode(part)
                bad.add_rejected(encoded.bad_R, encoded.messages)
                results.append(self._functions[outputs](encoded))
        return pa.concat_tables(results)
