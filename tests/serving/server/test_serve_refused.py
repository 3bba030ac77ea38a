"""`serve`: a bad request is told what is wrong with it, and spoils nothing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.serving.client import infer, json_inputs, request
from tests.serving.served import click_rows

GOOD = {t["name"]: t for t in json_inputs(click_rows(2))}
PREPARED = {"parameters": {"graph": "model"}}


def changed(name: str, **fields: Any) -> list[dict[str, Any]]:
    return [*{**GOOD, name: {**GOOD.get(name, {"name": name}), **fields}}.values()]


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "the request is no JSON"),
    "deep JSON": (b"[" * 100_000, "the request is no JSON"),
    "no object": ([], "the request is no JSON object"),
    "no inputs": ({"inputs": []}, "inputs: the request has none"),
    "inputs": ({"inputs": 5}, "inputs: is no list of objects"),
    "no name": ({"inputs": [{"datatype": "FP32"}]}, "inputs: a tensor has no name"),
    "twice": ({"inputs": [GOOD["age"], GOOD["age"]]}, "two tensors are called 'age'"),
    "datatype": (
        changed("age", datatype="FP46"),
        "datatype=FP46: must be one of .*nearest: 'FP64'",
    ),
    "shape": (changed("age", shape=[-1]), r"tensor 'age': shape \[-1\]: expected 1 to 3 sizes"),
    "size": (changed("age", shape=[3]), r"tensor 'age': has 2 elements, but the shape \[3\] has 3"),
    "huge": (changed("age", shape=[2**62, 9, 9]), "tensor 'age': has 2 elements, but"),
    "no data": (changed("age", data=None), "tensor 'age': has neither data"),
    "text": (changed("age", data=[1.0, "x"]), "tensor 'age': \"x\" is no element of FP64"),
    "number": (changed("city", data=["Bern", 5]), "tensor 'city': 5 is no element of BYTES"),
    "fraction": (changed("a", data=[1, 1.5]), "tensor 'a': 1.5 is no element of INT64"),
    "too large": (changed("a", data=[1, 2**70]), "tensor 'a', INT64: .*too large"),
    "2^63": (
        changed("a", data=[1, 2**63]),
        "tensor 'a', INT64: element 1: 9223372036854775808: .*too large.*; UINT64 holds it",
    ),
    "too large in a list": (
        changed("a", shape=[3], data=[[1, 2], None, [2**70]]),
        f"tensor 'a', INT64: row 2: {2**70}: .*too large to convert to C long$",
    ),
    "size of binary": (
        changed("age", parameters={"binary_data_size": "8"}),
        "tensor 'age': binary_data_size '8' is no size",
    ),
    "no column": (
        [{**t, "name": "agee"} if n == "age" else t for n, t in GOOD.items()],
        "no column 'age'; nearest: 'agee'",
    ),
    "rows": (changed("b", shape=[1], data=[1]), "column 'b' has 1 rows, but 'age' has 2"),
    "no rows": (
        [{**tensor, "shape": [0], "data": []} for tensor in GOOD.values()],
        "the request has no rows",
    ),
    "range": (
        changed("a", data=[3, 4]),
        "row 1, column 'a': value 4: its table has the rows 0 to 3",
    ),
    "missing": (changed("a", data=[3, None]), "row 1, column 'a': is missing"),
    "nan": (changed("age", data=[1.0, float("inf")]), "row 1, column 'age': value inf"),
    "type": (
        changed("age", datatype="BYTES", data=["1", "2"]),
        "column 'age' has type string, expected a number",
    ),
    "a list for a number": (changed("age", data=[[1.0], [2.0]]), "expected one value for each row"),
    "a list that is none": (
        changed("tags", data=[1, 2]),
        "column 'tags' holds lists: give 'tags.len",
    ),
    "lengths": (
        [
            *changed("tags", data=[1, 2]),
            {"name": "tags.lengths", "datatype": "INT64", "shape": [2], "data": [3, -1]},
        ],
        "tensor 'tags.lengths': its lengths must not be negative, and add up to the 2 elements",
    ),
    "weights": (
        changed("tag_weights", data=[[], []]),
        "row 0, column 'tag_weights': 0 values, but",
    ),
    "valid": (
        changed("age.valid", datatype="INT64", shape=[2], data=[1, 1]),
        "tensor 'age.valid': expected BOOL, an element for each row",
    ),
    "output": (
        {"inputs": [*GOOD.values()], "outputs": [{"name": "clik"}]},
        "no output 'clik'; nearest: 'click'",
    ),
    "graph": (
        {"inputs": [*GOOD.values()], "parameters": {"graph": "modle"}},
        "parameters.graph=modle: must be one of model; nearest: 'model'",
    ),
    "half a character": (
        {"inputs": [*GOOD.values()], "parameters": {"top_\ud800": 3}},
        r"parameters.top_\\ud800: there is no such parameter; nearest: 'top_k'",
    ),
    "prepared": ({"inputs": [*GOOD.values()], **PREPARED}, "tensor 'age': no input of graph model"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_400_and_names_what_is_wrong(server, case):
    body, message = BAD[case]
    body = {"inputs": body} if isinstance(body, list) and body else body
    status, headers, answer = request(server.address, "/v2/models/clicks/infer", body)
    assert status == 400
    assert re.search(message, answer["error"]), answer
    assert "Traceback" not in server.process.text
    assert headers["model-version"]


def test_an_id_beyond_its_table_is_refused_among_prepared_ids_too(server, clicks_scorer):
    rows = click_rows(3)
    [spec] = clicks_scorer.artifact.graphs
    arrays = dict(zip(spec.inputs, clicks_scorer.arrays("model", clicks_scorer.encode(rows))))

    def ask(name: str, values: np.ndarray, *, nested: bool = False) -> str:
        inputs = [
            {
                "name": key,
                "datatype": "FP32" if array.dtype == np.float32 else "INT64",
                "shape": [*array.shape],
                "data": array.ravel().tolist(),
            }
            for key, array in {**arrays, name: values}.items()
        ]
        if nested:
            inputs[spec.inputs.index(name)]["data"] = [[x] for x in values.tolist()]
        status, _, answer = infer(server.address, inputs, **PREPARED)
        assert status == 400
        return str(answer["error"])

    values = arrays["values_0"].copy()
    values[1] = 4  # of `a`, whose table is followed by another one in the stacked weight
    about = ask("values_0", values)
    assert about == "tensor 'values_0', feature 'a', row 1: id 4: its table has rows 0 to 3"
    values[1] = -1
    assert "feature 'a', row 1: id -1" in ask("values_0", values)
    lengths = arrays["lengths_0"].copy()
    lengths[0, 0] += 1
    assert "add up to" in ask("lengths_0", lengths)
    assert "expected [4, 3]" in ask("lengths_0", arrays["lengths_0"][:, :2].copy())
    assert "expected INT64" in ask("values_0", values.astype(np.float32))
    nested = ask("values_0", values, nested=True)
    assert nested == "tensor 'values_0': nested lists must have the form of its shape"
    assert "not finite" in ask("dense", arrays["dense"] * np.float32(np.inf))


def test_what_is_too_large_or_leads_nowhere_is_refused_with_its_status(server):
    infer_path = "/v2/models/clicks/infer"
    status, _, answer = infer(server.address, json_inputs(click_rows(501)))
    assert (status, answer["error"]) == (
        400,
        "the request has 501 rows; at most 500 are scored at once (--max-rows of `serve`)",
    )
    for more in ({}, {"Transfer-Encoding": "chunked"}):
        body = (
            (b" " * (1 << 20) + b"x")
            if not more
            else b"%x\r\n%s\r\n0\r\n\r\n" % ((1 << 20) + 1, b" " * ((1 << 20) + 1))
        )
        status, _, answer = request(server.address, infer_path, body, more)
        assert status == 413 and "1048576 bytes" in answer["error"]
    status, _, answer = request(server.address, "/v2/models/click/infer", {})
    assert (status, answer["error"]) == (404, "no model 'click'; this serves 'clicks'")
    assert request(server.address, "/v2/models/clicks/versions/7")[0] == 404
    assert request(server.address, "/v2/modles")[0] == 404
    assert request(server.address, infer_path)[0] == 405
    status, _, answer = request(server.address, infer_path, b"", {"Content-Encoding": "gzip"})
    assert status == 415 and "gzip" in answer["error"]
    for length in ("-1", "5", "x", "9" * 5000):
        header = {"Inference-Header-Content-Length": length}
        status, _, answer = request(server.address, infer_path, b"{}", header)
        assert status == 400 and "inference-header-content-length" in answer["error"]
