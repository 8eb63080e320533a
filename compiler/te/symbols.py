"""Symbolic extents of tensor expressions: definitions for all values of their symbols, and for given values.

A `Dim` of `te.symbol` may be an extent of a placeholder, a compute or a reduce axis, and a number in a body. The
meaning of such a definition for given values of the symbols is that of `instantiate`, extents of 0 included.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.dims import Dim, substitute
from retune.compiler.ir.expr import Const, Expr, Var
from retune.compiler.ir.visit import substitute as substitute_nodes
from retune.compiler.ir.visit import transform, walk
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import (
    CONCATENATED,
    ComputeOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    TensorRead,
    post_order,
)

FREE_LAYOUT = "layout_free_placeholders"
"""The attribute of an operation that lists its inputs of free layout."""


def symbol(name: str) -> Dim:
    """The dimension `name`, an integer of at least 0 that is known when a kernel runs.

    Raises: DefinitionError for a name that is no identifier.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise DefinitionError(f"a symbol cannot be called {name!r:.80}; its name is an identifier, such as tokens")
    return Dim.symbol(name)


def symbols_of(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """The symbols in shapes, reduce axes and bodies of `tensors` and of all they are computed from, sorted."""
    names: set[str] = set()
    for op in post_order(tensors):
        extents = [extent for shape in op.shapes for extent in shape]
        if isinstance(op, ComputeOp):
            extents += [axis.extent for axis in op.reduce_axes]
            names.update(node.name for node in walk(op.body) if isinstance(node, Var) and node.name.isidentifier())
        names.update(name for extent in extents if isinstance(extent, Dim) for name in extent.symbols)
    return tuple(sorted(names))


def instantiate(tensors: Sequence[Tensor], numbers: Mapping[str, int]) -> list[Tensor]:
    """The tensors for these values of all symbols, with extents that are integers of at least 0.

    Raises: DefinitionError when a symbol has no value, or the value of a symbol or an extent is negative.
    """
    missing = [name for name in symbols_of(tensors) if name not in numbers]
    if missing or any(number < 0 for number in numbers.values()):
        raise DefinitionError(
            f"the symbol {missing[0]} has no value" if missing else f"the values {dict(numbers)} are not all at least 0"
        )

    def number_of(extent: int) -> int:
        number = substitute(extent, numbers)
        if number < 0:
            raise DefinitionError(f"the extent {extent} is {number} for {dict(numbers)}")
        return number

    def rule(node: Expr) -> Expr | None:
        match node:
            case Axis():
                return Axis(node.name, number_of(node.extent), node.kind)
            case Var() if node.name in numbers:
                return Const(numbers[node.name], node.dtype)
        return None

    return rebuild(tensors, lambda op: tuple(map(number_of, op.shape)), lambda _: rule)


def rebuild(
    tensors: Sequence[Tensor],
    shape_of: Callable[[PlaceholderOp], tuple[int, ...]],
    rule_of: Callable[[ComputeOp], Callable[[Expr], Expr | None]],
    body_of: Callable[[ComputeOp], Expr] = attrgetter("body"),
    inlined: Collection[Operation] = (),
    replaced: Mapping[Tensor, Tensor] = MappingProxyType({}),
) -> list[Tensor]:
    """The tensors with other shapes of inputs, and with the axes and bodies that the rule of an operation makes of its
    axes and of `body_of` it, see `transform`; an axis whose rule gives another expression is left out. Operations that
    are `inlined`, none of them a reduction, are computed where they are read; `replaced` tensors are other tensors.

    Raises: DefinitionError for a function that is called.
    """
    new: dict[Operation, Operation] = {}

    def new_tensor(tensor: Tensor) -> Tensor:
        return replaced[tensor] if tensor in replaced else Tensor(new[tensor.op], tensor.value_index)

    def read(node: TensorRead) -> Expr:
        source = new_tensor(node.tensor)
        if node.tensor.op not in inlined or not isinstance(source.op, ComputeOp):
            return TensorRead(source, node.indices)
        return substitute_nodes(
            source.op.values[source.value_index], dict(zip(source.op.axes, node.indices, strict=True))
        )

    for op in post_order(tensors):
        match op:
            case PlaceholderOp():
                new[op] = PlaceholderOp(op.name, shape_of(op), op.dtype, op.index_checked)
            case ComputeOp():
                new[op] = _rebuilt(op, body_of(op), new_tensor, read, rule_of(op))
            case ScanOp():
                inits, states, updates = (tuple(map(new_tensor, group)) for group in (op.inits, op.states, op.updates))
                new[op] = replace(op, inits=inits, states=states, updates=updates)
            case _:
                raise DefinitionError(f"{op.name} calls a function, which takes no symbolic extents")
    return [new_tensor(tensor) for tensor in tensors]


def _rebuilt(
    op: ComputeOp,
    body: Expr,
    new_tensor: Callable[[Tensor], Tensor],
    read: Callable[[TensorRead], Expr],
    rule: Callable[[Expr], Expr | None],
) -> ComputeOp:
    def apply(node: Expr) -> Expr:
        if isinstance(node, TensorRead):
            node = read(node)
        answer = rule(node)
        return node if answer is None else answer

    answers = [apply(axis) for axis in op.axes]
    axes = tuple(axis for axis in answers if isinstance(axis, Axis))
    attrs: dict[str, Any] = dict(op.attrs)
    if CONCATENATED in attrs and len(axes) < len(answers):
        # Its number among the axes that are left; of an axis that was joined with another one there is none.
        number = attrs.pop(CONCATENATED)
        if answers[number] is op.axes[number]:
            attrs[CONCATENATED] = sum(isinstance(axis, Axis) for axis in answers[:number])
    if FREE_LAYOUT in attrs:
        attrs[FREE_LAYOUT] = tuple(map(new_tensor, attrs[FREE_LAYOUT]))
    return ComputeOp(op.name, axes, transform(body, apply), attrs)
