"""Tensors and the operations that compute them.

Operations compare by identity, expressions by value; a tensor is a numbered result of an operation.

    Operation = PlaceholderOp                    an input
              | ComputeOp(axes, body)            one expression per result, over the same axes
              | ExternOp(inputs, call)           whatever a registered function writes
              | ScanOp(inits, states, updates)   states step by step, see `retune.compiler.te.scan`
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import BOOL, INDEX, BinaryOp, Const, Expr, Operand, Var, as_expr, binary, is_float
from retune.compiler.ir.visit import children, uses, walk
from retune.compiler.te.reduction import Axis, AxisKind, Reduce, values_of

LOOKS_UP_TABLES = "looks_up_tables"
"""The attribute of a compute that indexes small tables for few elements: it is inlined if possible, never tiled."""

MOVES_ELEMENTS = "moves_elements"
"""The attribute of a compute of elements of its input or constants: readers may read the input instead."""

PARTIAL_SUMS = "partial_sums"
"""The attribute of a compute whose results are joined further: 16-bit floats stay in float32 until then."""

SCATTERS = "scatters"
"""The attribute of a reduction in which each term joins at most one element, where its condition holds."""

RANKS = "ranked_axis"
"""The attribute of a sum that counts, for each element, those that come before it in a total order of the elements
along one axis: the number of that axis.
"""

CONCATENATED = "concat_axis"
"""The attribute, an axis, of a compute that puts tensors end to end: readers may read these tensors instead."""


@dataclass(frozen=True, slots=True)
class TensorRead(Expr):
    """One element of a tensor. With fewer indices than dimensions it takes further indices: `A[i][j]`."""

    tensor: "Tensor"
    indices: tuple[Expr, ...]
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.tensor.dtype)

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> "TensorRead":
        return self.tensor[(*self.indices, *(indices if isinstance(indices, tuple) else (indices,)))]

    def __iter__(self) -> NoReturn:
        raise DefinitionError(f"{self} cannot be iterated over; read it at the axes of a compute")

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.indices))}]"


@dataclass(frozen=True, eq=False, slots=True)
class PlaceholderOp:
    """An input. `index_checked` is False while operators read it in a layout that it no longer has."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    index_checked: bool = True

    @property
    def attrs(self) -> Mapping[str, Any]:
        return {}

    @property
    def tag(self) -> str:
        return ""

    @property
    def input_tensors(self) -> "tuple[Tensor, ...]":
        return ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.shape,)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return (self.dtype,)


@dataclass(frozen=True, eq=False, slots=True)
class ComputeOp:
    """`body` for every point of `axes`; a reduction runs over `reduce_axes` too.

    A body of several `Values`, or a reduction of them, makes as many results.
    """

    name: str
    axes: tuple[Axis, ...]
    body: Expr
    attrs: Mapping[str, Any]
    _reads: "tuple[tuple[Tensor, tuple[Expr, ...]], ...] | None" = field(default=None, init=False, repr=False)
    _sources: "tuple[Tensor, ...] | None" = field(default=None, init=False, repr=False)

    @property
    def tag(self) -> str:
        return str(self.attrs.get("tag", ""))

    @property
    def axis(self) -> tuple[Axis, ...]:
        """The spatial axes, by TVM's name."""
        return self.axes

    @property
    def reduce_axis(self) -> tuple[Axis, ...]:
        """The axes summed over, by TVM's name."""
        return self.reduce_axes

    @property
    def input_tensors(self) -> "tuple[Tensor, ...]":
        """The tensors that are read, each once, in the order of their first reads."""
        return tuple(dict.fromkeys(tensor for tensor, _ in reads_of(self)))

    @property
    def reduce_axes(self) -> tuple[Axis, ...]:
        """The axes summed over, empty for an elementwise body."""
        return self.body.axes if isinstance(self.body, Reduce) else ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the spatial axes."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def values(self) -> tuple[Expr, ...]:
        """One expression a result; of a reduction, what it reduces."""
        return values_of(self.body.source if isinstance(self.body, Reduce) else self.body)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of every result, always the same."""
        return (self.shape,) * len(self.values)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element type of every result."""
        return (self.body.dtype, *(value.dtype for value in self.values[1:]))

    @property
    def dtype(self) -> str:
        """Element type of the first result."""
        return self.body.dtype


