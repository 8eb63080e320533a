"""Random ONNX models with nested conditions, loops and scans, and data-dependent shapes.

All matrices have COLUMNS columns and at least one row. ONNX Runtime accepts the models, and their values stay small.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

COLUMNS = 4
_DEEPEST = 3
_MOST_ROWS = 40


@dataclass
class _Names:
    """Names and constants of one model."""

    rng: np.random.Generator
    count: int = 0
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def constant(self, array: object) -> str:
        name = self.fresh("k")
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name


@dataclass
class _Scope:
    """What the nodes of one graph may read: matrices and float scalars, from around it too."""

    names: _Names
    depth: int
    matrices: list[str]
    scalars: list[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = self.names.fresh(op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def inner(self, matrices: list[str], scalars: list[str]) -> "_Scope":
        return _Scope(self.names, self.depth + 1, [*self.matrices, *matrices], [*self.scalars, *scalars])

    def matrix(self) -> str:
        return self.matrices[self.names.rng.integers(len(self.matrices))]

    def fill(self, count: int) -> None:
        """Append random steps."""
        rng = self.names.rng
        for _ in range(count):
            deep = self.depth < _DEEPEST
            steps = [*_PLAIN, *(_DEEP * 2 if deep else ())]
            steps[rng.integers(len(steps))](self)
            bounded = _bounded(self, self.matrices.pop())
            self.matrices.append(bounded)


def _value(name: str, kind: int = TensorProto.FLOAT, *dims: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(dims))


def _matrix(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, COLUMNS])


def _bounded(scope: _Scope, x: str) -> str:
    """At most so many rows, of numbers between -1 and 1."""
    names = scope.names
    ends = scope.emit("Slice", x, names.constant([0]), names.constant([_MOST_ROWS]), names.constant([0]))
    return scope.emit("Tanh", ends)


def _unary(scope: _Scope) -> None:
    op = ("Sin", "Neg", "Relu", "Abs")[scope.names.rng.integers(4)]
    scope.matrices.append(scope.emit(op, scope.matrix()))


def _scaled(scope: _Scope) -> None:
    op = ("Add", "Mul", "Sub")[scope.names.rng.integers(3)]
    scope.matrices.append(scope.emit(op, scope.matrix(), scope.scalars[-1]))


def _product(scope: _Scope) -> None:
    weight = scope.names.rng.standard_normal((COLUMNS, COLUMNS)).astype("float32")
    scope.matrices.append(scope.emit("MatMul", scope.matrix(), scope.names.constant(weight)))


def _joined(scope: _Scope) -> None:
    scope.matrices.append(scope.emit("Concat", scope.matrix(), scope.matrix(), axis=0))


def _total(scope: _Scope) -> None:
    x = scope.matrix()
    scope.scalars.append(scope.emit("ReduceMean", x, keepdims=0))
    scope.matrices.append(scope.emit("Add", x, scope.scalars[-1]))


def _half(scope: _Scope) -> None:
    """The first half of the rows: a length that follows from a shape."""
    x, names = scope.matrix(), scope.names
    rows = scope.emit("Gather", scope.emit("Shape", x), names.constant([0]))
    more = scope.emit("Add", rows, names.constant([1]))
    end = scope.emit("Div", more, names.constant([2]))
    scope.matrices.append(scope.emit("Slice", x, names.constant([0]), end, names.constant([0])))


def _count(scope: _Scope) -> str:
    """0, 1 or 2, as data says: an int64 scalar."""
    wide = scope.emit("Mul", scope.emit("Abs", scope.scalars[-1]), scope.names.constant(np.float32(7)))
    whole = scope.emit("Cast", wide, to=TensorProto.INT64)
    return scope.emit("Mod", whole, scope.names.constant(3))


def _some_rows(scope: _Scope) -> None:
    """As many rows as data says."""
    names = scope.names
    end = scope.emit("Unsqueeze", scope.emit("Add", _count(scope), names.constant(1)), names.constant([0]))
    scope.matrices.append(scope.emit("Slice", scope.matrix(), names.constant([0]), end, names.constant([0])))


def _chosen_rows(scope: _Scope) -> None:
    """The rows with a positive first number, behind a matrix, so that there are some."""
    x, names = scope.matrix(), scope.names
    first = scope.emit("Gather", x, names.constant(0), axis=1)
    flags = scope.emit("Greater", first, names.constant(np.float32(0.05)))
    scope.matrices.append(scope.emit("Concat", scope.matrix(), scope.emit("Compress", x, flags, axis=0), axis=0))


def _places(scope: _Scope) -> None:
    """Where a matrix is positive, behind that matrix."""
    x, names = scope.matrix(), scope.names
    found = scope.emit("NonZero", scope.emit("Relu", scope.emit("Sub", x, names.constant(np.float32(0.5)))))
    pairs = scope.emit("Cast", scope.emit("Transpose", found, perm=[1, 0]), to=TensorProto.FLOAT)
    both = scope.emit("Concat", pairs, pairs, axis=1)
    scope.matrices.append(scope.emit("Concat", x, scope.emit("Mul", both, names.constant(np.float32(0.1))), axis=0))


def _flag(scope: _Scope) -> str:
    return scope.emit("Greater", scope.scalars[-1], scope.names.constant(np.float32(0.02)))


def _branches(scope: _Scope) -> None:
    branches, flag = [], _flag(scope)
    for _ in range(2):
        inner = scope.inner([], [])
        inner.fill(int(scope.names.rng.integers(1, 4)))
        total = inner.emit("ReduceMax", inner.matrices[-1], keepdims=0)
        results = [_matrix(inner.matrices[-1]), _value(total)]
        branches.append(helper.make_graph(inner.nodes, scope.names.fresh("branch"), [], results))
    made = [scope.names.fresh("y"), scope.names.fresh("s")]
    scope.nodes.append(helper.make_node("If", [flag], made, then_branch=branches[0], else_branch=branches[1]))
    scope.matrices.append(made[0])
    scope.scalars.append(made[1])


def _loop(scope: _Scope) -> None:
    names = scope.names
    iteration, on, carried, held = (names.fresh(stem) for stem in ("i", "on", "v", "h"))
    inner = scope.inner([carried], [held])
    inner.fill(int(names.rng.integers(1, 4)))
    total = inner.emit("ReduceMean", inner.matrices[-1], keepdims=0)
    going = inner.emit("Less", total, names.constant(np.float32(names.rng.choice([0.1, 0.4, 9]))))
    inputs = [_value(iteration, TensorProto.INT64), _value(on, TensorProto.BOOL), _matrix(carried), _value(held)]
    outputs = [_value(going, TensorProto.BOOL), _matrix(inner.matrices[-1]), _value(total), _matrix("")]
    row = inner.emit("ReduceMean", inner.matrices[-1], axes=[0], keepdims=0)
    outputs[3] = _value(row, TensorProto.FLOAT, COLUMNS)
    body = helper.make_graph(inner.nodes, names.fresh("body"), inputs, outputs)
    made = [names.fresh(stem) for stem in ("y", "s", "rows")]
    count = names.constant(int(names.rng.integers(1, 4))) if names.rng.random() < 0.5 else _count(scope)
    start = [scope.matrix(), scope.scalars[-1]]
    scope.nodes.append(helper.make_node("Loop", [count, "", *start], made, body=body))
    scope.scalars.append(made[1])
    scope.matrices.append(scope.emit("Concat", made[0], made[2], axis=0))


def _scan(scope: _Scope) -> None:
    """Running sums of the rows, forwards or backwards; every other one collects columns."""
    names = scope.names
    state, row = names.fresh("state"), names.fresh("row")
    inner = _Scope(names, _DEEPEST, [], [])
    sums = inner.emit("Tanh", inner.emit("Add", state, row))
    made = inner.emit("Mul", sums, scope.scalars[-1])
    inputs = [_value(state, TensorProto.FLOAT, COLUMNS), _value(row, TensorProto.FLOAT, COLUMNS)]
    outputs = [_value(name, TensorProto.FLOAT, COLUMNS) for name in (sums, made)]
    body = helper.make_graph(inner.nodes, names.fresh("body"), inputs, outputs)
    start = scope.emit("ReduceMean", scope.matrix(), axes=[0], keepdims=0)
    backwards, axis = int(names.rng.integers(2)), int(names.rng.integers(2))
    last, rows = names.fresh("y"), names.fresh("rows")
    attributes: dict[str, Any] = {"scan_input_directions": [backwards], "scan_output_axes": [axis]}
    scan = helper.make_node("Scan", [start, scope.matrix()], [last, rows], body=body, num_scan_inputs=1, **attributes)
    scope.nodes.append(scan)
    whole = scope.emit("Transpose", rows, perm=[1, 0]) if axis else rows
    scope.matrices.append(scope.emit("Add", whole, last))


_PLAIN = (_unary, _scaled, _product, _joined, _total, _half, _some_rows, _chosen_rows, _places)
_DEEP = (_branches, _loop, _scan)


def random_model(seed: int) -> onnx.ModelProto:
    """Inputs `x` and `z`, two matrices of any number of rows, the second as many as the first; an output for each of
    the last two matrices and the last scalar.
    """
    names = _Names(np.random.default_rng(seed))
    scope = _Scope(names, 0, ["x", "z"], [])
    _total(scope)
    scope.fill(int(names.rng.integers(3, 8)))
    results = [scope.emit("Identity", name) for name in (*scope.matrices[-2:], scope.scalars[-1])]
    inputs = [_value(name, TensorProto.FLOAT, "rows", COLUMNS) for name in ("x", "z")]
    outputs = [_matrix(results[0]), _matrix(results[1]), _value(results[2])]
    graph = helper.make_graph(scope.nodes, f"random{seed}", inputs, outputs, names.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
