"""Tensors of the Open Inference Protocol v2, in JSON and in its binary extension.

https://github.com/kserve/open-inference-protocol and Triton's "Binary Tensor Data Extension".
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from runner.errors import DataError, unknown_choice

HEADER_LENGTH = "inference-header-content-length"
MAX_DIMENSIONS = 3
_INTEGERS = {
    f"{kind}{bits}": getattr(pa, f"{kind.lower()}{bits}")()
    for kind in ("INT", "UINT")
    for bits in (8, 16, 32, 64)
}
DATATYPES: Mapping[str, pa.DataType] = {
    "BOOL": pa.bool_(),
    **_INTEGERS,
    "FP32": pa.float32(),
    "FP64": pa.float64(),
    "BYTES": pa.string(),
}
_JSON_TYPES: Mapping[str, set[type]] = {
    "BOOL": {bool},
    "FP32": {int, float},
    "FP64": {int, float},
    "BYTES": {str},
}
_OUTPUT_DATATYPES = {"f": "FP32", "i": "INT64", "u": "UINT64", "O": "BYTES"}  # by NumPy's kind


@dataclass(frozen=True)
class Tensor:
    """A named tensor."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    # all elements, row-major; or a list for each row, if the rows of a JSON tensor hold lists of
    # several lengths
    values: pa.Array


@dataclass(frozen=True)
class InferRequest:
    """A parsed request."""

    id: str
    parameters: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    # names of the requested tensors, and whether in binary; empty: all
    outputs: Mapping[str, bool]
    binary: bool  # whether tensors without a name in `outputs` are wanted in binary


