"""Reads and replaces the weights of an ONNX file without the `onnx` package.

A scorer has onnxruntime alone, which gives no access to the weights of a loaded model. The few
messages that matter here are those of onnx.proto: `ModelProto.graph` (7), `GraphProto.initializer`
(5), and of `TensorProto` dims (1), data_type (2), name (8) and raw_data (9).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_DTYPES = {1: "f4", 2: "u1", 3: "i1", 6: "i4", 7: "i8", 9: "?", 10: "f2", 11: "f8"}
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}


def read_initializers(model: bytes | memoryview) -> dict[str, np.ndarray]:
    """Return the weights of an ONNX file by name; the arrays are views of its bytes.

    Raises:
        ValueError: for bytes that are no ONNX file.
    """
    view, initializers = memoryview(model), {}
    for number, _, graph in _fields(view):
        for inner, _, tensor in _fields(graph) if number == _GRAPH else ():
            if inner == _INITIALIZER and (name_and_values := _read_tensor(tensor)) is not None:
                initializers[name_and_values[0]] = name_and_values[1]
    return initializers


def with_initializers(model: bytes | memoryview, changed: Mapping[str, np.ndarray]) -> bytes:
    """Return an ONNX file with other values for some of its weights.

    Args:
        changed: name -> values; names that the file does not have are ignored.

    Raises:
        ValueError: for bytes that are no ONNX file.
    """
    parts: list[bytes | memoryview] = []
    for number, whole, content in _fields(memoryview(model)):
        if number != _GRAPH:
            parts.append(whole)
            continue
        inner: list[bytes | memoryview] = []
        for field, field_bytes, tensor in _fields(content):
            initializer = _read_tensor(tensor) if field == _INITIALIZER else None
            if initializer is not None and initializer[0] in changed:
                message = _encode_tensor(initializer[0], changed[initializer[0]])
                inner += [_key(_INITIALIZER, _BYTES), _varint(len(message)), message]
            else:
                inner.append(field_bytes)
        parts += [_key(_GRAPH, _BYTES), _varint(sum(map(len, inner))), *inner]
    return b"".join(parts)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the number of each field, all its bytes, and its content.

    Raises:
        ValueError: for bytes that are no message, or a truncated one.
    """
    at = 0
    while at < len(message):
        start = at
        key, at = _read_varint(message, at)
        kind, size = key & 7, 0
        if kind == _VARINT:
            _, stop = _read_varint(message, at)
        elif kind == _BYTES:
            size, at = _read_varint(message, at)
            stop = at + size
        elif kind in (_FIXED32, _FIXED64):
            stop = at + (4 if kind == _FIXED32 else 8)
        else:
            raise ValueError("not an ONNX file")
        if stop > len(message):
            raise ValueError("not a whole ONNX file")
        yield key >> 3, message[start:stop], message[at:stop]
        at = stop


def _read_tensor(message: memoryview) -> tuple[str, np.ndarray] | None:
    """Return name and values of a weight; None if it is not stored as raw data."""
    shape: list[int] = []
    name, code, raw = "", 0, None
    for number, _, content in _fields(message):
        if number == _DIMS:
            at = 0  # sizes may be packed into one field, or be a field each
            while at < len(content):
                size, at = _read_varint(content, at)
                shape.append(size)
        elif number == _DATA_TYPE:
            code = _read_varint(content, 0)[0]
        elif number == _NAME:
            name = bytes(content).decode()
        elif number == _RAW_DATA:
            raw = content
    if raw is None or code not in _DTYPES:
        return None
    return name, np.frombuffer(raw, _DTYPES[code]).reshape(shape)


def _encode_tensor(name: str, values: np.ndarray) -> bytes:
    parts = [_key(_DIMS, _VARINT) + _varint(size) for size in values.shape]
    parts += [_key(_DATA_TYPE, _VARINT), _varint(_CODES[values.dtype])]
    for number, content in ((_NAME, name.encode()), (_RAW_DATA, values.tobytes())):
        parts += [_key(number, _BYTES), _varint(len(content)), content]
    return b"".join(parts)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("not a whole ONNX file")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
