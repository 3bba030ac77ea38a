"""`example.npz`: a few rows as inputs of the graphs, and what each format returns for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runner.serving.artifact import graph_file, read_schema
from runner.serving.loaded_graph import load_graph

EXAMPLE = "example.npz"


def write_example(folder: Path, formats: Sequence[str], inputs: Mapping[str, np.ndarray]) -> None:
    """Run the graphs of a folder on example rows, and write inputs and outputs.

    Args:
        folder: with the graphs and `schema.json`.
        formats: those that are run, with all that their files can do.
        inputs: `<graph>/<input>` -> values.
    """
    example = dict(inputs)
    for spec in read_schema(folder)[0]:
        for format_ in formats:
            run = load_graph(folder / graph_file(spec.name, format_), format_, spec)
            outputs = run([inputs[f"{spec.name}/{name}"] for name in spec.inputs])
            named = zip(spec.outputs, outputs)
            example |= {f"{spec.name}/{format_}/{name}": values for name, values in named}
    np.savez(folder / EXAMPLE, allow_pickle=False, **example)
