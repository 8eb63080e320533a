"""Conditions and indices that are the same for all lanes cost next to nothing: no branch, nothing computed inside."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.kernel import write_kernel
from retune.compiler.codegen.subtarget import subtarget_of
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel, kernel_source
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.stmt import LoopFunction
from retune.compiler.lower.symbolic import lower_symbolic
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeInline, Reorder, Split, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from tests.support.fenced import fenced


def task(dag: ComputeDAG) -> SearchTask:
    return SearchTask("t", dag, Target.host(), HardwareParams(1))


def padded_rows(outside: float, dtype: str = "float32") -> ComputeDAG:
    """Sums of three neighbors of 9 elements and one more on each side, for 20 columns."""
    x, k = te.placeholder((9, 20), dtype, "x"), te.reduce_axis(3, "k")
    pad = te.compute(
        (11, 20), lambda i, j: te.if_then_else(te.logical_and(i >= 1, i < 10), x[i - 1, j], outside), "pad"
    )
    return ComputeDAG([x, te.compute((9, 20), lambda i, j: te.sum(pad[i + k, j], k), "y")])


TILED: tuple[Step, ...] = (ComputeInline(1), Split(2, 0, 9, (3,)), Reorder(2, (0, 3, 1, 2)))


@pytest.mark.parametrize("steps", [(ComputeInline(1),), TILED, (*TILED, Annotate(2, 3, Annotation.VECTORIZE))], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_padding_inside_a_reduction(steps: tuple[Step, ...], dtype: str) -> None:
    dag = padded_rows(5.0 if dtype.startswith("float") else 5, dtype)
    text = kernel_source(task(dag), steps, "llvm")
    assert "sel" not in text.replace("select", "")
    artifact = build_kernel(task(dag), steps, "kernel")
    x = np.random.default_rng(0).integers(-9, 9, (9, 20)).astype(dtype)
    np.testing.assert_array_equal(fenced(artifact, [x]), evaluate(dag.outputs, {dag.inputs[0]: x})[0])


def test_a_test_of_outer_loops_is_made_outside_the_inner_ones() -> None:
    x = te.placeholder((8, 4096), name="x")
    dag = ComputeDAG([x, te.compute((9, 4096), lambda i, j: te.if_then_else(i < 8, x[i, j], 0.0), "y")])
    lines = kernel_source(task(dag), (), "llvm").splitlines()
    inner = max(number for number, line in enumerate(lines) if line.startswith("head"))
    assert any("icmp sge" in line for line in lines[:inner])
    assert not any("icmp sge" in line for line in lines[inner:])


@pytest.mark.parametrize(
    "row", [lambda i: i // 3, lambda i: i * 5 % 7, lambda i: te.minimum(i * i, 7)], ids=["quotient", "rest", "least"]
)
def test_an_index_of_outer_loops_is_computed_outside_the_inner_ones(row: Callable[[Expr], Expr]) -> None:
    x, k = te.placeholder((8, 4096), name="x"), te.reduce_axis(4096, "k")
    dag = ComputeDAG([x, te.compute((9,), lambda i: te.sum(x[row(i), k], k), "y")])
    lines = kernel_source(task(dag), (), "llvm").splitlines()
    inner = max(number for number, line in enumerate(lines) if line.startswith("head"))
    computed = [
        number for number, line in enumerate(lines) if any(word in line for word in ("sdiv", "srem", "mul i64"))
    ]
    assert computed
    assert max(computed) < inner
    values = np.random.default_rng(0).standard_normal((8, 4096), dtype=np.float32)
    found = fenced(build_kernel(task(dag), (), "kernel"), [values])
    np.testing.assert_allclose(found, evaluate(dag.outputs, {x: values})[0], rtol=1e-4, atol=1e-3)


def test_what_literals_decide_is_not_tested() -> None:
    x = te.placeholder((8,), name="x")
    dag = ComputeDAG([x, te.compute((9,), lambda i: te.if_then_else(i < 8, x[i], 0.0), "y")])
    text = kernel_source(task(dag), (Annotate(1, 0, Annotation.UNROLL),), "llvm")
    body = text[: text.index("define i32 @kernel")]
    assert "icmp" not in body
    assert body.count("= load float") == 8


def test_what_sizes_say_is_computed_once_before_the_loops() -> None:
    n, k = te.symbol("n"), te.reduce_axis(64, "k")
    x, w = te.placeholder((n, 64), name="x"), te.placeholder((64, 128), name="w")
    tensors = [x, w, te.compute((n, 128), lambda i, j: te.sum(x[i, k] * w[k, j], k), "y")]
    symbolic = SearchTask("t", ComputeDAG(tensors), Target.host(), HardwareParams(1))
    function = lower_symbolic(tensors, "kernel", symbolic.hardware)
    assert isinstance(function, LoopFunction)
    text = write_kernel(function, subtarget_of(symbolic), symbolic.hardware.stack_bytes).llvm
    before, _, loops = text[text.index("@kernel.body0(") : text.index("ret void")].partition("\nhead")
    assert before.count("srem i64 %size0, ") == 2  # of the quotient and of the remainder by rows of a block
    assert "%size0" not in loops
