"""One process that serves: it loads the model, answers, and drains on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from types import FrameType
from urllib.parse import quote

import uvicorn

from runner.machine.imports import end_imports
from runner.serving.scorer import Scorer
from runner.serving.server.app import Service, make_app
from runner.serving.server.batcher import Batcher
from runner.serving.server.counters import Counters
from runner.serving.server.settings import ServeSettings, describe_address

DRAIN_S = 30  # for clients that read slowly; waiting requests are scored in any case
# A parent that is killed ends thread by thread, and the kernel signals its children each time.
SAME_SIGNAL_S = 0.5


class DrainingServer(uvicorn.Server):
    """A server that first answers what it has accepted; a second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.signal: int | None = None
        self._signalled_s = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Accept no more requests; end at once on a second signal."""
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._signalled_s = sig, now
        elif now - self._signalled_s > SAME_SIGNAL_S:
            self.should_exit = self.force_exit = True
            logging.getLogger("uvicorn.error").disabled = True  # it would tell what is cut off
        self._service.is_draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and print the address."""
        await super().startup(sockets)
        self._service.counters.set("up", 1)
        model, address = self._service.settings.model_name, describe_address((sockets or [])[0])
        text = f"serving {model}, version {self._service.batcher.version}, at {address}\n"
        if self._service.settings.workers == 1:  # several workers would print it several times
            place = f"{address}/v2/models/{quote(model)}"
            text += f"try it: curl -s {place}/example | curl -s {place}/infer -d @-\n"
        print(text, end="", file=sys.stderr, flush=True)

    async def on_tick(self, counter: int) -> bool:
        """Stop listening once no request is waiting."""
        if self._service.is_draining and self._service.is_idle:
            self.should_exit = True
        return await super().on_tick(counter)


def serve(
    settings: ServeSettings, listener: socket.socket, counters: Counters, worker: int, threads: int
) -> int:
    """Load the model and serve it until a signal.

    Args:
        settings: checked by `check_settings`.
        listener: bound, and not yet listening.
        threads: for one run of the model.

    Returns:
        The exit code: 128 and the number of the signal.

    Raises:
        UserError: for a model that cannot be loaded.
    """
    scorer = Scorer.load(
        settings.model,
        format=settings.format,
        trust_native_code=settings.trust_native_code,
        num_threads=threads,
        index=settings.index,
    )
    logging.getLogger("runner").addHandler(logging.StreamHandler())
    own_counters = counters.row(worker, scorer.version)
    wait_s = settings.batch_wait_ms / 1000
    batcher = Batcher(scorer, batch_rows=settings.batch_rows, wait_s=wait_s, counters=own_counters)
    service = Service(settings, batcher, counters, own_counters)
    config = uvicorn.Config(
        make_app(service),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    server = DrainingServer(config, service)
    end_imports()
    asyncio.run(server.serve(sockets=[listener]))
    return 128 + (server.signal or signal.SIGTERM)
