"""Scores the requests of a batch together, and gives each its own rows or its own error."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from runner.errors import DataError, nearest_hint, unknown_choice
from runner.serving.artifact.folder import Artifact, GraphSpec
from runner.serving.artifact.raw_rows import encode_rows, graph_features
from runner.serving.items.item_table import why_no_items
from runner.serving.rows.outputs import TOP_ITEMS
from runner.serving.scorer import Scorer
from runner.serving.server.columns import make_table, served_columns
from runner.serving.server.nearest import (
    LEAVE_OUT,
    NEAREST,
    TOP_K,
    nearest_items,
    read_left_out,
    read_top_k,
)
from runner.serving.server.prepared import check_ids, join, read_arrays, row_slices
from runner.serving.server.tensors import InferRequest

LOGIT, VECTORS = ".logit", ".vectors"  # appended to the name of a task and of a graph
GRAPH = "graph"  # the parameter of a request that holds prepared ids
PARAMETERS = (GRAPH, TOP_K, LEAVE_OUT, "binary_data_output")
# Parameters that clients of Triton add; "timeout" is not a misspelt "leave_out".
OF_CLIENTS = ("timeout", "priority", "sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True)
class Work:
    """A request whose form has been checked, ready to be scored."""

    graphs: tuple[str, ...]  # names of the graphs that its outputs need
    rows: pa.Table | Mapping[str, np.ndarray]  # raw columns; or the inputs of the one graph
    num_rows: int
    outputs: Mapping[str, bool]  # names of the tensors to answer, and whether in binary
    top_k: int = 0  # how many items to find for each row; 0: none
    leave_out: tuple[int | str, ...] = ()  # raw ids of items to leave out

    @property
    def key(self) -> Hashable:
        """The key that requests must share to be scored together."""
        schema = getattr(self.rows, "schema", None)  # of a table
        return self.graphs, schema, self.top_k, self.leave_out


Outputs = Mapping[str, np.ndarray]


def output_names(artifact: Artifact, graph: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return the outputs that can be asked for, each with the graphs that it needs.

    Args:
        graph: the graph of prepared ids; None for raw columns.
    """
    names = tuple(spec.name for spec in artifact.graphs)
    graphs: dict[str, tuple[str, ...]] = {}
    if graph is None or names == (graph,):
        for end in ("", LOGIT):
            graphs |= {f"{task.name}{end}": names for task in artifact.tasks}
        graphs |= {f"class_{label}": names for label in artifact.classes}
    if len(names) > 1:
        graphs |= {f"{name}{VECTORS}": (name,) for name in names if graph in (None, name)}
    if graph in (None, "query") and why_no_items(artifact) is None:
        graphs |= dict.fromkeys(NEAREST, ("query",))
    return graphs


def make_work(
    artifact: Artifact, request: InferRequest, max_rows: int, max_top_k: int = 1000
) -> Work:
    """Check a request, and make a `Work` of it.

    Raises:
        DataError: naming what is wrong.
    """
    for name in request.parameters:
        is_known = name in PARAMETERS or name in OF_CLIENTS
        if not is_known and (near := nearest_hint(name, PARAMETERS)):
            raise DataError(f"parameters.{name}: there is no such parameter{near}")
    graph = request.parameters.get(GRAPH)
    names = [spec.name for spec in artifact.graphs]
    if graph is not None and graph not in names:
        raise DataError(unknown_choice(f"parameters.{GRAPH}", graph, names))
    known = output_names(artifact, graph)
    unknown = next((name for name in request.outputs if name not in known), None)
    if unknown is not None:
        raise DataError(
            f"no output {unknown!r}{nearest_hint(unknown, known)}; there are {', '.join(known)}"
        )
    top_k = read_top_k(artifact, request.parameters, [*request.outputs], max_top_k)
    if top_k and TOP_ITEMS not in known:
        raise DataError(f"parameters.{TOP_K}: the graph {graph!r} finds no items; 'query' does")
    leave_out = read_left_out(artifact, request.parameters)
    default = NEAREST if top_k else _default_outputs(artifact, known)
    outputs = request.outputs or dict.fromkeys(default, request.binary)
    needed = {name for output in outputs for name in known[output]}
    specs = [spec for spec in artifact.graphs if spec.name in needed]
    rows: pa.Table | Mapping[str, np.ndarray]
    if graph is None:
        try:
            rows = make_table(served_columns(artifact.raw, specs), request.inputs)
        except DataError as error:
            if top_k or {"query", "items"} - {spec.name for spec in specs}:
                raise
            more = f"parameters.{TOP_K} asks for items, and needs the columns of the query alone"
            raise DataError(f"{error}; {more}") from error
        num_rows = rows.num_rows
    else:
        rows, num_rows = read_arrays(specs[0], request.inputs)
    if not num_rows:
        raise DataError("the request has no rows")
    if num_rows > max_rows:
        raise DataError(
            f"the request has {num_rows} rows; at most {max_rows} are scored at once "
            "(--max-rows of `serve`)"
        )
    return Work(tuple(spec.name for spec in specs), rows, num_rows, outputs, top_k, leave_out)


