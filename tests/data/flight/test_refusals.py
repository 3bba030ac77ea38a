"""Who may not ask a data server, what is refused, and what both sides say about it."""

from __future__ import annotations

import json
import socket
import subprocess

import pyarrow as pa
import pytest
from pyarrow import flight

from runner.cli.data_serve import data_serve
from runner.data.flight import dataset as flight_dataset
from runner.data.flight import protocol
from runner.data.flight import servers as flight_servers
from runner.data.flight.pieces import ARRAYS, from_message, to_message
from runner.data.flight.protocol import Claim, Ticket, read_claim
from runner.data.flight.servers import Servers
from runner.data.flight.settings import FlightRecipe
from runner.errors import ConfigError, DataError, UserError
from tests.data.flight.served import FINGERPRINT, connect, location, open_files, serve


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return open_files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def server(files):
    started = serve(files)
    yield started
    started.shutdown()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    words += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    words += f" -keyout {folder}/key.pem -out {folder}/cert.pem"
    subprocess.run(words.split(), check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_a_used_port_is_named_before_the_data_are_looked_at(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(UserError, match=f"--port {port}: .*Address already in use; --port 0"):
            data_serve(["dataset=parquet", "dataset.path=none", "--port", port], ())
    words = "dataset=parquet --host ::ffff:1 --tls-cert=c --tls-key=k --token-env=T"
    with pytest.raises(UserError, match=r"--host ::ffff:1 .*cannot listen there: Cannot assign"):
        data_serve(words.split(), ())
    assert capfd.readouterr() == ("", "")  # nor does a library print lines of its own


@pytest.mark.parity("T15")
def test_a_token_is_needed_and_both_sides_say_so(files, monkeypatch, capfd):
    server = serve(files, token="secret")
    for token, problem in ((None, "no token; dataset.token_env names"), ("other", "wrong token")):
        monkeypatch.setenv("A_TOKEN", token or "")
        with pytest.raises(DataError, match=problem):
            connect(server, **({"token_env": "A_TOKEN"} if token else {}))
        assert f"refused a trainer: {problem}" in capfd.readouterr().err
    monkeypatch.setenv("A_TOKEN", "secret")
    assert connect(server, token_env="A_TOKEN").num_rows == files.num_rows
    server.shutdown()
    with pytest.raises(DataError, match="data server answers") as error:
        connect(server, token_env="A_TOKEN")
    assert "secret" not in str(error.value)


@pytest.mark.parity("T15")
def test_other_data_are_refused_at_once_and_both_sides_say_so(files, server, tmp_path, capfd):
    recipe = FlightRecipe([location(server)])
    servers = Servers(recipe, Claim("f" * 16))
    with pytest.raises(DataError, match=f"every data server refuses: .*{'f' * 16}.*{FINGERPRINT}"):
        servers.fetch(0, lambda client, options: None)
    assert f"wants the data {'f' * 16}, and this server has" in capfd.readouterr().err
    other = serve(files)
    other.dataset = open_files(tmp_path, window_rows=32)
    with pytest.raises(DataError, match="all must serve the same files"):
        connect(server, other)
    other.shutdown()


@pytest.mark.parity("T15")
def test_another_version_is_refused_and_both_sides_say_so(server, monkeypatch, capfd):
    newer = Ticket(FINGERPRINT, version=protocol.PROTOCOL_VERSION + 1)
    with pytest.raises(DataError, match="speaks version 2 of the protocol, and this server ver"):
        read_claim(newer.to_bytes(), Ticket)
    monkeypatch.setattr(flight_servers, "PROTOCOL_VERSION", 7)
    with pytest.raises(DataError, match=r"no data server answers.*speaks version 7"):
        connect(server)
    assert "refused ipv" in capfd.readouterr().err.replace("[", "")


def test_tls_hides_what_is_said_and_an_unknown_certificate_is_refused(files, certificate):
    cert, key = certificate
    pair = (cert.read_bytes(), key.read_bytes())
    from tests.data.flight.served import StrangeServer

    server = StrangeServer(files, FINGERPRINT, {}, "grpc+tls://127.0.0.1:0", certificate=pair)
    secure = FlightRecipe([location(server, "grpc+tls")], tls_roots=str(cert))
    data = flight_dataset.open_flight(secure, workers=0)
    assert sum(b.size for b in data.batches("train", batch_size=100)) == 500
    for wrong in (FlightRecipe([location(server, "grpc+tls")]), FlightRecipe([location(server)])):
        with pytest.raises(DataError, match="no data server answers"):
            flight_dataset.open_flight(wrong, workers=0)
    server.shutdown()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"locations": []}, "dataset.locations is not set"),
        ({"locations": ["grpc://a"]}, r"must be grpc://HOST:PORT or grpc\+tls://HOST:PORT"),
        ({"locations": ["grpc://far:1"], "token_env": "HOME"}, r"in the clear; write grpc\+tls"),
        ({"locations": ["grpc://a:1"], "tls_roots": "/none.pem"}, "tls_roots=/none.pem: No such"),
        ({"locations": ["grpc://[::1]:1"], "token_env": "NO_SUCH"}, "no such environment variable"),
        ({"locations": ["grpc://a:1"], "timeout_s": 0.0}, "timeout_s=0.0: must be above 0"),
    ],
)
def test_wrong_settings_are_refused_before_anybody_is_asked(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        FlightRecipe(**settings).check()


@pytest.mark.parity("T15")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--port", "1"], "name the data"),
        (["dataset=synthetic", "--host", "0.0.0.0"], "needs --tls-cert FILE, --tls-key FILE and"),
        (["dataset=synthetic", "--tls-cert", "a"], "--tls-cert and --tls-key belong together"),
        (["dataset=synthetic", "--port", "70000"], "must lie in 0 to 65535"),
        (["dataset=synthetic", "--hosts", "a"], "hosts"),
    ],
)
def test_a_server_that_others_reach_needs_tls_and_a_token(words, problem):
    with pytest.raises(UserError, match=problem):
        data_serve(words, [])


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b"\x80\x04K\x01.", b'{"fingerprint": "f", "version": 1, "evil": 1}']
    + [
        json.dumps({**vars(Ticket("f")), **wrong}).encode()
        for wrong in ({"window": -1}, {"batch_size": 0}, {"rank": "0"}, {"seed": 1.5})
    ],
)
def test_what_is_no_ticket_is_refused(text):
    with pytest.raises(DataError, match="not a request of a training"):
        read_claim(text, Ticket)


def test_a_position_that_is_not_there_is_refused(server):
    client = flight.FlightClient(location(server))
    for wrong in ({"window": 99}, {"start": 500, "total": 501}, {"rank": 3}, {"split": "none"}):
        ticket = Ticket(server.identity, **{"total": 500, "batch_size": 10, **wrong})
        with pytest.raises(flight.FlightServerError, match=r"there is no (such position|split)"):
            client.do_get(flight.Ticket(ticket.to_bytes())).read_all()
    with pytest.raises(flight.FlightServerError, match="there is no action 'shutdown'"):
        list(client.do_action(flight.Action("shutdown", b"")))


def test_a_batch_of_wrong_lengths_is_refused(files):
    batch = next(files.batches("train", batch_size=20))
    right = to_message(batch, 2)
    assert len(from_message(right, files.columns)) == 20
    for name in ARRAYS:
        column = right.column(name)
        shorter = pa.array([column.values[:-1].to_pylist()], column.type)
        wrong = right.set_column(right.schema.get_field_index(name), name, shorter)
        with pytest.raises(DataError, match="wrong lengths"):
            from_message(wrong, files.columns)
    with pytest.raises(DataError, match="something else than a batch"):
        from_message(pa.record_batch({"a": [1]}), files.columns)
