"""In: two matrices, two batches of them, or tensors with a letter for each axis. Out: their product as one reduction.

Always: nothing is moved; an operand is read where its elements lie; the sum has the type of the result.
"""

from typing import Any

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.tensor import Tensor


def dense(call: OpCall) -> Tensor:
    """(M, K) x (K, N) -> (M, N)."""
    a, b = call.tensor(0), call.tensor(1)
    k = te.reduce_axis(a.shape[1], "k")
    attrs: dict[str, Any] = call.layout_free(1)
    return te.compute(call.shape, lambda i, j: te.sum(call.product(a[i, k], b[k, j]), k), name=call.name, attrs=attrs)


def batch_matmul(call: OpCall) -> Tensor:
    """(B, M, K) x (B, K, N) -> (B, M, N)."""
    a, b = call.tensor(0), call.tensor(1)
    k = te.reduce_axis(a.shape[2], "k")
    attrs: dict[str, Any] = call.layout_free(1)

    def body(n: Expr, i: Expr, j: Expr) -> Expr:
        return te.sum(call.product(a[n, i, k], b[n, k, j]), k)

    return te.compute(call.shape, body, name=call.name, attrs=attrs)


def contract(call: OpCall) -> Tensor:
    """The sum of products that `left`, `right` and `result` spell, over the letters that the result lacks.

    hij,jhd->ihd        r[i, h, d] = sum over j of a[h, i, j] * b[j, h, d]
    """
    a, b = call.tensor(0), call.tensor(1)
    left, right, result = call.text("left"), call.text("right"), call.text("result")
    inner = [(letter, extent) for letter, extent in zip(left, a.shape, strict=True) if letter not in result]
    summed = {letter: te.reduce_axis(extent, f"k{place}") for place, (letter, extent) in enumerate(inner)}

    def body(*axes: Expr) -> Expr:
        at: dict[str, Expr] = {**dict(zip(result, axes, strict=True)), **summed}
        product = a[tuple(at[letter] for letter in left)] * b[tuple(at[letter] for letter in right)]
        return te.sum(product, list(summed.values())) if summed else product

    attrs: dict[str, Any] = call.layout_free(1)
    return te.compute(call.shape, body, name=call.name, attrs=attrs)
