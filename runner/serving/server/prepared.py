"""Reads prepared ids: the inputs of a graph as tensors, checked and concatenated.

Shape legend: R rows, F features of a group, V values, L sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from runner.errors import DataError, nearest_hint
from runner.serving.artifact.folder import GraphSpec, LookupGroup
from runner.serving.rows.encode import Transforms
from runner.serving.server.tensors import Tensor

Arrays = Mapping[str, np.ndarray]


def describe_inputs(spec: GraphSpec) -> list[dict[str, object]]:
    """Return the descriptions of a graph's input tensors for metadata."""
    shapes: dict[str, list[int]] = {"dense": [-1, len(spec.dense)]}
    for n, group in enumerate(spec.groups):
        shapes[f"lengths_{n}"] = [len(group.features), -1]
    for n, sequence in enumerate(spec.sequences):
        shapes[f"ids_{n}"] = [-1, sequence.max_length]
    return [
        {"name": name, "datatype": _datatype(name), "shape": shapes.get(name, [-1])}
        for name in spec.inputs
    ]


def _datatype(name: str) -> str:
    return "FP32" if name == "dense" or name.startswith("weights_") else "INT64"


def read_arrays(
    spec: GraphSpec, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, np.ndarray], int]:
    """Read the inputs of a graph; `check_ids` checks their values.

    Returns:
        Name -> array, and the number of rows.

    Raises:
        DataError: naming the tensor that is missing, unknown, or of a wrong type or shape.
    """
    unknown = next((name for name in tensors if name not in spec.inputs), None)
    if unknown is not None:
        raise DataError(
            f"tensor {unknown!r}: no input of graph {spec.name}{nearest_hint(unknown, spec.inputs)}"
        )
    arrays = {name: _read_array(name, tensors) for name in spec.inputs}
    shapes = {str(d["name"]): d["shape"] for d in describe_inputs(spec)}
    num_rows = -1
    for name, values in arrays.items():
        shape = shapes[name]
        assert isinstance(shape, list)
        if name.startswith(("values_", "weights_")):
            shape = [-1]  # checked with the lengths
        else:
            at = shape.index(-1)
            if num_rows < 0 and values.ndim == len(shape):
                num_rows = values.shape[at]
            shape = [num_rows if size == -1 else size for size in shape]
        if values.ndim != len(shape) or any(
            size not in (-1, actual) for size, actual in zip(shape, values.shape)
        ):
            raise DataError(
                f"tensor {name!r}: has shape {[*values.shape]}, expected {shape} (rows as in the "
                "first tensor)"
            )
    return arrays, num_rows


def _read_array(name: str, tensors: Mapping[str, Tensor]) -> np.ndarray:
    if name not in tensors:
        raise DataError(f"no tensor {name!r}{nearest_hint(name, tensors)}")
    tensor, datatype = tensors[name], _datatype(name)
    if tensor.datatype != datatype or tensor.values.null_count:
        raise DataError(f"tensor {name!r}: expected {datatype}, without missing elements")
    if pa.types.is_list(tensor.values.type):
        raise DataError(f"tensor {name!r}: nested lists must have the form of its shape")
    values: np.ndarray = tensor.values.to_numpy(zero_copy_only=False).reshape(tensor.shape)
    if datatype == "FP32":
        values = values.astype(np.float32, copy=False)  # of large whole numbers
    if datatype == "FP32" and not np.isfinite(values).all():
        raise DataError(f"tensor {name!r}: holds a value that is not finite")
    return values


def check_ids(spec: GraphSpec, raw: Transforms, arrays: Arrays) -> None:
    """Check the lengths of lists, and every id against its feature's own table.

    Raises:
        DataError: naming the tensor, and the feature and row of an id that is out of range.
    """
    sizes = {s.name: raw.fitted.num_rows[s.table_name] for s in raw.declared.ids}
    for n, group in enumerate(spec.groups):
        lengths_FR, values = arrays[f"lengths_{n}"], arrays[f"values_{n}"]
        total = int(lengths_FR.sum(dtype=object)) if lengths_FR.size else 0
        if (lengths_FR < 0).any() or total != len(values):
            raise DataError(
                f"tensor 'lengths_{n}': its lengths must not be negative, and add up to the "
                f"{len(values)} elements of values_{n}"
            )
        if group.weighted and len(arrays[f"weights_{n}"]) != len(values):
            raise DataError(f"tensor 'weights_{n}': expected one element for each of values_{n}")
        for name, part, lengths_R in zip(group.features, _split(values, lengths_FR), lengths_FR):
            _check_range(
                f"values_{n}", name, part, np.repeat(np.arange(len(lengths_R)), lengths_R), sizes
            )
    for n, sequence in enumerate(spec.sequences):
        ids_RL, length_R = arrays[f"ids_{n}"], arrays[f"length_{n}"]
        if ((length_R < 0) | (length_R > sequence.max_length)).any():
            raise DataError(f"tensor 'length_{n}': must lie in 0 to {sequence.max_length}")
        rows = np.repeat(np.arange(len(ids_RL)), sequence.max_length)
        _check_range(f"ids_{n}", sequence.name, ids_RL.ravel(), rows, sizes)


def _check_range(
    tensor: str, feature: str, ids: np.ndarray, rows: np.ndarray, sizes: Mapping[str, int]
) -> None:
    wrong = np.flatnonzero((ids < 0) | (ids >= sizes[feature]))
    if len(wrong):
        raise DataError(
            f"tensor {tensor!r}, feature {feature!r}, row {rows[wrong[0]]}: id {ids[wrong[0]]}: "
            f"its table has rows 0 to {sizes[feature] - 1}"
        )


def _split(values: np.ndarray, lengths_FR: np.ndarray) -> list[np.ndarray]:
    """Split the values of a group by feature."""
    return np.split(values, np.cumsum(lengths_FR.sum(axis=1))[:-1])


def join(spec: GraphSpec, requests: Sequence[Arrays]) -> list[np.ndarray]:
    """Concatenate the inputs of several requests by row, in the order of the graph's inputs."""
    if len(requests) == 1:
        return [requests[0][name] for name in spec.inputs]
    joined: dict[str, np.ndarray] = {}
    for n, group in enumerate(spec.groups):
        joined |= _join_group(n, group, requests)
    return [
        joined[name] if name in joined else np.concatenate([r[name] for r in requests])
        for name in spec.inputs
    ]


def _join_group(
    n: int, group: LookupGroup, requests: Sequence[Arrays]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the concatenated tensors of a group, whose values are feature-major."""
    lengths = [request[f"lengths_{n}"] for request in requests]
    yield f"lengths_{n}", np.concatenate(lengths, axis=1)
    for kind in ("values", "weights") if group.weighted else ("values",):
        parts = [_split(request[f"{kind}_{n}"], sizes) for request, sizes in zip(requests, lengths)]
        yield f"{kind}_{n}", np.concatenate([part for feature in zip(*parts) for part in feature])


def row_slices(num_rows: Sequence[int]) -> list[slice]:
    """Return the slice of the concatenated rows that belongs to each request."""
    ends = list(accumulate(num_rows))
    return [slice(end - size, end) for end, size in zip(ends, num_rows)]
