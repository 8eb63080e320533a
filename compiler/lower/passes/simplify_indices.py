"""Simplify the quotients and remainders of indices, and choices between rows.

It is exact; what the extents of the loops do not decide stays. `retune.compiler.ir.simplify` has the rules.

    before: for j.0 in 4: for j.1 in 8: W[(j.0 * 8 + j.1) // 8, (j.0 * 8 + j.1) % 8]
    after:  for j.0 in 4: for j.1 in 8: W[j.0, j.1]

    before: for t in 32: vector v in 4: s[(t * 4 + v) // 8, (t * 4 + v) % 8]
    after:  for t in 32: vector v in 4: s[t // 2, (t % 2) * 4 + v]
Such indices come from layouts chosen for the loops, reshaped tensors, and loops that were fused and split again.

    before: y[i, k] = select(i < 53, x[i + 3, k], x[i - 53, k])
    after:  y[i, k] = x[select(i < 53, i + 3, i - 53), k]
"""

from dataclasses import replace

from retune.compiler.ir.rewrite import map_exprs_in_scope
from retune.compiler.ir.simplify import choose_rows, simplify
from retune.compiler.ir.stmt import LoopFunction


def simplify_indices(function: LoopFunction) -> LoopFunction:
    """Resolve quotients and remainders by the ranges of the variables, and choose rows by their index."""
    body = map_exprs_in_scope(function.body, lambda expr, ranges: choose_rows(simplify(expr, ranges)), {})
    return function if body is function.body else replace(function, body=body)
