"""Random ONNX graphs of operators that NNSmith does not make. ONNX Runtime tries each node before it is kept."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET = 18
# Attributes are float32: what they do to float64 in ONNX Runtime is not said. NNSmith makes graphs of float64.
_TYPES = ("float32", "float32", "float32", "float16", "int64", "int32", "uint8", "bool")
_EXTENTS = (1, 2, 3, 4, 5, 8, 17)
_LARGEST = 1e4

Array = NDArray[Any]
Node = tuple[str, list[Array | None], dict[str, Any]]
"""An operator, its constant operands behind the first one, and its attributes."""
Form = Callable[[np.random.Generator, Array], Node]


def _weights(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(-1, 1, shape)


def _axis(rng: np.random.Generator, x: Array) -> int:
    return int(rng.integers(-x.ndim, x.ndim))


def _plain(*names: str) -> Form:
    return lambda rng, _: (str(rng.choice(names)), [], {})


def _with_axis(*names: str) -> Form:
    return lambda rng, x: (str(rng.choice(names)), [], {"axis": _axis(rng, x)})


def _reduced(*names: str) -> Form:
    return lambda rng, x: (
        str(rng.choice(names)),
        [np.array([_axis(rng, x)])] if rng.random() < 0.7 else [],
        {"keepdims": int(rng.integers(2))},
    )


def _of_floats(form: Form) -> Form:
    """A form whose results for integers ONNX Runtime rounds on the way."""

    def checked(rng: np.random.Generator, x: Array) -> Node:
        if x.dtype.kind != "f":
            raise ValueError("no floats")
        return form(rng, x)

    return checked


def _conv(rng: np.random.Generator, x: Array) -> Node:
    group = int(rng.choice([1, x.shape[1]]))
    kernel, out = [int(rng.integers(1, 4)) for _ in x.shape[2:]], group * int(rng.integers(1, 4))
    attributes = {
        "strides": [int(rng.integers(1, 3)) for _ in kernel],
        "auto_pad": str(rng.choice(["SAME_UPPER", "VALID"])),
    }
    if rng.random() < 0.3:  # ONNX Runtime takes SAME_UPPER otherwise where a stride exceeds the kernel
        attributes["auto_pad"] = "VALID"
        return "ConvTranspose", [_weights(rng, x.shape[1], out // group, *kernel)], {**attributes, "group": group}
    return (
        "Conv",
        [_weights(rng, out, x.shape[1] // group, *kernel), _weights(rng, out)],
        {**attributes, "group": group},
    )


def _pool(rng: np.random.Generator, x: Array) -> Node:
    size = x.ndim - 2
    attributes = {
        "kernel_shape": [int(rng.integers(1, 4)) for _ in range(size)],
        "strides": [int(rng.integers(1, 3))] * size,
    }
    return str(rng.choice(["MaxPool", "AveragePool"])), [], {**attributes, "ceil_mode": int(rng.integers(2))}


def _resize(rng: np.random.Generator, x: Array) -> Node:
    sizes = np.array([*x.shape[:2], *(int(rng.integers(1, 9)) for _ in x.shape[2:])])
    mode, rule = rng.choice(["nearest", "linear", "cubic"]), rng.choice(["asymmetric", "half_pixel", "align_corners"])
    return "Resize", [None, None, sizes], {"mode": str(mode), "coordinate_transformation_mode": str(rule)}


def _recurrent(rng: np.random.Generator, x: Array) -> Node:
    name, gates = (("LSTM", 4), ("GRU", 3), ("RNN", 1))[rng.integers(3)]
    hidden, width = int(rng.integers(1, 5)), x.shape[-1]
    return (
        name,
        [_weights(rng, 1, gates * hidden, width), _weights(rng, 1, gates * hidden, hidden)],
        {"hidden_size": hidden},
    )


def _gathered(rng: np.random.Generator, x: Array) -> Node:
    axis = _axis(rng, x)
    places = rng.integers(-x.shape[axis], x.shape[axis], [int(rng.integers(1, 4)) for _ in range(rng.integers(3))])
    return "Gather", [np.asarray(places, np.int64)], {"axis": axis}


def _scattered(rng: np.random.Generator, x: Array) -> Node:
    axis, shape = _axis(rng, x), [int(rng.integers(1, extent + 1)) for extent in x.shape]
    places = rng.integers(0, x.shape[axis], shape)
    return (
        "ScatterElements",
        [places, _weights(rng, *shape)],
        {"axis": axis, "reduction": str(rng.choice(["add", "max"]))},
    )


FORMS: tuple[Form, ...] = (
    _plain("Erf", "Mish", "Softplus", "Softsign", "HardSwish", "Round", "Sign", "IsNaN", "Not", "Neg", "Size", "Shape"),
    _plain("Transpose", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "Celu", "Elu", "Selu", "Identity", "Sigmoid"),
    _with_axis("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "Flatten"),
    _reduced(
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"
    ),
    _of_floats(_reduced("ReduceLogSum", "ReduceLogSumExp")),
    _conv,
    _conv,
    _pool,
    _of_floats(_resize),
    _recurrent,
    _gathered,
    _scattered,
    lambda rng, x: ("LayerNormalization", [_weights(rng, x.shape[-1])], {"axis": -1}),
    lambda rng, x: ("InstanceNormalization", [_weights(rng, x.shape[1]), _weights(rng, x.shape[1])], {}),
    lambda rng, x: ("MatMul", [_weights(rng, x.shape[-1], int(rng.choice(_EXTENTS)))], {}),
    lambda rng, x: (
        "CumSum",
        [np.array(_axis(rng, x))],
        {"exclusive": int(rng.integers(2)), "reverse": int(rng.integers(2))},
    ),
    lambda rng, x: ("TopK", [np.array([int(rng.integers(1, x.shape[-1] + 1))])], {"largest": int(rng.integers(2))}),
    lambda rng, x: (
        "Pad",
        [rng.integers(-1, 3, 2 * x.ndim)],
        {"mode": str(rng.choice(["constant", "edge", "reflect"]))},
    ),
    lambda rng, x: ("Tile", [rng.integers(1, 3, x.ndim)], {}),
    lambda rng, x: (
        "Slice",
        [np.array([-1]), np.array([-99]), np.array([_axis(rng, x)]), np.array([-1 - rng.integers(2)])],
        {},
    ),
    lambda rng, x: ("Unsqueeze", [np.array([_axis(rng, x)])], {}),
    lambda rng, _: ("Reshape", [np.array([[-1], [0, -1], [1, -1, 1], [-1, 2]][rng.integers(4)])], {}),
    lambda rng, _: ("Cast", [], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(str(rng.choice(_TYPES))))}),
    lambda rng, _: (str(rng.choice(["DepthToSpace", "SpaceToDepth"])), [], {"blocksize": 2}),
    lambda *_: ("Trilu", [], {"upper": 0}),
    lambda rng, x: (
        str(rng.choice(["Max", "Min", "PRelu", "Mod", "Less", "Equal"])),
        [3 * _weights(rng, x.shape[-1])],
        {},
    ),
)


def random_nodes(seed: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model with up to ten nodes, and its inputs."""
    rng = np.random.default_rng([seed, 8])
    shape = [int(rng.choice(_EXTENTS)) for _ in range(rng.integers(1, 5))]
    x = np.asarray(rng.uniform(-2, 2, shape) * (1 + 4 * (rng.random() < 0.2))).astype(str(rng.choice(_TYPES)))
    values, nodes, weights = {"x": x, "z": x[::-1].copy()}, list[onnx.NodeProto](), list[onnx.TensorProto]()
    count = int(rng.integers(1, 11))
    for _ in range(8 * count):
        if len(nodes) >= count:
            break
        names = list(values)
        name = names[-1] if rng.random() < 0.7 else str(rng.choice(names))
        same = [
            other
            for other in names
            if values[other].shape == values[name].shape and values[other].dtype == values[name].dtype
        ]
        more: list[onnx.TensorProto | None] = []
        try:
            if rng.random() < 0.25:
                node = _node(
                    str(rng.choice(["Add", "Sub", "Mul", "Max", "Div"])), [name, str(rng.choice(same))], {}, len(nodes)
                )
            else:
                op, operands, attributes = FORMS[rng.integers(len(FORMS))](rng, values[name])
                more = [
                    _constant(array, values[name].dtype, f"w{len(nodes)}_{place}")
                    for place, array in enumerate(operands)
                ]
                inputs = [name, *(one.name if one else "" for one in more)]
                node = _node(op, inputs, attributes, len(nodes))
        except (IndexError, ValueError):  # of a rank or extent that the form does not take
            continue
        kept = [one for one in more if one]
        result = _tried(node, values, kept)
        if result is not None:
            nodes.append(node)
            weights += kept
            values[node.output[0]] = result
    read = {name for node in nodes for name in node.input}
    shown = [name for name in values if name[0] == "t" and (name not in read or rng.random() < 0.2)] or ["x"]
    nodes.append(helper.make_node("Identity", [shown[-1]], ["last"]))
    values["last"] = values[shown[-1]]
    feeds = {name: values[name] for name in ("x", "z") if any(name in node.input for node in nodes)}
    return _model(nodes, feeds, {name: values[name] for name in [*shown[:-1], "last"]}, weights), feeds


