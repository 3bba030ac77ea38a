"""`serve`: what a client gets, also one that is not ours, and the words of the command."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import tritonclient.http as triton

from runner.cli.serve import serve as serve_verb
from runner.errors import UserError
from tests.serving.client import infer, json_inputs, metrics, request, scores, triton_inputs
from tests.serving.served import click_rows


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("num_rows", [1, 17, 500])
def test_a_client_of_triton_gets_the_scorers_numbers_bit_for_bit(
    server, clicks_scorer, binary, num_rows
):
    rows = click_rows(num_rows, seed=num_rows)
    expected = clicks_scorer.score(rows)
    logits = clicks_scorer.logits(clicks_scorer.encode(rows))
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
    assert (head["id"], head["model_version"]) == ("me", clicks_scorer.artifact.version)
    assert [t["name"] for t in by_default.get_response()["outputs"]] == ["click", "price"]


def test_a_client_of_triton_reads_health_and_metadata(server, clicks_scorer):
    version = clicks_scorer.artifact.version
    with triton.InferenceServerClient(server.address) as client:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("clicks") and client.is_model_ready("clicks", version)
        assert not client.is_model_ready("clicks", "7")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        about = client.get_model_metadata("clicks")
        rows = click_rows(2)
        found = client.infer(
            "clicks",
            triton_inputs(rows, binary=True),
            model_version=version,
            timeout=10_000_000,
            priority=1,
            sequence_id=7,
            sequence_start=True,
        )
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


def test_json_as_people_write_it_is_read(server, clicks_scorer):
    rows = click_rows(9)
    inputs = json_inputs(rows)
    inputs[0]["shape"], inputs[0]["data"] = [9, 1], [[x] for x in inputs[0]["data"]]
    label = {"name": "click", "datatype": "BOOL", "shape": [1], "data": [True]}  # is not read
    status, headers, answer = infer(server.address, [*inputs, label], id="a")
    assert status == 200
    assert headers["model-version"] == answer["model_version"] == clicks_scorer.artifact.version
    assert (answer["id"], answer["model_name"]) == ("a", "clicks")
    for name, values in clicks_scorer.score(rows).items():
        assert np.array_equal(np.float32(scores(answer)[name]), values), name


def test_prepared_ids_are_scored_like_the_raw_columns_that_they_come_from(server, clicks_scorer):
    rows = click_rows(7)
    [spec] = clicks_scorer.artifact.graphs
    with triton.InferenceServerClient(server.address) as client:
        inputs = []
        for name, values in zip(
            spec.inputs, clicks_scorer.arrays("model", clicks_scorer.encode(rows))
        ):
            kind = "FP32" if values.dtype == np.float32 else "INT64"
            inputs.append(triton.InferInput(name, list(values.shape), kind))
            inputs[-1].set_data_from_numpy(values)
        found = client.infer("clicks", inputs, parameters={"graph": "model"})
    np.testing.assert_array_equal(found.as_numpy("click"), clicks_scorer.score(rows)["click"])


def test_metrics_count_answers_rows_and_latencies(server, clicks_scorer):
    before = metrics(server.address)
    assert infer(server.address, json_inputs(click_rows(9)))[0] == 200
    bad = click_rows(2).set_column(1, "a", pa.array([3, 4]))
    assert infer(server.address, json_inputs(bad))[0] == 400
    after = metrics(server.address)
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown['runner_requests_total{code="200"}'] == 1
    assert grown['runner_requests_total{code="400"}'] == 1
    assert grown["runner_rows_total"] == 9
    assert grown["runner_request_seconds_count"] == 2
    assert grown['runner_request_seconds_bucket{le="+Inf"}'] == 2
    assert 0 < grown["runner_request_seconds_sum"] < 60
    assert after["runner_queue_depth"] == 0
    version = clicks_scorer.artifact.version
    assert after[f'runner_model_info{{model="clicks",version="{version}"}}'] == 1


def test_every_mistake_of_the_words_is_told_before_torch_is_imported(
    clicks_model, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it would fail
    with pytest.raises(UserError) as error:
        serve_verb([str(clicks_model), "--port", "70000", "--workers", "0", "--name", "a/b"], ())
    with pytest.raises(UserError, match="--workers 40000: each has a copy of the model; at most"):
        serve_verb([str(clicks_model), "--workers", "40000"], ())
    for part in ("--port 70000", "--workers 0", "--name 'a/b'", "3 mistakes"):
        assert part in str(error.value)
    with pytest.raises(UserError, match="name a model that `export` has written"):
        serve_verb([], ())
    with pytest.raises(UserError, match=r"--prot.*nearest: '--port'"):
        serve_verb([str(clicks_model), "--prot=1"], ())
    for flags in ((), ("--workers", "2")):
        with pytest.raises(UserError, match="no exported model"):
            serve_verb([str(tmp_path), "--port", "0", *flags], ())
        with pytest.raises(UserError, match="format=onnx: must be one of pt2"):
            serve_verb([str(clicks_model), "--port", "0", "--format", "onnx", *flags], ())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(UserError, match=f"--port {port}: cannot listen there: Address already"):
            serve_verb([str(clicks_model), "--port", port], ())


def test_a_missing_package_is_named_with_its_extra(clicks_model, monkeypatch):
    monkeypatch.setattr("runner.machine.imports.is_installed", lambda module: False)
    with pytest.raises(UserError, match=r"needs starlette, uvicorn: pip install 'runner\[serve\]'"):
        serve_verb([str(clicks_model)], ())


def test_the_example_that_the_server_offers_is_a_request_that_it_scores(server):
    status, _, example = request(server.address, "/v2/models/clicks/example")
    assert status == 200 and {tensor["name"] for tensor in example["inputs"]} >= {"age", "city"}
    status, _, answer = infer(server.address, example["inputs"])
    assert status == 200 and 0 < scores(answer)["click"][0] < 1
    status, _, answer = infer(server.address, example["inputs"][:1])
    assert status == 400 and "and 4 more of the 6" in answer["error"]
    text = server.process.text
    [try_it] = [line for line in text.splitlines() if line.startswith("try it: ")]
    done = subprocess.run(try_it.removeprefix("try it: "), shell=True, capture_output=True)
    assert "model_version" in json.loads(done.stdout)
