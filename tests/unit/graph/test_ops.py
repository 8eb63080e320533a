"""Every operator's NumPy meaning has the described shape and dtype; operands that do not fit are refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.graph.ir import Attribute, Graph, Node, Value
from retune.compiler.graph.verify import infer_value, verify
from retune.compiler.ops import OPS, FusionKind
from tests.support.operator_cases import TYPED_CASES

Shapes = list[tuple[int, ...]]
Attributes = Mapping[str, Attribute]

CONV: Attributes = {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "groups": 1, "layout": "NCHW"}
CONV_3D: Attributes = {
    "strides": (1, 2, 1),
    "pads": (0, 1, 1, 0, 1, 1),
    "dilations": (1, 1, 1),
    "groups": 1,
    "layout": "NCDHW",
}
MAX_POOL: Attributes = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (1, 1)}
AVG_POOL: Attributes = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 0, 1), "count_include_pad": False}

_OF_FLOATS_TOO = {"sign", "is_nan", "mod", "fmod", "less", "equal"}

TRANSPOSED: dict[str, Attribute] = {"strides": (2, 3), "pads": (1, 0, 0, 1), "layout": "NCHW"}
PHASES: dict[str, Attribute] = {"strides": (2, 3), "pads": (1, 0), "size": (3, 5), "layout": "NHWC"}

STRUCTURED: list[tuple[str, Shapes, Attributes]] = [
    ("leaky_relu", [(2, 3)], {"alpha": 0.1}),
    ("clip", [(2, 3)], {"low": 0.0, "high": 6.0}),
    ("cast", [(2, 3)], {"dtype": "int32"}),
    ("bits", [(2, 3)], {"dtype": "int32"}),
    ("conv2d", [(2, 4, 9, 8), (6, 4, 3, 2)], CONV),
    ("conv2d", [(2, 4, 9, 8), (6, 2, 3, 2)], {**CONV, "groups": 2}),
    ("conv2d", [(2, 9, 8, 4), (3, 2, 2, 6)], {**CONV, "groups": 2, "layout": "NHWC"}),
    ("conv2d", [(2, 9, 8, 4), (3, 2, 4)], {**CONV, "groups": 4, "layout": "NHWC"}),
    ("dense", [(2, 3), (3, 5)], {}),
    ("batch_matmul", [(4, 2, 3), (4, 3, 5)], {}),
    (
        "scan",
        [(2, 3), (2, 4, 3)],
        {
            "body": '[[["add",[1,2],{}],["reduce_sum",[3],{"axes":[1],"keepdims":false}]],[3,4]]',
            "steps": 4,
            "states": 1,
            "axes": (1,),
            "reverse": (1,),
            "shown": (0, 1),
            "backward": (0, 1),
        },
    ),
    (
        "recurrent",
        [(4, 2, 1, 3), (1, 3, 3), (1, 2, 3)],
        {
            "cell": "RNN",
            "operands": "weight h",
            "functions": "relu",
            "clip": 0.0,
            "reverse": (0,),
            "finals": 1,
        },
    ),
    ("max_pool2d", [(2, 4, 9, 8)], {**MAX_POOL, "layout": "NCHW"}),
    ("max_pool2d", [(2, 9, 8, 4)], {**MAX_POOL, "layout": "NHWC"}),
    ("avg_pool2d", [(2, 4, 9, 8)], {**AVG_POOL, "layout": "NCHW"}),
    ("avg_pool2d", [(2, 9, 8, 4)], {**AVG_POOL, "layout": "NHWC"}),
    ("softmax", [(2, 3)], {"axis": 1}),
    ("log_softmax", [(2, 3)], {"axis": 0}),
    ("normalize", [(2, 3, 4)], {"axes": (0, 2), "epsilon": 1e-5, "centred": True}),
    ("normalize", [(2, 3, 4)], {"axes": (0, 2), "epsilon": 1e-5, "centred": False}),
    ("group_normalize", [(2, 3, 6)], {"axes": (0, 1), "axis": 2, "groups": 2, "epsilon": 1e-5}),
    ("contract", [(4, 2, 3), (3, 5, 2)], {"left": "mhk", "right": "knh", "result": "nmh"}),
    ("contract", [(4,), (5,)], {"left": "m", "right": "n", "result": "mn"}),
    ("batch_norm", [(2, 3, 4), (3,), (3,), (3,), (3,)], {"axis": 1, "epsilon": 1e-5}),
    ("reshape", [(2, 3)], {"shape": (3, 1, 2)}),
    ("transpose", [(2, 3, 4)], {"perm": (2, 0, 1)}),
    ("concat", [(2, 3), (2, 1), (2, 2)], {"axis": 1}),
    ("slice", [(5, 6)], {"starts": (1, 0), "stops": (5, 6), "steps": (2, 4)}),
    ("pad", [(2, 3)], {"pads_before": (0, 1), "pads_after": (2, 0), "value": 1.0}),
    ("broadcast_to", [(3, 1)], {"shape": (2, 3, 4)}),
    ("arg_max", [(2, 3)], {"axis": 1, "keepdims": True}),
    ("arg_min", [(2, 3)], {"axis": 0, "keepdims": False}),
    ("top_k", [(2, 3)], {"axis": 1, "k": 2, "largest": True}),
    ("conv3d", [(1, 4, 3, 5, 6), (2, 4, 1, 3, 3)], CONV_3D),
    ("conv_transpose2d", [(2, 4, 3, 5), (4, 6, 4, 3)], TRANSPOSED),
    ("conv_transpose2d", [(2, 3, 5, 4), (4, 3, 4, 6)], {**TRANSPOSED, "layout": "NHWC", "pads": (2, 0, -1, 0)}),
    ("conv_phases2d", [(2, 3, 5, 4), (4, 6, 4, 6)], PHASES),
    ("winograd_conv2d", [(2, 6, 7, 3), (6, 6, 3, 5)], {"tile": 4, "pads": (1, 1, 1, 1)}),
    ("winograd_conv3d", [(2, 4, 6, 7, 3), (6, 6, 2, 3, 5)], {"tile": 4, "pads": (0, 1, 1, 1, 1, 1)}),
]


def all_cases() -> list[tuple[str, Shapes, Attributes]]:
    cases = list(STRUCTURED)
    covered = {op for op, _, _ in (*cases, *TYPED_CASES)} - _OF_FLOATS_TOO
    for spec in OPS.values():
        if spec.name in covered:
            continue
        if spec.kind is FusionKind.BROADCAST:
            cases.append((spec.name, [(2, 3, 4), (3, 1)], {}))
        elif spec.name.startswith("reduce_"):
            cases += [(spec.name, [(2, 3, 4)], {"axes": (0, 2), "keepdims": keep}) for keep in (False, True)]
        else:
            cases.append((spec.name, [(2, 3)], {}))
    return cases


def operand(value: Value) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(value.size)
    return np.abs(rng.standard_normal(value.shape, dtype=np.float32)) + np.float32(0.5)


def test_every_operator_has_a_case() -> None:
    assert {op for op, _, _ in (*all_cases(), *TYPED_CASES)} == set(OPS)


@pytest.mark.parametrize(("op", "shapes", "attrs"), all_cases())
def test_evaluator_agrees_with_the_shape_rule(op: str, shapes: Shapes, attrs: Attributes) -> None:
    values = tuple(Value(f"x{i}", shape) for i, shape in enumerate(shapes))
    node = Node(op, tuple(value.name for value in values), ("y",), attrs)
    described = infer_value(node, values)
    result = evaluate_node(node, [operand(value) for value in values])
    assert (result.shape, result.dtype.name) == (described.shape, described.dtype)


@pytest.mark.parametrize(("op", "arrays", "attrs"), TYPED_CASES)
def test_evaluator_of_other_operands(op: str, arrays: list[np.ndarray[Any, Any]], attrs: Attributes) -> None:
    values = tuple(Value(f"x{i}", array.shape, array.dtype.name) for i, array in enumerate(arrays))
    node = Node(op, tuple(value.name for value in values), ("y",), attrs)
    described, result = infer_value(node, values), evaluate_node(node, arrays)
    assert (result.shape, result.dtype.name) == (described.shape, described.dtype)


MISFITS: list[tuple[str, Shapes, Attributes, str]] = [
    ("frobnicate", [(2,)], {}, "no operator"),
    ("relu", [(2,), (2,)], {}, "takes 1 operands"),
    ("relu", [(2,)], {"alpha": 1.0}, "attributes must be"),
    ("softmax", [(2,)], {"axis": 0.0}, "must be a int"),
    ("softmax", [(2,)], {"axis": 1}, "outside the rank"),
    ("add", [(2, 3), (2,)], {}, "do not broadcast"),
    ("reduce_sum", [(2, 3)], {"axes": (1, 0), "keepdims": True}, "ascending"),
    ("dense", [(2, 3), (4, 5)], {}, "needs"),
    ("batch_matmul", [(2, 3, 4), (1, 4, 5)], {}, "needs"),
    ("conv2d", [(2, 4, 9, 8), (6, 3, 3, 2)], CONV, "the weight must be"),
    ("conv2d", [(2, 9, 8, 4), (3, 2, 4)], {**CONV, "layout": "NHWC"}, "depthwise"),
    ("conv2d", [(2, 4, 1, 1), (6, 4, 9, 9)], CONV, "does not fit"),
    ("conv2d", [(2, 4, 9, 8), (6, 4, 3, 2)], {**CONV, "layout": "CNHW"}, "neither NCHW nor NHWC"),
    ("max_pool2d", [(4, 9, 8)], {**MAX_POOL, "layout": "NCHW"}, "four dimensions"),
    ("batch_norm", [(2, 3), (3,), (3,), (2,), (3,)], {"axis": 1, "epsilon": 1e-5}, "one element"),
    ("reshape", [(2, 3)], {"shape": (4,)}, "cannot become"),
    ("transpose", [(2, 3)], {"perm": (1, 1)}, "no permutation"),
    ("concat", [(2, 3), (3, 3)], {"axis": 1}, "differ in axis 1 alone"),
    ("slice", [(5,)], {"starts": (0,), "stops": (6,), "steps": (1,)}, "cannot slice"),
    ("pad", [(5,)], {"pads_before": (-1,), "pads_after": (0,), "value": 0.0}, "none negative"),
    ("broadcast_to", [(3,)], {"shape": (2,)}, "does not broadcast"),
    ("bits", [(2, 3)], {"dtype": "int16"}, "another number of bits"),
    ("where", [(3,), (3,), (3,)], {}, "condition must be bool"),
    ("gather", [(3,), (2,)], {"axis": 0}, "indices must be integers"),
    ("top_k", [(3,)], {"axis": 0, "k": 4, "largest": True}, "no 4 elements"),
    ("arg_max", [(3,)], {"axis": 1, "keepdims": True}, "outside the rank"),
    ("conv3d", [(2, 4, 9, 8), (6, 4, 3, 2)], CONV_3D, "five dimensions"),
    ("conv_transpose2d", [(1, 2, 3, 3), (2, 4, 3)], TRANSPOSED, "four dimensions"),
    ("conv_phases2d", [(2, 3, 5, 4), (4, 5, 4, 6)], PHASES, "the strides divide KH and KW"),
    ("conv_phases2d", [(2, 3, 5, 4), (4, 6, 4, 6)], {**PHASES, "pads": (-1, 0)}, "must not be negative"),
    ("conv_phases2d", [(2, 3, 5, 4), (4, 6, 4, 6)], {**PHASES, "size": (3,)}, "two numbers each"),
    ("conv_transpose2d", [(1, 2, 3, 3), (3, 4, 3, 3)], TRANSPOSED, "for 3 channels"),
    ("conv_transpose2d", [(1, 2, 1, 1), (2, 4, 1, 1)], TRANSPOSED, "nothing is left"),
]


@pytest.mark.parametrize(("op", "shapes", "attrs", "message"), MISFITS)
def test_misfits_are_explained(op: str, shapes: Shapes, attrs: Attributes, message: str) -> None:
    values = tuple(Value(f"x{i}", shape) for i, shape in enumerate(shapes))
    node = Node(op, tuple(value.name for value in values), ("y",), attrs, name="culprit")
    with pytest.raises(DefinitionError, match=message) as caught:
        infer_value(node, values)
    assert "culprit" in str(caught.value)


def test_verify_checks_the_described_shapes() -> None:
    x, y = Value("x", (2, 3)), Value("y", (2, 3))
    graph = Graph("g", (x,), ("y",), (Node("relu", ("x",), ("y",)),), {}, {"x": x, "y": y})
    verify(graph)
    with pytest.raises(DefinitionError, match=r"gives y: float32\[2, 3\]"):
        verify(replace(graph, values={"x": x, "y": Value("y", (3, 2))}))
