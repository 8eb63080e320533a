"""Latency and throughput of `retune serve` at rising load, beside the bare executor.

    python -m benchmarks.serve [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--network NAME]

Clients in their own process send binary requests over kept connections, each the next one when it has its answer.
Lines: median and 99th percentile of the seconds from request to answer, requests a second, and the median of the bare
executor in the same run, which `ratio` divides by. Server, clients and network share the cores of the machine.
"""

import http.client
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import uvicorn

import retune
from benchmarks import zoo
from benchmarks.harness import Figure, Run, parse
from retune.flows.serving.app import listen, make_app
from retune.flows.serving.model import Model, TensorSpec
from retune.flows.serving.protocol import DATATYPES, HEADER_LENGTH

CLIENTS = (1, 2, 4, 8, 16)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines."""
    run = parse(
        __doc__,
        argv,
        seconds=5,
        seconds_help="load for each number of clients",
        threads=(1,),
        texts={"network": ("NAME", "a network of benchmarks/zoo; resnet18 unless given")},
    )
    name = run.texts["network"] or "resnet18"
    with tempfile.TemporaryDirectory() as folder:
        network = retune.compile(zoo.build(name), threads=run.threads[0], store=folder)
        path = network.save(Path(folder) / f"{name}.retune")
        run.write_all(figures(run, name, path))


def figures(run: Run, name: str, path: Path) -> Iterator[Figure]:
    """The bare executor, then the server under the load of so many clients."""
    model = Model.load(path)
    threads = run.threads[0]
    bare = _bare_seconds(model, run.seconds)
    yield Figure(name, "executor", threads, "median", bare * 1e3, "ms")
    config = uvicorn.Config(make_app({name: model}), port=0, log_level="warning")
    server, listening = uvicorn.Server(config), listen(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    port = listening.getsockname()[1]
    try:
        for clients in CLIENTS:
            if not run.wants(f"{name}/{clients}"):
                continue
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds = pool.apply(load, (port, name, model.inputs, clients, run.seconds))
            median, last = np.percentile(seconds, (50, 99))
            details = {"clients": clients, "requests": len(seconds)}
            for metric, value in (("median", median), ("p99", last)):
                more = {**details, "ratio": round(float(value / bare), 3)}
                yield Figure(f"{name}/{clients}", "retune serve", threads, metric, value * 1e3, "ms", details=more)
            rate = len(seconds) / run.seconds
            yield Figure(
                f"{name}/{clients}",
                "retune serve",
                threads,
                "throughput",
                rate,
                "1/s",
                details={**details, "ratio": round(rate * bare, 3)},
            )
    finally:
        server.should_exit = True
        thread.join()


def load(port: int, name: str, inputs: Sequence[TensorSpec], clients: int, seconds: float) -> list[float]:
    """The latencies of all requests that so many clients get answered in `seconds`."""
    arrays = [np.zeros(spec.shape, spec.dtype) for spec in inputs]
    described = [
        {
            "name": spec.name,
            "shape": list(spec.shape),
            "datatype": DATATYPES[spec.dtype],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for spec, array in zip(inputs, arrays, strict=True)
    ]
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join((head, *(array.tobytes() for array in arrays)))
    found: list[float] = []
    end = time.perf_counter() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while time.perf_counter() < end:
            began = time.perf_counter()
            connection.request("POST", f"/v2/models/{name}/infer", body, {HEADER_LENGTH: str(len(head))})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the server answers {answer.status}: {text[:200]!r}")
            found.append(time.perf_counter() - began)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _bare_seconds(model: Model, seconds: float) -> float:
    """The median of a run of the executor, copies of inputs and outputs included."""
    inputs = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.inputs}
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        model.run(inputs)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


if __name__ == "__main__":
    main()
