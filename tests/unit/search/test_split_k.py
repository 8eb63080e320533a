"""Long sums of few points on CUDA cores are also cut into parts, which a second kernel adds up."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import Target
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import AsMatmul, Rfactor
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from retune.compiler.te.evaluate import evaluate
from tests.support.property.programs import inputs_of
from tests.support.simt.execute import execute
from tests.support.tensor_core_products import conv, product
from tests.support.workloads import GPU, matmul


def cut(dag: ComputeDAG, target: str = "cuda -arch=sm_80") -> dict[int, SketchSpace]:
    """The programs of a graph by the number of parts of the sum."""
    found = {}
    for space in build_spaces(SearchTask("parts", dag, Target(target), GPU), SearchOptions()):
        number = next((number for number, step in enumerate(space.sketch) if isinstance(step, Rfactor)), None)
        split = None if number is None else space.sketch[number - 1]
        found[1 if split is None else split.extent // split.lengths[0]] = space  # type: ignore[attr-defined]
    return found


def with_relu(n: int, k: int) -> ComputeDAG:
    """A product of few points and what reads it element by element."""
    a, b, r = te.placeholder((n, k), name="A"), te.placeholder((k, n), name="B"), te.reduce_axis(k, "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C")
    return ComputeDAG([a, b, te.compute((n, n), lambda i, j: te.maximum(c[i, j] - 1.0, 0.0), "D")])


@pytest.mark.parametrize(
    ("dag", "parts"),
    [
        (matmul(64, 64, 1024), [1, 4, 8]),  # so many as leave each 128 terms
        (with_relu(64, 1024), [1, 4, 8]),
        (matmul(1024, 1024, 1024), [1]),  # points enough
        (matmul(64, 64, 128), [1]),  # too few terms
        (matmul(8, 8, 1024), [1]),  # points so few that a block's threads share each sum
        (matmul(64, 64, 1023), [1]),  # no parts of one length
        (product(64, 64, 1024, "float16", "float16"), [1]),  # each part would be rounded
        (conv(7, (128, 64), 3, "float32", "float32"), [1, 4, 8]),
    ],
)
def test_how_many_parts_there_are(dag: ComputeDAG, parts: list[int]) -> None:
    assert sorted(cut(dag, "cuda -arch=sm_75")) == parts


def test_what_tensor_cores_may_do_is_left_to_their_rule() -> None:
    dag = product(64, 64, 1024, "float16")
    plain = [step for space in cut(dag, "cuda -arch=sm_75").values() for step in space.sketch]
    assert sum(isinstance(step, Rfactor) for step in plain) == 2
    cutting = [space.sketch for parts, space in cut(dag).items() if parts > 1]
    assert cutting
    assert all(any(isinstance(step, AsMatmul) for step in steps) for steps in cutting)


@pytest.mark.parametrize(
    "dag", [pytest.param(matmul(16, 16, 256), marks=pytest.mark.long), with_relu(16, 256)], ids=["alone", "read"]
)
def test_parts_add_up_to_the_definition(dag: ComputeDAG) -> None:
    values = inputs_of(dag, np.random.default_rng(2))
    wanted = evaluate(dag.outputs, values)
    space = cut(dag)[2]
    rows = space.sample(np.random.default_rng(0), 64)
    (group,) = (group for _, group in space.groups(rows))
    for row in group.rows[space.legal(group)][:3]:
        function = lower_for_gpu(replay(dag, space.steps(row)), "k", GPU, check=True)
        assert len(function.kernels) == 2
        for one, other in zip(execute(function, [values[each] for each in dag.inputs]), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
