"""Checks and normalizes the parts of a tensor's definition.

Accepted definitions can become code. A read that is certainly out of bounds raises DefinitionError here, because a
kernel would do it unchecked.
"""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from retune.compiler.core.dtype import NARROW
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.affine import IndexForm, affine
from retune.compiler.ir.dims import Dim, is_certain
from retune.compiler.ir.expr import BOOL, Binary, BinaryOp, Const, Expr, Operand, Select, Var, as_expr, is_float, widen
from retune.compiler.ir.visit import children, walk
from retune.compiler.te.evaluate import value_over
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import TensorRead

DTYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "bool", *NARROW}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""The element types."""

# Positions in bytes are int64, and sums of two must fit.
_MOST_BYTES = 1 << 62
_MOST_POINTS = 1 << 16
"""The most points at which an index is evaluated to find its range."""


def checked_name(what: str, name: str) -> str:
    """A name: printable text that is not empty."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise DefinitionError(f"{what} cannot be called {name!r}; a name is a printable text of at least one character")
    return name


def checked_dtype(where: str, dtype: object) -> str:
    """The name of an element type, also of NumPy's types."""
    name = np.dtype(dtype).name if isinstance(dtype, (type, np.dtype)) else dtype
    if not isinstance(name, str) or name not in DTYPES:
        raise DefinitionError(f"{where}: there is no element type {dtype!r}; known: {', '.join(sorted(DTYPES))}")
    return name


def checked_shape(name: str, shape: Sequence[int], dtype: str = BOOL) -> tuple[int, ...]:
    """Extents: integers of at least 1, whose elements of `dtype` can be counted in bytes, or dimensions."""
    if not isinstance(shape, Sequence) or isinstance(shape, (str, bytes)):
        raise DefinitionError(f"{name}: the shape {shape!r} must be a list of integers")
    if any(isinstance(extent, Dim) for extent in shape):
        fixed = checked_shape(name, [extent for extent in shape if not isinstance(extent, Dim)], dtype)
        numbers = iter(fixed)
        return tuple(extent if isinstance(extent, Dim) else next(numbers) for extent in shape)
    # A bool is an int to Python, but no extent.
    if any(isinstance(extent, bool) or not isinstance(extent, (int, np.integer)) or extent < 1 for extent in shape):
        raise DefinitionError(f"{name}: the shape {tuple(shape)} must hold positive integers")
    extents = tuple(map(operator.index, shape))
    # Four bytes for narrow types too, whose sums are held in so many.
    if math.prod(extents) * (8 if dtype.endswith("64") else 4) > _MOST_BYTES:
        raise DefinitionError(f"{name}: no memory holds a tensor of the shape {extents}")
    return extents


def checked_attributes(name: str, attributes: object) -> dict[str, object]:
    if attributes is not None and not isinstance(attributes, Mapping):
        raise DefinitionError(f"{name}: the attributes {attributes!r} must be a mapping by name")
    return dict(attributes or {})


# Of a thread or an asyncio task, so that blocks in others do not matter.
_SCOPE: ContextVar[str] = ContextVar("tag", default="")


@contextmanager
def tag_scope(tag: str) -> Iterator[None]:
    """Tag every operation that is defined in the block, or in the decorated function.

    Raises: DefinitionError for a tag that is no string or empty, and inside another scope.
    """
    if not isinstance(tag, str) or not tag:
        raise DefinitionError(f"a tag is a string of at least one character, not {tag!r:.80}")
    if _SCOPE.get():
        raise DefinitionError(f"an operation has one tag: the scope {tag!r} is inside the scope {_SCOPE.get()!r}")
    before = _SCOPE.set(tag)
    try:
        yield
    finally:
        _SCOPE.reset(before)


def with_tag(attributes: object, tag: str) -> object:
    """`attributes` with the tag of an operation: `tag` or the scope's. Raises: DefinitionError if there are both."""
    if not isinstance(tag, str):
        raise DefinitionError(f"a tag is a string, not {tag!r:.80}")
    if tag and _SCOPE.get():
        raise DefinitionError(f"an operation has one tag: {tag!r} is given inside the scope {_SCOPE.get()!r}")
    tag = tag or _SCOPE.get()
    return (
        {**attributes, "tag": tag} if tag and isinstance(attributes, Mapping) else {"tag": tag} if tag else attributes
    )


def truth(where: str, value: Operand) -> Expr:
    """A condition. Raises: DefinitionError for a number."""
    expr = as_expr(value)
    if expr.dtype != BOOL:
        raise DefinitionError(f"{where}: {expr} is a {expr.dtype}, no condition; compare it with something")
    return expr


def integer(where: str, value: Operand) -> Expr:
    """An integer. Raises: DefinitionError for a bool or a float."""
    expr = widen(as_expr(value))
    if is_float(expr.dtype) or expr.dtype == BOOL:
        raise DefinitionError(f"{where} of {expr}, which is {expr.dtype}; cast it to an integer first")
    return expr


def real(where: str, value: Operand) -> Expr:
    expr = widen(as_expr(value))
    if not is_float(expr.dtype):
        raise DefinitionError(f"{where} of {expr}, which is {expr.dtype}; cast it to a float first")
    return expr


