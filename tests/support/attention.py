"""Attention as tensor expressions, and what NumPy makes of it."""

from functools import partial
from typing import Any

import numpy as np

from retune.compiler import te
from retune.compiler.ops import OPS
from retune.compiler.schedule.dag import ComputeDAG

Numbers = Any


def attention(
    rows: int, heads: int, columns: int, size: int, *, masked: bool = False, dtype: str = "float32"
) -> ComputeDAG:
    """softmax(q k / 4 + mask) v, of q (rows, heads, size), k (heads, size, columns), v (columns, heads, size), which
    have the `dtype`; scores, mask and sums are float32.
    """
    q, k = te.placeholder((rows, heads, size), dtype, "q"), te.placeholder((heads, size, columns), dtype, "k")
    v, mask = te.placeholder((columns, heads, size), dtype, "v"), te.placeholder((columns,), name="mask")
    wide = partial(te.cast, "float32")
    r, c = te.reduce_axis(size, "r"), te.reduce_axis(columns, "c")
    products = te.compute(
        (heads, rows, columns), lambda h, i, j: te.sum(wide(q[i, h, r]) * wide(k[h, r, j]), r), "products"
    )

    def score(h: Any, i: Any, j: Any) -> Any:
        return products[h, i, j] * 0.25 + mask[j] if masked else products[h, i, j] * 0.25

    scores = te.compute(products.shape, score, "scores")
    shares = OPS["softmax"].tensor([scores], {"axis": 2}, name="shares")
    terms = lambda i, h, d: shares[h, i, c] * wide(v[c, h, d])  # noqa: E731
    result = te.compute((rows, heads, size), lambda i, h, d: te.cast(dtype, te.sum(terms(i, h, d), c)), "result")
    return ComputeDAG([q, k, *([mask] if masked else []), v, result])


def attention_of(q: Numbers, k: Numbers, *rest: Numbers) -> Numbers:
    """The same in float64, of arrays in the order of the arguments."""
    *mask, v = (array.astype(np.float64) for array in rest)
    scores = np.einsum("ihd,hdj->hij", q.astype(np.float64), k) * 0.25 + sum(mask)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", powers / powers.sum(-1, keepdims=True), v)
