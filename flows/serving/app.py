"""The ASGI application of `retune serve`: KServe's Open Inference Protocol V2 over HTTP, health, and metrics.

Endpoints: `/v2`, `/v2/health/live`, `/v2/health/ready`, `/v2/models/NAME[/versions/VERSION]`, `…/ready`, `…/infer`, and
`/metrics` in the form of Prometheus.
"""

import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError, RetuneError
from retune.flows.serving.model import Model, TensorSpec
from retune.flows.serving.protocol import DATATYPES, HEADER_LENGTH, parse_request, write_response
from retune.flows.serving.queue import QueueFullError, RequestQueue

VERSION = "1"
"""The version of every model: a file has a single version."""

MOST_JSON_BYTES = 32
"""Bytes of a number in JSON, more than any number of the protocol takes with its comma and spaces."""

_HEAD_BYTES = 1 << 16
"""Room for names, shapes and parameters in a request."""

# A 1-2-5 series: any quantile is known within a factor of 2.5.
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds of the latency histogram, in seconds: kernels take from below a millisecond to seconds."""


class _Metrics:
    """The metrics of one application, in its own registry."""

    def __init__(self, queues: Mapping[str, RequestQueue]) -> None:
        # Not the global registry, where a second application in the process would collide.
        self.registry = CollectorRegistry()
        named = ("model",)
        self.requests = Counter("retune_requests", "Requests by outcome", (*named, "code"), registry=self.registry)
        self.seconds = Histogram(
            "retune_request_seconds",
            "Seconds from a request to its answer",
            named,
            registry=self.registry,
            buckets=_BUCKETS,
        )
        waiting = Gauge("retune_queue_depth", "Requests that wait", named, registry=self.registry)
        runs = Gauge("retune_runs", "Runs of the network since the start", named, registry=self.registry)
        busy = Gauge("retune_busy_seconds", "Seconds that runs have taken", named, registry=self.registry)
        for name, queue in queues.items():
            waiting.labels(name).set_function(partial(getattr, queue, "depth"))
            runs.labels(name).set_function(partial(getattr, queue, "runs"))
            busy.labels(name).set_function(partial(getattr, queue, "busy_seconds"))


def make_app(models: Mapping[str, Model], *, capacity: int = 64, batch_seconds: float = 0.0) -> FastAPI:
    """An application that serves models by name; the rest is as for `RequestQueue`.

    Raises: OptionError for batches of a network that has no dimension for them, and for a type that requests lack.
    """
    for name, model in models.items():
        for spec in (*model.inputs, *model.outputs):
            if spec.dtype not in DATATYPES:
                raise OptionError(f"model {name}: requests have no tensors of {spec.dtype} for its {spec.name}")
    queues = {
        name: RequestQueue(model, capacity=capacity, batch_seconds=batch_seconds) for name, model in models.items()
    }
    metrics = _Metrics(queues)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for queue in queues.values():
            await queue.close()

    app = FastAPI(title="Retune", version=config.engine_version(), lifespan=lifespan, docs_url=None, redoc_url=None)

    _add_server_routes(app, metrics.registry)
    _add_model_routes(app, queues, metrics)
    return app


def _add_server_routes(app: FastAPI, registry: CollectorRegistry) -> None:
    """The endpoints about the server itself, and what is said of paths that are no endpoint."""

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        allowed = (error.headers or {}).get("Allow")
        if allowed:
            sentence = f"{request.url.path} takes {allowed}, not {request.method}"
        else:
            sentence = f"{request.url.path} is no endpoint; docs/how-to/serving.md lists them"
        return _refuse(error.status_code, sentence, error.headers)

    @app.get("/v2")
    async def server() -> dict[str, object]:
        return {"name": "retune", "version": config.engine_version(), "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/v2/health/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.get("/metrics")
    async def metrics_page() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _add_model_routes(app: FastAPI, queues: Mapping[str, RequestQueue], metrics: _Metrics) -> None:
    """The endpoints about each model and to run it."""

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{version}")
    async def model(name: str, version: str = VERSION) -> Response:
        queue = _find(queues, name, version)
        if isinstance(queue, Response):
            return queue
        return JSONResponse(
            {
                "name": name,
                "versions": [VERSION],
                "platform": "retune",
                "inputs": [_metadata(spec) for spec in queue.inputs],
                "outputs": [_metadata(spec) for spec in queue.outputs],
            }
        )

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def model_ready(name: str, version: str = VERSION) -> Response:
        queue = _find(queues, name, version)
        return queue if isinstance(queue, Response) else JSONResponse({"name": name, "ready": True})

    @app.post("/v2/models/{name}/infer")
    @app.post("/v2/models/{name}/versions/{version}/infer")
    async def infer(request: Request, name: str, version: str = VERSION) -> Response:
        queue = _find(queues, name, version)
        if isinstance(queue, Response):
            return queue
        began = time.perf_counter()
        response = await _infer(queue, request, name)
        metrics.seconds.labels(name).observe(time.perf_counter() - began)
        metrics.requests.labels(name, str(response.status_code)).inc()
        return response


def listen(server: uvicorn.Config) -> socket.socket:
    """A socket at the address of `server` that takes connections already. Raises: OptionError when it is taken."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    try:
        listening = socket.create_server(
            (server.host, server.port),
            family=family,
            backlog=server.backlog,
            # "::" takes connections of IPv4 too.
            dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        why = error.strerror or error
        raise OptionError(f"cannot listen at {server.host}:{server.port}: {why}; choose another host or port") from None
    # Accepted sockets inherit it. asyncio sets it only for sockets made with IPPROTO_TCP, which this one is not: head
    # and body of an answer would wait for each other, 40 ms a request.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def _infer(queue: RequestQueue, request: Request, name: str) -> Response:
    """Run the model `name` on the tensors of `request`; what is wrong with the request is in the response."""
    most_bytes = _HEAD_BYTES + sum(spec.most_elements * MOST_JSON_BYTES for spec in queue.inputs)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            # Checked while it arrives: a client must not be able to fill the memory.
            if len(body) > most_bytes:
                why = f"the request has more than the {most_bytes} bytes that the inputs of {name} can take"
                return _refuse(413, why)
    except ClientDisconnect:
        return _refuse(499, "the client left")  # as nginx counts it
    try:
        parsed = parse_request(bytes(body), request.headers.get(HEADER_LENGTH), queue.inputs, queue.outputs)
        results = await queue.infer(parsed.inputs)
        about = {"model_name": name, "model_version": VERSION, **({"id": parsed.id} if parsed.id else {})}
        wanted = {output: results[output] for output in parsed.outputs}
        answer, length = write_response(about, wanted, parsed.outputs)
    except QueueFullError as error:
        # 503 with Retry-After, so that load balancers try another server and clients wait.
        return _refuse(503, str(error), {"Retry-After": "1"})
    except OptionError as error:
        return _refuse(400, str(error))
    except RetuneError as error:
        return _refuse(500, str(error))
    if length == len(answer):
        return Response(answer, media_type="application/json")
    return Response(answer, media_type="application/octet-stream", headers={HEADER_LENGTH: str(length)})


def _find(queues: Mapping[str, RequestQueue], name: str, version: str) -> RequestQueue | Response:
    """The queue of a model, or the response that refuses the request."""
    if name not in queues:
        return _refuse(404, f"there is no model {name!r}; there are {', '.join(queues)}")
    if version != VERSION:
        return _refuse(404, f"model {name} has no version {version!r}; it has {VERSION}")
    return queues[name]


def _refuse(code: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": sentence}, code, dict(headers or {}))


def _metadata(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": list(spec.shape)}
