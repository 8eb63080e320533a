"""Operators that move elements compute what ONNX Runtime computes; arithmetic on shapes leaves no trace."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from retune.compiler.core.errors import UnsupportedOperatorError
from retune.compiler.frontend.importer import load_model

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Any]
Case = tuple[str, tuple[int, ...], Sequence[Any], dict[str, Any]]

CASES: list[Case] = [
    ("Reshape", (2, 3, 4), [np.asarray([0, -1])], {}),
    ("Reshape", (2, 3, 4), [np.asarray([4, 6])], {}),
    ("Flatten", (2, 3, 4), [], {}),
    ("Flatten", (2, 3, 4), [], {"axis": 0}),
    ("Flatten", (2, 3, 4), [], {"axis": -1}),
    ("Transpose", (2, 3, 4), [], {}),
    ("Transpose", (2, 3, 4), [], {"perm": [1, 0, 2]}),
    ("Squeeze", (1, 3, 1), [np.asarray([-1])], {}),
    ("Squeeze", (1, 3, 1), [], {}),
    ("Unsqueeze", (3, 4), [np.asarray([0, -1])], {}),
    ("Slice", (5, 6), [np.asarray([1]), np.asarray([-1])], {}),
    ("Slice", (5, 6), [np.asarray([0, -4]), np.asarray([99, 6]), np.asarray([0, 1]), np.asarray([2, 3])], {}),
    ("Pad", (2, 3), [np.asarray([0, 1, 2, 0]), np.float32(1.5)], {}),
    ("Expand", (3, 1), [np.asarray([2, 1, 4])], {}),
    ("Gather", (3, 5), [np.asarray(1)], {"axis": 1}),
    ("Gather", (3, 5), [np.asarray([1, 3])], {"axis": 1}),
    ("Gather", (3, 5), [np.asarray([[2, 0], [0, 0]])], {"axis": 0}),
]


@pytest.mark.parametrize(("op_type", "shape", "operands", "attributes"), CASES)
def test_shape_operators_match_onnxruntime(
    op_type: str,
    shape: tuple[int, ...],
    operands: Sequence[Any],
    attributes: dict[str, Any],
    model_of: ModelOf,
    agrees_with_onnxruntime: Agrees,
) -> None:
    weights = {f"c{i}": operand for i, operand in enumerate(operands)}
    node = helper.make_node(op_type, ["x", *weights], ["y"], **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": shape}, weights=weights))


def test_pad_of_some_axes(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    weights = {"p": np.asarray([1, 2]), "axes": np.asarray([-1])}
    node = helper.make_node("Pad", ["x", "p", "", "axes"], ["y"])
    agrees_with_onnxruntime(model_of([node], {"x": (2, 3)}, weights=weights, opset=18))


def test_squeeze_and_unsqueeze_with_attributes(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [helper.make_node("Unsqueeze", ["x"], ["u"], axes=[1]), helper.make_node("Squeeze", ["u"], ["y"], axes=[0])]
    agrees_with_onnxruntime(model_of(nodes, {"x": (1, 3)}, opset=11))


def test_concat_of_a_negative_axis_matches_onnxruntime(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    agrees_with_onnxruntime(
        model_of([helper.make_node("Concat", ["a", "b"], ["y"], axis=-1)], {"a": (2, 3), "b": (2, 1)})
    )


def test_split_by_sizes_and_evenly(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1),
        helper.make_node("Split", ["a"], ["c", "d"], axis=0),
    ]
    weights = {"sizes": np.asarray([2, 3])}
    agrees_with_onnxruntime(model_of(nodes, {"x": (4, 5)}, ["b", "c", "d"], weights))


@pytest.mark.parametrize("sizes", [[2, 2], [2, 4], []])
def test_parts_that_are_not_the_whole_are_refused(sizes: list[int], model_of: ModelOf) -> None:
    node = helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1)
    model = model_of([node], {"x": (4, 5)}, ["a", "b"], {"sizes": np.asarray([2, 3], np.int64)})
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.asarray(sizes, np.int64), "sizes"))
    with pytest.raises(UnsupportedOperatorError, match=r"\(Split\): parts of .* are not the 5 of axis 1"):
        load_model(model)


def test_nearest_resize_matches_onnxruntime(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    node = helper.make_node(
        "Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    weights = {"s": np.asarray([1, 1, 2, 3], np.float32)}
    agrees_with_onnxruntime(model_of([node], {"x": (1, 2, 3, 4)}, weights=weights))


def test_extents_of_a_resize_are_rounded_down_in_float32(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    # 10 * float32(2.3) is 23 in float32 and 22.9999995 in float64; 11 * float32(2.3) is 25.3 in both.
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="asymmetric")
    weights = {"s": np.asarray([1, 1, 2.3, 2.3], np.float32)}
    graph = agrees_with_onnxruntime(model_of([node], {"x": (1, 2, 10, 11)}, weights=weights))
    assert graph.values[graph.outputs[0]].shape == (1, 2, 23, 25)


def test_arithmetic_on_shapes_folds(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axis0"], ["n1"]),
        helper.make_node("Mul", ["n1", "two"], ["rows"]),
        helper.make_node("Div", ["rows", "two"], ["rows1"]),
        helper.make_node("ConstantOfShape", ["one1"], ["ones"], value=helper.make_tensor("v", 7, [1], [-1])),
        helper.make_node("Concat", ["rows1", "ones"], ["shape"], axis=0),
        helper.make_node("Equal", ["shape", "ones"], ["same"]),
        helper.make_node("Where", ["same", "ones", "shape"], ["shape1"]),
        helper.make_node("Reshape", ["x", "shape1"], ["y"]),
    ]
    weights = {"zero": np.asarray(0), "axis0": np.asarray([0]), "two": np.asarray([2]), "one1": np.asarray([1])}
    graph = agrees_with_onnxruntime(model_of(nodes, {"x": (2, 3, 4)}, weights=weights))
    assert [node.op for node in graph.nodes] == ["reshape"]


def test_constants_in_attributes_match_onnxruntime(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [
        helper.make_node("Constant", [], ["f"], value_float=1.5),
        helper.make_node("Constant", [], ["i"], value_ints=[6]),
        helper.make_node("Add", ["x", "f"], ["a"]),
        helper.make_node("Reshape", ["a", "i"], ["y"]),
    ]
    agrees_with_onnxruntime(model_of(nodes, {"x": (2, 3)}))


def test_an_output_that_is_an_input_is_copied(model_of: ModelOf, agrees_with_onnxruntime: Agrees) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["x"], ["z"])]
    graph = agrees_with_onnxruntime(model_of(nodes, {"x": (2, 3)}, ["y", "z"]))
    assert [node.op for node in graph.nodes] == ["identity", "identity"]
