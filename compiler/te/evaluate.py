"""Evaluates tensors in NumPy, by their definition.

This is the oracle for generated code. It evaluates each compute over its whole index space, so it is slow for big
tensors but needs no compiler. Float sums are accumulated in float64 and rounded once, so the oracle is at least as
accurate as any kernel. Terms are not: the products of a float16 sum are rounded to float16 each, unless the factors are
cast to float32 first.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import Binary, Call, Cast, Const, Expr, Not, Select, Var, is_float
from retune.compiler.ir.numeric import BINARY, convert, intrinsic
from retune.compiler.runtime.ffi.host_array import HostArray
from retune.compiler.runtime.ffi.registry import find_function, get_global_func
from retune.compiler.te.reduction import Axis, Combiner, Reduce
from retune.compiler.te.tensor import (
    ComputeOp,
    ExternOp,
    Handle,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    TensorRead,
    post_order,
    results_of,
    scans_of,
)

# 32 MiB of float64.
_CHUNK_ELEMENTS = 1 << 22
"""Reduce axes are evaluated in one array, innermost first, while it stays below this size."""


def evaluate(outputs: Sequence[Tensor], inputs: Mapping[Tensor, Array]) -> list[Array]:
    """The values of `outputs`, in order, each with its tensor's shape and dtype.

    `inputs` holds an array for every placeholder that the outputs depend on.
    Raises: DefinitionError when an input is missing or has another shape or dtype, or when a read is out of bounds.
    """
    values: dict[Tensor, Array] = {}
    for tensor, array in inputs.items():
        values[tensor] = _checked_input(tensor, array)
    order = list(post_order(outputs))
    numbers = {op: number for number, op in enumerate(order)}
    scan_of = scans_of(order, lambda tensor: numbers[tensor.op])
    states = {state.op for op in order if isinstance(op, ScanOp) for state in op.states}
    for number, op in enumerate(order):
        # What is computed in every step, a scan evaluates.
        if results_of(op)[0] in values or op in states or number in scan_of:
            continue
        if isinstance(op, PlaceholderOp):
            raise DefinitionError(f"no value given for the placeholder {op.name}")
        if isinstance(op, ExternOp):
            results = _call(op, values)
        else:
            with np.errstate(all="ignore"):
                results = (
                    _compute(op, values)
                    if isinstance(op, ComputeOp)
                    else _scan(op, [order[inner] for inner in sorted(scan_of) if scan_of[inner] == number], values)
                )
        values.update(zip(results_of(op), results, strict=True))
    return [values[tensor] for tensor in outputs]


def value_over(expr: Expr, axes: Mapping[Axis, Array]) -> Array:
    """The value of an expression that reads no tensors, at the points of `axes`, whose shapes broadcast."""
    return _Evaluator("", {}, axes).value(expr)


def _checked_input(tensor: Tensor, array: Array) -> Array:
    if tuple(array.shape) != tensor.shape or array.dtype.name != tensor.dtype:
        raise DefinitionError(
            f"{tensor.name} is a {tensor.dtype} tensor of shape {tensor.shape}, "
            f"the value given is {array.dtype.name} of shape {tuple(array.shape)}"
        )
    return array


def _call(op: ExternOp, values: Mapping[Tensor, Array]) -> list[Array]:
    """The results of the registered function, called with read-only copies of the inputs."""
    inputs = [np.ascontiguousarray(values[tensor]).copy().view(HostArray) for tensor in op.inputs]
    for array in inputs:
        array.flags.writeable = False
    results = [np.zeros(shape, dtype).view(HostArray) for shape, dtype in zip(op.shapes, op.dtypes, strict=True)]
    arguments = (
        argument if not isinstance(argument, Handle) else (results if argument.is_result else inputs)[argument.index]
        for argument in op.call.args
    )
    # For an unknown name the second function raises an error that says so.
    function = find_function(op.call.function) or get_global_func(op.call.function)
    function(*arguments)
    return [result.numpy() for result in results]


def _scan(op: ScanOp, stages: Sequence[Operation], values: Mapping[Tensor, Array]) -> list[Array]:
    """The states after all steps, in each of which `stages` are computed in order."""
    results = [np.zeros(shape, dtype) for shape, dtype in zip(op.shapes, op.dtypes, strict=True)]
    inside = {**values, **dict(zip(op.states, results, strict=True))}
    for init, result in zip(op.inits, results, strict=True):
        result[: op.first] = values[init]
    for step in range(op.first, op.shape[0]):
        for stage in stages:
            assert isinstance(stage, ComputeOp), "only computes run in a step"
            inside.update(zip(results_of(stage), _compute(stage, inside, {op.step: np.asarray(step)}), strict=True))
        for update, result in zip(op.updates, results, strict=True):
            result[step] = inside[update]
    return results


def _compute(
    op: ComputeOp, values: Mapping[Tensor, Array], variables: Mapping[Var, Array] = MappingProxyType({})
) -> list[Array]:
    if isinstance(op.body, Reduce):
        results = _reduce(op, op.body, values, variables)
    else:
        grid = _grid(op.axes, len(op.axes))
        results = [_Evaluator(op.name, values, grid, variables).value(value) for value in op.values]
    return [
        # A copy: the broadcast is a read-only view.
        np.array(np.broadcast_to(result, op.shape), dtype=dtype)
        for result, dtype in zip(results, op.dtypes, strict=True)
    ]


def _grid(axes: Sequence[Axis], rank: int) -> dict[Axis, Array]:
    """For each axis its range of values, along its own dimension of a `rank`-dimensional space."""
    shapes = [tuple(-1 if dim == own_dim else 1 for dim in range(rank)) for own_dim in range(len(axes))]
    return {axis: np.arange(axis.extent).reshape(shape) for axis, shape in zip(axes, shapes, strict=True)}


_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "fmax": np.fmax,
}  # fmt: skip


def _reduce(op: ComputeOp, body: Reduce, values: Mapping[Tensor, Array], variables: Mapping[Var, Array]) -> list[Array]:
    """Inner reduce axes become further dimensions of the space, the outer axes a loop where it grows too big."""
    inner: list[Axis] = []
    size = math.prod(op.shape)
    for axis in reversed(body.axes):
        size *= axis.extent
        if size > _CHUNK_ELEMENTS:
            break
        inner.insert(0, axis)
    outer = body.axes[: len(body.axes) - len(inner)]
    spatial = len(op.axes)
    rank = spatial + len(inner)
    grid = _grid([*op.axes, *inner], rank)
    wide = ["float64" if is_float(dtype) else dtype for dtype in op.dtypes]
    totals = [np.full(op.shape, start, dtype) for start, dtype in zip(body.identities, wide, strict=True)]
    full = op.shape + tuple(axis.extent for axis in inner)
    for point in itertools.product(*(range(axis.extent) for axis in outer)):
        fixed = {axis: np.asarray(coordinate) for axis, coordinate in zip(outer, point, strict=True)}
        evaluator = _Evaluator(op.name, values, {**grid, **fixed}, variables)
        parts = [np.broadcast_to(evaluator.value(value), full) for value in op.values]
        # A custom combiner has no ufunc: elements are joined one after another, each for all points together.
        if isinstance(body.combiner, Combiner):
            columns = [part.reshape((*op.shape, -1)).astype(dtype) for part, dtype in zip(parts, wide, strict=True)]
            for column in range(columns[0].shape[-1]):
                joined = dict(zip(body.combiner.lhs, totals, strict=True))
                joined.update(zip(body.combiner.rhs, (part[..., column] for part in columns), strict=True))
                totals = [_Evaluator(op.name, values, {}, joined).value(result) for result in body.combiner.results]
            continue
        ufunc = _UFUNCS[body.combiner]
        if not parts[0].size:  # a maximum of no elements has no identity in NumPy
            continue
        part = ufunc.reduce(parts[0], axis=tuple(range(spatial, rank)), dtype=wide[0]) if inner else parts[0]
        totals = [ufunc(totals[0], part)]
    return totals


@dataclass(frozen=True, slots=True)
class _Evaluator:
    """Values over one index space. Below a lazy choice (`guarded`) indices are clipped, elsewhere they are checked."""

    op_name: str
    values: Mapping[Tensor, Array]
    axes: Mapping[Axis, Array]
    variables: Mapping[Var, Array] = field(default_factory=dict)
    guarded: bool = field(default=False)

    def value(self, expr: Expr) -> Array:
        """The value of `expr`, of a shape that broadcasts to the index space."""
        match expr:
            case Const(value, dtype):
                return np.asarray(value, dtype=dtype)
            case Axis():
                return self.axes[expr]
            case Var():
                return self.variables[expr]
            case TensorRead():
                return self._read(expr)
            case Binary(op, lhs, rhs):
                return BINARY[op](self.value(lhs), self.value(rhs))
            case Not(value):
                return np.logical_not(self.value(value))
            case Select(condition, then, otherwise):
                # NumPy evaluates both sides: reads of the side not taken are clipped into their tensors.
                lazy = _Evaluator(self.op_name, self.values, self.axes, self.variables, guarded=True)
                return np.where(self.value(condition), lazy.value(then), lazy.value(otherwise))
            case Cast(dtype, value):
                return convert(self.value(value), dtype)
            case Call(name, args, dtype):
                return intrinsic(name, [self.value(arg) for arg in args], dtype)
            case _:
                raise DefinitionError(f"{self.op_name}: a {type(expr).__name__} node has no value here")

    def _read(self, read: TensorRead) -> Array:
        source = self.values[read.tensor]
        indices = [self.value(index) for index in read.indices]
        if self.guarded and not source.size:  # there is no element to clip to, and none is chosen
            return np.zeros(np.broadcast_shapes(*(index.shape for index in indices)), source.dtype)
        for dim, (index, extent) in enumerate(zip(indices, source.shape, strict=True)):
            if self.guarded:
                indices[dim] = np.clip(index, 0, extent - 1)
            elif not index.size:
                continue
            elif index.min() < 0 or index.max() >= extent:
                raise DefinitionError(
                    f"{self.op_name}: index {dim} of {read} runs from {index.min()} to {index.max()}, "
                    f"outside of 0 .. {extent - 1}"
                )
        return np.asarray(source[tuple(indices)])
