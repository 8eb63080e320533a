"""Operator that walks decision trees: the leaf of every row in every tree, all trees side by side, level by level."""

from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.ir.expr import Expr, Var
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall
from retune.compiler.te.scan import scan_steps
from retune.compiler.te.tensor import Tensor


def _leaves(call: OpCall) -> Lowered:
    """The nodes, (rows, trees), that `levels` steps lead to, for x (rows, features) and `roots` (trees).

    At a node a row goes to the first of its `children` (2 x nodes) if the feature `tests // 2` is at most `splits`, or
    if it is NaN and `tests` is odd; else to the second.
    """
    x, tests, splits, children, roots = call.types
    fits = len(x.shape) == 2 and all(len(table.shape) == 1 for table in call.types[1:]) and x.dtype == splits.dtype
    fits = (
        fits and tests.shape == splits.shape and children.shape == (2 * tests.shape[0],) and call.integer("levels") > 0
    )
    call.require(fits and {tests.dtype, children.dtype, roots.dtype} == {"int32"}, "the tables do not fit each other")
    shape, levels = (x.shape[0], roots.shape[0]), call.integer("levels")

    def build(x: Tensor, tests: Tensor, splits: Tensor, children: Tensor, roots: Tensor) -> Tensor:
        step = Var(f"{call.name}.step")
        last = te.placeholder((levels + 1, *shape), "int32", f"{call.name}_last")

        def follow(row: Expr, tree: Expr) -> Expr:
            node = last[step - 1, row, tree]
            value = x[row, te.minimum(tests[node] // 2, x.shape[1] - 1)]
            missing = te.logical_and(te.isnan(value), te.equal(tests[node] % 2, 1))
            is_first = te.logical_or(value <= splits[node], missing)
            return children[2 * node + te.select(is_first, te.const(0, "int32"), te.const(1, "int32"))]

        first = te.compute((1, *shape), lambda *point: roots[point[2]], f"{call.name}_roots")
        level = te.compute(shape, follow, f"{call.name}_level")
        (nodes,) = scan_steps(step, [first], [level], [last], f"{call.name}_nodes")
        return te.compute(shape, lambda *point: nodes[(te.const(levels), *point)], call.name)

    return Lowered(shape, "int32", build)


def _leaves_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, tests, splits, children, roots = arrays
    nodes = np.broadcast_to(roots, (len(x), len(roots)))
    for _ in range(call.integer("levels")):
        value = np.take_along_axis(x, np.minimum(tests[nodes] // 2, x.shape[1] - 1), axis=1)
        is_first = (value <= splits[nodes]) | (np.isnan(value) & (tests[nodes] % 2 == 1))
        nodes = children[2 * nodes + np.where(is_first, 0, 1)]
    return np.asarray(nodes)


OPERATORS = (Op("tree_leaves", 5, FusionKind.OPAQUE, _leaves, _leaves_array, {"levels": int}),)
