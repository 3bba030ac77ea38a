"""`example.npz`: a few rows as inputs of the graphs, and what each format returns for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runner.serving.artifact.folder import GraphSpec, graph_file, read_schema
from runner.serving.artifact.loaded_graph import load_graph
from runner.serving.rows.encode import Transforms

EXAMPLE = "example.npz"


def write_example(folder: Path, formats: Sequence[str], inputs: Mapping[str, np.ndarray]) -> None:
    """Run the graphs of a folder on example rows, and write inputs and outputs.

    Args:
        formats: those that are run, with all that their files can do.
        inputs: `<graph>/<input>` -> values.
    """
    example = dict(inputs)
    for spec in read_schema(folder)[0]:
        for format_ in formats:
            run = load_graph(folder / graph_file(spec.name, format_), format_, spec)
            outputs = run([inputs[f"{spec.name}/{name}"] for name in spec.inputs])
            named_outputs = zip(spec.outputs, outputs)
            example |= {f"{spec.name}/{format_}/{name}": values for name, values in named_outputs}
    np.savez(folder / EXAMPLE, allow_pickle=False, **example)


def ids_in_range(
    spec: GraphSpec, raw: Transforms, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the inputs of a graph with 0 in place of ids that its tables do not have."""
    rows = {s.name: raw.fitted.num_rows[s.table_name] for s in raw.declared.ids}
    clipped = dict(inputs)
    for n, group in enumerate(spec.groups):
        lengths_F = inputs[f"lengths_{n}"].sum(axis=1)
        ends_V = np.repeat([rows[name] for name in group.features], lengths_F)
        values_V = inputs[f"values_{n}"]
        clipped[f"values_{n}"] = np.where(values_V < ends_V, values_V, 0)
    for n, sequence in enumerate(spec.sequences):
        ids_BL = inputs[f"ids_{n}"]
        clipped[f"ids_{n}"] = np.where(ids_BL < rows[sequence.name], ids_BL, 0)
    return clipped