@dataclass(frozen=True, slots=True)
class Handle:
    """An argument of a registered function's call: input or result number `index` of the calling stage."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    index: int
    is_result: bool

    def __str__(self) -> str:
        return self.name


CallArgument = Handle | int | float | str | bool


@dataclass(frozen=True, slots=True)
class PackedCall:
    """A call of the function registered as `function`, with arrays for its handles."""

    function: str
    args: tuple[CallArgument, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(str(a) if isinstance(a, Handle) else repr(a) for a in self.args)})"


@dataclass(frozen=True, eq=False, slots=True)
class ExternOp:
    """Results of a registered function of `inputs`. It has no loops, so it cannot be transformed."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    inputs: "tuple[Tensor, ...]"
    call: PackedCall
    attrs: Mapping[str, Any]

    @property
    def tag(self) -> str:
        return str(self.attrs.get("tag", ""))

    @property
    def input_tensors(self) -> "tuple[Tensor, ...]":
        return self.inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the first result."""
        return self.shapes[0]

    @property
    def dtype(self) -> str:
        """Element type of the first result."""
        return self.dtypes[0]


@dataclass(frozen=True, eq=False, slots=True)
class ScanOp:
    """States that are updated step by step: the result of a state holds it after every step.

    Elements 0 .. first-1 along the first axis of result `i` are `inits[i]`. Then for every value of `step` up to the
    extent of that axis the stages that lead to `updates` run, and element `step` is `updates[i]`, a tensor without that
    axis. The stages read `step`, and earlier elements of the results as elements of the placeholders `states`.
    """

    name: str
    step: Var
    inits: "tuple[Tensor, ...]"
    states: "tuple[Tensor, ...]"
    updates: "tuple[Tensor, ...]"
    attrs: Mapping[str, Any]

    @property
    def tag(self) -> str:
        return str(self.attrs.get("tag", ""))

    @property
    def inputs(self) -> "tuple[Tensor, ...]":
        """All tensors that it is made of."""
        return (*self.inits, *self.states, *self.updates)

    @property
    def input_tensors(self) -> "tuple[Tensor, ...]":
        return self.inputs

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(state.shape for state in self.states)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(state.dtype for state in self.states)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the first result."""
        return self.shapes[0]

    @property
    def dtype(self) -> str:
        """Element type of the first result."""
        return self.dtypes[0]

    @property
    def first(self) -> int:
        """The first value of `step`."""
        return self.inits[0].shape[0]

    @property
    def steps(self) -> int:
        """How many steps run."""
        return self.shape[0] - self.first


Operation = PlaceholderOp | ComputeOp | ExternOp | ScanOp
WithoutLoops = ExternOp | ScanOp
"""Operations that read whole tensors, which must be in memory, and have no loops to transform."""


def scans_of(ops: "Sequence[Operation]", number_of: "Callable[[Tensor], int]") -> dict[int, int]:
    """The number of the scan of every operation that runs once a step: it makes an update, or it depends on the step or
    on a state.

    `ops` are in topological order; `number_of` has the number of the operation that makes a tensor.
    """
    scan_of: dict[int, int] = {}
    for number, scan in enumerate(ops):
        if not isinstance(scan, ScanOp):
            continue
        moving = set(map(number_of, scan.states))
        updates = set(map(number_of, scan.updates))
        for other, op in enumerate(ops):
            reads = any(number_of(source) in moving for source in sources_of(op))
            if isinstance(op, ComputeOp) and (other in updates or reads or uses(op.body, scan.step)):
                moving.add(other)
                scan_of[other] = number
    return scan_of


def reads_of(op: Operation) -> "tuple[tuple[Tensor, tuple[Expr, ...]], ...]":
    """The (tensor, indices) of every textual read, in order; operations without loops read whole tensors, without
    indices.
    """
    if isinstance(op, WithoutLoops):
        return tuple((tensor, ()) for tensor in op.inputs)
    if isinstance(op, PlaceholderOp):
        return ()
    if op._reads is None:  # a body never changes
        reads = tuple((node.tensor, node.indices) for node in walk(op.body) if isinstance(node, TensorRead))
        object.__setattr__(op, "_reads", reads)
    return op._reads or ()


def sources_of(op: Operation) -> "list[Tensor]":
    """The tensors that an operation reads, each once; a tensor read inside an index comes before the indexed tensor."""
    if not isinstance(op, ComputeOp):
        return list(dict.fromkeys(tensor for tensor, _ in reads_of(op)))
    read: dict[Tensor, None] = {}

    def visit(expr: Expr) -> None:
        for child in children(expr):
            visit(child)
        if isinstance(expr, TensorRead):
            read[expr.tensor] = None

    if op._sources is None:
        visit(op.body)
        object.__setattr__(op, "_sources", tuple(read))
    return list(op._sources or ())


def post_order(tensors: "Sequence[Tensor]") -> dict[Operation, None]:
    """The operations of the tensors, depth first, in a set that keeps its order."""
    order: dict[Operation, None] = {}
    seen: set[Operation] = set()
    # An explicit stack: a long chain of operations would exceed Python's recursion limit.
    stack: list[tuple[Operation, bool]] = [(tensor.op, False) for tensor in reversed(tensors)]
    while stack:
        op, expanded = stack.pop()
        if expanded:
            order[op] = None
        elif op not in seen:
            seen.add(op)
            stack.append((op, True))
            stack.extend((tensor.op, False) for tensor in reversed(sources_of(op)) if tensor.op not in seen)
    return order


_Operator = Callable[["Tensor", "Tensor | Operand"], "Tensor"]


