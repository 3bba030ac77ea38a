"""An object store in a process of its own: moto's S3, whose requests are counted and made to fail.

`python -m tests.stores.server` prints its port. A POST to /_faults sets faults and clears the log,
and a GET of /_log returns the requests since then. A POST to /_hold makes all PUTs wait until one
to /_release.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any
from urllib.request import Request, urlopen

BUCKET = "bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIACANARYCANARY1234",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-of-the-object-store",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class FaultyStore:
    """The WSGI application: `faults` maps the number of a request to what happens to it."""

    def __init__(self, app: Any) -> None:
        self.app, self.log, self.faults = app, [], {}
        self.released = threading.Event()
        self.released.set()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/_log":
            return self._answer(start_response, "200 OK", json.dumps(self.log).encode())
        if path == "/_faults":
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            self.faults, self.log = json.loads(body), []
            return self._answer(start_response, "200 OK", b"{}")
        if path in ("/_hold", "/_release"):
            (self.released.clear if path == "/_hold" else self.released.set)()
            return self._answer(start_response, "200 OK", b"{}")
        number, method = len(self.log), environ["REQUEST_METHOD"]
        entry = {"method": method, "path": path, "query": environ.get("QUERY_STRING", "")}
        entry |= {"range": environ.get("HTTP_RANGE"), "bytes": 0}
        name = f"{method} {path.rpartition('/')[2]}"
        count = sum(name == f"{e['method']} {e['path'].rpartition('/')[2]}" for e in self.log)
        fault = self.faults.get(str(number), self.faults.get(f"{name} {count}"))
        self.log.append(entry)
        if method == "PUT":
            self.released.wait()
        if isinstance(fault, int) and fault > 1000:  # a process, which dies at this request
            os.kill(fault, signal.SIGKILL)
            fault = "drop"
        if isinstance(fault, int):
            return self._answer(start_response, f"{fault} Fault", b"")
        if fault == "drop":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return self._answer(start_response, "500 Fault", b"")
        content = b"".join(self.app(environ, start_response))
        entry["bytes"] = len(content)
        if fault == "cut":  # half of the answer, although its length is that of the whole
            return self._cut(environ, content[: len(content) // 2])
        return [content]

    @staticmethod
    def _answer(start_response: Any, status: str, content: bytes) -> Iterable[bytes]:
        start_response(status, [("Content-Length", str(len(content)))])
        return [content]

    @staticmethod
    def _cut(environ: dict[str, Any], content: bytes) -> Iterable[bytes]:
        yield content
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


class StoreServer:
    """A running server, as tests talk to it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.server"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"
        self.environment = {"AWS_ENDPOINT_URL": self.address, **CREDENTIALS}
        self.ask(f"/{BUCKET}", b"", "PUT")

    def ask(self, path: str, body: bytes | None = None, method: str | None = None) -> bytes:
        # anyone may read what tests put, by https:// without credentials
        headers = {"Content-Type": "application/octet-stream", "x-amz-acl": "public-read"}
        request = Request(self.address + path, body, headers, method=method)
        with urlopen(request, timeout=60) as answer:
            return answer.read()

    def set_faults(self, faults: dict[int | str, Any] | None = None) -> None:
        """Clear the log, and let requests fail from now on.

        Args:
            faults: the number of a request, or its method, last name and how often these have come
                (`PUT run.json 2`) -> a status, cut, drop, or the pid of a process that is killed.
        """
        self.ask("/_faults", json.dumps(faults or {}).encode())

    def log(self) -> list[dict[str, Any]]:
        return json.loads(self.ask("/_log"))

    def put(self, key: str, content: bytes) -> None:
        self.ask(f"/{BUCKET}/{key}", content, "PUT")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            """Print nothing."""

    app = FaultyStore(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
