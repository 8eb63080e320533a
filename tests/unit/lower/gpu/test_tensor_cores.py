"""Kernels that multiply on tensor cores: how they are made, and what is refused."""

from dataclasses import replace

import pytest

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.stmt import Barrier, walk_stmt
from retune.compiler.ir.tensor_core import AsyncCopy, LoadMatrix, WaitGroup
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.lower.gpu.tensor_cores import TensorBuilder
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.steps import Annotate, ComputeAt, Reorder, Split, Step, StorageAlign, steps_of
from tests.support.cases import check_case
from tests.support.kernel_texts import sections_of
from tests.support.tensor_core_products import (
    PRODUCTS,
    check_as_threads_and_as_ptx,
    product,
    tensor_space,
    with_lengths,
)
from tests.support.workloads import GPU


def small(depth: int = 2) -> State:
    """C = A B in tiles of 64 x 16 by two warps, in turns of 16 along the sum."""
    dag = product(64, 32, 64)
    return replay(dag, with_lengths(tensor_space(dag), columns=16, depth=depth))


def test_how_they_are_made(update_golden: bool) -> None:
    state = small()
    check_case("gpu", "tensor", sections_of(state, TensorBuilder), update_golden)


@pytest.mark.parametrize(("depth", "copies", "barriers"), [(1, 1, 2), (2, 2, 1), (3, 3, 1), (4, 4, 1)])
def test_a_pipeline_has_a_tile_for_every_turn_under_way(depth: int, copies: int, barriers: int) -> None:
    (kernel,) = lower_for_gpu(small(depth), "k", GPU, check=True).kernels
    assert kernel.bytes_of("shared") == copies * 2 * (64 * 24 + 16 * 24)
    found = list(walk_stmt(kernel.body.body))
    assert sum(isinstance(stmt, Barrier) for stmt in found) == barriers
    assert [stmt.pending for stmt in found if isinstance(stmt, WaitGroup)] == [max(0, depth - 2)]
    assert sum(isinstance(stmt, AsyncCopy) for stmt in found) == 2 * copies


def test_a_pipeline_is_no_deeper_than_its_loop_is_long() -> None:
    dag = product(64, 32, 32)
    function = lower_for_gpu(replay(dag, with_lengths(tensor_space(dag), depth=4)), "k", GPU, check=True)
    assert function.kernels[0].bytes_of("shared") == 2 * 2 * (64 * 24 + 16 * 40)
    once = lower_for_gpu(replay(dag, with_lengths(tensor_space(dag), depth=4, steps=2)), "k", GPU, check=True)
    assert once.kernels[0].bytes_of("shared") == 2 * (64 * 40 + 32 * 40)


def test_copies_are_as_wide_as_they_may_be() -> None:
    dag = PRODUCTS["conv2d"]()
    (kernel,) = lower_for_gpu(replay(dag, with_lengths(tensor_space(dag))), "k", GPU, check=True).kernels
    copies = [stmt for stmt in walk_stmt(kernel.body.body) if isinstance(stmt, AsyncCopy)]
    assert {copy.count for copy in copies} == {8}
    odd = product(50, 37, 43)
    (kernel,) = lower_for_gpu(replay(odd, with_lengths(tensor_space(odd))), "k", GPU, check=True).kernels
    assert not any(isinstance(stmt, AsyncCopy) for stmt in walk_stmt(kernel.body.body))
    assert any(isinstance(stmt, LoadMatrix) for stmt in walk_stmt(kernel.body.body))


def refuse_steps(message: str, steps: tuple[Step, ...]) -> None:
    with pytest.raises(LoweringError, match=message):
        lower_for_gpu(replay(product(64, 32, 64), steps), "k", GPU)


def test_what_is_no_product_for_them_is_refused() -> None:
    plain = replay(product(64, 32, 64), (Annotate(2, 0, Annotation.TENSORIZE),))
    with pytest.raises(LoweringError, match="C: tensor cores do a product of matrices that stands inside the loops"):
        lower_for_gpu(plain, "k", GPU)


def test_loops_that_are_not_those_of_an_instruction_are_refused() -> None:
    steps = tuple(
        Split(step.stage, step.iter, 0, (8,))
        if isinstance(step, Split) and step.stage == 4 and step.lengths == (16,)
        else step
        for step in steps_of(small())
    )
    refuse_steps(
        "C.mma: tensor cores do the three innermost loops, of 16, 8, 16 iterations; here they would be asked for", steps
    )
    swapped = tuple(
        Reorder(4, (0, 5, 6, 3, 1, 2, 4, 7)) if isinstance(step, Reorder) and step.stage == 4 else step
        for step in steps_of(small())
    )
    refuse_steps("C.mma: the innermost loops must be over fragments of m, of n, then over m, n and k", swapped)


def test_sums_are_read_by_the_lane_that_has_them() -> None:
    steps = tuple(
        Split(5, step.iter, 0, (4, 4)) if isinstance(step, Split) and step.lengths == (2, 8) else step
        for step in steps_of(small())
    )
    refuse_steps(
        r"C.mma: its element .* is read in lane .* of the warp, but it lies in lane .*; split the loops", steps
    )


def test_rows_that_are_not_aligned_are_refused() -> None:
    steps = tuple(
        StorageAlign(step.stage, step.iter, 4, 1) if isinstance(step, StorageAlign) else step
        for step in steps_of(small())
    )
    refuse_steps("C.mma: rows of C.left.shared do not start at multiples of 16 bytes; align its storage", steps)


@pytest.mark.parametrize(
    ("turned", "offset", "counts"),
    [
        ("", 4, {4}),  # the left factor
        ("B", 4, {4}),
        ("A", 4, set()),  # of both the rows lie across the depth
        ("B", 1, set()),  # rows that start anywhere
    ],
)
def test_float32_along_the_depth_is_loaded_as_matrices(turned: str, offset: int, counts: set[int]) -> None:
    dag = product(64, 32, 64, "float32", turned=turned)
    steps = tuple(
        replace(step, offset=offset) if isinstance(step, StorageAlign) and step.factor == 8 else step
        for step in with_lengths(tensor_space(dag), steps=2, left=1, right=1)
    )
    function = lower_for_gpu(replay(dag, steps), "k", GPU, check=True)
    (kernel,) = function.kernels
    found = [stmt for stmt in walk_stmt(kernel.body.body) if isinstance(stmt, LoadMatrix)]
    assert {stmt.count for stmt in found} == counts
    assert {stmt.source.name for stmt in found} <= {"C.left.shared"} | ({"C.right.shared"} if turned == "B" else set())
    check_as_threads_and_as_ptx(dag, function)


def test_nothing_stands_inside_the_fragments() -> None:
    steps = tuple(
        ComputeAt(2, 4, 3) if isinstance(step, ComputeAt) and step.stage == 2 else step for step in steps_of(small())
    )
    refuse_steps("C.mma: nothing can be computed inside the loops over fragments; move it out", steps)
