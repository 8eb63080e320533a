"""`retune serve` answers the Open Inference Protocol V2, refuses what does not fit, and stops when told to."""

import asyncio
import contextlib
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend import zoo
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.library import Library
from retune.flows.serving import connections
from retune.flows.serving.app import listen, make_app
from retune.flows.serving.connections import configure
from retune.flows.serving.model import Model
from retune.flows.serving.queue import QueueFullError, RequestQueue
from tests.support.flows.served import served

ROWS = 4
WIDTHS = (24, 32, 8)


@pytest.fixture(scope="module")
def library() -> Library:
    graph = optimize(load_model(zoo.build("mlp", widths=WIDTHS, batch=ROWS), name="mlp"))
    return Library(compile_graph(graph, Target.host()))


@pytest.fixture(scope="module")
def client(library: Library) -> Iterator[httpx.Client]:
    with served(make_app({"mlp": Model(library)})) as client:
        yield client


def rows(count: int = ROWS, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, WIDTHS[0])).astype(np.float32)


def request(array: Array, **fields: Any) -> dict[str, Any]:
    one = {"name": "input", "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}
    return {"inputs": [{**one, **fields}]}


def test_metadata_names_tensors_types_and_shapes(client: httpx.Client) -> None:
    found = client.get("/v2/models/mlp").json()
    assert found["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [ROWS, WIDTHS[0]]}]
    assert found["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [ROWS, WIDTHS[-1]]}]
    assert client.get("/v2/models/mlp/versions/1").json() == found
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/mlp/ready"):
        assert client.get(path).status_code == 200


def test_json_and_binary_requests_get_the_outputs_of_the_executor(client: httpx.Client, library: Library) -> None:
    x = rows()
    wanted = Model(library).run({"input": x})["logits"]
    answer = client.post("/v2/models/mlp/infer", json={**request(x), "id": "seven"}).json()
    assert (answer["id"], answer["model_name"]) == ("seven", "mlp")
    (output,) = answer["outputs"]
    np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), wanted, rtol=1e-6)

    head = {
        "inputs": [
            {"name": "input", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
        ],
        "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
    }
    text = json.dumps(head).encode()
    header = {"Inference-Header-Content-Length": str(len(text))}
    found = client.post("/v2/models/mlp/infer", content=text + x.tobytes(), headers=header)
    length = int(found.headers["Inference-Header-Content-Length"])
    assert json.loads(found.content[:length])["outputs"][0]["parameters"] == {"binary_data_size": wanted.nbytes}
    np.testing.assert_array_equal(np.frombuffer(found.content[length:], np.float32).reshape(wanted.shape), wanted)


def test_a_network_is_served_by_as_many_instances_as_it_was_tuned_for(library: Library) -> None:
    tuned = Library(replace(library.network, metadata={**library.network.metadata, "instances": 3}))
    assert [Model(one).instances for one in (library, tuned)] == [1, 3]
    assert Model(tuned, 2).instances == 2
    damaged = Library(replace(library.network, metadata={**library.network.metadata, "instances": "many"}))
    with pytest.raises(ArtifactError, match="'many' of its instances"):
        Model(damaged)


GOOD = request(rows())
ONE = GOOD["inputs"][0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the request is not JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "needs `inputs`"),
        ({"inputs": [{**ONE, "name": "x"}]}, "there is no input 'x'; the inputs are input"),
        ({"inputs": [ONE, ONE]}, "it is given twice"),
        ({"inputs": []}, "no value for input"),
        ({"inputs": [{**ONE, "datatype": "FP64"}]}, "the datatype must be FP32, not 'FP64'"),
        ({"inputs": [{**ONE, "shape": "4x24"}]}, "the shape must be a list of integers"),
        ({"inputs": [{**ONE, "shape": [24, 4]}]}, "the shape must be [4, 24], not [24, 4]"),
        ({"inputs": [{**ONE, "shape": [2, 24]}]}, "[2, 24] takes 48 numbers, not 96"),
        ({"inputs": [{**ONE, "shape": [1] * 67 + [1, 4, 24]}]}, "the shape must be [4, 24], not [1, 1"),
        ({"inputs": [{**ONE, "shape": [2**62, 2**62, 0], "data": []}]}, "the shape must be [4, 24]"),
        ({"inputs": [{**ONE, "shape": [2**62, 0], "data": []}]}, "the shape must be [4, 24]"),
        ({"inputs": [{**ONE, "shape": [2**62, 0], "parameters": {"binary_data_size": 0}}]}, "must be [4, 24]"),
        ({"inputs": [{**ONE, "data": ["a"] * 96}]}, "the data are BYTES (strings), where FP32 is expected"),
        (
            {"inputs": [{**ONE, "data": [None] * 96}]},
            "the data are null, objects or integers beyond 64 bits, where FP32",
        ),
        ({"inputs": [{**ONE, "data": [[1.0], [1.0, 2.0]]}]}, "one list of numbers, or rows of equal length"),
        ({"inputs": [{**ONE, "data": 1}]}, "there is no data"),
        ({"inputs": [{**ONE, "data": [1e300] * 96}]}, "a number is outside the range of FP32"),
        ({"inputs": [{**ONE, "name": []}]}, "there is no input []"),
        ({"inputs": [{**ONE, "shape": [True, 24]}]}, "the shape must be a list of integers"),
        ({**GOOD, "outputs": [{"name": "y"}]}, "there is no output 'y'; the outputs are logits"),
        ({"inputs": [{**ONE, "parameters": {"binary_data_size": 8}}]}, "binary_data_size is 8, but 0 bytes are left"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(client: httpx.Client, body: Any, said: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/v2/models/mlp/infer", content=content)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "²", "1e3", "7"])
def test_an_odd_length_of_the_head_is_refused(client: httpx.Client, length: str) -> None:
    headers = {b"Inference-Header-Content-Length": length.encode("latin-1")}
    answer = client.post("/v2/models/mlp/infer", content=b"{}", headers=headers)
    assert answer.status_code == 400
    assert "but the body has 2 bytes" in answer.json()["error"]
    assert len(answer.json()["error"]) < 120


def test_unknown_models_versions_and_oversized_requests_have_their_codes(client: httpx.Client) -> None:
    missing = client.post("/v2/models/other/infer", json=GOOD)
    assert (missing.status_code, missing.json()["error"]) == (404, "there is no model 'other'; there are mlp")
    assert client.get("/v2/models/mlp/versions/2").status_code == 404
    refused = client.get("/nothing")
    said = "/nothing is no endpoint; docs/how-to/serving.md lists them"
    assert (refused.status_code, refused.json()["error"]) == (404, said)
    for method, path, allowed in (("GET", "/v2/models/mlp/infer", "POST"), ("POST", "/v2/models/mlp", "GET")):
        refused = client.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
        assert refused.json()["error"] == f"{path} takes {allowed}, not {method}"
    assert client.post("/v2/models/mlp/infer", content=b" " * 100_000).status_code == 413


def test_metrics_count_requests_by_code(library: Library) -> None:
    with served(make_app({"mlp": Model(library)})) as client:
        for _ in range(3):
            client.post("/v2/models/mlp/infer", json=GOOD)
        client.post("/v2/models/mlp/infer", json={})
        text = client.get("/metrics").text
    assert 'retune_requests_total{code="200",model="mlp"} 3.0' in text
    assert 'retune_requests_total{code="400",model="mlp"} 1.0' in text
    assert 'retune_request_seconds_count{model="mlp"} 4.0' in text
    assert 'retune_runs{model="mlp"} 3.0' in text


HEAD = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n"
WAITING = {"nothing": b"", "half a head": HEAD[:20], "half a body": HEAD + b" " * 1000}


def opened(client: httpx.Client, sent: bytes) -> socket.socket:
    """A connection that has sent this, and then is silent."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=60)
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server ends a connection."""
    with connection, contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


@pytest.mark.parametrize("sent", WAITING.values(), ids=WAITING)
def test_silent_connections_give_way_to_others(
    library: Library, sent: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda: 8)
    with served(make_app({"mlp": Model(library)})) as client:
        silent = [opened(client, sent) for _ in range(30)]
        for _ in range(3):
            assert client.post("/v2/models/mlp/infer", json=GOOD).status_code == 200
        assert all(is_closed(each) for each in silent[:22])
        for each in silent:
            each.close()
        assert client.get("/v2/health/live").status_code == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("sent", WAITING.values(), ids=WAITING)
def test_a_request_has_a_time_to_arrive_in(library: Library, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with served(make_app({"mlp": Model(library)})) as client:
        assert is_closed(opened(client, sent))
        assert client.post("/v2/models/mlp/infer", json=GOOD).status_code == 200
        counted = client.get("/metrics").text
    assert ('retune_requests_total{code="499",model="mlp"} 1.0' in counted) == sent.endswith(b" ")


def test_a_run_that_takes_long_is_not_cut_off(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.1)
    monkeypatch.setattr(connections, "most_connections", lambda: 2)
    model = HeldModel(library)
    with served(make_app({"mlp": model})) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/v2/models/mlp/infer", json=GOOD)
        assert model.has_begun.wait(60)
        for _ in range(5):  # more than there may be, over more time than a request has
            assert is_closed(opened(client, b""))
        model.may_run.set()
        assert answer.result().status_code == 200


def test_a_client_that_leaves_is_no_fault(library: Library, capfd: pytest.CaptureFixture[str]) -> None:
    with served(make_app({"mlp": Model(library)})) as client:
        for _ in range(3):
            opened(client, HEAD + b" " * 1000).close()
        while 'code="499",model="mlp"} 3.0' not in client.get("/metrics").text:
            continue
    assert capfd.readouterr().err == ""


def test_few_connections_are_kept_where_few_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((-1, 1024), (1 << 20, 1024), (1024, 832), (256, 64), (64, 16)):
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        assert connections.most_connections() == most


def test_the_log_says_the_same_once_in_a_while(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(FastAPI())
    for name in ("asyncio", "uvicorn.error"):
        for _ in range(100):
            logging.getLogger(name).error("%s: socket.accept() out of system resource", name)
        for number in range(3):
            logging.getLogger(name).error("fault %d of %s", number, name)
    assert len(caplog.records) == 4
    assert len(capfd.readouterr().err.splitlines()) == 4


class HeldModel(Model):
    """A model whose runs wait until they are released, and which counts them."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self.has_begun, self.may_run = threading.Event(), threading.Event()
        self.runs: list[Mapping[str, Array]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.has_begun.set()
        assert self.may_run.wait(60)
        self.runs.append(inputs)
        return super().run(inputs)


def test_a_full_queue_refuses_and_what_waits_is_answered(library: Library) -> None:
    async def serve() -> None:
        model = HeldModel(library)
        queue = RequestQueue(model, capacity=2)
        waiting = [asyncio.ensure_future(queue.infer({"input": rows(seed=seed)})) for seed in range(3)]
        while queue.depth < 2:
            await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="2 requests wait already"):
            await queue.infer({"input": rows()})
        model.may_run.set()
        for seed, found in enumerate(await asyncio.gather(*waiting)):
            np.testing.assert_array_equal(found["logits"], Model(library).run({"input": rows(seed=seed)})["logits"])
        await queue.close()

    asyncio.run(serve())


def test_requests_batched_in_one_run_get_their_own_rows(library: Library) -> None:
    async def serve() -> None:
        model = HeldModel(library)
        model.may_run.set()
        queue = RequestQueue(model, batch_seconds=60.0)  # only a full batch starts in time
        parts = [rows(1, 1), rows(2, 2), rows(1, 3)]
        found = await asyncio.gather(*(queue.infer({"input": part}) for part in parts))
        assert len(model.runs) == 1
        wanted = Model(library).run({"input": np.concatenate(parts)})["logits"]
        np.testing.assert_array_equal(np.concatenate([one["logits"] for one in found]), wanted)
        with pytest.raises(OptionError, match="with at most 4 rows, not"):
            await queue.infer({"input": rows(5)})
        await queue.close()

    asyncio.run(serve())


def test_a_batch_that_is_not_full_runs_when_its_time_is_over(library: Library) -> None:
    async def serve() -> None:
        queue = RequestQueue(Model(library), batch_seconds=0.001)
        found = await queue.infer({"input": rows(1, 5)})
        padded = np.concatenate([rows(1, 5), np.zeros((ROWS - 1, WIDTHS[0]), np.float32)])
        np.testing.assert_array_equal(found["logits"], Model(library).run({"input": padded})["logits"][:1])
        await queue.close()

    asyncio.run(serve())


def test_a_request_that_came_while_an_instance_was_busy_is_due_when_its_own_time_is_over(library: Library) -> None:
    async def serve() -> None:
        model = HeldModel(library)
        queue = RequestQueue(model, batch_seconds=0.001)
        first = asyncio.ensure_future(queue.infer({"input": rows(4, 1)}))
        second = asyncio.ensure_future(queue.infer({"input": rows(1, 2)}))
        await asyncio.sleep(0.01)  # its time is over, and the instance is busy
        queue._batch_seconds = 60.0  # a new wait would take this long
        model.may_run.set()
        await asyncio.gather(first, second)
        assert len(model.runs) == 2
        await queue.close()

    asyncio.run(serve())


def test_batches_need_a_network_with_rows() -> None:
    graph = optimize(load_model(zoo.build("mlp", widths=WIDTHS, batch=1), name="mlp"))
    single = Model(Library(compile_graph(graph, Target.host())))
    with pytest.raises(OptionError, match="batches need a network that was compiled for several rows"):
        make_app({"mlp": single}, batch_seconds=0.01)


def test_head_and_body_of_an_answer_do_not_wait_for_each_other() -> None:
    with listen(uvicorn.Config("", port=0)) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_is_refused_in_one_sentence(host: str) -> None:
    with listen(uvicorn.Config("", host, port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(OptionError, match=f"cannot listen at {host}:{port}: .*; choose another host or port"):
            listen(uvicorn.Config("", host, port=port))


def test_sigterm_ends_the_server_after_the_last_answer(library: Library, tmp_path: Path) -> None:
    path = library.export_library(tmp_path / "net.retune")
    main = "from retune.flows.cli.launch import main; main()"
    command = [sys.executable, "-c", main, "serve", f"net={path}", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = re.search(r"http://\S+", server.stdout.readline())
        assert url is not None
        answer = httpx.post(f"{url[0]}/infer", json=GOOD, timeout=60)
        assert answer.status_code == 200
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url[0])
