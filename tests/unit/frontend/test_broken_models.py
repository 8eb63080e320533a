"""Broken models are refused with errors of our own: bytes turned at random, nodes and constants edited at random."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.core.errors import RetuneError, UnsupportedOperatorError
from retune.compiler.frontend.importer import CONVERTERS, load_model
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Value

_OPERATORS = sorted(set(CONVERTERS) - {"Loop", "Scan", "If"})
_NUMBERS = (-(2**62), -3, -1, 0, 1, 2, 7, 10**6, 2**40)
Mutation = Callable[[onnx.GraphProto, Random], object]


def _model() -> onnx.ModelProto:
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[1, 1]),
        make("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Transpose", ["p"], ["t"], perm=[0, 2, 3, 1]),
        make("Reshape", ["t", "shape"], ["r"]),
        make("Slice", ["r", "starts", "ends"], ["s"]),
        make("Gather", ["s", "places"], ["g"], axis=1),
        make("ReduceMean", ["g"], ["m"], axes=[0], keepdims=1),
        make("QuantizeLinear", ["m", "scale", "zero"], ["q"]),
        make("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        make("Softmax", ["d"], ["y"], axis=-1),
    ]
    weights = {
        "w": np.ones((4, 3, 3, 3), np.float32),
        "shape": np.array([4, -1]),
        "starts": np.array([0, 1]),
        "ends": np.array([4, 9]),
        "places": np.array([0, 3, 1, -1]),
        "scale": np.array(0.25, np.float32),
        "zero": np.array(3, np.uint8),
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def _other_operator(graph: onnx.GraphProto, draw: Random) -> None:
    draw.choice(graph.node).op_type = draw.choice(_OPERATORS)


def _other_operand(graph: onnx.GraphProto, draw: Random) -> None:
    node = draw.choice([node for node in graph.node if node.input])
    names = [name for other in graph.node for name in (*other.input, *other.output)]
    node.input[draw.randrange(len(node.input))] = draw.choice([*names, "", "nowhere"])


def _fewer_operands(graph: onnx.GraphProto, draw: Random) -> None:
    node = draw.choice([node for node in graph.node if node.input])
    del node.input[draw.randrange(len(node.input)) :]


def _other_attribute(graph: onnx.GraphProto, draw: Random) -> None:
    node = draw.choice([node for node in graph.node if node.attribute])
    attribute = draw.choice(node.attribute)
    name, count = attribute.name, draw.randrange(6)
    numbers = [draw.choice(_NUMBERS) for _ in range(count)]
    value = draw.choice([numbers, draw.choice(_NUMBERS), 0.5, "text", numpy_helper.from_array(np.zeros(2))])
    if value == []:
        node.attribute.remove(attribute)
    else:
        attribute.CopyFrom(helper.make_attribute(name, value))


def _other_constant(graph: onnx.GraphProto, draw: Random) -> None:
    tensor = draw.choice(graph.initializer)
    shape = tuple(draw.randrange(4) for _ in range(draw.randrange(4)))
    dtype = draw.choice([np.float32, np.int64, np.uint8, np.bool_, np.float16])
    values = np.array([draw.choice(_NUMBERS) for _ in range(int(np.prod(shape)))], np.float64)
    with np.errstate(all="ignore"):
        tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype).reshape(shape), tensor.name))


def _other_dimensions(graph: onnx.GraphProto, draw: Random) -> None:
    tensor = draw.choice(graph.initializer)
    tensor.dims.append(draw.choice(_NUMBERS))


def _other_input(graph: onnx.GraphProto, draw: Random) -> None:
    kind = graph.input[0].type.tensor_type
    draw.choice(kind.shape.dim).dim_value = draw.choice(_NUMBERS)
    kind.elem_type = draw.choice([1, 1, 1, 7, 8, 99])


def _other_order(graph: onnx.GraphProto, draw: Random) -> None:
    nodes = list(graph.node)
    draw.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


MUTATIONS: tuple[Mutation, ...] = (
    _other_operator,
    _other_operand,
    _fewer_operands,
    _other_attribute,
    _other_constant,
    _other_dimensions,
    _other_input,
    _other_order,
)


def _loads(source: onnx.ModelProto | bytes) -> bool:
    """Whether the model is imported; what refuses it must be an error of ours."""
    try:
        load_model(source)
    except RetuneError:
        return False
    return True


def test_the_model_as_it_is_can_be_imported() -> None:
    assert _loads(_model())


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_randomly_edited_models_load_or_are_refused(mutate: Mutation, property_seed: int) -> None:
    draw = Random(property_seed)
    refused = 0
    for _ in range(40):
        model = _model()
        for _ in range(draw.randint(1, 2)):
            mutate(model.graph, draw)
        refused += not _loads(model)
    # Nodes in another order are sorted.
    assert (refused == 0) is (mutate is _other_order)


def test_models_of_random_nodes(property_seed: int) -> None:
    """Every operator with operands and attributes that were meant for others."""
    draw = Random(property_seed)
    for op_type in _OPERATORS:
        model = _model()
        draw.choice(model.graph.node).op_type = op_type
        draw.choice(MUTATIONS)(model.graph, draw)
        _loads(model)


def test_models_with_flipped_bytes_load_or_are_refused(property_seed: int) -> None:
    draw = Random(property_seed)
    whole = _model().SerializeToString()
    refused = 0
    for _ in range(200):
        broken = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        refused += not _loads(bytes(broken))
    assert refused > 20


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated_models_are_refused(share: float) -> None:
    whole = _model().SerializeToString()
    assert not _loads(whole[: int(len(whole) * share)])


WRONG_TYPES = [
    ("Softmax", {"axis": 0.5}, "attribute axis must be an int"),
    ("LeakyRelu", {"alpha": "much"}, "attribute alpha must be a float"),
    ("Transpose", {"perm": 1}, "attribute perm must be a list of ints"),
    ("Constant", {"value_floats": [b"x"]}, "attribute value_floats must be a list of floats"),
    ("Constant", {"value": 3}, "attribute value must be a dense tensor"),
    ("GridSample", {"mode": 3}, "attribute mode must be a string"),
    ("RNN", {"activations": [1]}, "attribute activations must be a list of strings"),
    ("Loop", {"body": 3}, "attribute body must be a graph"),
]


@pytest.mark.parametrize(("op_type", "attributes", "message"), WRONG_TYPES)
def test_attributes_of_another_type(op_type: str, attributes: dict[str, Any], message: str) -> None:
    """Below ONNX's own checker, which finds most of these first."""
    builder = GraphBuilder("net", [Value("x", (2, 3, 4))])
    operands = {"Constant": (), "RNN": ("x", "w", "w"), "GridSample": ("x", "x"), "Loop": ("", "", "x")}
    builder.constant(np.ones((1, 4, 4), np.float32), "w")
    node = OnnxNode(op_type, "broken", operands.get(op_type, ("x",)), ("y",), attributes, 20)
    with pytest.raises(UnsupportedOperatorError, match=message):
        CONVERTERS[op_type](builder, node)
