"""`serve`: a client that is not ours, bad requests, overload, drain, and several workers."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tritonclient.http as triton

from runner.cli.serve import serve as serve_verb
from runner.errors import UserError
from runner.serving.scorer import Scorer
from tests.serving.served import (
    Server,
    click_rows,
    serving,
    wait_for_workers,
    write_clicks_model,
)

TOGETHER = 1e-6  # a score may differ by this, where its row was scored with others


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "clicks"
    folder.mkdir()
    return write_clicks_model(folder)


@pytest.fixture(scope="module")
def scorer(model) -> Scorer:
    return Scorer.load(model)


@pytest.fixture(scope="module")
def server(runner, model) -> Iterator[Server]:
    with serving(runner, model, "--max-rows", "500", "--max-body-mb", "1") as found:
        yield found


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


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("num_rows", [1, 17, 500])
def test_a_client_of_triton_gets_the_scorers_numbers_bit_for_bit(server, scorer, binary, num_rows):
    rows = click_rows(num_rows, seed=num_rows)
    expected = scorer.score(rows)
    logits = scorer.logits(scorer.encode(rows))
    with triton.InferenceServerClient(server.address) as client:
        outputs = [
            triton.InferRequestedOutput(name, binary_data=binary)
            for name in ("price", "click", "click.logit")
        ]
        found = client.infer(
            "clicks", triton_inputs(rows, binary=binary), outputs=outputs, request_id="me"
        )
        by_default = client.infer("clicks", triton_inputs(rows, binary=binary))
    for name in ("click", "price"):
        np.testing.assert_array_equal(found.as_numpy(name), expected[name])
        np.testing.assert_array_equal(by_default.as_numpy(name), expected[name])
    np.testing.assert_array_equal(found.as_numpy("click.logit"), logits[:, 0])
    head = found.get_response()
    assert [tensor["name"] for tensor in head["outputs"]] == ["price", "click", "click.logit"]
    assert (head["id"], head["model_version"]) == ("me", scorer.artifact.version)
    assert [t["name"] for t in by_default.get_response()["outputs"]] == ["click", "price"]


def test_a_client_of_triton_reads_health_and_metadata(server, scorer):
    version = scorer.artifact.version
    with triton.InferenceServerClient(server.address) as client:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("clicks") and client.is_model_ready("clicks", version)
        assert not client.is_model_ready("clicks", "7")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        about = client.get_model_metadata("clicks")
        rows = click_rows(2)
        found = client.infer("clicks", triton_inputs(rows, binary=True), model_version=version)
        with pytest.raises(triton.InferenceServerException, match="no version '7'"):
            client.infer("clicks", triton_inputs(rows, binary=True), model_version="7")
    assert found.as_numpy("click").shape == (2,)
    assert about["versions"] == [version]
    given = {tensor["name"]: tensor["datatype"] for tensor in about["inputs"]}
    assert given == {
        **{"age": "FP64", "a": "INT64", "b": "INT64", "city": "BYTES", "tags": "INT64"},
        **{"tags.lengths": "INT64", "tag_weights": "FP64", "tag_weights.lengths": "INT64"},
    }
    outputs = [tensor["name"] for tensor in about["outputs"]]
    assert outputs == ["click", "price", "click.logit", "price.logit"]


def test_json_as_people_write_it_is_read(server, scorer):
    rows = click_rows(9)
    inputs = json_inputs(rows)
    inputs[0]["shape"], inputs[0]["data"] = [9, 1], [[x] for x in inputs[0]["data"]]
    label = {"name": "click", "datatype": "BOOL", "shape": [1], "data": [True]}  # is not read
    status, headers, answer = infer(server.address, [*inputs, label], id="a")
    assert status == 200
    assert headers["model-version"] == answer["model_version"] == scorer.artifact.version
    assert (answer["id"], answer["model_name"]) == ("a", "clicks")
    for name, values in scorer.score(rows).items():
        assert np.array_equal(np.float32(scores(answer)[name]), values), name


def test_prepared_ids_are_scored_like_the_raw_columns_that_they_come_from(server, scorer):
    rows = click_rows(7)
    [spec] = scorer.artifact.graphs
    with triton.InferenceServerClient(server.address) as client:
        inputs = []
        for name, values in zip(spec.inputs, scorer.arrays("model", scorer.encode(rows))):
            kind = "FP32" if values.dtype == np.float32 else "INT64"
            inputs.append(triton.InferInput(name, list(values.shape), kind))
            inputs[-1].set_data_from_numpy(values)
        found = client.infer("clicks", inputs, parameters={"graph": "model"})
    np.testing.assert_array_equal(found.as_numpy("click"), scorer.score(rows)["click"])


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
    "prepared": (
        {"inputs": [*GOOD.values()], **PREPARED},
        "tensor 'age': no input of graph model",
    ),
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


def test_an_id_beyond_its_table_is_refused_among_prepared_ids_too(server, scorer):
    rows = click_rows(3)
    [spec] = scorer.artifact.graphs
    arrays = dict(zip(spec.inputs, scorer.arrays("model", scorer.encode(rows))))

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
        "the request has 501 rows; at most 500 are scored at once",
    )
    for more in ({}, {"Transfer-Encoding": "chunked"}):
        body = (
            (b" " * (1 << 20) + b"x")
            if not more
            else b"%x\r\n%s\r\n0\r\n\r\n"
            % (
                (1 << 20) + 1,
                b" " * ((1 << 20) + 1),
            )
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
    for length in ("-1", "5", "x"):
        header = {"Inference-Header-Content-Length": length}
        status, _, answer = request(server.address, infer_path, b"{}", header)
        assert status == 400 and "inference-header-content-length" in answer["error"]


def test_metrics_count_answers_rows_and_latencies(server, scorer):
    before = metrics(server.address)
    assert infer(server.address, json_inputs(click_rows(9)))[0] == 200
    assert infer(server.address, changed("a", data=[3, 4]))[0] == 400
    after = metrics(server.address)
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown['runner_requests_total{code="200"}'] == 1
    assert grown['runner_requests_total{code="400"}'] == 1
    assert grown["runner_rows_total"] == 9
    assert grown["runner_request_seconds_count"] == 2
    assert grown['runner_request_seconds_bucket{le="+Inf"}'] == 2
    assert 0 < grown["runner_request_seconds_sum"] < 60
    assert after["runner_queue_depth"] == 0
    assert after[f'runner_model_info{{model="clicks",version="{scorer.artifact.version}"}}'] == 1


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


def test_an_overloaded_server_answers_503_and_recovers(runner, model, scorer):
    rows = click_rows(5)
    with serving(runner, model, "--queue", "2", "--name", "clicks") as server:
        held = [HalfSent(server.address, rows) for _ in range(2)]
        wait_until_waiting(server.address, 2)
        status, headers, answer = infer(server.address, json_inputs(rows))
        assert (status, answer["error"]) == (503, "2 requests are waiting already")
        assert int(headers["retry-after"]) >= 1
        assert request(server.address, "/v2/health/ready")[0] == 200
        for one in held:
            assert np.array_equal(
                np.float32(scores(one.finish())["click"]), scorer.score(rows)["click"]
            )
        assert infer(server.address, json_inputs(rows))[0] == 200
        assert metrics(server.address)['runner_requests_total{code="503"}'] == 1
        left = HalfSent(server.address, rows)  # a client that goes away frees its place
        wait_until_waiting(server.address, 1)
        left.connection.close()
        while metrics(server.address)["runner_queue_depth"]:
            pass
        assert "Traceback" not in server.process.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_what_has_come_be_answered(runner, model, scorer, number, code):
    rows = click_rows(4)
    with serving(runner, model) as server:
        held = HalfSent(server.address, rows)
        wait_until_waiting(server.address, 1)
        server.process.kill(number)
        while request(server.address, "/v2/health/ready")[0] == 200:
            pass
        assert request(server.address, "/v2/health/live")[0] == 200
        status, headers, answer = infer(server.address, json_inputs(rows))
        assert (status, answer["error"]) == (503, "the server is stopping")
        assert "retry-after" in headers
        answer = held.finish()
        assert np.array_equal(np.float32(scores(answer)["click"]), scorer.score(rows)["click"])
        assert server.wait() == code
        assert "Traceback" not in server.process.text
        with pytest.raises(OSError):
            request(server.address, "/v2/health/live")


def test_requests_that_wait_are_scored_together_and_a_bad_one_spoils_no_other(
    runner, model, scorer
):
    tables = [click_rows(3, seed) for seed in range(4)]
    with serving(runner, model, "--batch-rows", "12", "--batch-wait-ms", "1000") as server:
        held = [HalfSent(server.address, table) for table in tables[:3]]
        held.append(HalfSent(server.address, tables[3].set_column(1, "a", pa.array([0, 9, 1]))))
        wait_until_waiting(server.address, 4)
        before = metrics(server.address)["runner_batches_total"]
        for one in held:
            one.connection.send(one.body[10:])
        answers = [one.connection.getresponse() for one in held]
        assert metrics(server.address)["runner_batches_total"] == before + 1
    assert [answer.status for answer in answers] == [200, 200, 200, 400]
    assert "row 1, column 'a': value 9" in json.loads(answers[3].read())["error"]
    for table, answer in zip(tables, answers[:3]):
        found = scores(json.loads(answer.read()))
        for name, expected in scorer.score(table).items():
            np.testing.assert_allclose(found[name], expected, rtol=TOGETHER, atol=TOGETHER)


def test_a_second_signal_ends_the_server_at_once(runner, model):
    with serving(runner, model) as server:
        held = HalfSent(server.address, click_rows(4))
        wait_until_waiting(server.address, 1)
        server.process.kill(signal.SIGINT)
        time.sleep(1)
        assert request(server.address, "/v2/health/live")[0] == 200
        server.process.kill(signal.SIGINT)
        assert server.wait() == 130
        assert "Traceback" not in server.process.text
        assert held.connection.getresponse().status == 500  # it is told that it is cut off


@pytest.mark.slow
def test_workers_whose_parent_is_killed_answer_what_has_come_and_end(runner, model):
    with serving(runner, model, "--workers", "2") as server:
        wait_for_workers(server.process, 2)
        held = HalfSent(server.address, click_rows(4))
        wait_until_waiting(server.address, 1)
        server.stop(signal.SIGKILL)
        time.sleep(1)
        assert len(scores(held.finish())["click"]) == 4
        for _ in range(100):
            try:
                request(server.address, "/v2/health/live")
            except OSError:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("a worker has outlived its parent")
        assert "Traceback" not in server.process.text


@pytest.mark.slow
def test_workers_that_die_are_replaced_and_all_end_together(runner, model, scorer):
    rows = click_rows(6)
    with serving(runner, model, "--workers", "2") as server:
        wait_for_workers(server.process, 2)
        version = f'runner_model_info{{model="clicks",version="{scorer.artifact.version}"}}'
        assert metrics(server.address)[version] == 2
        for _ in range(20):
            assert infer(server.address, json_inputs(rows))[0] == 200
        assert metrics(server.address)['runner_requests_total{code="200"}'] == 20
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        found = [int(pid) for pid in children.read_text().split()]
        workers = [p for p in found if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        wait_for_workers(server.process, 3)
        assert "ended with exit code -9; another is started" in server.process.text
        assert metrics(server.address)[version] == 2
        assert infer(server.address, json_inputs(rows))[0] == 200
        assert metrics(server.address)['runner_requests_total{code="200"}'] == 21
        assert server.stop() == 143
    with pytest.raises(OSError):
        request(server.address, "/v2/health/live")


def test_every_mistake_of_the_words_is_told_before_torch_is_imported(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it would fail
    with pytest.raises(UserError) as error:
        serve_verb([str(model), "--port", "70000", "--workers", "0", "--name", "a/b"], ())
    for part in ("--port 70000", "--workers 0", "--name 'a/b'", "3 mistakes"):
        assert part in str(error.value)
    with pytest.raises(UserError, match="name a model that `export` has written"):
        serve_verb([], ())
    with pytest.raises(UserError, match=r"--prot.*nearest: '--port'"):
        serve_verb([str(model), "--prot=1"], ())
    for flags in ((), ("--workers", "2")):
        with pytest.raises(UserError, match="no exported model"):
            serve_verb([str(tmp_path), "--port", "0", *flags], ())
        with pytest.raises(UserError, match="format=onnx: must be one of pt2"):
            serve_verb([str(model), "--port", "0", "--format", "onnx", *flags], ())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(UserError, match=f"--port {port}: cannot listen there: Address already"):
            serve_verb([str(model), "--port", port], ())


def test_a_missing_package_is_named_with_its_extra(model, monkeypatch):
    monkeypatch.setattr("runner.serving.server.settings.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs starlette, uvicorn: pip install 'runner\[serve\]'"):
        serve_verb([str(model)], ())
