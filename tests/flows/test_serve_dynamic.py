"""`retune serve` of networks of dynamic shapes: requests of any lengths, in batches, without the compiler."""

import asyncio
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

import retune
from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.vm.executable import Executable
from retune.flows.cli.commands import serve
from retune.flows.serving.app import make_app
from retune.flows.serving.dynamic_model import DynamicModel, load_served
from retune.flows.serving.model import Model
from retune.flows.serving.queue import RequestQueue
from tests.support.dynamic_models import floats, model, node, tensor
from tests.support.flows.command_line import Refused, run
from tests.support.flows.served import served

WEIGHT = floats(16, 8)
NODES = [node("Add", ["a", "b"], ["sum"]), node("MatMul", ["sum", "w"], ["y"])]
INPUTS = [tensor("a", ["batch", "tokens", 16]), tensor("b", ["batch", "tokens", 16])]
RANGES = ("1..4", "1..40", 16)


def saved(folder: Path, **options: Any) -> Path:
    source = model(NODES, INPUTS, [tensor("y", ["batch", "tokens", 8])], {"w": WEIGHT})
    return retune.compile(source, dynamic=True, threads=1, **options).save(folder / "net.retune")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("served"), shapes={"a": RANGES})


def inputs(batch: int, tokens: int, seed: int = 0) -> dict[str, Array]:
    return {name: floats(batch, tokens, 16, seed=seed) for name in "ab"}


def check(found: Array, given: dict[str, Array]) -> None:
    np.testing.assert_allclose(found, (given["a"] + given["b"]) @ WEIGHT, rtol=1e-4, atol=1e-4)


