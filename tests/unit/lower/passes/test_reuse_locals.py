"""A local buffer takes over the memory of the one that it is made of, where that is not needed any more."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.driver.build import build
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.stmt import Allocate, walk_stmt
from retune.compiler.ir.verify import verify
from retune.compiler.lower.passes.reuse_locals import reuse_locals
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import ComputeAt
from tests.support.small_computations import loops

STEPS = ComputeAt(2, 3, 0), ComputeAt(1, 3, 0)


def rows(
    width: int = 2000,
    dtype: str = "float32",
    second: Callable[[Callable[..., Expr], Expr, Expr], Expr] = lambda a, i, j: a(i, j),
    third: Callable[[Callable[..., Expr], Callable[..., Expr], Expr, Expr], Expr] = lambda _, b, i, j: b(i, j),
) -> ComputeDAG:
    """y is made of b, and b of a, each row by row."""
    x = te.placeholder((3, width), name="x")
    a = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "a")
    b = te.compute(x.shape, lambda i, j: te.cast(dtype, te.exp(second(lambda *at: a[at], i, j))), "b")
    y = te.compute(
        x.shape, lambda i, j: te.cast("float32", third(lambda *at: a[at], lambda *at: b[at], i, j)) * 2.0, "y"
    )
    return ComputeDAG([x, y])


@pytest.mark.parametrize(
    ("dag", "left"),
    [
        (rows(), ["a"]),
        (rows(third=lambda a, b, i, j: a(i, j) + b(i, j)), ["a", "b"]),
        (rows(third=lambda _, b, i, j: b(i, 1999 - j) + b(i, j)), ["a"]),
        (rows(second=lambda a, i, j: a(i, 1999 - j)), ["a", "b"]),
        (rows(second=lambda a, i, j: a(i, j) + a(i, 0)), ["a", "b"]),
        (rows(width=100), ["a", "b"]),
        (rows(dtype="float16"), ["a", "b"]),
    ],
    ids=["plain", "read later", "read in another order later", "turned", "two elements", "small", "another type"],
)
def test_memory_is_reused_where_nothing_needs_it_any_more(dag: ComputeDAG, left: list[str]) -> None:
    function = reuse_locals(loops(dag, *STEPS))
    verify(function, "reuse-locals")
    assert [stmt.buffer.name for stmt in walk_stmt(function.body) if isinstance(stmt, Allocate)] == left
    (given,) = (np.random.default_rng(0).standard_normal(tensor.shape, dtype=np.float32) for tensor in dag.inputs)
    results = []
    for steps in (STEPS, ()):
        kernel = build(dag, steps)
        (result,) = kernel.outputs()
        kernel(*kernel.prepared(given), result)
        results.append(np.array(result))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


def test_what_lies_in_the_workspace_stays_there() -> None:
    function = reuse_locals(loops(rows(), ComputeAt(2, 3, 0)))
    assert [stmt.buffer.name for stmt in walk_stmt(function.body) if isinstance(stmt, Allocate)] == ["b"]
