"""Clients of a server in a test, and what they send."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import tritonclient.http as triton


def json_inputs(rows: pa.Table) -> list[dict[str, Any]]:
    """Columns as a person would write them: nested lists, and null for what is missing."""
    types = {pa.float64(): "FP64", pa.int64(): "INT64", pa.string(): "BYTES"}
    return [
        {
            "name": name,
            "datatype": types[getattr(rows[name].type, "value_type", rows[name].type)],
            "shape": [rows.num_rows],
            "data": rows[name].to_pylist(),
        }
        for name in rows.column_names
    ]


def request(
    address: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], Any]:
    """Send one request; return status, headers and the body, as JSON where it is that."""
    connection = http.client.HTTPConnection(address, timeout=60)
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, content, dict(headers or {}))
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    is_json = answer.headers.get("content-type") == "application/json"
    found = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, found, json.loads(text) if is_json else text.decode()


def infer(address: str, inputs: list[dict[str, Any]], **more: Any) -> tuple[int, dict, Any]:
    return request(address, "/v2/models/clicks/infer", {"inputs": inputs, **more})


def scores(answer: Any) -> dict[str, list[float]]:
    return {tensor["name"]: tensor["data"] for tensor in answer["outputs"]}


def metrics(address: str) -> dict[str, float]:
    _, _, text = request(address, "/metrics")
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def triton_inputs(rows: pa.Table, *, binary: bool) -> list[triton.InferInput]:
    """A tensor for each column, with `.lengths` of lists and `.valid` of missing values."""
    found: dict[str, tuple[str, np.ndarray]] = {}
    for name in rows.column_names:
        column = rows[name].combine_chunks()
        if pa.types.is_list(column.type):
            found[f"{name}.lengths"] = ("INT64", np.diff(np.asarray(column.offsets)).astype(int))
            column = column.flatten()
        elif column.null_count:
            found[f"{name}.valid"] = ("BOOL", column.is_valid().to_numpy(zero_copy_only=False))
            column = column.fill_null("" if pa.types.is_string(column.type) else 0.0)
        kind = {pa.float64(): "FP64", pa.int64(): "INT64", pa.string(): "BYTES"}[column.type]
        values = column.to_numpy(zero_copy_only=False)
        if kind == "BYTES":
            values = np.array([text.encode() for text in values], object)
        found[name] = (kind, values)
    tensors = []
    for name, (kind, values) in found.items():
        tensor = triton.InferInput(name, [len(values)], kind)
        tensor.set_data_from_numpy(values, binary_data=binary)
        tensors.append(tensor)
    return tensors


class HalfSent:
    """A request whose second half is not sent yet: it takes a place in the queue."""

    def __init__(self, address: str, rows: pa.Table) -> None:
        self.connection = http.client.HTTPConnection(address, timeout=60)
        self.body = json.dumps({"inputs": json_inputs(rows)}).encode()
        self.connection.putrequest("POST", "/v2/models/clicks/infer")
        self.connection.putheader("Content-Length", str(len(self.body)))
        self.connection.endheaders(self.body[:10])

    def finish(self) -> Any:
        self.connection.send(self.body[10:])
        answer = self.connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())


def wait_until_waiting(address: str, count: int) -> None:
    while metrics(address)["runner_queue_depth"] < count:
        time.sleep(0.02)
