"""The command `retune serve`: serves compiled networks over HTTP, with KServe's Open Inference Protocol V2."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
import uvicorn

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.archive import kind_of
from retune.compiler.runtime.executor.shared_library import is_shared_library
from retune.flows.cli.commands.arguments import Shapes, Store, home_of
from retune.flows.cli.commands.output import Output
from retune.flows.serving.app import listen, make_app
from retune.flows.serving.connections import configure
from retune.flows.serving.dynamic_model import DynamicModel, load_served
from retune.flows.serving.model import Model
from retune.storage.store_url import Location


def serve(
    output: Output,
    files: Annotated[
        list[Path],
        typer.Argument(help="Files, .retune or .so, with --shape .onnx: FILE, or NAME=FILE."),
    ],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    instances: Annotated[
        int | None, typer.Option(min=1, help="Runs of a network at a time. Default: as it was tuned for, mostly 1.")
    ] = None,
    queue: Annotated[int, typer.Option(min=0, help="Requests of a network that may wait; more are refused.")] = 64,
    batch_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds that a request waits for others to share a run; 0: no batches.")
    ] = 0.0,
    shape: Shapes = None,
    store: Store = None,
    stop_seconds: Annotated[int, typer.Option(min=0, help="Seconds that requests have to end after SIGTERM.")] = 30,
) -> None:
    """Serve compiled networks over HTTP, with KServe's Open Inference Protocol V2 and metrics for Prometheus."""
    models: dict[str, Model] = {}
    for file in map(str, files):
        name, sign, path = file.partition("=")
        if not sign:
            name, path = Path(file).stem, file
        if name in ("", ".", "..") or "/" in name:
            raise OptionError(f"the name {name!r} of {path} must be a part of the URL: give it letters and no slash")
        if name in models:
            raise OptionError(f"two networks are called {name}: name one with NAME=FILE")
        models[name] = _compile(path, shape, home_of(store), instances) if shape else load_served(path, instances)
    app = make_app(models, capacity=queue, batch_seconds=batch_ms / 1e3)
    config = configure(app, host, port, stop_seconds)
    # Bound before uvicorn starts: port 0 has its number by now, and the address is printed when it takes connections.
    listening = listen(config)
    address, at = listening.getsockname()[:2]
    for name in models:
        url = f"http://{address}:{at}/v2/models/{quote(name)}"
        output.say(url, model=name, url=url)
    uvicorn.Server(config).run([listening])


def _compile(path: str, shapes: Sequence[str], home: Location, instances: int | None) -> Model:
    """The model of an ONNX file, compiled for `shapes` with the best programs at `home`. Raises: OptionError."""
    if is_shared_library(path) or kind_of(Path(path)):
        raise OptionError(f"{path} is compiled: --shape is for ONNX files")
    # A server of compiled networks does not need the compiler.
    compile_dynamic = importlib.import_module("retune.flows.dynamic_network").compile_dynamic
    threads = config.thread_count(config.usable_cores())
    return DynamicModel(compile_dynamic(path, shapes, "llvm", threads, None, home).get_exec(), instances)
