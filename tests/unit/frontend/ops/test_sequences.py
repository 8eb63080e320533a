"""Sequences of tensors within a network are known at import: the graph has only their tensors."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from retune.compiler.core.errors import DynamicShapeError, UnsupportedOperatorError
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.ir import Graph

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Graph]


def test_a_tensor_is_split_and_its_parts_are_joined_in_another_order(
    model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "last"], ["a"]),
        helper.make_node("SequenceErase", ["parts", "last"], ["others"]),
        helper.make_node("SequenceInsert", ["others", "a", "first"], ["turned"]),
        helper.make_node("ConcatFromSequence", ["turned"], ["y"], axis=1),
    ]
    numbers = {"size": np.asarray(3), "last": np.asarray(-1), "first": np.asarray(0)}
    graph = agrees_with_onnxruntime(model_of(nodes, {"x": (2, 8)}, ["y"], numbers))
    assert {node.op for node in graph.nodes} <= {"slice", "concat", "gather"}


@pytest.mark.parametrize("place", [-3, -1, 0, 2, 3])
def test_a_tensor_is_inserted_at_a_place(place: int, model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0),
        helper.make_node("SequenceInsert", ["rows", "z", "place"], ["more"]),
        helper.make_node("ConcatFromSequence", ["more"], ["y"], axis=0, new_axis=1),
    ]
    agrees_with_onnxruntime(model_of(nodes, {"x": (3, 4), "z": (4,)}, ["y"], {"place": np.asarray(place)}))


def test_a_loop_collects_tensors(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    """As PyTorch's exporter writes a list that a loop appends to."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Gather", ["x", "i"], ["row"]),
            helper.make_node("SequenceInsert", ["rows", "row"], ["more"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("rows", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("more", TensorProto.FLOAT, [4]),
        ],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"]),
        helper.make_node("Loop", ["count", "true", "none"], ["rows"], body=body),
        helper.make_node("ConcatFromSequence", ["rows"], ["y"], axis=0, new_axis=1),
    ]
    model = model_of(nodes, {"x": (3, 4)}, ["y"], {"count": np.asarray(3), "true": np.asarray(True)})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4]))
    agrees_with_onnxruntime(model)


def test_a_graph_has_no_sequence_as_output(model_of: ModelOf) -> None:
    model = model_of([helper.make_node("SequenceConstruct", ["x", "x"], ["y"])], {"x": (3,)}, ["y"])
    model.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [3]))
    with pytest.raises(DynamicShapeError, match="the output y: sequence of float32 is no tensor"):
        load_model(model)


def test_a_place_outside_of_a_sequence_is_refused(model_of: ModelOf) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["s"]), helper.make_node("SequenceAt", ["s", "five"], ["y"])]
    with pytest.raises(UnsupportedOperatorError, match="position 5 is outside a sequence of 1"):
        load_model(model_of(nodes, {"x": (3,)}, ["y"], {"five": np.asarray(5)}))
