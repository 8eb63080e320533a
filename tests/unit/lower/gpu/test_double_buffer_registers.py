"""Fragments of products on tensor cores that are loaded a step ahead: in which programs, and that these are right."""

import pytest

from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.ir.expr import const
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.ir.stmt import Barrier, For, LoopKind, Stmt, walk_stmt
from retune.compiler.ir.tensor_core import LoadMatrix, Mma, WaitGroup
from retune.compiler.lower.gpu.double_buffer_registers import double_buffer_registers
from tests.support.tensor_core_products import (
    TF32,
    check_as_threads_and_as_ptx,
    lowered,
    product,
    tensor_space,
    with_lengths,
)


def program(steps: int, depth: int, dtype: str = "float16", iterations: int = 4, size: int = 32) -> DeviceFunction:
    """A product in so many iterations of so many steps, by two warps."""
    deep = 8 if dtype == "float32" else 16
    dag = product(size, size, iterations * steps * deep, dtype)
    return lowered(dag, with_lengths(tensor_space(dag), rows=16, columns=16, steps=steps, depth=depth))


def iterations_of(function: DeviceFunction) -> list[Stmt]:
    """The statements of the loop over iterations."""
    (kernel,) = function.kernels
    loops = [stmt for stmt in walk_stmt(kernel.body.body) if isinstance(stmt, For) and stmt.var.name.startswith("k.0")]
    return list(walk_stmt(next(loop for loop in loops if loop.kind is LoopKind.SERIAL)))


@pytest.mark.parametrize("depth", [2, 3])
def test_each_step_multiplies_what_the_one_before_has_loaded(depth: int) -> None:
    found = iterations_of(program(2, depth))
    kept = [stmt for stmt in found if isinstance(stmt, (LoadMatrix, Mma, WaitGroup, Barrier))]
    kinds = "".join({LoadMatrix: "l", Mma: "m", WaitGroup: "w", Barrier: "b"}[type(stmt)] for stmt in kept)
    assert kinds == "llmwbllm"
    sets = [stmt.indices[0] for stmt in kept if isinstance(stmt, LoadMatrix)]
    assert sets == [const(1), const(1), const(0), const(0)]
    assert [stmt.left_at[0] for stmt in kept if isinstance(stmt, Mma)] == [const(0), const(1)]
    assert [stmt.right_at[0] for stmt in kept if isinstance(stmt, Mma)] == [const(0), const(1)]


@pytest.mark.parametrize(("steps", "depth"), [(1, 3), (2, 1)])
def test_without_a_pipeline_or_a_second_step_nothing_changes(steps: int, depth: int) -> None:
    kinds = [type(stmt) for stmt in iterations_of(program(steps, depth))]
    assert kinds.index(WaitGroup) < kinds.index(LoadMatrix) < kinds.index(Mma)
    (kernel,) = program(steps, depth).kernels
    assert double_buffer_registers(kernel.body) == kernel.body


@pytest.mark.parametrize(
    ("steps", "depth", "dtype", "iterations", "size"),
    [
        (2, 2, "float16", 4, 32),
        (2, 3, "float32", 5, 32),
        (4, 2, "bfloat16", 3, 32),
        (4, 4, "float32", 4, 32),
        (2, 4, "float16", 2, 32),  # no deeper than there are iterations
        (2, 3, "float16", 4, 40),  # a tile that is cut
    ],
)
def test_they_compute_the_definition(steps: int, depth: int, dtype: str, iterations: int, size: int) -> None:
    deep = 8 if dtype == "float32" else 16
    dag = product(size, size, iterations * steps * deep, dtype)
    function = program(steps, depth, dtype, iterations, size)
    check_as_threads_and_as_ptx(dag, function)


def test_the_turns_of_three_tiles_are_counted_and_not_divided() -> None:
    text = ptx(program(2, 3, iterations=9), TF32)
    assert "rem." not in text
    assert text.count("selp.b32") >= 2  # the number of the tile starts again, that of the copies too
    assert "mul.hi" not in text


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_a_turn_loads_for_the_next_one_is_loaded_in_it(dtype: str) -> None:
    """Behind the last barrier, before what is multiplied meanwhile, and not at the beginning of the next
    iteration.
    """
    behind = ptx(program(2, 3, dtype, iterations=9), TF32).split("bar.sync")[-1]
    load = "ldmatrix" if dtype == "float16" else "ld.shared"
    assert behind.index(load) < behind.index("mma.sync")
