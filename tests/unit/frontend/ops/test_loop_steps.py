"""Loops whose steps fit a kernel become `scan`; others are unrolled, and the log says why."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune import compiler
from retune.compiler import vm
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.program import Call
from retune.compiler.schedule.default.cpu import inlined_by_default
from retune.compiler.schedule.state import Inlined
from retune.compiler.te.tensor import ScanOp
from retune.compiler.tvm.graph_executor import GraphModule, cpu

Agrees = Callable[[onnx.ModelProto], Graph]


def _value(name: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] | None = (2, 3)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _loop(
    nodes: list[onnx.NodeProto], trips: int = 100, condition: str = "on", constants: dict[str, Any] | None = None
) -> onnx.ModelProto:
    """A Loop from state `v` to `w`, with rows `row`, over the input `x` (2, 3)."""
    body = helper.make_graph(
        nodes,
        "body",
        [_value("i", TensorProto.INT64, ()), _value("on", TensorProto.BOOL, ()), _value("v", shape=None)],
        [_value(condition, TensorProto.BOOL, ()), _value("w", shape=None), _value("row", shape=None)],
    )
    loop = helper.make_node("Loop", ["trips", "", "x"], ["last", "rows"], name="loop", body=body)
    weights = {"trips": np.array(trips), "half": np.float32(0.5), **(constants or {})}
    graph = helper.make_graph(
        [loop],
        "loops",
        [_value("x")],
        [_value("last"), _value("rows", shape=(trips, 2, 3))],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _halves(row: str = "w") -> list[onnx.NodeProto]:
    return [
        helper.make_node("Mul", ["v", "half"], ["w0"]),
        helper.make_node("Add", ["w0", "x"], ["w"]),
        helper.make_node("Identity", [row], ["row"]),
    ]


def test_a_long_loop_is_one_operator(agrees_with_onnxruntime: Agrees) -> None:
    graph = agrees_with_onnxruntime(_loop(_halves()))
    assert [node.op for node in graph.nodes].count("scan") == 1
    assert "mul" not in [node.op for node in graph.nodes]


def test_rows_that_are_states_are_stored_once() -> None:
    graph = optimize(load_model(_loop(_halves())))
    (dag,) = (
        task.dag
        for task in partition(graph, Target.host(), hardware_of(Target.host(), 1)).tasks
        if any(isinstance(op, ScanOp) for op in task.dag.ops)
    )
    (scan,) = (op for op in dag.ops if isinstance(op, ScanOp))
    assert len(scan.updates) == 1


def test_a_product_reads_what_a_step_computes_once() -> None:
    """A sigmoid inside the product would be computed for each column of the result."""
    nodes = [
        helper.make_node("Sigmoid", ["v"], ["s"]),
        helper.make_node("MatMul", ["s", "k"], ["w"]),
        helper.make_node("Identity", ["w"], ["row"]),
    ]
    model = _loop(nodes, constants={"k": np.ones((3, 3), np.float32)})
    cut = partition(optimize(load_model(model)), Target.host(), hardware_of(Target.host(), 1))
    (dag,) = (task.dag for task in cut.tasks if any(isinstance(op, ScanOp) for op in task.dag.ops))
    inlined = {stage.op.name for stage in inlined_by_default(dag).stages if isinstance(stage.location, Inlined)}
    assert not [name for name in inlined if "sigmoid" in name]
    assert [name for name in inlined if name.endswith("_last")]  # an index of the step is no reason for a copy


@pytest.mark.parametrize(
    ("nodes", "condition", "why"),
    [
        (
            [*_halves(), helper.make_node("Less", ["i", "trips"], ["goes"])],
            "goes",
            "its body decides whether it goes on",
        ),
        ([*_halves(), helper.make_node("Range", ["half", "i", "half"], ["r"])], "on", "must be a constant"),
        (
            [helper.make_node("Concat", ["v", "x"], ["w"], axis=0),
             helper.make_node("Slice", ["w", "0", "2"], ["row"])],
            "on",
            "a state changes its shape or type",
        ),
        (
            [helper.make_node("RNN", ["u", "k", "k"], ["", "s"], hidden_size=3),
             helper.make_node("Squeeze", ["s", "0"], ["w"]), helper.make_node("Unsqueeze", ["v", "0"], ["u"]),
             helper.make_node("Identity", ["w"], ["row"])],
            "on",
            "cannot run recurrent in a step",
        ),
    ],
)  # fmt: skip
def test_other_loops_are_unrolled_with_the_reason(
    nodes: list[onnx.NodeProto], condition: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sorted(nodes, key=lambda node: node.op_type != "Unsqueeze")
    constants = {"0": np.array([0]), "2": np.array([2]), "k": np.full((1, 3, 3), 0.1, np.float32)}
    model = _loop(nodes, 40, condition, constants)
    if "shape" in why:
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2 + 40 * 2
    with caplog.at_level(logging.INFO):
        graph = load_model(model)
    assert "scan" not in [node.op for node in graph.nodes]
    assert [message for message in caplog.messages if "'loop' (Loop) is unrolled: " in message and why in message]


def test_machines_run_loops_of_fixed_shapes_as_kernels() -> None:
    model = _loop(_halves(), 300)
    executable = vm.compile(model)
    assert [type(statement) for statement in executable.program.main.body] == [Call]
    x = np.ones((2, 3), np.float32)
    last, rows = vm.VirtualMachine(executable, cpu()).run(x=x)
    np.testing.assert_allclose(last.numpy(), 2 * x, rtol=1e-6)
    assert rows.numpy().shape == (300, 2, 3)


@pytest.mark.parametrize(
    ("direction", "options"), [("bidirectional", {}), ("reverse", {"clip": 0.5}), ("forward", {"lengths": [4, 2, 1]})]
)
def test_kernel_of_an_lstm_of_bytes_matches_onnxruntime(direction: str, options: dict[str, Any]) -> None:
    rng, hidden, inputs, batch, steps = np.random.default_rng(3), 6, 5, 3, 4
    count = 2 if direction == "bidirectional" else 1
    weights: dict[str, Any] = {
        name: rng.integers(-127, 128, (count, rows, 4 * hidden)).astype("int8")
        for name, rows in (("w", inputs), ("r", hidden))
    }
    weights |= {name: rng.uniform(0.002, 0.01, count).astype("float32") for name in ("ws", "rs")}
    weights |= {name: np.zeros(count, "int8") for name in ("wz", "rz")}
    weights |= {"b": rng.standard_normal((count, 8 * hidden)).astype("float32")}
    weights |= {name: rng.standard_normal((count, batch, hidden)).astype("float32") for name in "hc"}
    weights |= {"p": rng.standard_normal((count, 3 * hidden)).astype("float32")}
    lengths = (options := dict(options)).pop("lengths", None)
    weights |= {"n": np.array(lengths, "int32")} if lengths else {}
    names = ["x", "w", "r", "b", "n" if lengths else "", "h", "c", "p", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        names,
        ["y", "s", "t"],
        hidden_size=hidden,
        direction=direction,
        domain="com.microsoft",
        **options,
    )
    shapes = {"y": (steps, count, batch, hidden), "s": (count, batch, hidden), "t": (count, batch, hidden)}
    graph = helper.make_graph(
        [node],
        "bytes",
        [_value("x", shape=(steps, batch, inputs))],
        [_value(name, shape=shape) for name, shape in shapes.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    x = rng.standard_normal((steps, batch, inputs)).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module = GraphModule(compiler.build_network(model)["default"](cpu()))
    module.run(x=x)
    for index, right in enumerate(session.run(None, {"x": x})):
        # A state on the edge of two bytes may be rounded to either.
        np.testing.assert_allclose(np.asarray(module.get_output(index).numpy()), right, rtol=0, atol=5e-3)
