"""Random ONNX models whose inputs have symbolic extents, some of which may be equal, 0 or 1 when the model runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper

from retune.compiler.ir.dims import Dim, same, same_shape
from retune.compiler.ops.op import broadcast_shapes
from tests.support.dynamic_models import Array, model, tensor

Shape = tuple[int, ...]
N, M, B = (Dim.symbol(name) for name in "nmb")
INPUTS: Mapping[str, Shape] = {
    "x": (N, M),
    "column": (N, 1),
    "row": (1, M),
    "u": (N,),
    "v": (M,),
    "tokens": (B, N, 8),
    "others": (B, M, 8),
    "queries": (B, 2, N, 4),
    "keys": (B, 2, M, 4),
    "square": (N, N),
    "image": (B, 4, N, M),
}
_MOST_RANK = 4


@dataclass
class _Writer:
    """The nodes of a model, and the shapes of its values."""

    rng: Random
    shapes: dict[str, Shape]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    def emit(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        self.shapes[name] = tuple(shape)
        return name

    def constant(self, array: object, dtype: str = "int64") -> str:
        name = f"k{len(self.weights)}"
        self.weights[name] = np.array(array, dtype)
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(np.random.default_rng(len(self.weights)).uniform(-1, 1, shape), "float32")

    def pick(self) -> tuple[str, Shape]:
        """A value, more often one of the last."""
        names = list(self.shapes)
        name = self.rng.choice(names[-6:] if self.rng.random() < 0.6 else names)
        return name, self.shapes[name]

    def sizes(self, name: str, axes: Sequence[int]) -> str:
        """A vector with extents of a value, computed when the model runs."""
        self.nodes.append(helper.make_node("Shape", [name], [f"s{len(self.nodes)}"]))
        vector, chosen = self.nodes[-1].output[0], self.constant(list(axes))
        self.nodes.append(helper.make_node("Gather", [vector, chosen], [f"s{len(self.nodes)}"]))
        return str(self.nodes[-1].output[0])


def _pointwise(w: _Writer) -> bool:
    (first, shape), (second, other) = w.pick(), w.pick()
    joined = _broadcast(shape, other)
    if joined is None:
        w.emit(w.rng.choice(["Relu", "Tanh", "Sigmoid"]), [first], shape)
        return True
    w.emit(w.rng.choice(["Add", "Mul", "Sub", "Max"]), [first, second], joined)
    return True


def _broadcast(shape: Shape, other: Shape) -> Shape | None:
    pairs = zip(reversed(shape), reversed(other), strict=False)
    if not all(same(a, b) or same(a, 1) or same(b, 1) for a, b in pairs):
        return None
    return broadcast_shapes(shape, other)


def _product(w: _Writer) -> bool:
    (first, shape), (second, other) = w.pick(), w.pick()
    if len(shape) < 2 or len(other) < 2:
        return False
    if same(shape[-1], other[-1]) and not same(shape[-1], other[-2]):
        perm = [*range(len(other) - 2), len(other) - 1, len(other) - 2]
        other = (*other[:-2], other[-1], other[-2])
        second = w.emit("Transpose", [second], other, perm=perm)
    batch = _broadcast(shape[:-2], other[:-2])
    if batch is None or not same(shape[-1], other[-2]):
        return False
    scores = w.emit("MatMul", [first, second], (*batch, shape[-2], other[-1]))
    w.emit("Mul", [scores, w.constant(0.1, "float32")], w.shapes[scores])
    return True


def _layer(w: _Writer) -> bool:
    name, shape = w.pick()
    if len(shape) < 2 or isinstance(shape[-1], Dim):
        return False
    columns = w.rng.choice([1, 4, 8, 24])
    y = w.emit("MatMul", [name, w.weight(shape[-1], columns)], (*shape[:-1], columns))
    w.emit("Add", [y, w.weight(columns)], w.shapes[y])
    return True


def _reduction(w: _Writer) -> bool:
    name, shape = w.pick()
    if not shape:
        return False
    axis, kept = w.rng.randrange(len(shape)), w.rng.randrange(2)
    reduced = (*shape[:axis], *[1] * kept, *shape[axis + 1 :])
    y = w.emit(w.rng.choice(["ReduceMean", "ReduceSum"]), [name, w.constant([axis])], reduced, keepdims=kept)
    w.emit("Tanh", [y], reduced)
    return True


def _rows(w: _Writer) -> bool:
    name, shape = w.pick()
    if not shape:
        return False
    w.emit("Softmax", [name], shape, axis=w.rng.randrange(len(shape)))
    return True


def _transpose(w: _Writer) -> bool:
    name, shape = w.pick()
    if not shape:  # ONNX does not write an empty list
        return False
    perm = w.rng.sample(range(len(shape)), len(shape))
    w.emit("Transpose", [name], [shape[axis] for axis in perm], perm=perm)
    return True


def _reshape(w: _Writer) -> bool:
    name, shape = w.pick()
    if len(shape) < 2:
        return False
    if w.rng.random() < 0.4:
        w.emit("Reshape", [name, w.constant([-1])], (prod(shape),))
        return True
    # The extents in another order: the elements stay in theirs.
    order = w.rng.sample(range(len(shape)), len(shape))
    w.emit("Reshape", [name, w.sizes(name, order)], [shape[axis] for axis in order], allowzero=1)
    return True


def _expansion(w: _Writer) -> bool:
    (name, shape), (other, wanted) = w.pick(), w.pick()
    joined = _broadcast(shape, wanted)
    if not wanted or joined is None or not same_shape(joined, wanted):
        return False
    w.emit("Expand", [name, w.sizes(other, range(len(wanted)))], wanted)
    return True


def _concatenation(w: _Writer) -> bool:
    (first, shape), (second, other) = w.pick(), w.pick()
    apart = [axis for axis, pair in enumerate(zip(shape, other, strict=False)) if not same(*pair)]
    if not shape or len(shape) != len(other) or len(apart) > 1:
        return False
    axis = apart[0] if apart else w.rng.randrange(len(shape))
    w.emit("Concat", [first, second], (*shape[:axis], shape[axis] + other[axis], *shape[axis + 1 :]), axis=axis)
    return True


def _padding(w: _Writer) -> bool:
    name, shape = w.pick()
    if not shape:
        return False
    pads = [w.rng.randrange(2) for _ in range(2 * len(shape))]
    wider = [extent + pads[axis] + pads[axis + len(shape)] for axis, extent in enumerate(shape)]
    w.emit("Pad", [name, w.constant(pads), w.constant(0.5, "float32")], wider)
    return True


def _convolution(w: _Writer) -> bool:
    name, shape = w.pick()
    if len(shape) != _MOST_RANK or isinstance(shape[1], Dim) or shape[1] > 8:
        return False
    taps = w.rng.choice([1, 2, 3])
    w.emit("Conv", [name, w.weight(4, shape[1], taps, taps)], (shape[0], 4, *shape[2:]), auto_pad="SAME_UPPER")
    return True


_STEPS: tuple[Callable[[_Writer], bool], ...] = (
    *(_pointwise, _pointwise, _product, _product, _layer, _reduction, _rows, _transpose),
    *(_reshape, _reshape, _expansion, _concatenation, _padding, _convolution),
)


def random_symbolic_model(seed: int, steps: int = 8) -> tuple[onnx.ModelProto, dict[str, Shape]]:
    """A model of about `steps` operators, all of whose last values are outputs, and the shapes of its inputs."""
    rng = Random(seed)
    w = _Writer(rng, dict(rng.sample(sorted(INPUTS.items()), rng.randint(2, 4))))
    made = 0
    while made < steps:
        before = len(w.shapes)
        made += rng.choice(_STEPS)(w)
        for name in list(w.shapes)[before:]:
            if len(w.shapes[name]) > _MOST_RANK:
                raise AssertionError(f"{name} has more than {_MOST_RANK} axes")
    read = {name for node in w.nodes for name in node.input}
    inputs = {name: shape for name, shape in w.shapes.items() if name in INPUTS and name in read}
    results = [name for name in w.shapes if name not in INPUTS and name not in read]
    outputs = [tensor(name, [None] * len(w.shapes[name])) for name in results]
    fed = [tensor(name, [str(e) if isinstance(e, Dim) else e for e in shape]) for name, shape in inputs.items()]
    return model(w.nodes, fed, outputs, w.weights), inputs
