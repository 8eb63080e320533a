"""FLOP count of an operation, by fixed rules that do not depend on the machine.

Every arithmetic operation, comparison, minimum, maximum and logical operation counts 1, if an operand is of the same
class (float, signed, unsigned) as the result of the operation. Calls, casts, reads and index arithmetic are free. Of
the two sides of a choice the costlier side counts.
"""

from retune.compiler.ir.expr import BOOL, Binary, Call, Cast, Const, Expr, Not, Select, Var, is_float
from retune.compiler.te.reduction import Axis, Combiner, Reduce
from retune.compiler.te.tensor import ComputeOp, Operation, TensorRead

UNKNOWN = -1.0
"""The count of an operation with an expression that no rule covers."""


def flops_of(op: Operation) -> float:
    """Operations of one evaluation, over all results; UNKNOWN where no rule fits.

    The attribute `FLOP` overrides the count. Registered functions count nothing.
    """
    if "FLOP" in op.attrs:
        return float(op.attrs["FLOP"])
    if not isinstance(op, ComputeOp):
        return 0.0
    points = 1.0
    for axis in (*op.axes, *op.reduce_axes):
        points *= axis.extent
    try:
        return points * sum(_cost_of_result(op, index) for index in range(len(op.values)))
    except _UncountableError:
        return UNKNOWN


class _UncountableError(Exception):
    """There is no rule for an expression."""


def _cost_of_result(op: ComputeOp, index: int) -> float:
    value = op.values[index]
    kind = _kind(value.dtype)
    if not isinstance(op.body, Reduce):
        return _cost(value, kind)
    combiner = op.body.combiner
    joining = _cost(combiner.results[index], kind) if isinstance(combiner, Combiner) else 1.0
    return joining + _cost(value, kind)


def _kind(dtype: str) -> str:
    return "float" if is_float(dtype) else "unsigned" if dtype == BOOL or dtype.startswith("uint") else "signed"


def _cost(expr: Expr, kind: str) -> float:
    match expr:
        case Const() | Axis() | Var() | TensorRead():
            return 0.0
        case Cast():
            return _cost(expr.value, kind)
        case Select():
            return _cost(expr.condition, kind) + max(_cost(expr.then, kind), _cost(expr.otherwise, kind))
        case Call():
            return sum(_cost(arg, kind) for arg in expr.args)
        case Not():
            return float(_kind(expr.value.dtype) == kind) + _cost(expr.value, kind)
        case Binary():
            # As in TVM: index computations inside a float body are of another class, and free.
            counts = kind in (_kind(expr.lhs.dtype), _kind(expr.rhs.dtype))
            return float(counts) + _cost(expr.lhs, kind) + _cost(expr.rhs, kind)
    raise _UncountableError
