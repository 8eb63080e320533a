"""In: two matrices or two batches of them. Out: their product as one reduction.

Always: row-major operands, no transposition.
"""

from typing import Any

from compiler import te
from compiler.te.ops.call import OpCall
from compiler.te.tensor import Tensor


def dense(call: OpCall) -> Tensor:
    """(M, K) x (K, N) -> (M, N)."""
    a, b = call.tensor(0), call.tensor(1)
    k = te.reduce_axis(a.shape[1], "k")
    attrs: dict[str, Any] = call.layout_free(1)
    return te.compute(call.shape, lambda i, j: te.sum(a[i, k] * b[k, j], k), name=call.name, attrs=attrs)


def batch_matmul(call: OpCall) -> Tensor:
    """(B, M, K) x (B, K, N) -> (B, M, N)."""
    a, b = call.tensor(0), call.tensor(1)
    k = te.reduce_axis(a.shape[2], "k")
    attrs: dict[str, Any] = call.layout_free(1)
    return te.compute(call.shape, lambda n, i, j: te.sum(a[n, i, k] * b[n, k, j], k), name=call.name, attrs=attrs)
