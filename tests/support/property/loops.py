"""Random ONNX loops whose bodies fit a kernel: several states and sequences of several types, in any direction."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, NDArray[Any]]

_FLOAT, _INT64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_STEPS = (1, 2, 3, 7, 33)


@dataclass
class _Body:
    """The body so far: its matrices (rows, columns), and what it reads of the graph around it."""

    rng: np.random.Generator
    rows: int
    columns: int
    matrices: list[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: object) -> str:
        name = f"k{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = self.fresh()
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def any(self) -> str:
        return str(self.rng.choice(self.matrices))

    def grow(self) -> None:
        """Add a matrix of values that stay small."""
        kind = int(self.rng.integers(0, 11))
        x, y, shape = self.any(), self.any(), (self.columns, self.columns)
        half = np.float32(0.5)
        if kind == 0:
            weight = self.constant(self.rng.uniform(-0.4, 0.4, shape).astype("float32"))
            made = self.emit("MatMul", x, weight)
        elif kind == 1:
            made = self.emit("Mul", self.emit("Add", x, y), self.constant(half))
        elif kind == 2:
            made = self.emit("Mul", self.emit("Sigmoid", x), y)
        elif kind == 3:
            made = self.emit("Softmax", x, axis=int(self.rng.integers(-1, 1)))
        elif kind == 4:
            sums = self.emit("ReduceMean", x, self.constant(np.array([1])), keepdims=1)
            made = self.emit("Sub", y, sums)
        elif kind == 5:
            joined = self.emit("Concat", x, y, axis=1)
            start = int(self.rng.integers(0, self.columns + 1))
            bounds = [self.constant(np.array([end])) for end in (start, start + self.columns, 1)]
            made = self.emit("Slice", joined, *bounds)
        elif kind == 6:
            made = self.emit("Where", self.emit("Greater", x, y), x, self.emit("Neg", y))
        elif kind == 7:
            wide = self.emit("Unsqueeze", self.emit("ArgMax", x, axis=1, keepdims=0), self.constant(np.array([1])))
            places = self.emit(
                "Mod",
                self.emit("Add", wide, self.constant(np.arange(self.columns))),
                self.constant(np.array(self.columns)),
            )
            made = self.emit("GatherElements", y, places, axis=1)
        elif kind == 8:
            made = self.emit("Tanh", self.emit("Gemm", x, x, y, transB=1) if self.rows == self.columns else x)
        elif kind == 9:
            made = self.emit("Max", self.emit("Min", x, self.constant(half)), self.constant(-half))
        else:
            scale, bias = (self.constant(self.rng.uniform(-1, 1, self.columns).astype("float32")) for _ in range(2))
            made = self.emit("Mul", self.emit("LayerNormalization", x, scale, bias, axis=-1), self.constant(half))
        self.matrices.append(made)


def random_loop(rng: np.random.Generator) -> tuple[onnx.ModelProto, Arrays]:
    """A model with a Scan or Loop, of which some results are outputs, and its inputs."""
    rows, columns, steps = (int(rng.choice(sizes)) for sizes in ((1, 3, 5), (3, 5, 16, 33), _STEPS))
    is_scan = bool(rng.integers(0, 2))
    body = _Body(rng, rows, columns, [])
    states = [f"s{number}" for number in range(int(rng.integers(1, 4)))]
    sequences = [f"x{number}" for number in range(int(rng.integers(1, 4)))] if is_scan else []
    axes = [int(rng.integers(-3, 3)) for _ in sequences]
    body.matrices += [*(f"{name}_in" for name in states), *(f"{name}_row" for name in sequences), "shared"]
    arrays: Arrays = {"shared": _matrix(rng, rows, columns)}
    arrays |= {name: _matrix(rng, rows, columns) for name in states}
    arrays |= {name: _sequence(rng, rows, columns, steps, axis) for name, axis in zip(sequences, axes, strict=True)}
    if not is_scan:
        angle = body.emit("Mul", body.emit("Cast", "i", to=_FLOAT), body.constant(np.float32(0.05)))
        body.matrices.append(body.emit("Add", body.any(), body.emit("Cos", angle)))
    for _ in range(int(rng.integers(2, 9))):
        body.grow()
    inputs = [_info(f"{name}_in", _FLOAT, (rows, columns)) for name in states]
    inputs += [_info(f"{name}_row", _FLOAT, (rows, columns)) for name in sequences]
    results = [(body.emit("Tanh", body.matrices[-1 - n % len(body.matrices)]), _FLOAT) for n in range(len(states))]
    if rng.integers(0, 2):
        # A count in another type, which a row shows, too.
        arrays["n"] = np.asarray(rng.integers(0, 5))
        states.append("n")
        inputs.insert(len(states) - 1, _info("n_in", _INT64, ()))
        results.append((body.emit("Add", "n_in", body.constant(np.array(2))), _INT64))
    shown = [(body.any(), _FLOAT) for _ in range(int(rng.integers(0, 3)))]
    shown += [results[-1]] if rng.integers(0, 2) else []
    if shown and rng.integers(0, 2):
        shown.append((body.emit("ReduceSum", body.any(), body.constant(np.array([0])), keepdims=0), _FLOAT))
    if shown and rng.integers(0, 2):
        shown.insert(0, (body.emit("ReduceMax", body.any(), keepdims=0), _FLOAT))
    shown = [(body.emit("Identity", name), dtype) for name, dtype in shown]
    outputs = [_info(name, dtype, None) for name, dtype in (*results, *shown)]
    names = [*(f"{name}_out" for name in states), *(f"r{number}" for number in range(len(shown)))]
    used = [name for name in names if rng.integers(0, 4)] or names[:1]
    shapes = [_shape_of(body, name, dtype, rows, columns) for name, dtype in (*results, *shown)]
    if is_scan:
        graph = helper.make_graph(body.nodes, "body", inputs, outputs)
        moved = [int(rng.integers(-rank, rank)) for rank in (len(shape) + 1 for shape in shapes[len(results) :])]
        attributes: dict[str, Any] = {
            "scan_input_axes": axes,
            "scan_input_directions": [int(rng.integers(0, 2)) for _ in sequences],
            "scan_output_axes": moved,
            "scan_output_directions": [int(rng.integers(0, 2)) for _ in shown],
        }
        attributes = {key: value for key, value in attributes.items() if value}
        node = helper.make_node(
            "Scan", [*states, *sequences], names, body=graph, num_scan_inputs=len(sequences), **attributes
        )
    else:
        moved = [0 for _ in shown]
        body.nodes.append(helper.make_node("Identity", ["on"], ["still"]))
        counters = [_info("i", _INT64, ()), _info("on", _BOOL, ())]
        graph = helper.make_graph(body.nodes, "body", [*counters, *inputs], [_info("still", _BOOL, ()), *outputs])
        body.weights.append(numpy_helper.from_array(np.array(steps), "trips"))
        node = helper.make_node("Loop", ["trips", "", *states], names, body=graph)
    fixed = [name for name in states if rng.integers(0, 3) == 0]
    body.weights += [numpy_helper.from_array(arrays.pop(name), name) for name in fixed]
    types = [_INT64 if name == "n" else _FLOAT for name in arrays]
    fed = [_info(name, kind, array.shape) for (name, array), kind in zip(arrays.items(), types, strict=True)]
    for number, axis in enumerate(moved, len(results)):
        along = axis % (len(shapes[number]) + 1)
        shapes[number] = (*shapes[number][:along], steps, *shapes[number][along:])
    described = zip(names, (*results, *shown), shapes, strict=True)
    made = [_info(name, dtype, shape) for name, (_, dtype), shape in described if name in used]
    model = helper.make_graph([node], "loop", fed, made, body.weights)
    return helper.make_model(model, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), arrays


def without_unused(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose loop omits the results that are no outputs, which ONNX Runtime does not survive."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    outputs, (node,) = {entry.name for entry in copy.graph.output}, copy.graph.node
    node.output[:] = [name if name in outputs or node.op_type == "Scan" else "" for name in node.output]
    return copy


def _info(name: str, kind: int, shape: tuple[int, ...] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    return rng.uniform(-1, 1, (rows, columns)).astype("float32")


def _sequence(rng: np.random.Generator, rows: int, columns: int, steps: int, axis: int) -> NDArray[Any]:
    shape = [rows, columns]
    shape.insert(axis % 3, steps)
    return rng.uniform(-1, 1, shape).astype("float32")


def _shape_of(body: _Body, name: str, dtype: int, rows: int, columns: int) -> tuple[int, ...]:
    """The shape of a shown result: a number, a row of sums or a matrix."""
    if dtype == _INT64:
        return ()
    producer = {output: node for node in body.nodes for output in node.output}
    node = producer.get(producer[name].input[0])
    shapes = {"ReduceSum": (columns,), "ReduceMax": ()}
    return (rows, columns) if node is None else shapes.get(node.op_type, (rows, columns))