def _default_outputs(artifact: Artifact, known: Mapping[str, Any]) -> list[str]:
    scores = [*(task.name for task in artifact.tasks), *(f"class_{n}" for n in artifact.classes)]
    scores = [name for name in scores if name in known]
    return scores or [name for name in known if name not in NEAREST]


def score_batch(scorer: Scorer, batch: Sequence[Work]) -> list[Outputs | Exception]:
    """Score requests; those with the same `key` together.

    Returns:
        For each the tensors that it asked for, or the error of its rows.
    """
    answers: list[Outputs | Exception] = [{}] * len(batch)
    groups: dict[Hashable, list[int]] = {}
    for number, work in enumerate(batch):
        groups.setdefault(work.key, []).append(number)
    for numbers in groups.values():
        try:
            scored: Sequence[Outputs | Exception] = _score_alike(
                scorer, [batch[n] for n in numbers]
            )
        except Exception:  # a bad request must not spoil the answers of others
            scored = [_score_alone(scorer, batch[n]) for n in numbers]
        for number, answer in zip(numbers, scored):
            answers[number] = answer
    return answers


def _score_alone(scorer: Scorer, work: Work) -> Outputs | Exception:
    try:
        return _score_alike(scorer, [work])[0]
    except Exception as error:  # raised where the request is answered
        return error


def _score_alike(scorer: Scorer, works: Sequence[Work]) -> list[Outputs]:
    specs = [spec for spec in scorer.artifact.graphs if spec.name in works[0].graphs]
    if isinstance(works[0].rows, pa.Table):
        requested = {name for work in works for name in work.outputs}
        table = pa.concat_tables([work.rows for work in works])
        together = _score_raw(scorer, specs, table, requested, works[0])
    else:
        together = _score_prepared(scorer, specs[0], works)
    slices = row_slices([work.num_rows for work in works])
    return [
        {name: together[name][rows] for name in work.outputs} for work, rows in zip(works, slices)
    ]


def _score_raw(
    scorer: Scorer, specs: Sequence[GraphSpec], table: pa.Table, requested: set[str], work: Work
) -> Outputs:
    rows = encode_rows(scorer.artifact.raw, table, graph_features(specs))
    names = {f"{spec.name}{VECTORS}": spec.name for spec in specs}
    outputs = {name: scorer.vectors(names[name], rows) for name in requested & names.keys()}
    if work.top_k:
        outputs |= nearest_items(scorer, scorer.arrays("query", rows), work.top_k, work.leave_out)
    if requested - outputs.keys():
        outputs |= _task_outputs(scorer, scorer.logits(rows), rows.bad_R)
    return outputs


def _score_prepared(scorer: Scorer, spec: GraphSpec, works: Sequence[Work]) -> Outputs:
    for work in works:  # checked against the tables of the version that scores them
        check_ids(spec, scorer.artifact.raw, work.rows)
    arrays, first = join(spec, [work.rows for work in works]), works[0]
    if scorer.is_retrieval:
        outputs = {}
        if first.top_k:
            outputs = nearest_items(scorer, arrays, first.top_k, first.leave_out)
        if any((vectors := f"{spec.name}{VECTORS}") in work.outputs for work in works):
            outputs[vectors] = scorer.run_arrays(spec.name, arrays)["vectors"]
        return outputs
    logits_RT = scorer.run_arrays(spec.name, arrays)["logits"]
    return _task_outputs(scorer, logits_RT, np.zeros(len(logits_RT), bool))


def _task_outputs(scorer: Scorer, logits_RT: np.ndarray, bad_R: np.ndarray) -> Outputs:
    logits = {f"{t.name}{LOGIT}": logits_RT[:, n] for n, t in enumerate(scorer.artifact.tasks)}
    return {**logits, **scorer.task_scores(logits_RT, bad_R)}
