"""Products on CUDA cores fetch their tiles asynchronously, some iterations ahead, on GPUs that can."""

from collections.abc import Iterator

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import Target
from retune.compiler.ir.stmt import walk_stmt
from retune.compiler.ir.tensor_core import AsyncCopy
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Pipeline, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.gpu.kernels import kernels_of
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from retune.compiler.te.evaluate import evaluate
from tests.support.property.programs import inputs_of
from tests.support.ptx.machine import run_ptx
from tests.support.simt.execute import execute
from tests.support.simt_operators import OPERATORS
from tests.support.tiers import long_except
from tests.support.workloads import GPU, matmul

TARGET = Target("cuda -arch=sm_80")
NAMES = [name for name in OPERATORS if any(word in name for word in ("matmul", "conv2d"))]


def spaces_for(dag: ComputeDAG, target: Target = TARGET) -> tuple[SketchSpace, ...]:
    """The programs of a graph."""
    return build_spaces(SearchTask("pipelines", dag, target, GPU), SearchOptions())


def pipelined(space: SketchSpace, depth: int, count: int) -> Iterator[tuple[Step, ...]]:
    """Legal programs of a space with all pipelines so deep; none where it has no pipeline."""
    columns = [width.column for width in space.layout.widths if isinstance(space.sketch[width.step], Pipeline)]
    rows = space.sample(np.random.default_rng(depth), 64 if columns else 0)
    rows[:, columns] = depth
    for _, group in space.groups(rows):
        for row in group.rows[space.legal(group)][:count]:
            yield space.steps(row)


def copies(steps: tuple[Step, ...], dag: ComputeDAG) -> int:
    """Asynchronous copies in the code of a program."""
    function = lower_for_gpu(replay(dag, steps), "k", GPU)
    return sum(isinstance(stmt, AsyncCopy) for kernel in function.kernels for stmt in walk_stmt(kernel.body.body))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("depth", long_except([2], [1, 2, 3]))
def test_pipelined_programs_compute_the_definition_without_a_fault(name: str, depth: int) -> None:
    dag = OPERATORS[name]()
    values = inputs_of(dag, np.random.default_rng(2))
    wanted = evaluate(dag.outputs, values)
    for space in spaces_for(dag):
        for steps in pipelined(space, depth, 1):
            state = replay(dag, steps)
            function = lower_for_gpu(state, "k", GPU, check=True)
            (kernel, *_) = kernels_of(statement_nests(state), 1)
            assert kernel.memory[0] == function.kernels[0].bytes_of("shared")
            for one, other in zip(execute(function, [values[each] for each in dag.inputs]), wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=str(function))


@pytest.mark.parametrize("sizes", [(48, 32, 40), (30, 36, 42)])
def test_their_ptx_computes_the_definition(sizes: tuple[int, int, int]) -> None:
    dag = matmul(*sizes)
    values = inputs_of(dag, np.random.default_rng(3))
    (wanted,) = evaluate(dag.outputs, values)
    steps = next(steps for space in spaces_for(dag) for steps in pipelined(space, 3, 1) if copies(steps, dag))
    function = lower_for_gpu(replay(dag, steps), "k", GPU)
    text = ptx(function, TARGET)
    assert "cp.async" in text
    (found,) = run_ptx(text, function, [values[each] for each in dag.inputs])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_older_gpus_have_none() -> None:
    for target in ("cuda", "cuda -arch=sm_75"):
        for space in spaces_for(matmul(64, 64, 64), Target(target)):
            assert not any(isinstance(step, Pipeline) for step in space.sketch)


def test_what_is_computed_on_the_way_is_not_copied() -> None:
    """A cache of what was converted or scaled has no asynchronous copies, and so no pipeline of its own."""
    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    x, y = (te.compute((64, 64), lambda i, j, t=t: t[i, j] * 2.0, f"{t.name}2") for t in (a, b))
    r = te.reduce_axis(64, "k")
    dag = ComputeDAG([a, b, te.compute((64, 64), lambda i, j: te.sum(x[i, r] * y[r, j], r), "C")])
    spaces = spaces_for(dag)
    assert spaces
    assert not any(isinstance(step, Pipeline) for space in spaces for step in space.sketch)


def test_a_program_for_newer_gpus_is_refused_in_words_for_an_older_one() -> None:
    dag = matmul(64, 64, 64)
    steps = next(steps for space in spaces_for(dag) for steps in pipelined(space, 2, 1) if copies(steps, dag))
    with pytest.raises(LoweringError, match="k: copies asynchronously as GPUs from sm_80 on do, not sm_75"):
        ptx(lower_for_gpu(replay(dag, steps), "k", GPU), Target("cuda -arch=sm_75"))