def _node(op: str, inputs: list[str], attributes: dict[str, Any], number: int) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [f"t{number}"], **attributes)


def _constant(array: Array | None, dtype: np.dtype[Any], name: str) -> onnx.TensorProto | None:
    if array is None:
        return None
    return numpy_helper.from_array(array.astype(dtype if array.dtype.kind == "f" else np.int64), name)


def _tried(node: onnx.NodeProto, values: dict[str, Array], weights: list[onnx.TensorProto]) -> Array | None:
    """What ONNX Runtime makes of a node; None where it refuses it, or the result is large, empty or not finite."""
    feeds = {name: values[name] for name in node.input if name in values}
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        model = _model([node], feeds, {node.output[0]: None}, weights)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        result = np.asarray(session.run(None, feeds)[0])
    except Exception:  # its exceptions have no common base
        return None
    wide = result.astype(np.float64)
    fine = 0 < result.size <= 4096 and bool((np.abs(wide) <= _LARGEST).all())
    return result if fine else None


def _model(
    nodes: list[onnx.NodeProto],
    feeds: dict[str, Array],
    results: dict[str, Array | None],
    weights: list[onnx.TensorProto],
) -> onnx.ModelProto:
    def info(name: str, array: Array | None) -> onnx.ValueInfoProto:
        if array is None:
            return helper.make_empty_tensor_value_info(name)
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    inputs, outputs = ([info(*item) for item in items.items()] for items in (feeds, results))
    graph = helper.make_graph(nodes, "nodes", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
