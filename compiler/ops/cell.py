"""The element-wise part of one recurrent step as one operator, in place of some twenty nodes.

Its `program` is a formula in postfix form. `2.1` is gate 1 of operand 2, whose gates lie side by side;
`#2` is a number.

    0.1 1.1 add sigmoid 2.0 multiply      sigmoid(gate 1 of operand 0 + gate 1 of operand 1) * operand 2
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall
from retune.compiler.te.tensor import Tensor

_UNARY = ("sigmoid", "tanh")
_BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
"""Functions of `te`, and of NumPy by the same names."""


def _run(call: OpCall, gate: Callable[[int, int], object], number: Callable[[float], object], library: object) -> Any:
    """The value of the program, by the functions of a library."""
    stack: list[object] = []
    for word in call.text("program").split():
        if word in _UNARY or word in _BINARY:
            count = 1 if word in _UNARY else 2
            stack[-count:] = [getattr(library, word)(*stack[-count:])]
        elif word.startswith("#"):
            stack.append(number(float(word[1:])))
        else:
            stack.append(gate(*map(int, word.split("."))))
    (result,) = stack
    return result


def _lower(call: OpCall) -> Lowered:
    """A formula over gates, which lie side by side in the operands, as `program` spells it."""
    hidden, rows, dtype = call.integer("hidden"), call.types[0].shape[0], call.types[0].dtype
    fits = all(
        len(operand.shape) == 2 and operand.dtype == dtype and operand.shape[0] in (1, rows) for operand in call.types
    )
    call.require(fits, "needs matrices of one type, of as many rows as the first or of one")
    gates = [map(int, word.split(".")) for word in call.text("program").split() if word[0].isdigit()]
    wide = all(call.types[number].shape[1] >= (index + 1) * hidden for number, index in gates)
    call.require(wide, f"an operand has too few gates of {hidden} columns")

    def build(*operands: Tensor) -> Tensor:
        def body(i: Expr, j: Expr) -> Expr:
            def gate(number: int, index: int) -> Expr:
                operand = operands[number]
                return operand[0 if operand.shape[0] == 1 else i, j + index * hidden]

            return te.cast(dtype, _run(call, gate, lambda value: te.const(value, dtype), te))

        return te.compute((rows, hidden), body, name=call.name)

    return Lowered((rows, hidden), dtype, build)


_ARRAYS = SimpleNamespace(
    sigmoid=lambda x: 1 / (1 + np.exp(-x)), **{name: getattr(np, name) for name in ("tanh", *_BINARY)}
)


def _evaluate(call: OpCall, arrays: Sequence[Array]) -> Array:
    hidden = call.integer("hidden")

    def gate(number: int, index: int) -> Array:
        return arrays[number][:, index * hidden : (index + 1) * hidden]

    return np.asarray(_run(call, gate, arrays[0].dtype.type, _ARRAYS))


OPERATORS = (Op("cell", None, FusionKind.OPAQUE, _lower, _evaluate, {"program": str, "hidden": int}),)
