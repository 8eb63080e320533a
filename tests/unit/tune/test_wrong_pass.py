"""The pass that changes what a program computes is found, with the lines that it changed: docs/how-to/debugging.md."""

from dataclasses import replace
from functools import wraps

import pytest

from retune.compiler import te
from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Var, const
from retune.compiler.ir.stmt import Block, For, Let, LoopFunction, LoopKind, Stmt, Store
from retune.compiler.lower import pipeline
from retune.compiler.lower.passes.simplify_indices import simplify_indices
from retune.compiler.lower.passes.unroll_locals import unroll_locals
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from tests.support.wrong_pass import find_wrong_pass


def product(target: str = "llvm -mcpu=znver4") -> SearchTask:
    x, w = te.placeholder((2, 4), name="x"), te.placeholder((4, 8), name="w")
    k = te.reduce_axis((0, 4), name="k")
    y = te.compute((2, 8), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    chosen = Target(target)
    return SearchTask("product", ComputeDAG([x, w, y]), chosen, hardware_of(chosen, 1))


def test_no_pass_is_blamed_for_a_right_program() -> None:
    assert find_wrong_pass(product(), default_steps_of(product())) is None


def test_a_planted_bug_is_found_with_the_line_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortened(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return Block(tuple(map(shortened, stmt.statements)))
        if isinstance(stmt, Let):
            return replace(stmt, body=shortened(stmt.body))
        if not isinstance(stmt, For):
            return stmt
        is_last = stmt.kind is LoopKind.SERIAL and stmt.extent == 4
        return replace(stmt, body=shortened(stmt.body), extent=3 if is_last else stmt.extent)

    @wraps(simplify_indices)
    def lose_an_iteration(function: LoopFunction) -> LoopFunction:
        function = simplify_indices(function)
        return replace(function, body=shortened(function.body))

    monkeypatch.setattr(pipeline, "simplify_indices", lose_an_iteration)
    found = find_wrong_pass(product(), default_steps_of(product()))
    assert found is not None
    assert found.name == "simplify-indices"
    assert "wrong answer in y: 16 of 16 elements differ" in found.reason
    assert [(line[0], line[1:].strip()) for line in found.difference.splitlines() if line[0] in "+-"] == [
        ("-", "for k.s2 in 4:"),
        ("+", "for k.s2 in 3:"),
    ]


def test_a_pass_that_writes_out_of_bounds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(unroll_locals)
    def write_nothing(function: LoopFunction, vector_bytes: int) -> LoopFunction:
        del vector_bytes
        return replace(function, body=Block(()))  # nothing is written

    monkeypatch.setattr(pipeline, "unroll_locals", write_nothing)
    found = find_wrong_pass(product(), default_steps_of(product()))
    assert found is not None
    assert (found.name, "is never written" in found.reason) == ("unroll-locals", True)


def test_a_definition_that_gives_nan_is_no_wrong_pass() -> None:
    x = te.placeholder((2, 8), name="x")
    target = Target("llvm -mcpu=znver4")
    dag = ComputeDAG([x, te.compute((2, 8), lambda i, j: te.sqrt(x[i, j]), name="y")])
    task = SearchTask("roots", dag, target, hardware_of(target, 1))
    assert find_wrong_pass(task, default_steps_of(task)) is None


def test_small_results_may_not_be_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    x, k = te.placeholder((4, 8), name="x"), te.reduce_axis(8, name="k")
    target = Target("llvm -mcpu=znver4")
    dag = ComputeDAG([x, te.compute((4,), lambda i: te.sum(x[i, k] * 1e-5, axis=k), name="y")])
    task = SearchTask("small", dag, target, hardware_of(target, 1))
    assert find_wrong_pass(task, default_steps_of(task)) is None

    @wraps(unroll_locals)
    def write_zeros(function: LoopFunction, vector_bytes: int) -> LoopFunction:
        del vector_bytes
        index, result = Var("i"), function.params[-1]
        return replace(function, body=For(index, 4, LoopKind.SERIAL, Store(result, (index,), const(0.0))))

    monkeypatch.setattr(pipeline, "unroll_locals", write_zeros)
    found = find_wrong_pass(task, default_steps_of(task))
    assert found is not None
    assert "4 of 4 elements differ" in found.reason


def test_gpu_passes_are_refused() -> None:
    with pytest.raises(OptionError, match="the passes of a CPU can be checked"):
        find_wrong_pass(product("cuda -arch=sm_90"), ())
