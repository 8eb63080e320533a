"""Conditions, loops and scans are unrolled; what cannot be is refused and names the input to fix."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.core.errors import UnknownValueError, UnsupportedOperatorError
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Graph]


def _value(name: str, elem_type: int = TensorProto.FLOAT, shape: tuple[int, ...] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def _branch(op: str, output: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node(op, ["x"], [output])], output, [], [_value(output)])


def _condition(flag: str) -> onnx.NodeProto:
    return helper.make_node("If", [flag], ["y"], then_branch=_branch("Relu", "a"), else_branch=_branch("Neg", "b"))


@pytest.mark.parametrize("holds", [True, False])
def test_one_branch_of_a_known_condition_remains(
    holds: bool, model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    model = model_of([_condition("c")], {"x": (2, 3)}, weights={"c": np.array(holds)})
    graph = agrees_with_onnxruntime(model)
    assert [node.op for node in graph.nodes] == ["relu" if holds else "neg"]


def test_a_computed_condition_chooses_between_both_branches(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    total = helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0)
    above = helper.make_node("Greater", ["s", "zero"], ["c"])
    weights = {"zero": np.array(0, np.float32)}
    agrees_with_onnxruntime(model_of([total, above, _condition("c")], {"x": (2, 3)}, weights=weights))


def test_a_condition_between_branches_for_other_shapes_is_asked_for(model_of: ModelOf) -> None:
    """Voice detectors have a branch for each sampling rate, whose LSTM takes no other number of samples."""
    shapes = {"flat": np.array([1, 8], np.int64), "steps": np.array([1, 1, 8], np.int64)}
    weights = {"w": np.ones((1, 16, 8), np.float32), "r": np.ones((1, 16, 4), np.float32), **shapes}

    def branch(name: str, shape: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Reshape", ["x", shape], [f"{name}_x"]),
            helper.make_node("LSTM", [f"{name}_x", "w", "r"], [name], hidden_size=4),
        ]
        return helper.make_graph(nodes, name, [], [_value(name)])

    chooses = helper.make_node("If", ["c"], ["y"], then_branch=branch("a", "flat"), else_branch=branch("b", "steps"))
    model = model_of([chooses], {"x": (1, 8)}, weights=weights)
    model = _shaped(model, (1, 1, 1, 4))
    model.graph.input.append(_value("c", TensorProto.BOOL, ()))
    with pytest.raises(UnknownValueError, match=r"cannot convert 1 node: .* one branch cannot be computed") as raised:
        load_model(model)
    assert raised.value.inputs == ("c",)
    graph = load_model(model, constants={"c": np.array(False)})
    (found,) = evaluate(graph, {"x": np.ones((1, 8), np.float32)})[:1]
    assert found.shape == (1, 1, 1, 4)


def _shaped(model: onnx.ModelProto, *shapes: tuple[int, ...]) -> onnx.ModelProto:
    """The model with shapes of its outputs, which inference does not find behind a loop."""
    for entry, shape in zip(model.graph.output, shapes, strict=True):
        entry.CopyFrom(_value(entry.name, shape=shape))
    return model


def _doubling_loop() -> onnx.NodeProto:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "x"], ["w"]),
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Identity", ["w"], ["row"]),
        ],
        "body",
        [_value("i", TensorProto.INT64, ()), _value("on", TensorProto.BOOL, ()), _value("v")],
        [_value("still", TensorProto.BOOL, ()), _value("w"), _value("row")],
    )
    return helper.make_node("Loop", ["m", "", "x"], ["last", "rows"], body=body)


def test_a_loop_of_known_length_is_unrolled(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    model = model_of([_doubling_loop()], {"x": (2, 3)}, ("last", "rows"), {"m": np.array(3)})
    _shaped(model, (2, 3), (3, 2, 3))
    assert [node.op for node in agrees_with_onnxruntime(model).nodes].count("add") == 3


def test_a_loop_without_a_turn_collects_no_rows(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    loop = _doubling_loop()
    loop.attribute[0].g.output[2].CopyFrom(_value("row", shape=(2, 3)))
    model = model_of([loop], {"x": (2, 3)}, ("last", "rows"), {"m": np.array(0)})
    graph = agrees_with_onnxruntime(_shaped(model, (2, 3), (0, 2, 3)))
    assert not [node for node in graph.nodes if node.op == "add"]


def test_a_loop_of_unknown_length_names_its_input(model_of: ModelOf) -> None:
    model = _shaped(model_of([_doubling_loop()], {"x": (2, 3), "m": ()}, ("last", "rows")), (2, 3), (2, 2, 3))
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(UnknownValueError, match="the number of iterations") as raised:
        load_model(model)
    assert raised.value.inputs == ("m",)
    fixed = load_model(model, constants={"m": np.array(2)})
    assert fixed.values["rows"].shape == (2, 2, 3)


def test_loop_stops_when_its_condition_is_false(model_of: ModelOf) -> None:
    body = helper.make_graph(
        [helper.make_node("Less", ["i", "three"], ["still"]), helper.make_node("Add", ["v", "x"], ["w"])],
        "body",
        [_value("i", TensorProto.INT64, ()), _value("on", TensorProto.BOOL, ()), _value("v")],
        [_value("still", TensorProto.BOOL, ()), _value("w")],
        [numpy_helper.from_array(np.array(3), "three")],
    )
    loop = helper.make_node("Loop", ["", "", "x"], ["y"], body=body)
    graph = load_model(_shaped(model_of([loop], {"x": (2,)}), (2,)))
    (found,) = evaluate(graph, {"x": np.ones(2, np.float32)})
    assert found.tolist() == [5, 5]


def test_a_loop_that_does_not_end_is_refused(model_of: ModelOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retune.compiler.frontend.ops.attributes.MOST_ITERATIONS", 10)
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Add", ["v", "x"], ["w"])],
        "body",
        [_value("i", TensorProto.INT64, ()), _value("on", TensorProto.BOOL, ()), _value("v")],
        [_value("still", TensorProto.BOOL, ()), _value("w")],
    )
    loop = helper.make_node("Loop", ["", "", "x"], ["y"], body=body)
    with pytest.raises(UnsupportedOperatorError, match="more than 10 iterations"):
        load_model(_shaped(model_of([loop], {"x": (2,)}), (2,)))


def test_a_scan_is_unrolled_in_both_directions(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "r"], ["t"]), helper.make_node("Mul", ["t", "r"], ["u"])],
        "body",
        [_value("s", shape=(3,)), _value("r", shape=(3,))],
        [_value("t", shape=(3,)), _value("u", shape=(3,))],
    )
    attributes: dict[str, Any] = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_input_directions": [1]}
    scan = helper.make_node(
        "Scan", ["x", "z"], ["last", "rows"], body=body, scan_output_axes=[1], scan_output_directions=[1], **attributes
    )
    agrees_with_onnxruntime(model_of([scan], {"x": (3,), "z": (3, 4)}, ("last", "rows")))


def test_an_operator_inside_a_loop_is_named_too(model_of: ModelOf) -> None:
    loop = _doubling_loop()
    loop.attribute[0].g.node[0].op_type = "Bernoulli"
    del loop.attribute[0].g.node[0].input[1]
    model = model_of([loop], {"x": (2, 3)}, ("last", "rows"), {"m": np.array(3)})
    with pytest.raises(UnsupportedOperatorError, match=r"1 node: 'w' \(Bernoulli\)|RandomUniformLike"):
        load_model(model)


def test_operators_are_expanded_that_read_initializers_of_a_branch() -> None:
    normal = helper.make_node("RMSNormalization", ["x", "scale"], ["a"])
    scale = numpy_helper.from_array(np.full(3, 2, np.float32), "scale")
    branch = helper.make_graph([normal], "a", [], [_value("a")], [scale])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=_branch("Neg", "b"))
    flag = numpy_helper.from_array(np.array(True), "c")
    graph = helper.make_graph([choice], "g", [_value("x", shape=(2, 3))], [_value("y", shape=(2, 3))], [flag])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    (result,) = evaluate(load_model(model), {"x": x})
    np.testing.assert_allclose(result, 2 * x / np.sqrt((x * x).mean(axis=-1, keepdims=True)), rtol=1e-4)
