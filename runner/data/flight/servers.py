"""A trainer's data servers: which is asked, which are skipped for now, and the waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from pyarrow import flight

from runner.data.flight.protocol import CHECK, DESCRIBE, PROTOCOL_VERSION, Claim, ServedData
from runner.data.flight.settings import FlightRecipe
from runner.errors import DataError, first_line, warn

T = TypeVar("T")
Call = Callable[[flight.FlightClient, flight.FlightCallOptions], T]

CONNECT_S = 5.0  # for the first answer of a server that had not answered
POLL_S = 0.1  # between two checks of the servers while none answers
RETRY_S = (1.0, 30.0)  # a server is tried again after the first, doubled each time up to the second
# Channels are not shared, so that a new one connects at once to a returned server.
_CHANNEL = [("grpc.use_local_subchannel_pool", 1)]
# Errors with which a server refuses a call; trying again would not help
_REFUSED = (
    flight.FlightServerError,
    flight.FlightUnauthenticatedError,
    flight.FlightUnauthorizedError,
)


@dataclass
class _Server:
    """One server: its connection, and its state if it does not answer."""

    location: str
    client: flight.FlightClient | None = None
    problem: str = ""  # why it is skipped; empty: it answers
    refuses: bool = False  # instead of not answering
    retry_at_s: float = 0.0
    pause_s: float = field(default_factory=lambda: RETRY_S[0])
    lock: threading.Lock = field(default_factory=threading.Lock)


class Servers:
    """Sends requests to the servers in turn, and to the next one if one fails.

    Args:
        claim: of the required data; None while the servers are asked for their data.
    """

    def __init__(self, settings: FlightRecipe, claim: Claim | None = None) -> None:
        self._settings, self._claim = settings, claim
        self._token, self._roots = settings.token(), settings.roots()
        self._servers = [_Server(location) for location in settings.locations]

    def describe(self) -> ServedData:
        """Ask all servers for their data, which must be the same.

        Servers that do not answer are skipped with a warning; one that answers is enough.

        Raises:
            DataError: if none answers, or their data differ.
        """
        served: dict[str, ServedData] = {}
        for server in self._servers:
            try:
                served[server.location] = _describe(self._connect(server), self._options(CONNECT_S))
            except (pa.ArrowException, OSError) as error:
                self._skip(server, None, error)
        if not served:
            raise DataError(f"dataset.locations: no data server answers: {self._problems()}")
        first, *others = served
        for other in others:
            if served[other].identity != served[first].identity:
                raise DataError(
                    f"dataset.locations: {other} serves the data {served[other].identity}, and "
                    f"{first} the data {served[first].identity}; all must serve the same files, "
                    "schema and settings, prepared by the same version"
                )
        return served[first]

    def fetch(self, number: int, call: Call[T], should_stop: Callable[[], bool] = bool) -> T:
        """Return a server's answer to a call, which any of them can answer.

        Args:
            number: of the server to ask first, modulo their number.
            call: is repeated at another server after a failure.
            should_stop: called during a wait; true ends the wait.

        Raises:
            DataError: if all servers refuse, or none has answered for `wait_s`, or the wait ends.
        """
        since_s = time.monotonic()
        count = len(self._servers)
        while not should_stop():
            for place in range(count):
                server, client = self._servers[(number + place) % count], None
                try:
                    client = self._client_of(server)
                    if client is None:
                        continue
                    answer = call(client, self._options(self._settings.timeout_s))
                    self._mark_answering(server)
                    return answer
                except (pa.ArrowException, OSError) as error:
                    if should_stop():
                        break
                    self._skip(server, client, error)
            if all(server.refuses for server in self._servers):
                raise DataError(f"every data server refuses: {self._problems()}")
            waited_s = time.monotonic() - since_s
            if waited_s > self._settings.wait_s:
                raise DataError(
                    f"no data server has answered for {waited_s:.0f} s (dataset.wait_s): "
                    f"{self._problems()}; once one runs again, the run can be resumed"
                )
            time.sleep(POLL_S)
        raise DataError("the reader that asked for these rows was stopped")

    def _client_of(self, server: _Server) -> flight.FlightClient | None:
        """Return a server's connection, opened if necessary; None while the server is skipped."""
        with server.lock:
            if server.client is None and time.monotonic() >= server.retry_at_s:
                server.retry_at_s = time.monotonic() + server.pause_s  # if the connection fails
                server.client = self._connect(server)
            return server.client

    def _mark_answering(self, server: _Server) -> None:
        with server.lock:
            if server.problem:
                warn(f"data server {server.location} answers again")
            server.problem, server.refuses, server.pause_s = "", False, RETRY_S[0]

    def _connect(self, server: _Server) -> flight.FlightClient:
        client = flight.FlightClient(
            server.location, tls_root_certs=self._roots, generic_options=_CHANNEL
        )
        if self._claim is not None:
            options = self._options(min(CONNECT_S, self._settings.timeout_s))
            for _ in client.do_action(flight.Action(CHECK, self._claim.to_bytes()), options):
                pass
        return client

    def _options(self, timeout_s: float) -> flight.FlightCallOptions:
        headers = [(b"authorization", f"Bearer {self._token}".encode())] if self._token else []
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    def _skip(
        self, server: _Server, client: flight.FlightClient | None, error: BaseException
    ) -> None:
        """Send no request to a server for a while, with one warning."""
        with server.lock:
            if server.client is not client:
                return  # another thread has handled this failure
            problem = _describe_failure(error, self._settings.timeout_s)
            is_news = not server.problem
            server.client, server.problem = None, problem
            server.refuses = isinstance(error, _REFUSED)
            server.retry_at_s = time.monotonic() + server.pause_s
            server.pause_s = min(2 * server.pause_s, RETRY_S[1])
        if is_news:
            warn(f"data server {server.location} is skipped for now: {problem}")

    def _problems(self) -> str:
        return "; ".join(f"{server.location}: {server.problem}" for server in self._servers)


def _describe(client: flight.FlightClient, options: flight.FlightCallOptions) -> ServedData:
    body = str(PROTOCOL_VERSION).encode()
    parts = client.do_action(flight.Action(DESCRIBE, body), options)
    return ServedData.from_json(b"".join(bytes(part.body) for part in parts))


def _describe_failure(error: BaseException, timeout_s: float) -> str:
    """Return why a call failed, without the text that gRPC adds to a server's message."""
    if isinstance(error, flight.FlightTimedOutError):
        return f"no answer in time (dataset.timeout_s={timeout_s:g})"
    text = first_line(error)
    for noise in ("Flight returned ", "Flight error: "):
        text = text.removeprefix(noise)
    _, _, message = text.partition(", with message: ")
    message = (message or text).partition(". Detail: ")[0]
    return message.rpartition("Failed to connect to remote host: ")[2]
