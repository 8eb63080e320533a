"""What indices are, for values of their variables."""

from collections.abc import Mapping

import numpy as np

from retune.compiler.ir.expr import Binary, Const, Expr
from retune.compiler.ir.numeric import BINARY


def value_of(expr: Expr, names: Mapping[Expr, int]) -> int:
    """The value of an index."""
    if isinstance(expr, Const):
        return int(expr.value)
    if isinstance(expr, Binary):
        return int(BINARY[expr.op](np.array(value_of(expr.lhs, names)), np.array(value_of(expr.rhs, names))))
    return names[expr]
