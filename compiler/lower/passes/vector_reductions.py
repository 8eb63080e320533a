"""Vectorize innermost reductions over contiguous elements that are outside of every vector loop.

Integer results are exactly the same; floats are joined in another order, 16-bit floats in float32.

    before: for k in 4096: s[i] = s[i] + x[i, k]
    after:  part = 0 over 64 lanes;  for t in 64: part[l] = part[l] + x[i, 64 t + l] over 64 lanes
            part[l] = part[l] + part[l + 32] over 32 lanes; … over 16, 8, 4, 2;  s[i] = s[i] + (part[0] + part[1])
Several vectors in an iteration are independent chains, which hide the latency of the joining operation.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from retune.compiler.core.dtype import item_bytes, sum_type
from retune.compiler.ir.affine import flat_index, stride_of
from retune.compiler.ir.expr import (
    BOOL,
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    cast,
    const,
    is_float,
)
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.rewrite import nest, perfect_nest, rewrite_down
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, Store, block
from retune.compiler.ir.visit import find, has, of_type, replace_nodes, substitute, uses, variables

CHAINS = 4
"""Vectors of partial results of a long reduction: the latency of an addition."""
MIN_EXTENT = 8
"""A shorter reduction costs less in its own order."""


def vectorize_reductions(function: LoopFunction, vector_bytes: int) -> LoopFunction:
    """Sum over the lanes of registers of `vector_bytes`."""
    numbers = count()

    def on_loop(loop: For, _: Ranges) -> Stmt | None:
        if loop.kind is LoopKind.VECTOR:
            return loop
        reduction = _reduction(loop)
        return None if reduction is None else _in_lanes(*reduction, next(numbers), vector_bytes)

    return replace(function, body=rewrite_down(function.body, {For: on_loop}))


def _in_lanes(loops: Sequence[For], update: Store, value: Binary, number: int, vector_bytes: int) -> Stmt:
    """The reduction `loops`, the innermost of them over lanes; partial results are in buffer `number`."""
    buffer, inner = update.buffer, loops[-1]
    # Extremes of two-byte floats, whose sums are float32 already: each element is converted once.
    dtype = sum_type(buffer.dtype)
    lanes = max(1, vector_bytes // item_bytes(dtype))
    # A power of two, so that halving ends at two lanes.
    width = min(lanes * CHAINS, 1 << (inner.extent.bit_length() - 1))
    part = Buffer(f"{buffer.name}.part{number}", (width,), dtype, "register")
    lane, iteration = Var(f"{inner.var.name}.lane"), Var(f"{inner.var.name}.iteration")

    def over(extent: int, right: Expr) -> Stmt:
        joined = Store(part, (lane,), binary(value.op, Load(part, (lane,)), cast(dtype, right)))
        return For(lane, extent, LoopKind.VECTOR, joined)

    iterations, remainder = divmod(inner.extent, width)
    index = (iteration if iterations > 1 else const(0)) * width + lane
    body: list[Stmt] = [over(width, substitute(value.rhs, {inner.var: index}))]
    if iterations > 1:
        body = [For(iteration, iterations, LoopKind.SERIAL, body[0])]
    # The remainder joins the first lanes, each of which keeps its own partial result.
    if remainder:
        body.append(over(remainder, substitute(value.rhs, {inner.var: lane + iterations * width})))
    work = nest(loops[:-1], block(*body))
    start = For(lane, width, LoopKind.VECTOR, Store(part, (lane,), _identity(value.op, dtype)))
    folds = []
    # Pairwise summation of the lanes: log2 steps, and an error that grows only with their number.
    while width > 2:
        width //= 2
        folds.append(over(width, Load(part, (lane + width,))))
    first, second = (Load(part, (const(position),)) for position in range(2))
    total = binary(value.op, cast(dtype, value.lhs), binary(value.op, first, second))
    return Allocate(part, block(start, work, *folds, replace(update, value=cast(buffer.dtype, total))))


def _reduction(loop: For) -> tuple[Sequence[For], Store, Binary] | None:
    """The loops, the update and its value, of a perfect nest that reduces contiguous elements into a single element."""
    match perfect_nest(loop, LoopKind.SERIAL, LoopKind.UNROLL):
        case loops, Store(buffer, indices, Binary(op, old) as joined) as update if op in _IDENTITIES:
            if old != Load(buffer, indices) or not variables(*indices).isdisjoint(loop.var for loop in loops):
                return None
            collapsed, value = _collapse(loops, joined)
            if collapsed[-1].extent >= MIN_EXTENT and _is_contiguous(value.rhs, buffer, collapsed[-1].var):
                return collapsed, update, value
    return None


def _collapse(loops: Sequence[For], value: Binary) -> tuple[Sequence[For], Binary]:
    """The innermost loops fused where they walk through memory without a gap, as a window of whole rows does. The index
    of the last dimension then runs on into the next rows.
    """
    while len(loops) > 1 and _runs_on(value.rhs, loops[-2], loops[-1]):
        outer, inner = loops[-2:]
        value = replace(value, rhs=substitute(value.rhs, {outer.var: const(0)}))
        loops = [*loops[:-2], replace(inner, extent=outer.extent * inner.extent)]
    return loops, value


def _runs_on(source: Expr, outer: For, inner: For) -> bool:
    """Whether every read moves as far in an iteration of `outer` as in all of `inner`; nothing else depends on them."""
    others = replace_nodes(source, Load, lambda load: Var("read", load.dtype))
    if has(Select, source) or uses(others, outer.var, inner.var):
        return False
    for load in find(Load, source):
        form = flat_index(load.buffer.shape, load.indices)
        # A quotient or remainder does not run on from one row to the next.
        if len(form.terms) != len(list(of_type(Var, form.terms))):
            return False
        if form.terms.get(outer.var, 0) != form.terms.get(inner.var, 0) * inner.extent:
            return False
    return True


def _is_contiguous(source: Expr, result: Buffer, var: Var) -> bool:
    """Whether `source` reads contiguous elements, or a fixed element, along `var`, and does not read the result."""
    if any(uses(choice.condition, var) for choice in find(Select, source)):
        return False
    loads = list(find(Load, source))
    strides = {stride_of(load.buffer, load.indices, var) for load in loads}
    return 1 in strides and strides <= {0, 1} and all(load.buffer != result for load in loads)


_IDENTITIES = {BinaryOp.ADD: 0, BinaryOp.MUL: 1, BinaryOp.MAX: -np.inf, BinaryOp.FMAX: -np.inf, BinaryOp.MIN: np.inf}


def _identity(op: BinaryOp, dtype: str) -> Const:
    """The value that leaves every value of the type unchanged."""
    value = _IDENTITIES[op]
    if np.isfinite(value) or is_float(dtype):
        return const(value, dtype)
    if dtype == BOOL:
        return const(op is BinaryOp.MIN)
    limits = np.iinfo(dtype)
    return const(int(limits.max if op is BinaryOp.MIN else limits.min), dtype)
