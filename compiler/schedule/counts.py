"""Counts the operations of each kind in one evaluation of a statement.

Index arithmetic is not counted: it is hoisted out of the loops.
"""

from dataclasses import dataclass

from retune.compiler.ir.expr import COMPARISONS, LOGICAL, Binary, BinaryOp, Call, Cast, Expr, Not, Select, is_float
from retune.compiler.ir.visit import children
from retune.compiler.te.reduction import Combiner
from retune.compiler.te.tensor import TensorRead


@dataclass(frozen=True, slots=True)
class OpCounts:
    """Operations per innermost iteration, by type class of their operands."""

    float_mad: int = 0
    """Products that are summed; they count neither as products nor as sums."""
    float_addsub: int = 0
    """Other sums and differences."""
    float_mul: int = 0
    """Other products."""
    float_divmod: int = 0
    """Quotients and remainders."""
    float_cmp: int = 0
    """Comparisons, minima and maxima."""
    float_math: int = 0
    """Calls of mathematical functions."""
    float_other: int = 0
    int_mad: int = 0
    int_addsub: int = 0
    int_mul: int = 0
    int_divmod: int = 0
    int_cmp: int = 0
    int_math: int = 0
    int_other: int = 0
    bool_op: int = 0
    select_op: int = 0
    factors: tuple[str, str] | None = None
    """The types of two numbers whose product is summed in a wider type, as in a dot product."""


KINDS = ("mad", "addsub", "mul", "divmod", "cmp", "math", "other")
"""Kinds of operations, of floats and of integers."""
COUNTED = (*(f"{prefix}_{kind}" for prefix in ("float", "int") for kind in KINDS), "bool_op", "select_op")
"""The counts by name."""


_CLASS = {
    BinaryOp.ADD: "addsub", BinaryOp.SUB: "addsub", BinaryOp.MUL: "mul", BinaryOp.DIV: "divmod",
    BinaryOp.FLOORDIV: "divmod", BinaryOp.FLOORMOD: "divmod", BinaryOp.MIN: "cmp", BinaryOp.MAX: "cmp",
    BinaryOp.FMAX: "cmp", BinaryOp.BIT_AND: "other", BinaryOp.BIT_OR: "other", BinaryOp.BIT_XOR: "other",
    BinaryOp.SHL: "other", BinaryOp.SHR: "other",
}  # fmt: skip
_COMBINE = {"sum": "addsub", "prod": "mul", "max": "cmp", "min": "cmp", "fmax": "cmp"}


def count_operations(source: Expr, combiner: str | Combiner | None) -> OpCounts:
    """Counts of `source`, and of combining it into a result if there is a `combiner`."""
    counts = dict.fromkeys(COUNTED, 0)
    if isinstance(combiner, Combiner):
        for result in combiner.results:
            _count(result, counts)
    elif combiner is not None:
        counts[f"{_prefix(source)}_{_COMBINE[combiner]}"] += 1
    _count(source, counts)
    for kind in ("float", "int"):
        # A product and a sum count as one multiply-add even if they are not adjacent: an estimate.
        fused = min(counts[f"{kind}_mul"], counts[f"{kind}_addsub"])
        counts[f"{kind}_mad"] = fused
        counts[f"{kind}_mul"] -= fused
        counts[f"{kind}_addsub"] -= fused
    return OpCounts(**counts, factors=_widened_factors(source) if combiner == "sum" else None)


def _widened_factors(source: Expr) -> tuple[str, str] | None:
    """The types of the factors of a product before they were cast."""
    match source:
        case Binary(op=BinaryOp.MUL, lhs=Cast(value=lhs), rhs=Cast(value=rhs)):
            return lhs.dtype, rhs.dtype
    return None


def _prefix(expr: Expr) -> str:
    return "float" if is_float(expr.dtype) else "int"


def _count(expr: Expr, counts: dict[str, int]) -> None:
    match expr:
        case TensorRead():
            return
        case Binary():
            if expr.op in LOGICAL:
                counts["bool_op"] += 1
            else:
                kind = "cmp" if expr.op in COMPARISONS else _CLASS[expr.op]
                counts[f"{_prefix(expr.lhs)}_{kind}"] += 1
        case Not():
            counts["bool_op"] += 1
        case Select():
            counts["select_op"] += 1
        case Call(name="isnan"):
            counts[f"{_prefix(expr.args[0])}_cmp"] += 1
        case Call():
            counts[f"{_prefix(expr)}_math"] += 1
        case Cast():
            counts[f"{_prefix(expr)}_other"] += 1
    for child in children(expr):
        _count(child, counts)
