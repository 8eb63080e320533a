"""`PrimFunc`: a function of input and output tensors, which prints as loops and can be built.

It is a description; a schedule decides how the loops run.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import Buffer, Expr, Load, as_expr
from retune.compiler.ir.visit import transform
from retune.compiler.te.checks import checked_name
from retune.compiler.te.reduction import Axis, Reduce
from retune.compiler.te.tensor import (
    ComputeOp,
    ExternOp,
    Handle,
    PlaceholderOp,
    ScanOp,
    Tensor,
    TensorRead,
    post_order,
    results_of,
)


@dataclass(frozen=True, eq=False, slots=True)
class PrimFunc:
    """A function of `args`, called with arrays for them in this order; the arrays of computed tensors are written."""

    name: str
    args: tuple[Tensor, ...]

    def script(self) -> str:
        """The definition as naive loops, for people."""
        return "\n".join(_lines(self))

    def show(self) -> None:
        """Write the definition to the standard output."""
        sys.stdout.write(f"{self.script()}\n")

    def __str__(self) -> str:
        return self.script()


def create_prim_func(args: Sequence[Tensor], name: str = "main") -> PrimFunc:
    """A function of tensors, some of which are inputs; the others are computed from them.

    Raises: DefinitionError when a tensor is listed twice, an input is missing, or nothing is computed.
    """
    checked_name("a function", name)
    if not isinstance(args, Sequence) or not all(isinstance(tensor, Tensor) for tensor in args):
        raise DefinitionError(f"{name}: a function is made of a list of tensors, not of {args!r:.80}")
    if len(set(args)) != len(args):
        raise DefinitionError(f"{name}: a tensor is listed twice")
    if all(isinstance(tensor.op, PlaceholderOp) for tensor in args):
        raise DefinitionError(f"{name}: none of its tensors is computed")
    for op in post_order(args):
        if isinstance(op, ScanOp):
            raise DefinitionError(f"{name}: {op.name} is a scan, which no function of loops spells; build its tensors")
        missing = [tensor.name for tensor in results_of(op) if isinstance(op, PlaceholderOp) and tensor not in args]
        if missing:
            raise DefinitionError(f"{name}: the input {missing[0]} is not among its tensors")
    return PrimFunc(name, tuple(args))


def _lines(function: PrimFunc) -> Iterator[str]:
    ops = post_order(function.args)
    tensors = [tensor for op in ops for tensor in results_of(op)]
    names = dict(zip(tensors, unique_names(tensor.name for tensor in tensors), strict=True))
    params = ", ".join(f"{names[tensor]}: {_kind(tensor)}" for tensor in function.args)
    yield f"def {function.name}({params}):"
    for op in ops:
        if isinstance(op, PlaceholderOp):
            continue
        yield from (
            f"    {names[tensor]} = empty({list(tensor.shape)}, {tensor.dtype!r})"
            for tensor in results_of(op)
            if tensor not in function.args
        )
        if isinstance(op, ExternOp):
            yield from _extern(op, names)
        elif isinstance(op, ComputeOp):
            yield from _loops(op, names)


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def unique_names(names: Iterable[str]) -> list[str]:
    """The names, with numbers where a name occurs again."""
    taken: set[str] = set()
    return [unique_name(name, taken) for name in names]


def unique_name(wish: str, taken: set[str]) -> str:
    """A name like `wish` that is not `taken`, which gets it."""
    name, count = wish, 0
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    taken.add(name)
    return name


def _extern(op: ExternOp, names: dict[Tensor, str]) -> Iterator[str]:
    arguments = [
        names[(results_of(op) if argument.is_result else op.inputs)[argument.index]]
        if isinstance(argument, Handle)
        else repr(argument)
        for argument in op.call.args
    ]
    yield f"    call_packed({', '.join([repr(op.call.function), *arguments])})"


def _loops(op: ComputeOp, names: dict[Tensor, str]) -> Iterator[str]:
    pad = "    "
    if op.axes:
        yield f"{pad}for {_over(op.axes)}:"
        pad += "    "
    targets = [Load(Buffer(names[tensor], tensor.shape, tensor.dtype), op.axes) for tensor in results_of(op)]
    left = ", ".join(f"{target.buffer.name}[{', '.join(map(str, op.axes))}]" for target in targets)
    values: Sequence[Expr] = op.values
    if isinstance(op.body, Reduce):
        starts = zip(op.body.identities, op.dtypes, strict=True)
        yield f"{pad}{left} = {', '.join(str(as_expr(start, dtype)) for start, dtype in starts)}"
        yield f"{pad}for {_over(op.body.axes)}:"
        pad += "    "
        values = op.body.join(targets, op.values)
    yield f"{pad}{left} = {', '.join(str(with_named_reads(value, names.__getitem__)) for value in values)}"


def _over(axes: Sequence[Axis]) -> str:
    run = "range" if len(axes) == 1 else "grid"
    return f"{', '.join(map(str, axes))} in {run}({', '.join(str(axis.extent) for axis in axes)})"


def with_named_reads(value: Expr, name_of: Callable[[Tensor], str]) -> Expr:
    """`value` with reads of buffers, named by `name_of`, in place of reads of tensors."""

    def rename(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        return Load(Buffer(name_of(node.tensor), node.tensor.shape, node.tensor.dtype), node.indices)

    return transform(value, rename)
