"""The weights of a network are in memory once while it is compiled."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

_SIZE, _LAYERS = 1024, 60
_SCRIPT = """
import resource, sys
import numpy as np
import onnx
import retune, retune.api
from retune.compiler.frontend.importer import load_model
small = sys.argv[1]
retune.compile(small, threads=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
network = retune.compile(onnx.load(sys.argv[2]) if sys.argv[3] == "memory" else sys.argv[2], threads=1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
y = network(np.ones((1, 1024), np.float32))
print(y.shape)
"""


def _save(path: Path, layers: int) -> None:
    rng = np.random.default_rng(0)
    names = ["x", *(f"y{number}" for number in range(layers))]
    weights = [numpy_helper.from_array(rng.standard_normal((_SIZE, _SIZE), np.float32), f"w{n}") for n in range(layers)]
    nodes = [
        node
        for number in range(layers)
        for node in (
            helper.make_node("MatMul", [names[number], f"w{number}"], [f"m{number}"]),
            helper.make_node("Relu", [f"m{number}"], [names[number + 1]]),
        )
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _SIZE])] for name in (names[0], names[-1])
    )
    graph = helper.make_graph(nodes, "large", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.bin")


@pytest.mark.long
@pytest.mark.parametrize(("source", "most"), [("path", 1.4), ("memory", 2.4)])
def test_compiling_takes_little_more_memory_than_the_weights(tmp_path: Path, source: str, most: float) -> None:
    """The weights of the network; those of a model in memory are there besides."""
    for name, layers in (("small", 1), ("large", _LAYERS)):
        _save(tmp_path / f"{name}.onnx", layers)
    command = [sys.executable, "-c", _SCRIPT, "small.onnx", "large.onnx", source]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    grown, shape = done.stdout.splitlines()
    assert shape == f"(1, {_SIZE})"
    assert int(grown) < most * _LAYERS * _SIZE * _SIZE * 4
