"""The order of the blocks of products on tensor cores whose factors the GPU's cache does not hold."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.gpu_facts import facts_of
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.kernel import INDICES, Kernel
from retune.compiler.ir.stmt import Let, LoopKind, Store, walk_stmt
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.search.space import SketchSpace
from retune.compiler.te.evaluate import evaluate
from tests.support.indices import value_of
from tests.support.property.programs import inputs_of
from tests.support.ptx.machine import run_ptx
from tests.support.simt.execute import execute
from tests.support.tensor_core_products import PRODUCTS, TF32, lowered, product, sampled, tensor_space, with_lengths
from tests.support.workloads import GPU

WITHOUT_CACHE = replace(GPU, facts=replace(facts_of("sm_80"), cache=0))


def space_of(dag: ComputeDAG) -> SketchSpace:
    """Its programs on a GPU that holds nothing."""
    return tensor_space(dag, hardware=WITHOUT_CACHE)


def test_there_is_a_choice_where_the_factors_are_larger_than_the_cache() -> None:
    dag, large = product(256, 256, 256), product(4096, 4096, 4096)
    widths = [len(tensor_space(each).layout.widths) for each in (dag, large)]
    assert widths == [8, 9]
    assert space_of(dag).layout.widths[4].choices == (1, 2, 4, 8, 16)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
def test_some_rows_of_blocks_are_gone_through_column_by_column(group: int) -> None:
    """Of four rows and two columns of blocks `group` rows, or all there are, in one column, then in the next."""
    dag = product(128, 64, 16)
    steps = with_lengths(space_of(dag), rows=16, columns=32, group=group)
    (kernel,) = lowered(dag, steps).kernels
    at_once = min(group, 4)
    outer = -(-4 // at_once)
    wanted = [
        (iteration * at_once + row, column)
        for iteration in range(outer)
        for column in range(2)
        for row in range(at_once)
    ]
    assert [place_of(kernel, number) for number in range(kernel.grid[0])] == wanted


def place_of(kernel: Kernel, number: int) -> tuple[int, int]:
    """The row and column of a block, from the first element that its first thread writes."""
    names: dict[Expr, int] = defaultdict(int, {INDICES[LoopKind.BLOCK_X]: number})
    for let in walk_stmt(kernel.body.body):
        if isinstance(let, Let):
            names[let.var] = value_of(let.value, names)
    written = [stmt for stmt in walk_stmt(kernel.body.body) if isinstance(stmt, Store) and stmt.buffer.name == "C"]
    row, column = (value_of(index, names) for index in written[0].indices)
    return row // 32, column // 32


@pytest.mark.parametrize("name", ["sizes that nothing divides", "conv2d with stride", "batched", "bias and relu"])
def test_every_order_computes_the_definition(name: str) -> None:
    dag = PRODUCTS[name]()
    values = inputs_of(dag, np.random.default_rng(1))
    given = [values[tensor] for tensor in dag.inputs]
    wanted = evaluate(dag.outputs, values)
    for steps in sampled(space_of(dag), 3, seed=2):
        for one, other in zip(execute(lowered(dag, steps), given), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2 * float(np.abs(other).max()))


def test_rows_that_fill_no_group_are_left_out() -> None:
    """Five rows of blocks, the last one cut, in groups of four: three blocks of each column have nothing to write."""
    dag = product(140, 40, 64)
    function = lowered(dag, with_lengths(space_of(dag), rows=16, columns=32, group=4, steps=2, depth=2))
    assert function.kernels[0].grid[0] == 8 * 2
    values = inputs_of(dag, np.random.default_rng(1))
    given = [values[tensor] for tensor in dag.inputs]
    (wanted,) = evaluate(dag.outputs, values)
    (found,) = execute(function, given)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    (run,) = run_ptx(ptx(function, TF32), function, given)
    np.testing.assert_allclose(run, found, rtol=1e-4, atol=1e-4)


def test_a_row_is_found_again_from_its_steps() -> None:
    space = space_of(PRODUCTS["batched"]())
    for row in space.sample(np.random.default_rng(0), 20):
        found = space.row_of(space.steps(row))
        assert found is not None
        np.testing.assert_array_equal(found, row)
