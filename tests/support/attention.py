"""Attention as tensor expressions, and what NumPy makes of it."""

from typing import Any

import numpy as np

from retune.compiler import te
from retune.compiler.ops import OPS
from retune.compiler.schedule.dag import ComputeDAG

Numbers = Any


def attention(rows: int, heads: int, columns: int, size: int, *, masked: bool = False) -> ComputeDAG:
    """softmax(q k / 4 + mask) v, of q (rows, heads, size), k (heads, size, columns), v (columns, heads, size)."""
    q, k = te.placeholder((rows, heads, size), name="q"), te.placeholder((heads, size, columns), name="k")
    v, mask = te.placeholder((columns, heads, size), name="v"), te.placeholder((columns,), name="mask")
    r, c = te.reduce_axis(size, "r"), te.reduce_axis(columns, "c")
    products = te.compute((heads, rows, columns), lambda h, i, j: te.sum(q[i, h, r] * k[h, r, j], r), "products")

    def score(h: Any, i: Any, j: Any) -> Any:
        return products[h, i, j] * 0.25 + mask[j] if masked else products[h, i, j] * 0.25

    scores = te.compute(products.shape, score, "scores")
    shares = OPS["softmax"].tensor([scores], {"axis": 2}, name="shares")
    result = te.compute((rows, heads, size), lambda i, h, d: te.sum(shares[h, i, c] * v[c, h, d], c), "result")
    return ComputeDAG([q, k, *([mask] if masked else []), v, result])


def attention_of(q: Numbers, k: Numbers, *rest: Numbers) -> Numbers:
    """The same in float64, of arrays in the order of the arguments."""
    *mask, v = (array.astype(np.float64) for array in rest)
    scores = np.einsum("ihd,hdj->hij", q.astype(np.float64), k) * 0.25 + sum(mask)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", powers / powers.sum(-1, keepdims=True), v)