def check_reads(name: str, body: Expr, *, complete: bool = False) -> None:
    """Refuse a read outside of its tensor where the range of the index is known: a sum of multiples of axes, such a sum
    divided, or any index of axes alone with few values. Below a lazy choice every read is allowed; unless the check is
    `complete` also a read of earlier elements of an input, which may be the state of a scan. With symbolic extents
    a sum of multiples of axes and symbols must be inside for all values of the symbols.
    """
    for read in _eager_reads(body):
        if not getattr(read.tensor.op, "index_checked", True):
            continue  # it is read in the layout it had before
        for dim, (index, extent) in enumerate(zip(read.indices, read.tensor.shape, strict=True)):
            if dim == 0 and is_earlier(read) and not complete:
                continue
            if _is_symbolic(index) or isinstance(extent, Dim):
                _check_symbolic(name, f"index {dim} of {read}", affine(index), extent)
                continue
            # Intervals first; an undecided index is evaluated at all points, if these are few.
            limits = _range(index) or _enumerate_values(index)
            if limits is not None and not 0 <= limits[0] <= limits[1] < extent:
                raise DefinitionError(
                    f"{name}: index {dim} of {read} runs from {limits[0]} to {limits[1]}, outside of "
                    f"0 .. {extent - 1}; choose with if_then_else where to read"
                )


def is_earlier(read: TensorRead) -> bool:
    """Whether an input is read at an axis minus a number along its first dimension, as the state of a scan."""
    if read.tensor.op.input_tensors or not read.indices or not isinstance(read.indices[0], Binary):
        return False
    form = affine(read.indices[0])
    steps = [coefficient for atom, coefficient in form.terms.items() if isinstance(atom, Axis)]
    return form.const < 0 and steps == [1] and len(form.terms) == 1


def _eager_reads(expr: Expr) -> Iterator[TensorRead]:
    if isinstance(expr, TensorRead):
        yield expr
    # Only the condition of a lazy choice is surely evaluated.
    for child in (expr.condition,) if isinstance(expr, Select) else children(expr):
        yield from _eager_reads(child)


def _is_symbolic(index: Expr) -> bool:
    """Whether an index depends on a symbol, whose name is an identifier, unlike that of the step of a scan."""
    return any(
        (isinstance(node, Var) and node.name.isidentifier())
        or (isinstance(node, Axis) and isinstance(node.extent, Dim))
        for node in walk(index)
    )


def _check_symbolic(name: str, what: str, form: IndexForm, extent: int) -> None:
    """Refuse an index that is not proved to be inside of `extent`; what depends on data or steps is trusted."""
    low = high = form.const
    for atom, coefficient in form.terms.items():
        match atom:
            case Axis():
                last = coefficient * (atom.extent - 1)
                low, high = (low, high + last) if coefficient > 0 else (low + last, high)
            case Var() if atom.name.isidentifier():
                value = coefficient * Dim.symbol(atom.name)
                low, high = low + value, high + value
            case _:
                return
    if not (is_certain(low + 1) and is_certain(extent - high)):
        raise DefinitionError(
            f"{name}: nothing shows that {what}, from {low} to {high}, is inside of 0 .. {extent - 1} for all values "
            "of the symbols; choose with if_then_else where to read"
        )


def _range(expr: Expr) -> tuple[int, int] | None:
    """The least and the greatest value of an index, None where they are uncertain."""
    form = affine(expr)
    if all(isinstance(atom, Axis) for atom in form.terms):
        return _ends(form, {atom: (0, atom.extent - 1) for atom in form.terms if isinstance(atom, Axis)})
    if len(form.terms) != 1:
        return None
    (atom,) = form.terms
    if not isinstance(atom, Binary) or not isinstance(atom.rhs, Const) or atom.rhs.value < 1:
        return None
    inner, divisor = _range(atom.lhs), int(atom.rhs.value)
    if inner is None:
        return None
    if atom.op is BinaryOp.FLOORDIV:
        return _ends(form, {atom: (inner[0] // divisor, inner[1] // divisor)})
    # A remainder is monotone within one period only.
    if atom.op is BinaryOp.FLOORMOD and inner[0] // divisor == inner[1] // divisor:
        return _ends(form, {atom: (inner[0] % divisor, inner[1] % divisor)})
    return None


def _enumerate_values(expr: Expr) -> tuple[int, int] | None:
    """The same by evaluating all values of its axes; None if they are too many, or if it depends on more than axes."""
    axes = tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Axis)))
    if any(isinstance(node, (TensorRead, Var)) for node in walk(expr)):
        return None
    if math.prod(axis.extent for axis in axes) > _MOST_POINTS:
        return None
    grid = np.ix_(*(np.arange(axis.extent) for axis in axes))
    with np.errstate(all="ignore"):
        values = value_over(expr, dict(zip(axes, grid, strict=True)))
    return int(values.min()), int(values.max())


def _ends(form: IndexForm, ranges: Mapping[Expr, tuple[int, int]]) -> tuple[int, int]:
    low = high = form.const
    for atom, coefficient in form.terms.items():
        ends = sorted(coefficient * end for end in ranges[atom])
        low, high = low + ends[0], high + ends[1]
    return low, high
