"""Which parallel loops threads are started for."""

from collections.abc import Callable

import pytest

from retune.compiler import te
from retune.compiler.codegen.work import is_worth_threads
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.stmt import For, LoopKind, walk_stmt
from retune.compiler.lower.pipeline import lower
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import replay
from tests.support.small_computations import matmul


def elementwise(rows: int, columns: int, function: Callable[[Expr], Expr] = lambda x: x * 2.0 + 1.0) -> ComputeDAG:
    x = te.placeholder((rows, columns), name="x")

    def body(i: Expr, j: Expr) -> Expr:
        return function(x[i, j])

    return ComputeDAG([x, te.compute(x.shape, body, "y")])


@pytest.mark.parametrize(
    ("dag", "width", "wanted"),
    [
        (elementwise(16, 256), 32, False),
        (elementwise(256, 1024), 32, True),
        (elementwise(64, 1024), 64, False),
        (elementwise(64, 1024), 16, True),
        (elementwise(64, 256, te.exp), 32, True),
        (elementwise(4, 256, te.exp), 32, False),
        (elementwise(4, 256, te.tan), 32, True),
        (elementwise(64, 256), 32, False),
        (matmul(16, 16, 16), 32, False),
        (matmul(256, 256, 256), 32, True),
    ],
)
def test_a_loop_gets_threads_where_these_save_more_than_they_cost(dag: ComputeDAG, width: int, wanted: bool) -> None:
    hardware = HardwareParams(num_cores=2, vector_unit_bytes=width)
    function = lower(replay(dag, default_steps(dag, hardware)), "k", hardware)
    loops = [one for one in walk_stmt(function.body) if isinstance(one, For) and one.kind is LoopKind.PARALLEL]
    assert loops
    assert [is_worth_threads(loop, width) for loop in loops] == [wanted] * len(loops)
