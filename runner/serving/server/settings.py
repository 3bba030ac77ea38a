"""The settings of a server, checked before torch is imported."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.errors import raise_combined, system_errors
from runner.machine.cores import usable_cores
from runner.machine.imports import missing_extra

WORKERS_PER_CORE = 16  # more are useless, and with a typing error would take all memory
_PACKAGES = ("starlette", "uvicorn")
# What stands between slashes of an address without being escaped
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class ServeSettings:
    """What to serve, where, and within which limits."""

    model: Path  # the folder of an exported model
    name: str | None = None  # what the addresses call the model; None: the name of the folder
    format: str | None = None  # pt2, aoti or onnx; None: the first of the folder
    trust_native_code: bool = False  # whether machine code (aoti) may be loaded
    host: str = "127.0.0.1"  # address to listen on
    port: int = 8080  # port to listen on; 0: any free one
    workers: int = 1  # processes, each with a copy of the model
    # folder of `python -m runner index` of this model; None: all items are compared
    index: Path | None = None
    follow: Path | None = None  # folder whose deltas are applied as they come
    max_rows: int = 4096  # rows of one request
    max_top_k: int = 1000  # best items of a row
    max_body_mb: int = 16  # size of one request, in 2^20 bytes
    queue: int = 64  # requests of one worker that wait or are scored; more are answered with 503
    # the most rows scored together; 1: each request alone
    batch_rows: int = 1024
    batch_wait_ms: float = 0.0  # how long a request waits for others to be batched with

    @property
    def model_name(self) -> str:
        return self.name or self.model.resolve().name


def check_settings(settings: ServeSettings) -> None:
    """Check all settings.

    Raises:
        UserError: with every mistake.
    """
    raise_combined(_find_problems(settings))


def _find_problems(settings: ServeSettings) -> Iterator[str]:
    yield from missing_extra("serve", "serve", *_PACKAGES)
    if not _NAME.fullmatch(settings.model_name):
        yield (
            f"--name {settings.model_name!r}: stands in addresses, so it must consist of letters, "
            "digits and ._-"
        )
    if settings.follow is not None and not settings.follow.is_dir():
        yield f"--follow {settings.follow}: no such folder; `mkdir -p {settings.follow}` makes it"
    if not 0 <= settings.port < 2**16:
        yield f"--port {settings.port}: must lie in 0 to 65535"
    for name in ("workers", "max_rows", "max_top_k", "max_body_mb", "queue", "batch_rows"):
        if getattr(settings, name) < 1:
            yield f"--{name.replace('_', '-')} {getattr(settings, name)}: must be at least 1"
    if settings.workers > (most := WORKERS_PER_CORE * usable_cores()):
        yield (
            f"--workers {settings.workers}: each has a copy of the model; at most "
            f"{WORKERS_PER_CORE} a core, here {most}"
        )
    if not 0 <= settings.batch_wait_ms <= 1000:
        yield f"--batch-wait-ms {settings.batch_wait_ms:g}: must lie in 0 to 1000"


def bind(host: str, port: int) -> socket.socket:
    """Return the socket to serve on. It refuses connections until a worker listens.

    Raises:
        UserError: if the address does not exist or is in use.
    """
    with system_errors(
        f"--host {host} --port {port}: cannot listen there",
        "; --port 0 takes a free port, and --host an address of this machine",
    ):
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # An answer's head and body are two writes: the body must not wait 40 ms for a delayed
        # acknowledgement of the first. Connections inherit it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
    return listener


def describe_address(listener: socket.socket) -> str:
    """Return the address of a socket as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