def _operator(op: BinaryOp) -> tuple[_Operator, _Operator]:
    """The methods of a Python operator, for a tensor on its left side and on its right side."""

    def of_left(self: "Tensor", other: "Tensor | Operand") -> "Tensor":
        return _elementwise(op, self, other)

    def of_right(self: "Tensor", other: "Tensor | Operand") -> "Tensor":
        return _elementwise(op, other, self)

    return of_left, of_right


@dataclass(frozen=True, slots=True)
class Tensor:
    """A result of an operation: indexing it with as many expressions as it has dimensions reads one element.

    Tensors are equal when they are the same result of one operation.
    """

    op: Operation
    value_index: int = 0

    @property
    def name(self) -> str:
        """Name of the operation; several results are called `.v` and their number."""
        return self.op.name if len(self.op.dtypes) == 1 else f"{self.op.name}.v{self.value_index}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, in elements."""
        return self.op.shapes[self.value_index]

    @property
    def dtype(self) -> str:
        """Element type, a NumPy type name."""
        return self.op.dtypes[self.value_index]

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> TensorRead:
        """The element at `A[i, j]`, or `A[i][j]`. Raises: DefinitionError for more indices than there are dimensions; a
        compute refuses an element with fewer.
        """
        all_indices = indices if isinstance(indices, tuple) else (indices,)
        if self.is_checked and (len(all_indices) > self.ndim or (self.ndim and not all_indices)):
            raise DefinitionError(f"{self.name} has {self.ndim} dimensions but is read with {len(all_indices)} indices")
        return TensorRead(self, tuple(self._index(index) for index in all_indices))

    def __call__(self, *indices: Operand) -> TensorRead:
        """The element at all indices, as `A[i, j]`."""
        return self[indices]

    def __tvm_ffi_object__(self) -> object:
        """The tensor itself for functions of the FFI, which would call it instead."""
        return importlib.import_module("retune.compiler.runtime.ffi.bindings").as_opaque(self)

    @property
    def is_checked(self) -> bool:
        """Whether reads must have an index for every dimension; False for an input in another layout."""
        return bool(getattr(self.op, "index_checked", True))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    __add__, __radd__ = _operator(BinaryOp.ADD)
    __sub__, __rsub__ = _operator(BinaryOp.SUB)
    __mul__, __rmul__ = _operator(BinaryOp.MUL)
    __truediv__, __rtruediv__ = _operator(BinaryOp.DIV)

    # Python would fall back on `__getitem__` with 0, 1, 2 and so on, and never end.
    def __iter__(self) -> NoReturn:
        raise DefinitionError(f"{self.name} cannot be iterated over; read it at the axes of a compute")

    def _index(self, value: Operand) -> Expr:
        index = as_expr(value, INDEX) if isinstance(value, int) else as_expr(value)
        # Caught where it is written: lowering would name only the loops.
        if is_float(index.dtype) or index.dtype == BOOL:
            raise DefinitionError(f"{self.name} is read at {index}, which is {index.dtype}; cast it to an integer")
        return index

    def __repr__(self) -> str:
        return f"Tensor({self.name}, shape={self.shape}, dtype={self.dtype})"


_NAMES = {BinaryOp.ADD: "T_add", BinaryOp.SUB: "T_subtract", BinaryOp.MUL: "T_multiply", BinaryOp.DIV: "T_divide"}
"""What TVM calls the results of arithmetic with tensors."""


def _elementwise(op: BinaryOp, lhs: Tensor | Operand, rhs: Tensor | Operand) -> Tensor:
    """Two tensors, or a tensor and a number, element by element; shapes broadcast as in NumPy.

    Raises: DefinitionError when they do not broadcast.
    """
    shapes = [operand.shape if isinstance(operand, Tensor) else () for operand in (lhs, rhs)]
    try:
        shape = tuple(map(int, np.broadcast_shapes(*shapes)))
    except ValueError:
        raise DefinitionError(f"{_NAMES[op]}: the shapes {shapes[0]} and {shapes[1]} do not broadcast") from None
    axes = tuple(Axis(f"ax{dim}", extent, AxisKind.SPATIAL) for dim, extent in enumerate(shape))
    body = binary(op, *(_element(operand, axes) for operand in (lhs, rhs)))
    return results_of(ComputeOp(_NAMES[op], axes, body, {}))[0]


def _element(operand: Tensor | Operand, axes: Sequence[Axis]) -> Operand:
    """The element of `operand` at `axes` of a shape that it broadcasts to."""
    if not isinstance(operand, Tensor):
        return operand
    # NumPy's rule: shapes are aligned at their last dimension, and extent 1 repeats.
    own_axes = axes[len(axes) - operand.ndim :]
    indices = (Const(0, INDEX) if extent == 1 else axis for axis, extent in zip(own_axes, operand.shape, strict=True))
    return TensorRead(operand, tuple(indices))


def results_of(op: Operation) -> tuple[Tensor, ...]:
    """The tensors that an operation makes, in order."""
    return tuple(Tensor(op, index) for index in range(len(op.dtypes)))
