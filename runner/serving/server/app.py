"""The addresses of the Open Inference Protocol v2, and `/metrics`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from runner.errors import DataError
from runner.serving.artifact.folder import Artifact
from runner.serving.items.item_table import why_no_items
from runner.serving.server.batcher import Batcher
from runner.serving.server.columns import describe_columns, example_request, served_columns
from runner.serving.server.counters import CODES, Counters, WorkerCounters
from runner.serving.server.follow import follow
from runner.serving.server.nearest import NEAREST, describe_nearest, left_out
from runner.serving.server.prepared import describe_inputs
from runner.serving.server.scoring import make_work, output_names
from runner.serving.server.settings import ServeSettings
from runner.serving.server.tensors import HEADER_LENGTH, parse_request, write_answer

LOG = logging.getLogger(__name__)
VERSION_HEADER = "model-version"
BODY_TIMEOUT_S = 30.0  # within which a client must send its request
RETRY_AFTER_S = 1
# A larger body is parsed in a thread, so that meanwhile others are answered.
_LARGE_BODY = 1 << 17


@dataclass
class Service:
    """The state that the addresses of one worker share."""

    settings: ServeSettings
    batcher: Batcher
    all_counters: Counters
    counters: WorkerCounters
    is_draining: bool = False

    @property
    def artifact(self) -> Artifact:
        return self.batcher.scorer.artifact

    @property
    def is_idle(self) -> bool:
        return self.counters.get("in_flight") == 0

    def check_model(self, request: Request) -> None:
        """Refuse another model, or another version of it.

        Raises:
            HTTPException: 404.
        """
        name, version = request.path_params["name"], request.path_params.get("version")
        if name != self.settings.model_name:
            raise HTTPException(404, f"no model {name!r}; this serves {self.settings.model_name!r}")
        if version not in (None, self.batcher.version):
            raise HTTPException(404, f"no version {version!r}; there is {self.batcher.version!r}")


def make_app(service: Service) -> Starlette:
    """Return the application of one worker."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        tasks = [asyncio.create_task(service.batcher.run())]
        if service.settings.follow is not None:
            scorer, folder = service.batcher.scorer, service.settings.follow
            tasks.append(asyncio.create_task(follow(scorer, folder, service.counters)))
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def routes_of_model(path: str, endpoint: Any, *methods: str) -> list[Route]:
        places = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        return [Route(place + path, endpoint, methods=[*methods]) for place in places]

    app = Starlette(
        routes=[
            Route("/v2", _server_metadata),
            Route("/v2/health/live", _live),
            Route("/v2/health/ready", _ready),
            Route("/metrics", _metrics),
            *routes_of_model("", _model_metadata, "GET"),
            *routes_of_model("/ready", _model_ready, "GET"),
            *routes_of_model("/example", _example, "GET"),
            *routes_of_model("/infer", _infer, "POST"),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _answer_error},
    )
    app.state.service = service
    return app


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if detail == "Not Found":  # Starlette's, for a path that no route has
        place = f"/v2/models/{_service(request).settings.model_name}"
        detail = f"no such address; GET {place} describes the model, {place}/example is a request"
    return JSONResponse({"error": detail}, error.status_code, error.headers)


async def _live(request: Request) -> Response:
    return Response()


async def _ready(request: Request) -> Response:
    return Response(status_code=503 if _service(request).is_draining else 200)


async def _server_metadata(request: Request) -> Response:
    try:
        version = package_version("runner")
    except PackageNotFoundError:  # it runs from a folder that is not installed
        version = "unknown"
    about = {"name": "runner", "version": version, "extensions": ["binary_tensor_data"]}
    return JSONResponse(about)


async def _metrics(request: Request) -> Response:
    service = _service(request)
    return PlainTextResponse(
        service.all_counters.text(service.settings.model_name),
        media_type="text/plain; version=0.0.4",
    )


async def _model_ready(request: Request) -> Response:
    _service(request).check_model(request)
    return await _ready(request)


