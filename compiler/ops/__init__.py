"""The graph operators, one module a family; a module defines all of its operators: checks, lowering, NumPy meaning.

`OPS` is the table name -> `Op`. A new operator is one `Op` in the module of its family.
"""

from collections.abc import Sequence

from retune.compiler.ops import (
    conv,
    conv_transpose,
    elementwise,
    few_bits,
    indexing,
    matmul,
    norm,
    pool,
    quantized,
    recurrence,
    reduce,
    resample,
    scan,
    shape,
    trees,
    winograd,
)
from retune.compiler.ops.op import POINTWISE, Array, Attribute, FusionKind, Lowered, Op, OpCall

_FAMILIES = (
    elementwise,
    few_bits,
    reduce,
    conv,
    conv_transpose,
    winograd,
    matmul,
    quantized,
    pool,
    norm,
    shape,
    indexing,
    recurrence,
    resample,
    trees,
)

OPS: dict[str, Op] = {op.name: op for family in _FAMILIES for op in family.OPERATORS}
"""The operators by name."""
OPS.update({op.name: op for op in scan.operators(OPS)})


def check(call: OpCall) -> Lowered:
    """The shape, dtype and lowering of a call.

    Raises: DefinitionError when there is no such operator, or operands or attributes do not fit it.
    """
    return _find(call).check(call)


def evaluate(call: OpCall, arrays: Sequence[Array]) -> Array:
    """The result of a call by NumPy. Raises: DefinitionError as `check`."""
    return _find(call).compute(call, arrays)


def _find(call: OpCall) -> Op:
    op = OPS.get(call.op)
    if op is None:
        raise call.misfit(f"no operator {call.op!r}; there are {', '.join(sorted(OPS))}")
    return op


__all__ = ["OPS", "POINTWISE", "Array", "Attribute", "FusionKind", "Lowered", "Op", "OpCall", "check", "evaluate"]
