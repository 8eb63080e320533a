"""Recurrent layers give what ONNX Runtime gives."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from retune import compiler
from retune.compiler.codegen import scan_loop
from retune.compiler.codegen.backend import backend_of, default_steps_of
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.te.evaluate import evaluate as te_evaluate
from retune.compiler.te.tensor import ScanOp
from retune.compiler.tvm.graph_executor import GraphModule, cpu
from tests.support.simt.execute import execute

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Graph]

CELLS: list[tuple[str, int, dict[str, Any]]] = [
    ("RNN", 1, {"direction": "reverse"}),
    ("GRU", 3, {"direction": "bidirectional"}),
    ("GRU", 3, {"linear_before_reset": 1}),
    ("LSTM", 4, {"direction": "bidirectional"}),
    ("GRU", 3, {"clip": 0.4, "activations": ["Relu", "Tanh"]}),
    ("RNN", 1, {"clip": 0.4, "activations": ["Relu"]}),
]


@pytest.mark.parametrize(("op_type", "gates", "attributes"), CELLS)
def test_recurrent_cells_match_onnxruntime(
    op_type: str, gates: int, attributes: dict[str, Any], model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    rng = np.random.default_rng(1)
    directions, hidden, inputs = 2 if attributes.get("direction") == "bidirectional" else 1, 4, 3
    shapes = {"w": (gates * hidden, inputs), "r": (gates * hidden, hidden), "b": (2 * gates * hidden,)}
    weights = {k: rng.standard_normal((directions, *s), dtype=np.float32) for k, s in shapes.items()}
    node = helper.make_node(op_type, ["x", "w", "r", "b"], ["y", "h"], hidden_size=hidden, **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": (5, 2, inputs)}, ["y", "h"], weights))


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_an_lstm_with_lengths_states_and_peepholes_matches_onnxruntime(
    direction: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    rng = np.random.default_rng(2)
    hidden, inputs, batch = 4, 3, 2
    shapes = {"w": (16, inputs), "r": (16, hidden), "b": (32,), "h": (batch, hidden), "c": (batch, hidden), "p": (12,)}
    weights = {key: rng.standard_normal((1, *shape), dtype=np.float32) for key, shape in shapes.items()}
    lengths: dict[str, Any] = {**weights, "n": np.array([5, 2], np.int32)}
    node = helper.make_node(
        "LSTM",
        ["x", "w", "r", "b", "n", "h", "c", "p"],
        ["y", "s", "t"],
        hidden_size=hidden,
        direction=direction,
        clip=0.7,
    )
    agrees_with_onnxruntime(model_of([node], {"x": (5, batch, inputs)}, ["y", "s", "t"], lengths))


def random_layer(
    model_of: ModelOf, op_type: str, steps: int, batch: int, hidden: int, outputs: list[str], **attributes: Any
) -> onnx.ModelProto:
    """A layer with biases, lengths, first states and, of an LSTM, peepholes."""
    rng, gates = np.random.default_rng(hidden), {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    directions, inputs = 2 if attributes.get("direction") == "bidirectional" else 1, 3
    columns = gates * hidden
    shapes = {"w": (columns, inputs), "r": (columns, hidden), "b": (2 * columns,), "h": (batch, hidden)}
    shapes |= {"c": (batch, hidden), "p": (3 * hidden,)} if op_type == "LSTM" else {}
    weights: dict[str, Any] = {
        key: rng.standard_normal((directions, *shape), dtype=np.float32) * np.float32(0.5)
        for key, shape in shapes.items()
    }
    batch_first = attributes.get("layout", 0)
    if batch_first:
        weights |= {name: weights[name].transpose(1, 0, 2).copy() for name in "hc" if name in weights}
    weights["n"] = rng.integers(0, steps + 1, batch).astype(np.int32)
    names = ["x", "w", "r", "b", "n", "h", *("cp" if op_type == "LSTM" else "")]
    node = helper.make_node(op_type, names, outputs, hidden_size=hidden, **attributes)
    shape = (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    return model_of([node], {"x": shape}, [name for name in outputs if name], weights)


@pytest.mark.parametrize(("op_type", "steps", "batch", "hidden", "outputs", "attributes"), [
    ("LSTM", 7, 3, 17, ["y", "s", "t"], {"direction": "bidirectional", "clip": 0.7}),
    ("LSTM", 6, 1, 16, ["", "", "t"], {"direction": "reverse"}),
    ("GRU", 5, 4, 5, ["y", "s"], {"direction": "bidirectional"}),
    ("GRU", 5, 2, 33, ["", "s"], {"direction": "bidirectional", "linear_before_reset": 1}),
    ("RNN", 1, 2, 8, ["y", "s"], {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}),
])  # fmt: skip
def test_kernel_of_a_layer_matches_onnxruntime(
    op_type: str, steps: int, batch: int, hidden: int, outputs: list[str], attributes: dict[str, Any], model_of: ModelOf
) -> None:
    model = random_layer(model_of, op_type, steps, batch, hidden, outputs, **attributes)
    x = np.random.default_rng(0).standard_normal((steps, batch, 3), dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    # As if every loop of a step were worth two threads.
    with patch.object(scan_loop, "BARRIER_CYCLES", 0):
        module = GraphModule(compiler.build_network(model)["default"](cpu()))
    module.run(x=x)
    for index, right in enumerate(expected):
        np.testing.assert_allclose(np.asarray(module.get_output(index).numpy()), right, rtol=2e-5, atol=2e-5)


def test_batch_first_layers_mean_what_their_transposes_mean(model_of: ModelOf) -> None:
    """ONNX Runtime has no kernel for this layout."""
    x = np.random.default_rng(0).standard_normal((5, 2, 3), dtype=np.float32)
    models = [
        random_layer(model_of, "GRU", 5, 2, 4, ["y", "s"], direction="bidirectional", layout=layout)
        for layout in (0, 1)
    ]
    first, second = (
        evaluate(load_model(model), {"x": data}) for model, data in zip(models, (x, x.transpose(1, 0, 2)), strict=True)
    )
    np.testing.assert_allclose(second[0], first[0].transpose(2, 0, 1, 3), rtol=1e-6)
    np.testing.assert_allclose(second[1], first[1].transpose(1, 0, 2), rtol=1e-6)


@pytest.mark.parametrize(("op_type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_layer_has_as_many_nodes_whatever_its_steps(op_type: str, gates: int, model_of: ModelOf) -> None:
    counts = set()
    for steps in (2, 500):
        weights = {key: np.ones((1, gates * 8, 8), np.float32) for key in "wr"}
        node = helper.make_node(op_type, ["x", "w", "r"], ["y"], hidden_size=8)
        counts.add(len(optimize(load_model(model_of([node], {"x": (steps, 1, 8)}, weights=weights))).nodes))
    assert len(counts) == 1
    assert counts.pop() <= 6


def test_gpus_run_a_kernel_for_each_stage_of_a_step(model_of: ModelOf) -> None:
    graph = optimize(load_model(random_layer(model_of, "LSTM", 3, 2, 8, ["y", "s"], direction="bidirectional")))
    target = Target("cuda -arch=sm_80")
    (task,) = (
        task
        for task in partition(graph, target, hardware_of(target, 1)).tasks
        if any(isinstance(op, ScanOp) for op in task.dag.ops)
    )
    function = backend_of(target).lower(task, default_steps_of(task), "lstm")
    assert isinstance(function, DeviceFunction)
    assert len(function.kernels) >= 3 * 3
    rng = np.random.default_rng(0)
    values = {
        tensor: rng.integers(0, 4, tensor.shape)
        if tensor.dtype == "int64"
        else rng.standard_normal(tensor.shape, dtype=np.float32)
        for tensor in task.dag.inputs
    }
    expected = te_evaluate(task.dag.outputs, values)
    (result,) = execute(function, [values[tensor] for tensor in task.dag.inputs])
    np.testing.assert_allclose(result, expected[0], rtol=1e-5, atol=1e-5)
