"""`index MODEL`: builds an index of a model's items, and measures its recall and speed.

I items, Q queries, K best items, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.errors import already_exists, raise_combined, unknown_choice
from runner.serving.artifact.folder import Artifact, write_manifest
from runner.serving.export.plan import name_rows
from runner.serving.index.measure_index import TIMES, lower_recall, measure
from runner.serving.items.item_index import (
    FAISS_FILE,
    KINDS,
    ItemIndex,
    Search,
    check_faiss,
    search_by_faiss,
    search_exactly,
)
from runner.serving.items.item_table import (
    ITEMS,
    ItemTable,
    find_history,
    read_item_table,
    read_queries,
    write_item_table,
)
from runner.serving.write_aside import write_aside

EXACT_UP_TO = 1_000_000  # items; the default for more is hnsw
NEIGHBOURS, EF_CONSTRUCTION = 32, 200  # of HNSW
MAX_EF_SEARCH = 4096
ITEMS_A_LIST = 39  # at least, in IVF: faiss asks for so many to learn the centre of a list


@dataclass(frozen=True)
class IndexSettings:
    """What index to make.

    Args:
        kind: exact, hnsw or ivf; None: exact up to a million items; for more items hnsw, unless
            its recall is below `recall` or it is no faster than an exact search.
        recall: the share of the exact best items that an approximate index must find.
        top_k: the number of best items.
    """

    kind: str | None = None
    recall: float = 0.95
    top_k: int = 100


# how rankings through an index compare with those of an evaluation
Evaluate = Callable[[ItemIndex], dict[str, Any]]


def check_index_settings(out: Path, settings: IndexSettings) -> None:
    """Check the settings.

    Raises:
        UserError: with every mistake.
    """
    problems = []
    if out.exists():
        problems.append(already_exists("--out", out))
    if settings.kind is not None and settings.kind not in KINDS:
        problems.append(unknown_choice("--kind", settings.kind, KINDS))
    if not 0 < settings.recall <= 1:
        problems.append(f"--recall {settings.recall:g}: must be above 0, and 1 at most")
    if settings.top_k < 1:
        problems.append(f"--top-k {settings.top_k}: must be at least 1")
    raise_combined(problems)


def make_index(
    artifact: Artifact, out: Path, settings: IndexSettings, evaluate: Evaluate | None = None
) -> dict[str, Any]:
    """Make an index of a model's items, and write it with what was measured.

    Queries are those of the model's test split. The effort of an approximate index is doubled until
    half of them find `recall` of the exact best items; what is reported is of the other half.

    Args:
        out: the folder to write, which must not exist.

    Returns:
        The content of `manifest.json`.

    Raises:
        UserError: for a model that has no table of items, and a missing package.
    """
    items, query_QD = read_item_table(artifact), read_queries(artifact)
    kind = settings.kind or ("exact" if len(items.ids) <= EXACT_UP_TO else "hnsw")
    if kind != "exact":
        check_faiss(kind)
    exact = _Built("exact", partial(search_exactly, items.vectors_ID))
    with write_aside(out) as folder:
        built = exact if kind == "exact" else _approximate(kind, items, exact, query_QD, settings)
        if settings.kind is None and (reason := why_exact(built, settings.recall)):
            built = replace(exact, instead_of={"kind": kind, "why": reason, **built.measured})
        if not built.measured:
            top_k = min(settings.top_k, len(items.ids))
            built = replace(built, measured=measure(built.search, exact.search, query_QD, top_k))
        if built.index is None:
            write_item_table(folder, items)
        else:
            import faiss

            faiss.write_index(built.index, str(folder / FAISS_FILE))
            names = pa.table({"id": items.ids, "row": items.rows_I})
            pq.write_table(names, folder / ITEMS, write_page_checksum=True)
        facts = _facts(artifact, items, built)
        if evaluate is not None:
            served = ItemIndex(items.ids, items.rows_I, built.search)
            facts["measured"]["evaluation"] = evaluate(served)
        write_manifest(folder, facts)
    return facts


@dataclass(frozen=True)
class _Built:
    """An index that was built and measured."""

    kind: str  # exact, hnsw or ivf
    search: Search  # its search
    index: Any = None  # of faiss; None: it is exact
    parameters: Mapping[str, int] = field(default_factory=dict)  # of faiss
    measured: Mapping[str, Any] = field(default_factory=dict)  # by `measure`
    # measurements of an approximate index that was discarded for it
    instead_of: Mapping[str, Any] = field(default_factory=dict)


def _approximate(
    kind: str, items: ItemTable, exact: _Built, query_QD: np.ndarray, settings: IndexSettings
) -> _Built:
    """Build an approximate index, tune its effort on half of the queries, measure on the rest."""
    started, top_k = time.perf_counter(), min(settings.top_k, len(items.ids))
    index, parameters = _build(kind, items)
    built_s = time.perf_counter() - started
    parameters |= _tune(index, kind, exact.search, query_QD[::2], top_k, settings.recall)
    search = search_by_faiss(index, parameters)
    query_QD = query_QD[1::2] if len(query_QD) > 1 else query_QD
    measured = measure(search, exact.search, query_QD, top_k)
    exact_times = measure(exact.search, exact.search, query_QD, top_k)
    measured |= {f"exact_{name}": exact_times[name] for name in TIMES}
    measured["build_s"] = round(built_s, 3)
    return _Built(kind, search, index, parameters, measured)


def why_exact(built: _Built, recall: float) -> str | None:
    """Return why an exact search is better than an approximate index, or None."""
    measured = built.measured
    if built.index is None:
        return None
    reached = list(_recalls(measured).values())[-1]
    if reached < recall:
        return f"it finds {reached:.4f}, and --recall asks for {recall:g}"
    if measured[TIMES[0]] >= measured[f"exact_{TIMES[0]}"]:
        return "it is no faster"
    return None


def _recalls(measured: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in measured.items() if name.startswith("recall@")}


def _facts(artifact: Artifact, items: ItemTable, built: _Built) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "kind": built.kind,
        "parameters": dict(built.parameters),
        "num_items": len(items.ids),
        "width": int(items.vectors_ID.shape[1]),
        "model": {
            "version": artifact.version,
            "run": manifest["run"],
            "step": manifest["checkpoint"]["step"],
            "checkpoint": manifest["checkpoint"]["sha256"],
            "weights": manifest["weights"],
            "quantise": manifest["quantise"],
        },
        "leaves_out": find_history(artifact),
        "measured": dict(built.measured),
        "instead_of": dict(built.instead_of),
        "versions": {} if built.index is None else {"faiss-cpu": version("faiss-cpu")},
    }


def _build(kind: str, items: ItemTable) -> tuple[Any, dict[str, int]]:
    import faiss

    size, width = items.vectors_ID.shape
    vectors_ID = np.ascontiguousarray(items.vectors_ID)
    if kind == "hnsw":
        index: Any = faiss.IndexHNSWFlat(width, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        parameters = {"neighbours": NEIGHBOURS, "ef_construction": EF_CONSTRUCTION}
    else:
        num_lists = max(1, min(round(4 * size**0.5), size // ITEMS_A_LIST))
        centres = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(centres, width, num_lists, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors_ID)
        parameters = {"num_lists": num_lists}
    index.add(vectors_ID)
    return index, parameters


def _tune(
    index: Any, kind: str, exact: Search, query_QD: np.ndarray, top_k: int, recall: float
) -> dict[str, int]:
    """Return the least power of two as effort that reaches the recall, or the greatest effort."""
    name = "ef_search" if kind == "hnsw" else "num_probes"
    largest = MAX_EF_SEARCH if kind == "hnsw" else index.nlist
    effort = 16 if kind == "hnsw" else 1
    expected, _ = exact(query_QD, top_k)
    while True:
        effort = min(effort, largest)
        found_QK, _ = search_by_faiss(index, {name: effort})(query_QD, top_k)
        if lower_recall(found_QK, expected) >= recall or effort == largest:
            return {name: effort}
        effort *= 2


def describe_index(facts: Mapping[str, Any], target: float) -> list[str]:
    """Return the description of an index that is printed."""
    measured = facts["measured"]
    effort = ", ".join(f"{name} {value}" for name, value in facts["parameters"].items())
    recalls = _recalls(measured)
    shown = ", ".join(f"{name} {value:.4f}" for name, value in recalls.items())
    lines = [
        f"{facts['kind']}: {facts['num_items']:,} items of width {facts['width']}"
        f"{f' ({effort})' if effort else ''}",
        f"{shown} against the exact search, over {measured['queries']:,} queries of its own rows",
        _describe_times("", measured),
    ]
    if other := facts["instead_of"]:
        lines.append(
            f"exact was chosen, not {other['kind']}, the default for so many items: {other['why']}"
        )
        lines.append(f"{other['kind']}: {_describe_times('', other)}")
    if facts["kind"] != "exact":
        lines.append(f"the exact search: {_describe_times('exact_', measured)}")
        if list(recalls.values())[-1] < target:
            lines.append(f"note: recall is below --recall {target:g}: --kind exact finds all")
        if measured[TIMES[0]] >= measured[f"exact_{TIMES[0]}"]:
            lines.append("note: it is no faster than the exact search: --kind exact finds all")
    if evaluation := measured.get("evaluation"):
        for name, value in evaluation["evaluated"].items():
            reached = evaluation["through_index"][name]
            lines.append(
                f"{name_rows(evaluation)} {name} {value:.6f} with all items, {reached:.6f} through "
                "the index"
            )
    return lines


def _describe_times(prefix: str, measured: Mapping[str, Any]) -> str:
    single, batch = (measured[f"{prefix}{name}"] for name in TIMES)
    return f"{single:.3g} ms a query one by one, {batch:.3g} in batches"
