"""Prints the operations of a compute graph, for people and for keys.

The text is deterministic. Operations of the same name are numbered; several results of one operation are `.v0`, `.v1`.
"""

from collections.abc import Callable, Iterator, Sequence

from retune.compiler.ir.expr import Call, Expr, Select
from retune.compiler.te.prim_func import unique_names, with_named_reads
from retune.compiler.te.reduction import Reduce
from retune.compiler.te.tensor import ComputeOp, ExternOp, Handle, Operation, PlaceholderOp, ScanOp, Tensor

# As TVM shortens graphs.
_MAX_LINE = 256
_OMITTED = " ..(omitted).. "
# fmax is a maximum whose reader keeps NaNs by itself, so the two share schedules and keys.
_SIGNS = {"sum": "+=", "max": "max=", "min": "min=", "fmax": "max="}


def dag_text(ops: Sequence[Operation], id_of: Callable[[Tensor], int], simple: bool = False) -> str:
    """One line a result: `A = PLACEHOLDER [8, 8]`, `C(i, j) += (A[i, k] * B[k, j])`, `R(i, j) = max(C[i, j], 0.0)`.

    `simple` leaves out the shapes of the inputs, and of a body that is a call everything but the function's name.
    """
    names = _Names(ops, id_of)
    lines: list[str] = []
    for op_id, op in enumerate(ops):
        if isinstance(op, PlaceholderOp):
            lines.append(f"{names.of_op[op_id]} = PLACEHOLDER" + ("" if simple else f" {list(op.shape)}"))
        elif isinstance(op, ExternOp):
            lines.append(_extern_line(op, op_id, names))
        elif isinstance(op, ScanOp):
            lines.append(_scan_line(op, op_id, names))
        else:
            axes = ", ".join(map(str, op.axes))
            for index, (sign, value) in enumerate(_assignments(op)):
                body = value.name if simple and isinstance(value, Call) else names.printable(value)
                lines.append(f"{names.of_result(op_id, index)}({axes}) {sign} {body}")
    return "\n".join(lines)


def shorten(text: str) -> str:
    """The text with only the start and the end of lines that have more than 256 characters."""
    half = _MAX_LINE // 2
    return "\n".join(
        line if len(line) <= _MAX_LINE else f"{line[:half]}{_OMITTED}{line[-half:]}" for line in text.splitlines()
    )


def fingerprint(ops: Sequence[Operation], id_of: Callable[[Tensor], int], layout_free: frozenset[int]) -> str:
    """Everything that a schedule of the graph may depend on.

    More than the text for people: the extents of all axes, element types, combiners in full, and the inputs of free
    layout.
    """
    names = _Names(ops, id_of)
    lines: list[str] = []
    for op_id, op in enumerate(ops):
        if isinstance(op, PlaceholderOp):
            free = " layout_free" if op_id in layout_free else ""
            lines.append(f"{names.of_op[op_id]} = PLACEHOLDER {list(op.shape)} {op.dtype}{free}")
        elif isinstance(op, ExternOp):
            lines.append(_extern_line(op, op_id, names))
        elif isinstance(op, ScanOp):
            lines.append(_scan_line(op, op_id, names))
        else:
            axes = ", ".join(f"{axis}:{axis.extent}" for axis in (*op.axes, *op.reduce_axes))
            for index, (sign, value) in enumerate(_exact_assignments(op)):
                lines.append(f"{names.of_result(op_id, index)}({axes}) {sign} {names.printable(value)}")
    return "\n".join(lines)


def _assignments(op: ComputeOp) -> Iterator[tuple[str, Expr]]:
    """The assignment of every result: all results of a reduction are joined from all of its sources."""
    if not isinstance(op.body, Reduce):
        yield from (("=", value) for value in op.values)
    elif isinstance(op.body.combiner, str):
        yield _SIGNS.get(op.body.combiner, f"reduce<{op.body.combiner}>="), op.body.source
    else:
        for result in op.body.combiner.results:
            yield f"{result}=" if isinstance(result, Select) else f"reduce<{result}>=", op.body.source


def _exact_assignments(op: ComputeOp) -> Iterator[tuple[str, Expr]]:
    """The same with the name of a usual combiner, and with the custom identities."""
    if not isinstance(op.body, Reduce):
        yield from (("=", value) for value in op.values)
    elif isinstance(op.body.combiner, str):
        rounded = "" if op.body.dtype == op.body.source.dtype else f"{op.body.dtype} "
        yield f"{rounded}{op.body.combiner.removeprefix('f')}=", op.body.source
    else:
        for result, identity in zip(op.body.combiner.results, op.body.combiner.identities, strict=True):
            yield f"reduce<{result}, {identity}>=", op.body.source


class _Names:
    """The names of the operations and their results in a string."""

    def __init__(self, ops: Sequence[Operation], id_of: Callable[[Tensor], int]) -> None:
        self.ops = ops
        self.id_of = id_of
        self.of_op = unique_names(op.name for op in ops)

    def of_result(self, op_id: int, index: int) -> str:
        """The name of a result; several results have numbers."""
        several = len(self.ops[op_id].dtypes) > 1
        return f"{self.of_op[op_id]}.v{index}" if several else self.of_op[op_id]

    def of_tensor(self, tensor: Tensor) -> str:
        return self.of_result(self.id_of(tensor), tensor.value_index)

    def printable(self, body: Expr) -> Expr:
        """The body with every tensor under its name here."""
        return with_named_reads(body, self.of_tensor)


def _scan_line(op: ScanOp, op_id: int, names: _Names) -> str:
    """The steps, and for every state its placeholder, first values and update by name."""
    states = "; ".join(
        " ".join(map(names.of_tensor, tensors)) for tensors in zip(op.states, op.inits, op.updates, strict=True)
    )
    results = ", ".join(f"{list(shape)} {dtype}" for shape, dtype in zip(op.shapes, op.dtypes, strict=True))
    return f"{names.of_op[op_id]} = SCAN {results} from {op.step} = {op.first} ({states})"


def _extern_line(op: ExternOp, op_id: int, names: _Names) -> str:
    """The call with inputs by name and results by number."""
    results = ", ".join(f"{list(shape)} {dtype}" for shape, dtype in zip(op.shapes, op.dtypes, strict=True))
    texts = []
    for argument in op.call.args:
        if not isinstance(argument, Handle):
            texts.append(repr(argument))
        elif argument.is_result:
            texts.append(f"v{argument.index}")
        else:
            texts.append(names.of_tensor(op.inputs[argument.index]))
    return f"{names.of_op[op_id]} = EXTERN {results} {op.call.function}({', '.join(texts)})"