def body(given: dict[str, Array]) -> dict[str, Any]:
    tensors = [
        {"name": name, "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}
        for name, array in given.items()
    ]
    return {"inputs": tensors}


def test_requests_of_any_length_in_the_ranges_are_answered(file: Path) -> None:
    with served(make_app({"net": load_served(file)})) as client:
        metadata = client.get("/v2/models/net").json()
        assert metadata["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, -1, 16]}
        for shape in ((1, 1), (4, 40), (2, 7)):
            given = inputs(*shape)
            answer = client.post("/v2/models/net/infer", json=body(given)).json()["outputs"][0]
            check(np.reshape(answer["data"], answer["shape"]), given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (inputs(5, 3), r"input a: the shape must be [-1, -1, 16] of at most [4, 40, 16], not [5, 3, 16]"),
        (inputs(0, 3), "batch is 0 in dimension 0 of a; the network takes 1 to 4"),
        ({"a": floats(1, 3, 16), "b": floats(1, 4, 16)}, "tokens is 3 in dimension 1 of a and 4 in dimension 1 of b"),
        ({"a": floats(3, 16), "b": floats(3, 16)}, "input a: the shape must be [-1, -1, 16]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_in_one_sentence(file: Path, given: dict[str, Array], said: str) -> None:
    with served(make_app({"net": load_served(file)})) as client:
        answer = client.post("/v2/models/net/infer", json=body(given))
    assert answer.status_code == 400
    assert said in answer.json()["error"]


@pytest.mark.parametrize("extent", [1 << 23, 10**30])
def test_requests_without_ranges_have_a_limit(tmp_path: Path, extent: int) -> None:
    tensors = [{"name": name, "shape": [0, extent, 16], "datatype": "FP32", "data": []} for name in "ab"]
    with served(make_app({"net": load_served(saved(tmp_path))})) as client:
        answer = client.post("/v2/models/net/infer", json={"inputs": tensors})
    assert answer.status_code == 400
    assert "input a: the shape must be" in answer.json()["error"]


_SERVE = """
import sys
import numpy as np
from retune.flows.serving.dynamic_model import load_served

model = load_served(sys.argv[1])
for shape in ((1, 1, 16), (3, 29, 16), (4, 40, 16)):
    model.run({name: np.ones(shape, "float32") for name in "ab"})
compiler = ("codegen", "driver", "frontend", "ops", "schedule", "search", "te", "tune", "vm.specialize", "vm.compiler")
print([name for name in sys.modules if name.startswith(tuple(f"retune.compiler.{part}" for part in compiler))])
print("onnx" in sys.modules)
"""


def test_a_process_that_serves_imports_no_compiler(file: Path) -> None:
    result = subprocess.run([sys.executable, "-c", _SERVE, file], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\nFalse\n"


def test_batches_join_requests_of_equal_lengths(file: Path) -> None:
    async def serve() -> None:
        queue = RequestQueue(load_served(file), batch_seconds=0.2)
        requests = [
            inputs(rows, tokens, seed) for seed, (rows, tokens) in enumerate([(1, 5), (1, 9), (2, 5), (1, 5), (3, 9)])
        ]
        results = await asyncio.gather(*map(queue.infer, requests))
        for given, result in zip(requests, results, strict=True):
            check(result["y"], given)
        assert queue.runs == 2
        with pytest.raises(OptionError, match="with at most 4 rows, not"):
            await queue.infer(inputs(5, 5))
        await queue.close()

    asyncio.run(serve())


def test_batches_need_an_output_with_a_row_for_each_row(tmp_path: Path) -> None:
    nodes = [*NODES, node("Concat", ["y", "y"], ["z"], axis=0)]
    source = model(nodes, INPUTS, [tensor("z", [None, "tokens", 8])], {"w": WEIGHT})
    file = retune.compile(source, dynamic=True, threads=1).save(tmp_path / "net.retune")

    async def serve() -> None:
        queue = RequestQueue(load_served(file), batch_seconds=0.001)
        with pytest.raises(OptionError, match=r"output z is \[4, 3, 8\] for 2 rows: serve without --batch-ms"):
            await queue.infer(inputs(2, 3))
        await queue.close()

    asyncio.run(serve())


def test_batches_need_a_dimension_that_all_inputs_have_first(tmp_path: Path) -> None:
    file = saved(tmp_path, shapes={"a": (1, "1..40", 16)})
    with pytest.raises(OptionError, match=r"batches need a network .* not 1"):
        RequestQueue(load_served(file), batch_seconds=0.001)


def test_parts_that_are_compiled_for_each_shape_are_named(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    executable = Executable.load(file)
    about = {**executable.library.about, "per_shape": {"scores": "it has a scatter"}}
    executable.library = replace(executable.library, about=about)
    with caplog.at_level(logging.WARNING, "retune"):
        served = DynamicModel(executable)
    assert "scores is compiled for each new shape, 0.5 to 2 s: it has a scatter" in caplog.text
    check(served.run(inputs(2, 3))["y"], inputs(2, 3))


def test_an_onnx_file_is_compiled_for_the_shapes_that_are_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    source = model([node("Relu", ["x"], ["y"])], [tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    onnx.save(source, folder / "relu.onnx")
    models: dict[str, Model] = {}
    listening = Mock(getsockname=lambda: ("127.0.0.1", 1))
    monkeypatch.setattr(serve, "make_app", lambda made, **_: models.update(made))
    monkeypatch.setattr(serve, "configure", lambda *_: None)
    monkeypatch.setattr(serve, "listen", lambda _: listening)
    monkeypatch.setattr("uvicorn.Server", lambda _: Mock())
    assert run(monkeypatch, "serve", "net=relu.onnx", "--shape", "x=1..3,4", "-q") == 0
    x = floats(3, 4)
    np.testing.assert_array_equal(models["net"].run({"x": x})["y"], np.maximum(x, 0))
    with pytest.raises(OptionError, match="n is 4"):
        models["net"].check({"x": floats(4, 4)})
    retune.compile(source, dynamic=True, threads=1).save(folder / "relu.retune")
    assert "relu.retune is compiled: --shape is for ONNX files" in refused("serve", "relu.retune", "--shape", "x=1,4")