def parse_request(body: bytes, header_length: str | None) -> InferRequest:
    """Parse the body of a request.

    Args:
        header_length: of the JSON, in bytes; None: no binary tensors follow it.

    Raises:
        DataError: naming the field or the tensor that is wrong.
    """
    end = len(body) if header_length is None else _parse_length(header_length, len(body))
    try:
        content = json.loads(body[:end])
    except (ValueError, RecursionError) as error:
        raise DataError(f"the request is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError("the request is no JSON object")
    parameters = _parameters(content, "the request")
    inputs: dict[str, Tensor] = {}
    at = end
    for spec in _objects(content, "inputs"):
        name = _name(spec, "inputs")
        if name in inputs:
            raise DataError(f"inputs: two tensors are called {name!r}")
        size = _parameters(spec, name).get("binary_data_size")
        inputs[name] = _parse_tensor(name, spec, body[at : at + size] if _is_size(size) else size)
        at += size if _is_size(size) else 0
    if at != len(body):
        raise DataError(f"the request has {len(body)} bytes, but its tensors end at {at}")
    if not inputs:
        raise DataError("inputs: the request has none")
    binary = _is_wanted(parameters, "binary_data_output", "the request", default=False)
    outputs = {
        _name(spec, "outputs"): _is_wanted(
            _parameters(spec, "outputs"), "binary_data", "outputs", default=binary
        )
        for spec in _objects(content, "outputs")
    }
    id_ = content.get("id")
    return InferRequest("" if id_ is None else str(id_), parameters, inputs, outputs, binary)


def _parse_length(text: str, at_most: int) -> int:
    if not text.isdecimal() or len(text) > 20 or int(text) > at_most:
        raise DataError(f"{HEADER_LENGTH}: {text[:40]!r} is no length within the {at_most} bytes")
    return int(text)


def _is_size(size: Any) -> TypeGuard[int]:
    return type(size) is int and size >= 0


def _parameters(content: Mapping[str, Any], owner: str) -> Mapping[str, Any]:
    parameters = content.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise DataError(f"{owner}: parameters is no object")
    return parameters


def _is_wanted(parameters: Mapping[str, Any], key: str, owner: str, *, default: bool) -> bool:
    wanted = parameters.get(key, default)
    if wanted not in (True, False, None):
        raise DataError(f"{owner}: parameters.{key}={wanted!r}: expected true or false")
    return bool(wanted)


def _objects(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    objects = content.get(key) or []
    if not isinstance(objects, list) or not all(isinstance(spec, dict) for spec in objects):
        raise DataError(f"{key}: is no list of objects")
    return objects


def _name(spec: Mapping[str, Any], key: str) -> str:
    name = spec.get("name")
    if not isinstance(name, str) or not name:
        raise DataError(f"{key}: a tensor has no name")
    return name


def _parse_tensor(name: str, spec: Mapping[str, Any], content: Any) -> Tensor:
    """Parse a tensor with the bytes of its elements; None: the elements are in its JSON.

    Raises:
        DataError: for fields that do not fit each other.
    """
    datatype, shape = spec.get("datatype"), spec.get("shape")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise DataError(f"tensor {name!r}: {unknown_choice('datatype', datatype, DATATYPES)}")
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= MAX_DIMENSIONS
        or not all(_is_size(size) for size in shape)
    ):
        raise DataError(
            f"tensor {name!r}: shape {shape!r:.80}: expected 1 to {MAX_DIMENSIONS} sizes"
        )
    if content is not None and not isinstance(content, bytes):
        raise DataError(f"tensor {name!r}: binary_data_size {content!r:.40} is no size")
    if content is None:
        values = _from_json(name, datatype, len(shape), spec.get("data"))
    elif datatype == "BYTES":
        values = _split_texts(name, content)
    else:
        values = _from_bytes(name, datatype, content)
    if len(values) != math.prod(shape):
        raise DataError(
            f"tensor {name!r}: has {len(values)} elements, but the shape {shape} has "
            f"{math.prod(shape)}"
        )
    return Tensor(name, datatype, tuple(shape), values)


def _from_json(name: str, datatype: str, num_dimensions: int, data: Any) -> pa.Array:
    if not isinstance(data, list):
        raise DataError(f"tensor {name!r}: has neither data (a list) nor binary_data_size")
    for _ in range(num_dimensions - 1):  # row-major elements may be nested by dimension
        if data and all(type(row) is list for row in data):
            data = list(chain.from_iterable(data))
    kinds, elements, is_nested = [DATATYPES[datatype]], data, any(type(x) is list for x in data)
    if is_nested:
        for n, row in enumerate(data):
            if row is not None and type(row) is not list:
                raise DataError(
                    f"tensor {name!r}: row {n}: {row!r:.80}: no list, as other rows are"
                )
        elements = list(chain.from_iterable(row or () for row in data))
    _check_types(name, datatype, elements)
    if datatype in ("FP32", "FP64"):  # Arrow refuses whole numbers that these would round
        kinds += [pa.float64()] if float in map(type, elements) else [pa.int64()]
    problems = []
    for kind in kinds:
        array = _try_array(data, pa.list_(kind) if is_nested else kind)
        if isinstance(array, pa.Array):
            return array
        problems.append(array)
    at = bisect_left(range(len(elements)), True, key=lambda n: _fails(elements[: n + 1], kinds))
    value, place = elements[at], f"element {at}"
    if is_nested:
        ends = accumulate(len(row or ()) for row in data)
        place = f"row {next(n for n, end in enumerate(ends) if end > at)}"
    hint = "; UINT64 holds it" if datatype == "INT64" and 2**63 <= value < 2**64 else ""
    raise DataError(f"tensor {name!r}, {datatype}: {place}: {value!r:.80}: {problems[0]}{hint}")


def _try_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array | Exception:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        return error


def _fails(values: Sequence[Any], kinds: Sequence[pa.DataType]) -> bool:
    return not any(isinstance(_try_array(values, kind), pa.Array) for kind in kinds)


def _check_types(name: str, datatype: str, elements: Sequence[Any]) -> None:
    """Refuse elements that Arrow would convert silently, such as 1.5 to 1.

    Raises:
        DataError: naming the first such element.
    """
    known = {*_JSON_TYPES.get(datatype, {int}), type(None)}
    if {*map(type, elements)} <= known:
        return
    wrong = next(element for element in elements if type(element) not in known)
    raise DataError(f"tensor {name!r}: {json.dumps(wrong)[:80]} is no element of {datatype}")


def _from_bytes(name: str, datatype: str, content: bytes) -> pa.Array:
    dtype = np.dtype(DATATYPES[datatype].to_pandas_dtype()).newbyteorder("<")
    if len(content) % dtype.itemsize:
        raise DataError(
            f"tensor {name!r}: {len(content)} bytes are no multiple of the {dtype.itemsize} of "
            f"{datatype}"
        )
    return pa.array(np.frombuffer(content, dtype).astype(dtype.newbyteorder("=")))


def _split_texts(name: str, content: bytes) -> pa.Array:
    """Split texts, each preceded by its length in 4 bytes.

    Raises:
        DataError: for a length that does not fit, and text that is not UTF-8.
    """
    texts: list[bytes] = []
    at = 0
    while at < len(content):
        end = at + 4 + int.from_bytes(content[at : at + 4], "little")
        if end > len(content):
            raise DataError(f"tensor {name!r}: text {len(texts)} ends behind the tensor's bytes")
        texts.append(content[at + 4 : end])
        at = end
    try:
        return pa.array(texts, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DataError(f"tensor {name!r}: holds a text that is not UTF-8") from error


def write_answer(
    head: Mapping[str, Any], outputs: Mapping[str, np.ndarray], binary: Mapping[str, bool]
) -> tuple[bytes, int | None]:
    """Write the body of an answer.

    Args:
        outputs: name -> float32, int64, uint64, or texts as objects.
        binary: the outputs that are written after the JSON.

    Returns:
        The body, and the length of its JSON if binary tensors follow.
    """
    specs, tail = [], []
    for name, values in outputs.items():
        datatype = _OUTPUT_DATATYPES[values.dtype.kind]
        spec: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(values.shape)}
        if binary[name]:
            content = _as_bytes(values, datatype)
            tail.append(content)
            specs.append({**spec, "parameters": {"binary_data_size": len(content)}})
        elif datatype == "FP32":
            specs.append({**spec, "data": _finite_or_none(values.ravel())})
        else:
            specs.append({**spec, "data": values.ravel().tolist()})
    text = json.dumps({**head, "outputs": specs}, allow_nan=False).encode()
    return b"".join([text, *tail]), len(text) if tail else None


def _as_bytes(values: np.ndarray, datatype: str) -> bytes:
    if datatype == "BYTES":  # each text preceded by its length
        texts = [text.encode() for text in values.ravel()]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return np.ascontiguousarray(values, "<f4" if datatype == "FP32" else "<i8").tobytes()


def _finite_or_none(values: np.ndarray) -> Sequence[float | None]:
    """Return numbers for JSON, None for non-finite ones; as float32 they are exact."""
    numbers: list[float | None] = values.tolist()
    if np.isfinite(values).all():
        return numbers
    return [x if x is not None and math.isfinite(x) else None for x in numbers]
