"""Local buffers that no stack holds lie in the workspace, one for each iteration of a parallel loop."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import LoweringError
from retune.compiler.driver.build import build
from retune.compiler.ir.stmt import Allocate, walk_stmt
from retune.compiler.ir.verify import verify
from retune.compiler.lower.passes.move_locals import move_locals
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeAt, Step
from tests.support.small_computations import loops

STACK = 256 << 10


def rows(count: int, width: int) -> ComputeDAG:
    """y is made of b, and b of a, each row by row."""
    x = te.placeholder((count, width), name="x")
    a = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "a")
    b = te.compute(x.shape, lambda i, j: a[i, width - 1 - j] * a[i, 0], "b")
    y = te.compute(x.shape, lambda i, j: b[i, j] + b[i, 0] + x[i, j], "y")
    return ComputeDAG([x, y])


def steps(*, parallel: bool) -> tuple[Step, ...]:
    attached = ComputeAt(2, 3, 0), ComputeAt(1, 3, 0)
    return (*attached, Annotate(3, 0, Annotation.PARALLEL)) if parallel else attached


@pytest.mark.parametrize(
    ("width", "local"), [(20_000, ["a", "b"]), (40_000, ["b"]), (100_000, [])], ids=["none", "the largest", "both"]
)
@pytest.mark.parametrize("parallel", [False, True])
def test_the_largest_move_until_the_others_fit(width: int, local: list[str], parallel: bool) -> None:
    dag = rows(5, width)
    function = move_locals(loops(dag, *steps(parallel=parallel)), STACK)
    verify(function, "move-locals")
    assert sorted(stmt.buffer.name for stmt in walk_stmt(function.body) if isinstance(stmt, Allocate)) == local
    shape = (5, 1, width) if parallel else (1, width)
    assert {buffer.shape for buffer in function.workspace} <= {shape}
    kernel = build(dag, steps(parallel=parallel))
    x = np.random.default_rng(0).standard_normal((5, width), dtype=np.float32)
    b = (x[:, ::-1] + 1.0) * (x[:, :1] + 1.0)
    (result,) = kernel.outputs()
    for threads in (1, 2):
        result[:] = np.nan
        kernel(*kernel.prepared(x), result, threads=threads)
        np.testing.assert_allclose(result, b + b[:, :1] + x, rtol=1e-5, atol=1e-5)


def test_what_would_take_too_much_of_the_workspace_is_refused() -> None:
    with pytest.raises(LoweringError, match="bytes of stack"):
        build(rows(400, 100_000), steps(parallel=True))