async def _model_metadata(request: Request) -> Response:
    service = _service(request)
    service.check_model(request)
    artifact = service.artifact
    classes = {f"class_{label}" for label in artifact.classes}
    return JSONResponse(
        {
            "name": service.settings.model_name,
            "versions": [service.batcher.version],
            "platform": f"runner_{service.settings.format or artifact.formats[0]}",
            "inputs": describe_columns(served_columns(artifact.raw, artifact.graphs)),
            "outputs": [
                {
                    "name": name,
                    "datatype": "BYTES" if name in classes else "FP32",
                    "shape": [-1, -1] if name.endswith(".vectors") else [-1],
                }
                for name in output_names(artifact)
                if name not in NEAREST
            ]
            + ([] if why_no_items(artifact) else describe_nearest(artifact)),
            "parameters": {
                "graphs": {spec.name: describe_inputs(spec) for spec in artifact.graphs},
                **left_out(artifact),
            },
        }
    )


async def _example(request: Request) -> Response:
    service = _service(request)
    service.check_model(request)
    return JSONResponse(example_request(service.artifact.raw, service.artifact.graphs))


async def _infer(request: Request) -> Response:
    """Answer an inference, and count it whatever its outcome."""
    service, started = _service(request), time.perf_counter()
    response = await _answer(service, request)
    assert response.status_code in CODES, response.status_code
    service.counters.observe(response.status_code, time.perf_counter() - started)
    return response


async def _answer(service: Service, request: Request) -> Response:
    counters, headers = service.counters, {VERSION_HEADER: service.batcher.version}
    if service.is_draining or counters.get("in_flight") >= service.settings.queue:
        return _refuse(service, headers)
    counters.add("in_flight")
    try:
        return await _score(service, request)
    except HTTPException as error:
        return JSONResponse({"error": error.detail}, error.status_code, headers)
    except ClientDisconnect:
        return Response(status_code=408)
    except DataError as error:
        about = str(error).encode(errors="backslashreplace").decode()  # half characters
        return JSONResponse({"error": about}, 400, headers)
    except Exception:
        LOG.exception("a request failed")
        return JSONResponse({"error": "the server failed; its log says more"}, 500, headers)
    finally:
        counters.add("in_flight", -1)


def _refuse(service: Service, headers: Mapping[str, str]) -> Response:
    if service.is_draining:
        about, more = "the server is stopping", {"connection": "close"}
    else:
        about, more = f"{service.settings.queue} requests are waiting already", {}
    more["retry-after"] = str(RETRY_AFTER_S)
    return JSONResponse({"error": about}, 503, {**headers, **more})


async def _score(service: Service, request: Request) -> Response:
    service.check_model(request)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise HTTPException(415, f"content-encoding {encoding!r}: send the body as it is")
    body = await _read_body(request, service.settings.max_body_mb << 20)
    header_length = request.headers.get(HEADER_LENGTH)
    if len(body) > _LARGE_BODY:
        parsed = await asyncio.to_thread(parse_request, body, header_length)
    else:
        parsed = parse_request(body, header_length)
    settings = service.settings
    work = make_work(service.artifact, parsed, settings.max_rows, settings.max_top_k)
    scored = await service.batcher.score(work)
    head: dict[str, Any] = {"model_name": settings.model_name, "model_version": scored.version}
    if parsed.id:
        head["id"] = parsed.id
    if scored.index:
        head["parameters"] = {"index": scored.index, **left_out(service.artifact)}
    content, head_length = write_answer(head, scored.outputs, work.outputs)
    headers = {VERSION_HEADER: scored.version}
    if head_length is None:
        return Response(content, media_type="application/json", headers=headers)
    headers[HEADER_LENGTH] = str(head_length)
    return Response(content, media_type="application/octet-stream", headers=headers)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body up to the size that is allowed.

    Raises:
        HTTPException: 413 if it is too large, 408 if it does not arrive in time.
    """
    too_large = HTTPException(413, f"the body has more than {max_bytes} bytes (--max-body-mb)")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError as error:
        raise HTTPException(408, f"the body did not arrive in {BODY_TIMEOUT_S:.0f} s") from error
    return b"".join(chunks)
