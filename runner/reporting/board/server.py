"""The board's server: this machine only, and read only.

Pages are found by the name of a listed run, never by a path in a request.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from runner.errors import UserError, describe_error
from runner.reporting.board.pages import (
    LINKS,
    make_board_run_page,
    make_comparison,
    make_index,
    make_sweep_page,
    sweep_label,
)
from runner.reporting.board.snapshot import Snapshots
from runner.reporting.report.html import Page, escape, page_file, plotly_js
from runner.reporting.report.records import RunRecord
from runner.rundir.readers import read_tail
from runner.rundir.secrets import mask_secrets

ADDRESS = "127.0.0.1"
_MOST_COMPARED = 100
_HEADERS = {
    # Parallel coordinates compile code for their shaders, which only our own scripts may do.
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_SCRIPTS: dict[str, Callable[[], str]] = {
    "/plotly.js": plotly_js,
    "/page.js": lambda: page_file("page.js"),
    "/board.js": lambda: page_file("board.js", Path(__file__).parent),
}


class Board(ThreadingHTTPServer):
    """A server on the loopback address of this machine.

    Args:
        port: to listen on; 0 for any that is free.

    Raises:
        OSError: if the port is in use.
    """

    daemon_threads = True

    def __init__(self, root: Path, port: int) -> None:
        self.snapshots = Snapshots(root)
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Report what went wrong, unless the browser has gone, which is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def hosts(self) -> set[str]:
        """The host names that a browser on this machine may use; others mean DNS rebinding."""
        return {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def make_page(self, path: str, query: dict[str, list[str]]) -> Page:
        """Return a page.

        Raises:
            LookupError: if there is no such page.
            UserError: if the files of the page cannot be read.
        """
        selection = self.snapshots.read()
        root = self.snapshots.root
        if path == "/":
            return make_index(selection, root)
        if path == "/run":
            return make_board_run_page(self.runs(query)[0])
        if path == "/compare":
            return make_comparison(self.runs(query)[:_MOST_COMPARED])
        sweeps = {str(sweep): sweep for sweep in selection.sweeps}
        if path == "/sweep":
            sweep = sweeps[query.get("sweep", [""])[0]]
            return make_sweep_page(selection, sweep, sweep_label(sweep, root))
        raise LookupError(path)

    def runs(self, query: dict[str, list[str]]) -> list[RunRecord]:
        """Return the runs that a request names.

        Raises:
            LookupError: if there is no such run, or none was named.
        """
        known = {run.label: run for run in self.snapshots.read().runs}
        names = query.get("run", [])
        if not names:
            raise LookupError("no run was marked")
        return [known[name] for name in names]

    def read_log(self, query: dict[str, list[str]]) -> str:
        """Return the end of a run's log.

        Raises:
            LookupError: if there is no such run, or it has no log.
        """
        run = self.runs(query)[0]
        log = LINKS.log(run)
        if log is None:
            raise LookupError(f"{run.label} has no log")
        return read_tail(run.folder / log[0])


class _Handler(BaseHTTPRequestHandler):
    server: Board
    server_version, sys_version = "runner", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "ask this machine by its own name")
            return
        url = urlsplit(self.path)
        query = parse_qs(url.query, errors="surrogateescape")
        try:
            if url.path in _SCRIPTS:
                self._answer(HTTPStatus.OK, "text/javascript", _SCRIPTS[url.path](), days=1)
            elif url.path == "/log":
                self._answer(HTTPStatus.OK, "text/plain", mask_secrets(self.server.read_log(query)))
            else:
                self._answer_page(HTTPStatus.OK, self.server.make_page(url.path, query))
        except LookupError as error:
            shown = _error_page("There is no such page", str(error.args[0]))
            self._answer_page(HTTPStatus.NOT_FOUND, shown)
        except UserError as error:
            self._answer_page(
                HTTPStatus.OK, _error_page("This cannot be shown", describe_error(error))
            )
        except (ConnectionError, TimeoutError):
            raise  # the browser has gone
        except Exception as error:
            # A run directory may hold anything; a page that cannot show it reports the error.
            shown = _error_page("This cannot be shown", describe_error(error))
            self._answer_page(HTTPStatus.INTERNAL_SERVER_ERROR, shown)

    do_HEAD = do_GET

    def _answer_page(self, status: HTTPStatus, page: Page) -> None:
        if "application/json" not in self.headers.get("Accept", ""):
            self._answer(status, "text/html", mask_secrets(page.render(script_urls=list(_SCRIPTS))))
            return
        content = json.dumps({"body": page.body(), "figures": page.figures}, allow_nan=False)
        self._answer(status, "application/json", mask_secrets(content))

    def _answer(self, status: HTTPStatus, kind: str, text: str, *, days: int = 0) -> None:
        content = text.encode(errors="replace")
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            status, content = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        caching = f"max-age={86400 * days}" if days else "no-store"
        for name, value in {**_HEADERS, "Cache-Control": caching, "ETag": tag}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: pages send a request every few seconds."""


def _error_page(title: str, text: str) -> Page:
    page = Page(title)
    page.parts.append(f"<h1>{escape(title)}</h1><p>{escape(text)}</p>")
    page.parts.append('<p><a href="/">All runs and sweeps</a></p>')
    return page
